"""`upshift targets compose`: who is chosen, who is not, and why."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from core.domain import Target
from core.errors import UsageError
from core.files import schemas, store
from survey.compose import NOT_CHOSEN, SAME_FILE, Composition, Require, allocate, compose, stratum
from upshift.commands.targets import targets as app


def target(number: int, provider: str = "google", **changes: object) -> Target:
    values: dict[str, object] = {
        "domain": f"d{number}.example",
        "url": f"https://d{number}.example/f",
        "provider": provider,
        "rank": number + 1,
        "ecn": True,
        "sack": True,
        "window_scaling": True,
        "quic": False,
    }
    return Target(**(values | changes))  # type: ignore[arg-type]


def rows(targets: list[Target]) -> list[dict[str, object]]:
    return [{name: getattr(t, name) for name in Target.__slots__} for t in targets]


def choose(targets: list[Target], **options: object) -> Composition:
    base: dict[str, object] = {"per_provider": 3, "other": 2, "require": Require.TCP, "seed": 1}
    return compose(rows(targets), **(base | options))  # type: ignore[arg-type]


def domains(composition: Composition) -> list[str]:
    return [row["domain"] for row in composition.rows]


def test_n_per_provider_and_m_others() -> None:
    found = choose([target(n, p) for n, p in enumerate(["google"] * 9 + ["akamai"] * 2 + ["other"] * 5)])
    assert {p: (s.chosen, s.missing) for p, s in found.shares.items()} == {
        "akamai": (2, 1),
        "google": (3, 0),
        "other": (2, 0),
    }
    assert found.shares["google"].dropped == {NOT_CHOSEN: 6}


@pytest.mark.parametrize(
    ("require", "eligible"),
    [(Require.TCP, ["d0", "d3"]), (Require.QUIC, ["d3", "d4"]), (Require.BOTH, ["d3"]), (Require.NONE, None)],
)
def test_only_what_supports_what_is_required(require: Require, eligible: list[str] | None) -> None:
    some = [
        target(0),
        target(1, ecn=False),
        target(2, sack=None),
        target(3, quic=True),
        target(9, url="http://d9.example/f", quic=True),
        target(4, quic=True, window_scaling=False, ecn=None),
    ]
    found = choose(some, require=require, per_provider=10)
    assert domains(found) == [f"{d}.example" for d in eligible or ["d0", "d1", "d2", "d3", "d4"]]
    if require is Require.TCP:
        assert found.shares["google"].dropped == {
            "does not support ecn": 1,
            "not surveyed: sack": 1,
            "does not support window_scaling": 1,
            "its URL is not https; campaigns download https only": 1,
        }


def test_the_seed_decides_and_the_order_of_the_input_does_not() -> None:
    many = [target(n) for n in range(500)]
    first = domains(choose(many, per_provider=50))
    shuffled = many[:]
    random.Random(3).shuffle(shuffled)
    assert domains(choose(shuffled, per_provider=50)) == first
    assert domains(choose(many, per_provider=50, seed=2)) != first


def test_a_few_domains_less_change_a_few_places() -> None:
    many = [target(n) for n in range(500)]
    first = set(domains(choose(many, per_provider=50)))
    again = set(domains(choose(many[:490], per_provider=50)))
    assert len(first - again) <= 5


def test_ranks_are_represented_as_they_are_eligible() -> None:
    ranks = [*range(1, 101), *range(2_000, 2_300), *range(50_000, 50_600), *([None] * 200)]
    many = [target(n, rank=rank) for n, rank in enumerate(ranks)]
    found = choose(many, per_provider=120)
    assert found.shares["google"].strata == {
        "1-1,000": (100, 10),
        "1,001-10,000": (300, 30),
        "10,001-100,000": (600, 60),
        "without rank": (200, 20),
    }


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=6), st.integers(0, 400))
def test_places_are_all_given_and_never_more_than_there_are(sizes: dict[str, int], places: int) -> None:
    given_out = allocate(sizes, places)
    assert sum(given_out.values()) == min(places, sum(sizes.values()))
    for name, size in sizes.items():
        share = min(places, sum(sizes.values())) * size / max(1, sum(sizes.values()))
        assert int(share) <= given_out[name] <= min(size, int(share) + 1)


def test_strata_have_no_gap() -> None:
    assert [stratum(r) for r in (1, 1_000, 1_001, 1_000_000, 1_000_001, None)] == [
        "1-1,000", "1-1,000", "1,001-10,000", "100,001-1,000,000", "1,000,001 and beyond", "without rank",
    ]  # fmt: skip


def test_an_earlier_set_stays_and_counts() -> None:
    earlier = rows([target(0, ecn=False), target(1)])
    found = choose([target(n) for n in range(1, 9)], earlier=earlier, per_provider=4)
    assert {"d0.example", "d1.example"} < set(domains(found))
    share = found.shares["google"]
    assert (share.kept, share.chosen, share.missing) == (2, 4, 0)
    assert found.kept_without_support == ["d0.example"]
    assert len(choose([target(5)], earlier=earlier, per_provider=1).rows) == 2


def test_what_is_newly_known_of_an_earlier_target_counts() -> None:
    earlier = rows([target(0, quic=True, asn=1), target(1)])
    newer = [target(0, url="https://d0.example/new"), target(0, ecn=False, quic=False, asn=None)]
    found = choose(newer, earlier=earlier, per_provider=2)
    assert [(row["url"], row["quic"], row["asn"]) for row in found.rows] == [
        ("https://d0.example/f", False, 1),
        ("https://d1.example/f", False, None),
    ]
    assert found.kept_without_support == ["d0.example"], "it was surveyed again since"
    assert found.dropped == [("d0.example", "https://d0.example/new", "google", "another file of the same domain")]


def test_rows_of_one_domain_are_joined_and_other_files_dropped() -> None:
    found = choose(
        [
            target(0, ecn=None, sack=None, window_scaling=None, quic=True, provider="other"),
            target(0, quic=None),
            target(0, url="https://d0.example/g"),
        ],
        require=Require.BOTH,
    )
    assert [(row["provider"], row["quic"], row["ecn"]) for row in found.rows] == [("google", True, True)]
    assert found.dropped == [("d0.example", "https://d0.example/g", "google", "another file of the same domain")]


def test_a_file_is_one_target_whatever_domains_lead_to_it() -> None:
    """Of a list of host names, one server's file was several domains, which intervals take as independent."""
    file = "https://www.d0.example/f"
    several = [target(4, url=file), target(2, url=file), target(3, url=file, quic=None), target(1)]
    for some in (several, several[::-1]):
        found = choose(some)
        assert domains(found) == ["d1.example", "d2.example"], "that of the best rank"
        assert [(row[0], row[3]) for row in found.dropped] == [(f"d{n}.example", SAME_FILE) for n in (3, 4)]
        kept = choose(some, earlier=rows([target(9, url=file)]))
        assert domains(kept) == ["d1.example", "d9.example"]
        assert kept.shares["google"].dropped == {SAME_FILE: 3} and kept.shares["google"].eligible == 1
    assert domains(choose([target(2, url=file, ecn=False), target(3, url=file)])) == ["d3.example"]


