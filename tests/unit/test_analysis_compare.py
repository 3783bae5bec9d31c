"""Two made campaigns against each other: what moved, what differs, and the exit code of the gate."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from analysis.compare import result
from analysis.compare.changes import Change, ChangedQuantity, ChangeVerdict
from analysis.measures import dataset
from analysis.measures.rows import Metric
from core import paper
from core.domain import Download
from core.errors import UsageError
from tests.cells import Repeats
from tests.unit.analysis_factory import make_download, write_campaign
from upshift.cli import app

NAMES = ("BL", "BL2", "WS", "ALL", "quiche")
COMPARISONS = [c for c in paper.COMPARISONS if {c.config, c.vs} <= set(NAMES)]
Change_ = Callable[[dict[str, Any]], Any]


def downloads(
    seed: int, change: Change_ = lambda _: None, *, domains: int = 14, iterations: int = 2, noise: float = 0.02
) -> list[Download]:
    """Every configuration on every domain, whose path is the same for all seeds; `change` may alter each download."""
    rng = np.random.default_rng(seed)
    found = []
    for domain in range(domains):
        for iteration in range(1, iterations + 1):
            for name in NAMES:
                time_s = (0.5 + 0.1 * domain) * (0.7 if name in ("WS", "ALL") else 1.0)
                arguments: dict[str, Any] = {
                    "configuration": name,
                    "domain": f"d{domain:02}.example",
                    "iteration": iteration,
                    "last_byte_s": time_s * float(rng.lognormal(0, noise)),
                }
                change(arguments)
                found.append(make_download(**arguments))
    return found


def slower(name: str, factor: float) -> Change_:
    def change(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == name:
            arguments["last_byte_s"] *= factor

    return change


def folder(path: Path, rows: list[Download], **environment: Any) -> Path:
    document = {"schema": 1, "plan_sha256": "0", "vantage_points": {"MUC": {"kernel": "6.1", **environment}}}
    present = {d.configuration for d in rows}
    comparisons = [c for c in COMPARISONS if {c.config, c.vs} <= present]
    return write_campaign(path, rows, comparisons=comparisons, environment=document)


def compared(tmp_path: Path, a: list[Download], b: list[Download], threshold: float = 0.05) -> result.Result:
    return result.compare(folder(tmp_path / "a", a), folder(tmp_path / "b", b), threshold=threshold)


def row(made: result.Result, name: str, quantity: ChangedQuantity) -> Change:
    (found,) = [change for change in made.changes if (change.name, change.quantity) == (name, quantity)]
    return found


def command(*arguments: object) -> tuple[int, str, str]:
    outcome = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if outcome.exception and not isinstance(outcome.exception, SystemExit):
        raise outcome.exception
    return outcome.exit_code, outcome.stdout, outcome.stderr


def test_a_slower_configuration_closes_the_gate(tmp_path: Path) -> None:
    made = compared(tmp_path, downloads(1), downloads(2, slower("WS", 1.12)))
    assert {(c.name, c.quantity) for c in made.worse} == {
        ("WS", ChangedQuantity.TIME),
        ("WS vs BL", ChangedQuantity.SPEEDUP),
    }
    change = row(made, "WS", ChangedQuantity.TIME)
    assert change.change == pytest.approx(1 / 1.12, abs=0.02)
    assert change.low is not None
    assert change.high is not None
    assert change.low < 1 / 1.12 < change.high < 1 / 1.05
    assert change.b is not None
    assert change.a is not None
    assert change.b / change.a == pytest.approx(1.12, abs=0.04)
    # ALL vs WS got better, as WS got worse: that closes nothing.
    assert row(made, "ALL vs WS", ChangedQuantity.SPEEDUP).verdict is ChangeVerdict.BETTER
    assert row(made, "BL", ChangedQuantity.TIME).verdict is ChangeVerdict.EQUAL
    # The other way round everything is better or equal.
    back = result.compare(made.b, made.a, threshold=0.05)
    assert row(back, "WS", ChangedQuantity.TIME).change == pytest.approx(1 / (change.change or math.nan))
    assert {c.name for c in back.worse} == {"ALL vs WS"}


def test_what_a_busy_host_slowed_does_not_close_the_gate(tmp_path: Path) -> None:
    def starved(arguments: dict[str, Any]) -> None:
        slower("quiche", 2.0)(arguments)
        if arguments["configuration"] == "quiche":
            arguments["run_delay_s"] = 0.4 * arguments["last_byte_s"]

    made = compared(tmp_path, downloads(1), downloads(2, starved))
    time, speedup = row(made, "quiche", ChangedQuantity.TIME), row(made, "quiche vs ALL", ChangedQuantity.SPEEDUP)
    assert (time.verdict, time.gates, speedup.verdict, speedup.gates) == (
        *(ChangeVerdict.WORSE, False),
        *(ChangeVerdict.WORSE, False),
    )
    assert not made.worse and row(made, "ALL", ChangedQuantity.TIME).gates
    aside = sum(change.verdict is ChangeVerdict.WORSE for change in made.changes)
    assert aside and made.sentence().startswith(f"No row that counts got worse by more than 5 %; {aside} in brackets")
    (note,) = [note for note in made.notes if "too busy" in note]
    assert note.startswith("Host of B too busy: in more than a tenth of the downloads of quiche the client waited")


def test_what_a_busy_host_voided_opens_no_gate(tmp_path: Path) -> None:
    """Its times are in no row."""

    def starved(arguments: dict[str, Any]) -> None:
        slower("quiche", 2.0)(arguments)
        if arguments["iteration"] == 2:
            arguments |= {"void_reason": "emulator_late", "run_delay_s": 0.4 * arguments["last_byte_s"]}

    made = compared(tmp_path, downloads(1), downloads(2, starved))
    time = row(made, "quiche", ChangedQuantity.TIME)
    assert (time.verdict, time.gates) == (ChangeVerdict.WORSE, True) and time in made.worse
    assert not any("too busy" in note for note in made.notes)


def test_markdown_says_what_its_table_leaves_out(tmp_path: Path) -> None:
    few = compared(tmp_path, downloads(1, domains=5), downloads(2, domains=5))
    text = few.files("md")
    assert few.unmoved and "Undecided: ok of 100.0 % in both, but too few domains" in text
    assert "In brackets: rows that do not decide the exit code." in text
    assert all(note in text for note in few.notes)


def test_no_download_is_an_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So campaigns of any size compare."""
    monkeypatch.setattr(dataset, "MOST_RECORDS", 0)
    made = compared(tmp_path, downloads(1), downloads(2, slower("WS", 1.12)))
    assert {c.name for c in made.worse} == {"WS", "WS vs BL"}
    with pytest.raises(UsageError, match="more than the 0 that can be changed one by one"):
        _ = dataset.load([made.a]).records


