"""Study files: what they mean, and each bad input as one sentence with file and field."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UsageError
from core.files.config import build
from core.files.study import Ending, Tolerance, flow_row, flow_schema, pairs
from core.files.study_file import keep, kept, load, parse
from core.files.study_terms import (
    KNOBS,
    METRICS,
    MOST_GROWN,
    PROBE_WINDOW,
    RECEIVE_WINDOW,
    Knobs,
    LostPackets,
    same_text,
    text,
)
from tests.cells import examples
from tests.unit.study_samples import COMPETING, EMPTY, TABLES, study
from upshift.study import run
from vantage.programs import own_window


def test_cells_are_the_product_and_resolve_their_knobs() -> None:
    made = study(COMPETING)
    assert len(made.cells) == 4 * 3 * 3 * 7 * 4
    assert len(made.form(quick=True).cells) == 4 * 1 * 2 * 3 * 4
    assert made.columns == ("rate_mbit", "rtt_ms", "queue", "iw", "sender")
    assert made.lanes == ("rate_mbit",)
    cell = next(cell for cell in made.cells if cell.key == ("7", "100", "bdp x 1.5", "50", "paced-40"))
    knobs = cell.knobs
    assert (knobs.rate_mbit, knobs.rtt_ms, knobs.iw, knobs.beside, knobs.objects) == (7, 100, 50, "elephant", (73848,))
    assert knobs.queue_bytes == round(1.5 * 7e6 / 8 * 0.1)
    assert knobs.send == {"pace": "on"}
    assert knobs.sysctls == {"net.ipv4.tcp_pacing_ss_ratio": 40}


def test_several_tables_add_up_and_equal_cells_count_once() -> None:
    made = study(EMPTY)
    assert [cell.key for cell in made.cells] == [
        ("segments", "1.2", "14480", "3"),
        ("segments", "1.2", "14480", "10"),
        ("segments", "1.2", "72400", "3"),
        ("segments", "1.2", "72400", "10"),
        ("rate", "50", "70952", "3"),
        ("rate", "50", "70952", "10"),
        ("rate", "200", "70952", "3"),
        ("rate", "200", "70952", "10"),
    ]
    twice = EMPTY.replace(
        "[[figure]]", '[[cells]]\ncells = ["rate"]\nrate_mbit = [50]\nobjects = 70952\niw = [3]\n[[figure]]', 1
    )
    assert study(twice.replace("objects = 70952", "objects = [70952]")).cells == made.cells


def test_a_column_of_a_knob_has_a_value_in_every_table_of_cells() -> None:
    made = study(EMPTY.replace('cells = ["rate"]', 'cells = ["rate"]\nloss_percent = [0.5]', 1))
    assert {cell.texts["cells"]: cell.texts["loss_percent"] for cell in made.cells} == {
        "segments": "0",
        "rate": "0.5",
    }


def test_levels_of_two_columns_may_set_parts_of_one_table() -> None:
    text = COMPETING.replace(
        "[[cells]]",
        '[levels.sack]\non = {}\noff = { sysctls = { "net.ipv4.tcp_sack" = 0 } }\n[[cells]]\nsack = ["on", "off"]',
        1,
    )
    text = text.replace('rows = "queue"', 'rows = "queue"').replace("only = { sender", 'only = { sack = "on", sender')
    cell = next(
        cell for cell in study(text).cells if cell.texts["sack"] == "off" and cell.texts["sender"] == "paced-40"
    )
    assert cell.knobs.sysctls == {"net.ipv4.tcp_sack": 0, "net.ipv4.tcp_pacing_ss_ratio": 40}


def test_the_gain_is_a_metric_of_cells_without_its_column() -> None:
    made = study(EMPTY)
    assert set(made.metrics) - set(METRICS) == {"gain_ms", "gain_percent", "iw3_ms", "iw10_ms"}
    gains = made.gains
    assert list(gains)[:2] == [("segments", "1.2", "14480"), ("segments", "1.2", "72400")]
    cell, first, second = gains["segments", "1.2", "14480"]
    assert "iw" not in cell.values
    assert (first.knobs.iw, second.knobs.iw) == (3, 10)


def test_pairs_are_equal_in_what_not_both_sides_name() -> None:
    made = study(COMPETING)
    claims = {claim.id: claim for claim in made.claims}
    c9 = pairs(claims["C9"], made.cells)
    assert len(c9) == 3 * 4
    for one, other in c9:
        assert {name for name in one.values if one.texts[name] != other.texts[name]} == {"sender"}
    assert len(pairs(claims["C8"], made.cells)) == 4 * 7
    assert len(pairs(claims["C2"], made.cells)) == 3
    assert len(pairs(claims["C2"], made.form(quick=True).cells)) == 0, "the quick form has no window of 50"
    every = dataclasses.replace(claims["C2"], a={"iw": ("50", "100")}, b={"iw": ("4", "10")})
    assert len(pairs(every, made.cells)) == 3 * 4


def test_expected_tables_keep_the_rows_of_their_cells() -> None:
    gains, without, flights = study(EMPTY).expected
    assert [row["objects"] for row in gains.rows] == ["14480", "72400"]
    assert gains.rules["gain_ms"] == Tolerance(percent=10, least=5)
    assert Tolerance(percent=10, least=5).around(70) == pytest.approx(7)
    assert Tolerance(percent=10, least=5).around(20) == 5
    assert gains.matched(gains.rows[0]) == {
        "cells": ("segments",),
        "rate_mbit": ("1.2",),
        "rtt_ms": ("70",),
        "objects": ("14480",),
    }
    assert without.rules == {"retransmissions": "drops", "drops": 0}
    assert len(flights.rows) == 3


def test_an_empty_cell_of_a_table_is_any_value_that_only_leaves() -> None:
    """Such a row was left out without a word, so that its cells were compared with nothing."""
    only = 'flights = "exact"\nonly = { rate_mbit = 1.2 }'
    [*_, flights] = study(
        EMPTY.replace('flights = "exact"', only, 1),
        {**TABLES, "flights.csv": "objects,rate_mbit,iw,flights\n14480,,3,3\n14480,1.2,10,1\n"},
    ).expected
    assert [row["iw"] for row in flights.rows] == ["3", "10"]
    assert flights.matched(flights.rows[0])["rate_mbit"] == ("1.2",)


def test_windows_that_no_flow_would_have_are_refused() -> None:
    """The client's kernel announces 310 segments at first, and a window that the sender keeps has 500 at most."""
    assert (run.INITRWND, own_window.MOST_GROWN) == (RECEIVE_WINDOW, MOST_GROWN)

    def fault(**given: object) -> str | None:
        return build({"rtt_ms": 50, "objects": [50_000]} | given, Knobs, where="").fault()

    assert fault(iw=300) is None and fault(iw=2000, send={"first": 310 * 1448}) is None
    assert fault(iw=2000, send={"first": 310 * 1448 + 1}) is not None
    assert fault(client="fetch", iw=2000) is None and fault(client="fetch", grow="two", iw=500) is None
    assert fault(client="fetch", grow="two", iw=501) == "iw 501 is above 500, the largest window of grow"
    assert fault(grow="two", iw=311) == "iw 311 is above 310, the client's first receive window"
    assert fault(grow="two", send={"first": 3000}) == "grow has a window of its own, so send.first is ignored"
    assert fault(iw=3, send={"first": "rfc3390"}) is None