def test_a_file_is_the_same_however_its_url_is_written() -> None:
    """A load balancer redirects to port 443 by number, and links of that page have it, too."""
    written = ["https://d0.example/f", "https://d0.example:443/f", "HTTPS://D0.example/f", "https://d0.example/f#a"]
    written += ["https://d0.example/a/../f", "https://d0.example/%2E/f"]
    assert len(choose([target(n, url=url) for n, url in enumerate(written)], per_provider=9).rows) == 1
    for first, second in ((written[0], written[1]), (written[2], written[0])):
        found = choose([target(0, url=first, quic=None), target(0, url=second, quic=True)])
        assert [(row["url"], row["quic"]) for row in found.rows] == [(first, True)] and not found.dropped
        kept = choose([target(0, url=first, ecn=False), target(1, url=first)], earlier=rows([target(0, url=second)]))
        assert [(row["domain"], row["ecn"]) for row in kept.rows] == [("d0.example", False)]
    others = ["https://d0.example:8443/f", "http://d0.example/f", "https://d0.example/F", "https://d0.example/f?a"]
    apart = choose([target(n, url=url) for n, url in enumerate([written[0], *others])], require=Require.NONE)
    assert SAME_FILE not in apart.shares["google"].dropped


def test_a_size_brings_along_whether_it_is_a_lower_bound() -> None:
    for bound in (True, False):
        sizes: dict[str, Any] = {"size_bytes": 2_000_000, "size_is_lower_bound": bound}
        found = choose([target(0, size_bytes=None, size_is_lower_bound=False), target(0, **sizes)])
        assert [{name: row[name] for name in sizes} for row in found.rows] == [sizes]


def test_a_target_that_moved_is_not_at_its_former_provider() -> None:
    """What the first file does not know of an address (its organisation) is not what a later one says of another."""
    before = target(0, "akamai", asn=20940, organisation="Akamai", rule="seed", cname_provider="akamai")
    now = target(0, "other", asn=680, rule="none", quic=None)
    for found in (choose([now], earlier=rows([before])), choose([now, before])):
        assert [(row["provider"], row["asn"], row["organisation"], row["quic"]) for row in found.rows] == [
            ("other", 680, None, False)
        ]
        assert [row["cname_provider"] for row in found.rows] == [None]
        assert found.shares.keys() == {"other"}