def test_less_than_the_threshold_leaves_it_open(tmp_path: Path) -> None:
    a, b = downloads(1), downloads(2, slower("WS", 1.12))
    assert not compared(tmp_path, a, b, threshold=0.20).worse
    assert row(compared(tmp_path, a, b, threshold=0.20), "WS", ChangedQuantity.TIME).verdict is ChangeVerdict.EQUAL


@pytest.mark.thorough
def test_campaigns_of_the_same_hardly_ever_close_it(tmp_path: Path, repeats: Repeats) -> None:
    """Even without a threshold: the false discovery rate is 5 %, for the worse half of it."""
    alarms, times = 0, repeats(quick=10, soak=60)
    for seed in range(times):
        pair = (downloads(2 * seed + side, noise=0.1, iterations=1) for side in (0, 1))
        a, b = (folder(tmp_path / f"{seed}{name}", rows) for name, rows in zip("ab", pair, strict=True))
        alarms += bool(result.compare(a, b, threshold=0.0).worse)
    assert alarms <= 1 + times // 10


def test_failures_move_the_share_of_ok_downloads(tmp_path: Path) -> None:
    def failing(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "quiche":
            arguments |= {"outcome": "failed", "failure": "connect_timeout", "last_byte_s": None}

    made = compared(tmp_path, downloads(1), downloads(2, failing))
    assert [(c.name, c.quantity) for c in made.worse] == [("quiche", ChangedQuantity.OK)]
    change = row(made, "quiche", ChangedQuantity.OK)
    assert (change.a, change.b, change.change) == (1.0, 0.0, -1.0)
    # Nothing is left of its times, so they have no row.
    assert not [c for c in made.changes if c.name == "quiche" and c.quantity is ChangedQuantity.TIME]


@pytest.mark.parametrize(("lost", "change", "called"), [(0, 0.0, "equal"), (12, -0.12, "worse")])
def test_a_campaign_that_stopped_within_an_iteration_moves_no_share(
    tmp_path: Path, lost: int, change: float, called: str
) -> None:
    """Its first targets, all of which work, have two runs: they hid that others were lost, or looked like a gain."""

    def refused_from(first: int) -> Change_:
        def refused(arguments: dict[str, Any]) -> None:
            if arguments["configuration"] == "quiche" and arguments["domain"] >= f"d{first}":
                arguments |= {"outcome": "failed", "failure": "connect_timeout", "last_byte_s": None}

        return refused

    a = downloads(1, refused_from(80), domains=100, iterations=1)
    b = downloads(2, refused_from(80 - lost), domains=100, iterations=2)
    made = compared(tmp_path, a, [one for one in b if one.iteration == 1 or one.domain < f"d{80 - lost}"])
    found = row(made, "quiche", ChangedQuantity.OK)
    assert (found.a, found.b) == (pytest.approx(0.8), pytest.approx(0.8 + change))
    assert (found.change, found.verdict) == (pytest.approx(change), called)


def test_shares_count_runs_where_all_targets_have_as_many(tmp_path: Path) -> None:
    """Of three iterations of which a third fails by chance, an interval knows more than of one."""

    def flaky(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "quiche" and (int(arguments["domain"][1:3]) + arguments["iteration"]) % 3 == 0:
            arguments |= {"outcome": "failed", "failure": "connect_timeout", "last_byte_s": None}

    widths = []
    for iterations in (1, 3):
        sides = (downloads(seed, flaky, domains=60, iterations=iterations) for seed in (1, 2))
        change = row(compared(tmp_path / str(iterations), *sides), "quiche", ChangedQuantity.OK)
        assert (change.a, change.change) == (pytest.approx(2 / 3), 0.0)
        widths.append((change.high or math.nan) - (change.low or math.nan))
    assert widths[1] < widths[0]


def test_censored_downloads_are_bounds(tmp_path: Path) -> None:
    def cut(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "BL" and arguments["domain"] < "d08":
            arguments |= {"outcome": "censored", "failure": "time_budget", "budget_s": 10.0, "last_byte_s": 10.0}

    made = compared(tmp_path, downloads(1), downloads(2, cut))
    change = row(made, "BL", ChangedQuantity.TIME)
    # At least ten times slower on 8 of 14 domains: the median is only known to be at most that.
    assert change.change is None
    assert change.b is None
    assert change.low == 0.0
    assert change.high is not None
    assert change.high > 0.9


def test_shares_of_faster_pairs_move(tmp_path: Path) -> None:
    def reversed_quiche(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "quiche":
            arguments["last_byte_s"] *= 1.5

    def fast_quiche(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] == "quiche":
            arguments["last_byte_s"] *= 0.9

    made = compared(tmp_path, downloads(1, fast_quiche), downloads(2, reversed_quiche))
    change = row(made, "quiche vs BL", ChangedQuantity.FASTER)
    assert (change.a, change.b) == (1.0, 0.0)
    assert change.verdict is ChangeVerdict.WORSE
    # Its noise floor cannot close the gate.
    assert not row(made, "BL2 vs BL", ChangedQuantity.SPEEDUP).gates


def test_undecided_pairs_move_no_share(tmp_path: Path) -> None:
    def cut(arguments: dict[str, Any]) -> None:
        if arguments["configuration"] in ("BL", "WS") and arguments["domain"] < "d06":
            arguments |= {"outcome": "censored", "failure": "time_budget", "budget_s": 10.0, "last_byte_s": 10.0}

    made = compared(tmp_path, downloads(1), downloads(2, cut))
    back = result.compare(made.b, made.a, threshold=0.05)
    change, other = (row(one, "WS vs BL", ChangedQuantity.FASTER) for one in (made, back))
    # Of 14 domains at least 8 are still faster, perhaps all: neither campaign is better.
    assert (change.a, change.b, change.change, change.p) == (1.0, None, None, 1.0)
    assert change.low is not None and change.high is not None and change.low < 8 / 14 - 1 and change.high > 0
    assert change.verdict is ChangeVerdict.UNDECIDED
    assert (other.a, other.b, other.verdict) == (None, 1.0, ChangeVerdict.UNDECIDED)
    assert ["WS vs BL", "faster", "14", "100.0", "?"] in [cells[:5] for cells in made.cells()]


def test_equal_shares_of_few_domains_are_undecided(tmp_path: Path) -> None:
    def half(arguments: dict[str, Any], even: int) -> None:
        if arguments["configuration"] == "WS" and int(arguments["domain"][1:3]) % 2 == even:
            arguments["last_byte_s"] *= 3

    made = compared(tmp_path, downloads(1, lambda one: half(one, 0)), downloads(2, lambda one: half(one, 1)))
    change = row(made, "WS vs BL", ChangedQuantity.FASTER)
    assert (change.a, change.b, change.verdict) == (0.5, 0.5, ChangeVerdict.UNDECIDED)
    assert ["WS vs BL", "faster", "14", "50.0", "50.0"] in [cells[:5] for cells in made.cells()]
    gates = [one for one in made.changes if one.gates]
    undecided = sum(one.verdict is ChangeVerdict.UNDECIDED for one in gates)
    assert f"Undecided: {undecided} of {len(gates)} rows." in made.sentence()
    assert {(one.a, one.b) for one in made.unmoved} == {(0.0, 0.0), (1.0, 1.0)}


def test_only_common_targets_count_and_the_others_are_told(tmp_path: Path) -> None:
    extra = [make_download(domain="only-b.example", configuration=name, last_byte_s=90.0) for name in NAMES]
    made = compared(tmp_path, downloads(1, domains=15), [*downloads(2), *extra])
    assert {change.domains for change in made.changes} == {14}
    (targets,) = [one for one in made.differences if one.what.startswith("targets")]
    assert (targets.what, targets.a) == ("targets (14 in both)", "15, only here: d14.example")
    assert targets.b == "15, only here: only-b.example"


def test_too_few_domains_give_no_verdict(tmp_path: Path) -> None:
    made = compared(tmp_path, downloads(1, domains=9), downloads(2, slower("WS", 3.0), domains=9))
    assert {change.verdict for change in made.changes} == {ChangeVerdict.UNDECIDED}
    assert {change.low for change in made.changes} == {None}
    assert "No interval and no verdict below 10 domains (here: 9 and more)." in made.notes


def test_what_differs_is_told(tmp_path: Path) -> None:
    newer = [make_download(configuration=n, client_version="0.31", started_at=1.9e9) for n in ("BL", "WS")]
    older = [make_download(configuration=n, client_version="0.30") for n in ("BL", "WS")]
    a = folder(tmp_path / "a", older, versions={"caddy": "2.6"}, links=["1: lo"], memory_kib=4)
    b = folder(tmp_path / "b", newer, kernel="6.9", versions={"caddy": "2.6"}, links=["2: lo"], memory_kib=4)
    told = {one.what: (one.a, one.b) for one in result.compare(a, b, threshold=0.05).differences}
    assert told == {
        "dates (UTC)": ("2027-01-15 08:00 to 2027-01-15 08:00", "2030-03-17 17:46 to 2030-03-17 17:46"),
        "client requests": ("0.30", "0.31"),
        "kernel": ("6.1", "6.9"),
    }


def test_what_differs_late_in_a_long_text_is_seen(tmp_path: Path) -> None:
    """pycurl names its QUIC library after 120 characters, and two versions of it looked like the same."""
    names = "PycURL/7.49.0 libcurl/8.23.0 OpenSSL/3.6.5 zlib/1.2.13 brotli/1.2.1 libpsl/0.21.5 libssh2/1.11.1_DEV "
    names += "nghttp2/1.70.0 ngtcp2/{} nghttp3/1.18.0 mit-krb5/1.22.2"
    a, b = (
        folder(
            tmp_path / name, [make_download(configuration=c, client_version=names.format(own)) for c in ("BL", "WS")]
        )
        for name, own in (("a", "1.25.0"), ("b", "1.26.0"))
    )
    made = result.compare(a, b, threshold=0.05)
    (line,) = made.difference_cells()[1:]
    assert line[0] == "client requests" and line[1] != line[2]
    assert "ngtcp2/1.25.0" in line[1] and "ngtcp2/1.26.0" in line[2] and max(map(len, line)) <= 80
    assert made.document()["differences"][0]["a"] == names.format("1.25.0"), "another program gets all of it"
    assert "nghttp3/1.18.0 mit-krb5/1.22.2" in made.files("csv")


def test_that_nothing_differs_is_told(tmp_path: Path) -> None:
    rows = [make_download(domain=f"d{n}", configuration=name) for n in range(3) for name in ("BL", "WS")]
    a, b = (write_campaign(tmp_path / name, rows) for name in ("a", "b"))
    shown = io.StringIO()
    result.compare(a, b, threshold=0.05).show(shown)
    assert "Nothing differs: " in shown.getvalue() and "What differs" not in shown.getvalue()


def test_what_differs_at_one_vantage_point_names_it(tmp_path: Path) -> None:
    def both(name: str, kernels: tuple[str, str]) -> Path:
        rows = [make_download(vantage=place) for place in ("MUC", "SFO")]
        places = {place: {"kernel": kernel} for place, kernel in zip(("MUC", "SFO"), kernels, strict=True)}
        return write_campaign(tmp_path / name, rows, environment={"vantage_points": places})

    made = result.compare(both("a", ("6.1", "6.1")), both("b", ("6.1", "6.9")), threshold=0.05)
    assert [(one.what, one.a, one.b) for one in made.differences] == [("SFO: kernel", "6.1", "6.9")]


@pytest.mark.thorough
def test_exit_codes_and_formats(tmp_path: Path) -> None:
    a = folder(tmp_path / "a", downloads(1))
    same = folder(tmp_path / "same", downloads(2))
    worse = folder(tmp_path / "worse", downloads(3, slower("WS", 1.2)), kernel="6.9")
    code, text, _ = command(a, same)
    assert (code, text.splitlines()[0][:34]) == (0, "No row got worse by more than 5 %.")
    assert (
        len(re.findall(r"Undecided: ok of 100\.0 % in both, but too few domains to exclude a\s+change:\s+BL", text))
        == 1
    )
    assert not re.search(r" ok +\d+ +100\.0 +100\.0 ", text)
    code, text, _ = command(a, worse)
    assert code == 1
    assert "Worse by more than 5 %: WS (time), WS vs BL (speed-up)." in text
    assert "6.9" in text
    assert command(a, worse, "--threshold", "30")[0] == 0
    code, text, err = command(a, worse, "--format", "csv")
    assert (code, err.startswith("Worse by more than 5 %")) == (1, True)
    first, second = text.split("\n\n")
    lines = list(csv.DictReader(first.splitlines()))
    assert tuple(lines[0]) == result.CHANGES_CSV
    assert {line["verdict"] for line in lines if line["name"] == "WS"} == {"worse", "undecided"}
    assert "kernel,6.1,6.9" in second
    code, text, _ = command(a, worse, "--format", "markdown")
    assert text.startswith("| row | quantity |")
    code, text, _ = command(a, worse, "--json")
    document = json.loads(text)
    assert (code, document["worse"], len(document["changes"])) == (1, 2, len(lines))


@pytest.mark.parametrize(
    ("b", "said"),
    [
        ("a", "this folder is A and B"),
        ("none", "folder not found"),
        ("elsewhere", "it measured no target from a vantage point of"),
        ("others", "it has no configuration of"),
    ],
)
def test_wrong_input_is_refused(tmp_path: Path, b: str, said: str) -> None:
    folder(tmp_path / "a", downloads(1))
    folder(tmp_path / "elsewhere", [make_download(domain="z.example")])
    write_campaign(tmp_path / "others", [make_download(domain="d00.example", configuration="SACK")])
    with pytest.raises(UsageError, match=said) as error:
        command(tmp_path / "a", tmp_path / b)
    assert error.value.exit_code == 2


def test_quantities_of_throughput_are_in_mbit_s(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a", downloads(1)), folder(tmp_path / "b", downloads(2, slower("BL", 2.0)))
    made = result.compare(a, b, threshold=0.05, metric=Metric.THROUGHPUT)
    change = row(made, "BL", ChangedQuantity.THROUGHPUT)
    assert change.a is not None
    assert change.b is not None
    # 1 MB in 0.5 to 1.8 s, with 5 % of headers.
    assert change.a == pytest.approx(8.4 / 1.15, rel=0.05)
    assert change.b == pytest.approx(change.a / 2, rel=0.05)
    assert change.verdict is ChangeVerdict.WORSE