def test_a_download_that_the_prober_s_own_window_would_limit_is_refused() -> None:
    """6 MB from IW 10 are 9 flights on a path without a limit, and were 16 into a window of 359 segments."""
    source = Path(__file__).parents[2] / "rust/iwprobe/src/probe.rs"
    numbers = dict(re.findall(r"const (MOST_REMINDERS|SCALE): u\d+ = (\d+);", source.read_text()))
    assert (65_535 - int(numbers["MOST_REMINDERS"])) << int(numbers["SCALE"]) == PROBE_WINDOW

    def flights(most: float) -> int:
        left, window, count = 6_000_000 / 1460, 10.0, 0
        while left > 0:
            left, window, count = left - min(window, most), window * 2, count + 1
        return count

    assert (flights(1e9), flights(PROBE_WINDOW / 1460)) == (9, 16)

    def fault(size: int, **given: object) -> str | None:
        return build({"rtt_ms": 50, "objects": [size], "client": "fetch"} | given, Knobs, where="").fault()

    said = "iwprobe's receive window of 524216 bytes may limit it: up to 3007240 may be under way"
    assert fault(6_000_000) == said
    assert fault(6_000_000, rate_mbit=10) is None, "the path holds less: 62,500 bytes and a queue of 256,000"
    assert fault(6_000_000, rate_mbit=10, queue="4 MB") is not None
    assert fault(730_000) is None and fault(524_216, iw=2000) is None and fault(530_000, iw=2000) is not None
    assert build({"rtt_ms": 50, "objects": [6_000_000]}, Knobs, where="").fault() is None, "the kernel's grows"