def test_a_mapping_comes_with_its_address() -> None:
    """The prefix, AS and provider of the server that one crawl saw stood beside the address that another saw."""
    names = ("server_ip", "cname_chain", "prefix", "provider", "cname_provider")
    crawled = target(0, "other", server_ip="192.0.2.1", cname_chain="edge.example")
    of_map = ("198.51.100.1", "x.akamai.net", "198.51.100.0/24", "akamai", "akamai")
    mapped = target(0, asn=20940, rule="seed", ecn=None, **dict(zip(names, of_map, strict=True)))
    again = target(0, server_ip="203.0.113.1", prefix="203.0.113.0/24", asn=15169, rule="seed")
    for of, one, other in ((mapped, crawled, mapped), (mapped, mapped, crawled), (again, again, mapped)):
        for made in (choose([one, other]), choose([one], earlier=rows([other]))):
            (row,) = made.rows
            assert [row[name] for name in names] == [getattr(of, name) for name in names] and row["ecn"] is True


def test_windows_of_two_surveys_are_not_mixed() -> None:
    """A server that counts in bytes now had the segments of the earlier set beside them."""
    now: dict[str, Any] = {"iw_kind": "bytes", "iw_bytes": 64_000, "iw_segments": None, "paced": None}
    before = target(0, iw_kind="segments", iw_bytes=14_600, iw_segments=10, paced=True)
    for found in (choose([target(0, **now)], earlier=rows([before])), choose([target(0, **now), before])):
        assert [{name: row[name] for name in now} for row in found.rows] == [now]
    (kept,) = choose([target(0)], earlier=rows([before])).rows
    assert (kept["iw_segments"], kept["paced"]) == (10, True), "a target that was not surveyed again keeps its window"
    paced: dict[str, Any] = {"iw_kind": None, "iw_bytes": None, "iw_segments": None, "paced": False}
    for found in (choose([target(0, **paced)], earlier=rows([before])), choose([target(0, **paced), before])):
        assert [(row["iw_segments"], row["paced"]) for row in found.rows] == [(10, True)], "`paced` alone is no window"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["compose", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_writes_set_account_and_dropped(tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    some = [target(n, ecn=n % 2 == 0) for n in range(10)]
    schema_table = schemas.row_schema("targets").empty_table()
    assert schema_table.num_rows == 0
    store.write_rows(source, "targets", some)
    with_extra = store.read_table(source, "targets").append_column("mine", [["192.0.2.0/24"] * 10])
    store.write_table(source, "targets", with_extra)
    options = ["--per-provider", 3, "--report", tmp_path / "r.json", "--dropped", tmp_path / "d.csv"]
    said = run(source, "-o", out, *options)
    assert "google: 5 dropped: does not support ecn" in said
    assert "3 targets (seed 1, required: tcp)" in said
    back = store.read_rows(out, "targets", Target)
    assert len(back) == 3
    assert all(t.ecn for t in back)
    assert set(store.read_table(out, "targets").column("mine").to_pylist()) == {"192.0.2.0/24"}
    assert store.read_table(out, "targets").schema.field("size_bytes").metadata == {b"unit": b"B"}
    assert json.loads((tmp_path / "r.json").read_text())["providers"]["google"]["eligible"] == 5
    with (tmp_path / "d.csv").open(newline="") as handle:
        assert len(list(csv.DictReader(handle))) == 7
    assert json.loads(run(source, "-o", out, "--json", "--union", out))["providers"]["google"]["chosen"] == 5


def test_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    store.write_rows(source, "targets", [target(0, ecn=None)])
    with pytest.raises(UsageError, match=r"no targets left \(not surveyed: ecn\); survey them first"):
        run(source, "-o", tmp_path / "o.parquet")
    refused = CliRunner().invoke(app, ["compose", str(source), "-o", str(tmp_path / "o.parquet"), "--require", "all"])
    assert refused.exit_code == 2 and "'tcp', 'quic', 'both', 'none'" in refused.output
    for option in ("--report", "--dropped"):
        with pytest.raises(UsageError, match=rf"^{option} \.: this is a folder; name a file"):
            run(source, "-o", tmp_path / "o.parquet", option, ".")
    whole, other = source.read_bytes(), tmp_path / "o.parquet"
    for option, path in (("-o", source), ("--report", other), ("--dropped", source)):
        with pytest.raises(UsageError, match="already used for the input or the results; give another file"):
            run(source, "-o", other, option, path)
    assert source.read_bytes() == whole, "it became the targets that were drawn of it"
    with pytest.raises(UsageError, match="file not found"):
        run(tmp_path / "none.parquet", "-o", tmp_path / "o.parquet")
    assert not (tmp_path / "o.parquet").exists()