def test_tables_are_beside_the_file_or_shipped(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    for name, content in TABLES.items():
        (shipped / name).write_text(content)
    path = tmp_path / "gains.toml"
    path.write_text(EMPTY)
    made = load(path, shipped)
    assert made.files == {"study.toml": EMPTY, **TABLES}
    for form in (made, made.form(quick=True)):
        keep(form, tmp_path / "out")
        assert kept(tmp_path / "out") == form
    assert made.tables["numbers.csv"] == ({"what": "gain of a paper", "value": "10 %"},)
    (tmp_path / "numbers.csv").write_text("what,value\nanother,1\n")
    assert load(path, shipped).tables["numbers.csv"][0]["what"] == "another"
    (shipped / "gains.csv").unlink()
    with pytest.raises(UsageError, match=r"gains\.csv: file not found"):
        load(path, shipped)


def test_a_row_of_results_has_every_column() -> None:
    made = study(COMPETING)
    cell = made.cells[0]
    row = flow_row(made, cell, 0, Ending.OK, {"time_ms": 310.5})
    schema = flow_schema(made)
    assert list(row) == schema.names
    assert (row["rate_mbit"], row["queue"], row["time_ms"], row["drops"], row["reason"]) == (
        4,
        "bdp x 0.5",
        310.5,
        None,
        None,
    )
    assert str(schema.field("iw").type) == "double"
    assert str(schema.field("sender").type) == "string"


def test_the_same_number_is_the_same_text() -> None:
    assert [text(value) for value in (26, 26.0, 1.2, True, None, [1, 25], "bdp x 1")] == [
        "26",
        "26",
        "1.2",
        "true",
        "",
        "1;25",
        "bdp x 1",
    ]
    assert [same_text(cell) for cell in ("26.0", "240.5", "true", " 26", "bdp x 1", "")] == [
        "26",
        "240.5",
        "true",
        " 26",
        "bdp x 1",
        "",
    ]


def test_every_name_has_a_sentence() -> None:
    for about in (*KNOBS.values(), *METRICS.values()):
        assert about.help.endswith(".")
    assert LostPackets(down=(0,)).up == ()


CHANGES = [
    ("schema = 1", "schema = 2", "it has schema 2"),
    ("seed = 1", "sede = 1", "field sede: unknown field; did you mean seed"),
    ("repetitions = 30", "repetitions = 1", "field repetitions"),
    ('name = "fct-competing"', 'name = "../x"', "field name"),
    ('lanes = "rate_mbit"', 'lanes = "rate"', "lanes: there is no column rate; did you mean rate_mbit"),
    ("objects = [73848]", "object = [73848]", "fixed: field object: unknown field; did you mean objects"),
    ("objects = [73848]", "", "cells 1: neither html nor objects is set"),
    ("objects = [73848]", "objects = [-1]", "fixed: field objects.0"),
    ('beside = "elephant"', 'beside = "mouse"', "fixed: field beside"),
    ('beside = "elephant"', 'beside = "rival 7"', "beside 'rival 7': this window has no address"),
    ('beside = "elephant"', 'grow = "acks"\nloss_percent = 1', "cells 1: grow counts in loss-free flows only"),
    ('beside = "elephant"', "drop = [0]\nloss_percent = 1", "the emulator has one of them on a path"),
    ('"net.ipv4.tcp_pacing_ss_ratio" = 40', '"kernel.panic" = 1', "sysctls have a name that is not in net.ipv4"),
    (
        'beside = "elephant"',
        'client = "again"\nidle_ms = 70_000',
        "fixed: field idle_ms: .* or equal to 60000",
    ),
    ('beside = "elephant"', 'client = "fetch"\nack_every = 2_000', "fixed: field ack_every: .* or equal to 1000"),
    ("objects = [73848]", "objects = [20]", "an answer has 64 to 50000000 bytes, its head too"),
    ("burst = {}", "burst = { send = { pace = 0 } }", "cells 1: send.pace 0 is not 0.01 to 100 or 'on'"),
    ("burst = {}", "burst = { send = { pace = 'fast' } }", "cells 1: send.pace 'fast' is not 0.01 to 100 or 'on'"),
    ("burst = {}", "burst = { send = { think = -5 } }", "cells 1: send.think -5 is not 0 to 60000"),
    ("burst = {}", "burst = { pace = 1 }", "levels.sender.burst: field pace: unknown field"),
    ("burst = {}", "burst = { iw = 10 }", "cells 1: its column sender sets iw, as another one does"),
    ("[levels.sender]", "[levels.iw]", "levels.iw: a column of levels cannot have this name"),
    ("[levels.sender]", "[levels.outcome]", "levels.outcome: a column of levels cannot have this name"),
    ("rtt_ms = [30, 100, 250]", "rtt = [30]", "cells 1.rtt: unknown column; did you mean rtt_ms"),
    ("rtt_ms = [30, 100, 250]", "rtt_ms = []", "cells 1.rtt_ms: it is not a list of values"),
    ("rtt_ms = [30, 100, 250]", "rtt_ms = [-30, 30]", "cells 1.rtt_ms: field rtt_ms"),
    ("rate_mbit = [4, 7, 26, 100]", "rate_mbit = [4, 301]", "rate_mbit is above 300"),
    ("iw = [4, 10, 16, 20, 32, 50, 100]", "iw = [5, 10]", "iw 5 has no address in the lab"),
    ("iw = [4, 10, 16, 20, 32, 50, 100]", "iw = [10, 2000]", "iw 2000 is above 310, the client's first receive window"),
    ("burst = {}", "burst = { send = { first = 1e4 } }", r"send.first 10000.0 is not a whole number"),
    ("burst = {}", "burst = { send = { first = 20_000 } }", "send.first 20000 is more than 4 segments hold"),
    ('["bdp x 0.5", "bdp x 1", "bdp x 1.5"]', '["0 packets"]', "queue has 0 bytes, less than a packet"),
    ('["bdp x 0.5", "bdp x 1", "bdp x 1.5"]', '["long"]', "queue: 'long' is not a valid size"),
    ('["bdp x 0.5", "bdp x 1", "bdp x 1.5"]', f'["bdp x {"9" * 400}"]', "9' is not a valid size"),
    ('["bdp x 0.5", "bdp x 1", "bdp x 1.5"]', "[{ a = 1 }]", "cells 1.queue: a value cannot be a table"),
    ('"paced-40", "bbr"]', '"paced-4"]', "unknown level 'paced-4'; did you mean paced-40"),
    (
        "quick = { rtt_ms",
        "quick = { loss_percent = [0], rtt_ms",
        "cells 1.quick.loss_percent: only a list of the table",
    ),
    ('metric = "time_ms"', 'metric = "time"', "figure 1: unknown metric time; did you mean time_ms"),
    ('metric = "time_ms"', 'metric = "segments"', "figure 1: the client kernel has no metric segments"),
    ('metric = "time_ms"', 'metric = "voice_lost"', "figure 1: voice_lost needs beside one of: voice"),
    ('rows = "queue"', "", "figure 1: column queue has 3 values there, and is not drawn"),
    ('rows = "queue"', 'rows = "queues"', "figure 1.draw: there is no column queues"),
    ("rate_mbit = 4 }", "rate_mbit = 5 }", "claim C9: no cell there has rate_mbit '5'"),
    ('b = { sender = "burst" }', 'b = { sender = "burst", iw = [4] }\na.x = 1', "not valid TOML"),
    ('b = { sender = "burst" }', 'b = { sender = ["burst", "paced"] }', "claim C9: a and b have the same cells"),
    ('b = { sender = "burst" }', "b = { rtt_ms = 30 }", "claim C9.b: where has the column rtt_ms, too"),
    ("ratio = [0, 1]", "", "claim C9: it needs either ratio or difference"),
    ("ratio = [0, 1]", "ratio = [1, 0]", r"claim C9: \[1, 0\] is not a range"),
    ("ratio = [0, 1]", "ratio = [nan, 1]", r"claim C9: \[nan, 1\] is not a range"),
    ('id = "C8"', 'id = "C9"', "there are two claims C9"),
]


@pytest.mark.parametrize(("before", "after", "said"), CHANGES)
def test_a_fault_is_one_sentence_with_its_field(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in COMPETING
    path = tmp_path / "study.toml"
    path.write_text(COMPETING.replace(before, after, 1))
    with pytest.raises(UsageError, match=said) as caught:
        load(path)
    sentence = caught.value.sentence()
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence


TABLE_CHANGES = [
    ("gain = { iw = [3, 10] }", "gain = { iw = [3] }", "gain: it is not one column with two values"),
    ("gain = { iw = [3, 10] }", "gain = { iw = [3, 4] }", "gain: no cell there has iw '4'"),
    ("gain = { iw = [3, 10] }", "gain = { rate_mbit = [1.2, 50] }", "gain: no two cells differ in nothing else"),
    ("gain = { iw = [3, 10] }", "", "figure 1: unknown metric gain_ms"),
    (
        "iw = [3, 10]\n[[cells]]",
        "iw = [3, 10]\nquick = { rate_mbit = [1.2, 2.5] }\n[[cells]]",
        "figure 1: column rate_mbit has 2 values there, and is not drawn",
    ),
    ('table = "gains.csv"', 'table = "../gains.csv"', "expected 1: '../gains.csv' is not the name of a file"),
    ('table = "gains.csv"', 'table = "flights.csv"', "expected 1: the table flights.csv has no column gain_ms"),
    ('table = "gains.csv"', "", "expected 1.iw3_ms: this needs a table"),
    ("iw3_ms = { least = 5 }", "iw3_ms = { most = 5 }", "expected 1.iw3_ms: field most: unknown field"),
    ("iw3_ms = { least = 5 }", "iw4_ms = { least = 5 }", "expected 1: unknown metric iw4_ms; did you mean iw3_ms"),
    ("iw3_ms = { least = 5 }", "iw3_ms = 7", "expected 1.iw3_ms: it is no comparison"),
    ('retransmissions = "drops"', 'retransmissions = "drop"', "unknown metric drop; did you mean drops"),
    ("drops = 0", "only = { iw = 4 }", "expected 2: no cell there has iw '4'"),
    (
        "a = { iw = 10 }\nb = { iw = 3 }",
        'a = { cells = "rate" }\nb = { cells = "segments" }',
        "faster: no cell of a has a partner",
    ),
    ('flights = "exact"', "", "expected 3: it has no metric"),
]


def test_a_quick_form_may_have_a_value_of_its_own() -> None:
    quick = "iw = [3, 10]\nquick = { rate_mbit = [2.5] }\n[[cells]]"
    short = study(EMPTY.replace("iw = [3, 10]\n[[cells]]", quick, 1)).form(quick=True)
    assert [cell.texts["rate_mbit"] for cell in short.cells][:4] == ["2.5"] * 4


@pytest.mark.parametrize(("before", "after", "said"), TABLE_CHANGES)
def test_a_fault_of_gains_and_tables(before: str, after: str, said: str) -> None:
    assert before in EMPTY
    with pytest.raises(UsageError, match=said):
        study(EMPTY.replace(before, after, 1))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("objects,iw,flights\n14480,4,3\n", "a row of the table flights.csv has no cell"),
        ("objects,iw,flights\n14480,3\n", "row 2 of flights.csv has 2 cells, not 3"),
        ("objects,iw,flights\n14480,3,many\n", "'many' in column flights of the table flights.csv is no number"),
        ("object,iw,flights\n14480,3,3\n", "column object of the table flights.csv is neither"),
        ("", "the table flights.csv is empty"),
    ],
)
def test_a_fault_of_a_table(content: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        study(EMPTY, {**TABLES, "flights.csv": content})


_KEYS = st.sampled_from(
    [
        "schema",
        "name",
        "cells",
        "fixed",
        "levels",
        "figure",
        "claim",
        "expected",
        "gain",
        "quick",
        "iw",
        "rtt_ms",
        "a",
        "queue",
        "drop",
        "lost",
    ]
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 400)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["bdp x 1", "exact", "time_ms"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.dictionaries(_KEYS, _VALUES),
    st.sampled_from(["cells", "claim", "figure", "expected", "levels", "fixed", "gain"]),
    _VALUES,
)
def test_anything_is_a_study_or_a_sentence(top: dict[str, object], key: str, value: object) -> None:
    import tomllib

    good = tomllib.loads(EMPTY)
    for data in ({**good, key: value}, {**good, **top}, top):
        try:
            made = parse(data, where="study.toml", table=TABLES.__getitem__)
        except UsageError as error:
            assert error.sentence().startswith("study.toml")
        except KeyError as error:  # a table that the test does not have
            assert error.args[0] not in TABLES
        else:
            assert made.cells


@settings(max_examples=examples(40), deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_a_table_or_a_sentence(content: str) -> None:
    try:
        study(EMPTY, {**TABLES, "numbers.csv": content, "flights.csv": content})
    except UsageError as error:
        assert error.sentence().startswith("study.toml")
