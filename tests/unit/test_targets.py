"""The `targets` table: CSV and Parquet by the same rules, whoever wrote them, and through every command."""

from __future__ import annotations

import csv
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from core.domain import Target
from core.errors import UsageError
from core.files import schemas, store, targets
from crawler.links import normal
from downloader.campaign.campaign import from_document
from downloader.campaign.targets import load_targets
from downloader.schedule.slots import groups
from survey.subjects import Subject, Subjects
from tests.cells import examples
from upshift import cli

NEEDS = ("domain", "url", "provider")

FULL = Target(
    domain="a.example",
    url="https://a.example:8443/f?x=%20",
    provider="google",
    rank=3,
    size_bytes=1_000_000,
    size_is_lower_bound=True,
    server_ip="2001:db8::1",
    depth=0,
    crawled_at=1_700_000_000.25,
    alt_svc='h3=":443"; ma=60, "quoted"',
    cname_chain="b.example c.example",
    asn=15_169,
    organisation="Google, LLC",
    prefix="2001:db8::/32",
    rule="seed",
    rival_asns="1 2",
    dissent=0.125,
    cname_provider="akamai",
    cname_agrees=False,
    ecn=True,
    sack=False,
    window_scaling=None,
    quic=True,
)
TARGETS = [FULL, Target(domain="b.example", url="https://b.example/")]


def test_a_domain_is_read_as_dns_has_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("domain,url\nMünchen.example,\nstraße.example,\nA.example,\nnäme,https://a.b/\nno ü,https://a.b/\n")
    names = [target.domain for target in found(path, needs=("domain",))]
    assert names == ["xn--mnchen-3ya.example", "xn--strae-oqa.example", "a.example", "xn--nme-qla", "no ü"]


def test_an_address_has_one_form(tmp_path: Path) -> None:
    """Of two forms of one address nothing knew that it is one server: two vantage points downloaded from it at once."""
    written = ["2001:DB8::1", "2001:db8:0::1", "::FFFF:192.0.2.1", "192.0.2.1", ""]
    path = tmp_path / "t.csv"
    rows = [f"d.{n}x.example,https://d.{n}x.example/,{address}" for n, address in enumerate(written)]
    path.write_text("\n".join(["domain,url,server_ip", *rows, ""]))
    some = found(path)
    assert [target.server_ip for target in some] == [*["2001:db8::1"] * 2, *["192.0.2.1"] * 2, None]
    assert len(groups(some)) == 3
    known = targets.values(path, ("domain", "server_ip"))
    assert [row["server_ip"] for row in known] == [target.server_ip for target in some]


def found(path: Path, **options: Any) -> list[Target]:
    return [target for _, target in targets.rows(path, **options)]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "T.CSV"])
def test_every_column_comes_back_from_both_formats(tmp_path: Path, name: str) -> None:
    targets.write_rows(tmp_path / name, iter(TARGETS))
    assert found(tmp_path / name) == TARGETS
    again = tmp_path / f"again-{name}"
    targets.write(again, targets.read(tmp_path / name))
    assert again.read_bytes() == (tmp_path / name).read_bytes()
    assert targets.is_table(again)
    schema = targets.read(again).schema
    assert schema.names == schemas.row_schema("targets").names
    assert schema.field("size_bytes").metadata == {b"unit": b"B"}


def test_what_a_server_says_is_no_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    said = [Target(domain="d", url="https://d/", alt_svc=f'{sign}HYPERLINK("https://e/")') for sign in "=+-@"]
    targets.write_rows(tmp_path / "t.csv", said)
    column = schemas.row_schema("targets").names.index("alt_svc")
    with (tmp_path / "t.csv").open(newline="") as handle:
        assert {row[column][0] for row in csv.reader(handle)} == {"a", " "}
    assert found(tmp_path / "t.csv") == said


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=5)


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2**62), st.floats(0, 2e9), TEXTS, st.booleans()), max_size=8))
def test_both_formats_say_the_same(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[int, float, str, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("both")
    rows = [
        Target(domain=f"d{n}", url=f"https://d{n}/", rank=rank, crawled_at=at, organisation=name or None, ecn=ecn)
        for n, (rank, at, name, ecn) in enumerate(values)
        if name.strip() == name
    ]
    for name in ("t.csv", "t.parquet"):
        targets.write_rows(folder / name, rows)
    assert targets.read(folder / "t.csv").equals(targets.read(folder / "t.parquet"))


def write_csv(path: Path, columns: dict[str, list[Any]]) -> Path:
    path = path.with_suffix(".csv")
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    """As pyarrow does: nothing of Upshift's in it."""
    path = path.with_suffix(".parquet")
    pq.write_table(pa.table(columns), path)
    return path


WRITERS = pytest.mark.parametrize("write", [write_csv, write_parquet])

GOOD = {"domain": ["a.example"] * 2, "url": ["https://a.example/1", "https://a.example/2"], "provider": ["other"] * 2}


@WRITERS
def test_right_columns_are_enough(tmp_path: Path, write: Callable[..., Path]) -> None:
    columns = GOOD | {"provider": ["Google", ""], "mine": ["x", "y"], "rank": [1, None]}
    path = write(tmp_path / "t", columns)
    first, second = found(path, needs=NEEDS)
    assert (first.provider, second.provider, first.rank, second.rank) == ("google", "other", 1, None)
    assert targets.read(path).column("mine").to_pylist() == ["x", "y"]


def test_the_types_of_pandas_are_taken(tmp_path: Path) -> None:
    """Whole numbers with gaps are floats there, categories dictionaries, the index a column, long texts large."""
    table = pa.table(
        {
            "domain": pa.array(["a.example", "b.example"], pa.large_string()),
            "url": pa.array(["https://a.example/", "https://b.example/"]),
            "provider": pa.array(["google", "other"]).dictionary_encode(),
            "rank": pa.array([1.0, float("nan")]),
            "size_bytes": pa.array([5, None], pa.uint32()),
            "crawled_at": pa.array([1, 2], pa.int32()),
            "asn": pa.nulls(2),
            "__index_level_0__": pa.array([7, 8]),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    first, second = found(tmp_path / "t.parquet", needs=NEEDS)
    assert (first.rank, second.rank, first.size_bytes, second.crawled_at) == (1, None, 5, 2.0)
    assert (first.provider, first.asn) == ("google", None)
    assert targets.read(tmp_path / "t.parquet").column_names == schemas.row_schema("targets").names


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": ["https://a.example/1", "https://me:pw@a.example/2"]}, "2: the URL has user information"),
        ({"url": ["https://a.example/1", "https://@a.example/2"]}, "2: the URL has user information"),
        ({"url": ["https://a.example/1", "https://a.example/<2>"]}, "2: the URL has characters that must be percent-"),
        ({"url": ["https://a.example/1", "https://a.example/`2"]}, "2: the URL has characters that must be percent-"),
        ({"url": ["https://a.example/1", 'https://a.example/?a="2']}, "2: the URL has characters that must be pe"),
        ({"url": ["https://a.example/1", "https://a.example:0/2"]}, "2: the URL has port 0; correct or remove it"),
        ({"url": ["https://a.example/1", "https://a.example./2"]}, "2: the host of the URL ends in a dot"),
        ({"url": ["https://a.example/1", "https://a.example:99999/"]}, "2: Port out of range"),
        ({"url": ["https://a.example/1", "ftp://a.example/"]}, "2: the URL is not https or http://HOST"),
        ({"url": ["https://a.example/1", "https:///x"]}, "2: the URL is not https or http://HOST"),
        ({"url": ["https://a.example/1", "https://a.example/ä"]}, "2: the URL has characters that must be"),
        ({"url": ["https://a.example/1", ""]}, "2: the url is missing; correct or remove it"),
        ({"domain": ["a.example", "a.example."]}, "2: the domain ends in a dot"),
        ({"domain": ["a.example", "\x1b[31m"]}, "2: the domain is empty, too long, or has control characters"),
        ({"domain": ["a.example", None]}, "2: the domain is missing"),
        ({"server_ip": ["198.18.0.1", "198.18.0.1/32"]}, "2: server_ip '198.18.0.1/32' is not an IP address"),
        ({"rank": [1, 0]}, "2: rank 0 is not a whole number above 0"),
        ({"size_bytes": [1, -5]}, "2: size_bytes -5 is not a whole number above 0"),
        ({"size_bytes": [1.0, 1.5]}, "2: size_bytes 1.5 is not a whole number; correct it, or leave it empty"),
    ],
)
@WRITERS
def test_faults_have_file_row_and_remedy(
    tmp_path: Path, write: Callable[..., Path], changes: dict[str, list[Any]], said: str
) -> None:
    path = write(tmp_path / "t", GOOD | changes)
    with pytest.raises(UsageError) as caught:
        targets.read(path, needs=NEEDS)
    sentence = caught.value.sentence()
    line = {".csv": {"2": "line 3", "1": "line 2"}, ".parquet": {"2": "row 2", "1": "row 1"}}[path.suffix]
    number, _, rest = said.partition(":")
    if isinstance(changes.get("size_bytes", [0])[0], float) and write is write_csv:
        line, number, rest = {"1": "line 2"}, "1", " size_bytes '1.0' is not a whole number; correct it, or leave"
    assert f"{path}, {line[number]}:{rest}" in sentence and sentence.isprintable()


@WRITERS
def test_columns_that_are_missing_twice_or_misspelt(tmp_path: Path, write: Callable[..., Path]) -> None:
    place = ", line 1" if write is write_csv else ""
    path = write(tmp_path / "t", {name: values for name, values in GOOD.items() if name != "url"})
    with pytest.raises(UsageError, match=rf"{path}{place}: the column url is missing; name the columns as in domain"):
        targets.read(path, needs=NEEDS)
    path = write(tmp_path / "t", GOOD | {"size_byte": [1, 2]})
    with pytest.raises(UsageError, match=rf"{path}{place}: unknown column 'size_byte'; write size_bytes, or rename"):
        targets.read(path, needs=NEEDS)
    (tmp_path / "t.csv").write_text("domain,url,url\n")
    with pytest.raises(UsageError, match="line 1: there are two columns 'url'"):
        targets.read(tmp_path / "t.csv")


def test_columns_of_a_wrong_type(tmp_path: Path) -> None:
    for name, values, said in (
        ("rank", ["1", "2"], "the column rank holds string, not a whole number; write it as int64"),
        ("ecn", [1, 0], "the column ecn holds int64, not true or false; write it as bool"),
        ("url", [1, 2], "the column url holds int64, not text; write it as string"),
        ("domain", [["a"], ["b"]], "not text; write it as string"),
    ):
        path = write_parquet(tmp_path / "t", GOOD | {name: values})
        with pytest.raises(UsageError) as caught:
            targets.read(path, needs=NEEDS)
        assert caught.value.sentence().startswith(f"{path}: ") and said in caught.value.sentence()


def test_files_that_are_something_else(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for content, said in (
        (b"domain,url\n\xff\n", "this is not text in UTF-8"),
        (b"domain,url\n" + b"x" * (targets.LONGEST_LINE + 10), "a line is longer than 1,048,576 characters"),
        (b'domain,url\n"a.example,\n', "line 2: unexpected end of data; correct that line"),
        (b"", "line 1: the column domain is missing"),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            targets.read(path)
    with pytest.raises(UsageError, match="file not found; check the path"):
        targets.read(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="a directory"):
        targets.read(tmp_path.rename(tmp_path.with_suffix(".csv")))


@pytest.mark.thorough
def test_a_file_of_any_length_is_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 500)

    def many() -> Iterator[Target]:
        for n in range(1, 8_001):
            yield Target(domain=f"d{n}.example", url=f"https://d{n}.example/a/long/path/to/the/file/{n}", rank=n)

    for name in ("t.csv", "t.parquet"):
        tracemalloc.start()
        targets.write_rows(tmp_path / name, many())
        numbers = [target.rank for _, target in targets.rows(tmp_path / name)]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert numbers == list(range(1, 8_001))
        assert most < 6e6, f"{name}: {most} bytes"  # all rows at once are 8 MB and more
    place, last = list(targets.rows(tmp_path / "t.parquet"))[-1]
    assert (place, last.rank) == (f"{tmp_path / 't.parquet'}, row 8000", 8_000)


@pytest.mark.parametrize(("start", "end"), [(".csv", ".parquet"), (".parquet", ".csv"), (".csv", ".csv")])
def test_one_file_goes_through_map_compose_and_run(tmp_path: Path, start: str, end: str) -> None:
    """Every command writes what the next one reads, whatever the formats; columns of the user's stay."""
    pytest.importorskip("numpy")
    from cdn_mapping import table
    from cdn_mapping.rib import RibEntry
    from cdn_mapping.votes import Ballot

    ballot = Ballot()
    ballot.add_entries([RibEntry("198.18.0.0/16", None, "1 15169", 1, "192.0.2.1", None)])
    table.build({v: ballot.rows(v) for v in (4, 6)}, {}).save(tmp_path / "t.npz")
    crawled = [
        Target(domain=f"d{n}.example", url=f"https://d{n}.example/f", rank=n, size_bytes=n, server_ip=f"198.18.0.{n}")
        for n in range(1, 6)
    ]
    first, second, third, fourth = (tmp_path / f"{name}{end}" for name in ("m", "o", "q", "chosen"))
    source = tmp_path / f"crawled{start}"
    targets.write_rows(source, crawled)

    def command(*words: object) -> None:
        result = CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)
        assert result.exit_code == 0, result.output

    command("map", "targets", source, "-o", first, "--rib", tmp_path / "t.npz")
    assert [subject.provider for subject in Subjects(first)] == ["google"] * 5
    assert {target.asn for target in found(first)} == {15_169}
    table_now = targets.read(first).append_column("mine", pa.array([f"m{n}" for n in range(1, 6)]))
    targets.write(second, table_now)
    from survey.engine import fill_targets

    every = {f"d{n}.example": True for n in range(1, 6)}
    fill_targets(second, third, dict.fromkeys(("ecn", "sack", "window_scaling"), every))
    command("targets", "compose", third, "-o", fourth, "--per-provider", 3)
    chosen = from_document({"name": "c", "targets": fourth.name, "contact": "a@uni.edu"}, tmp_path / "c.toml")
    ready = load_targets(chosen)
    assert [(t.provider, t.ecn, t.size_bytes) for t in ready] == [("google", True, t.rank) for t in ready]
    assert len(ready) == 3
    assert targets.read(fourth).column("mine").to_pylist() == [f"m{t.rank}" for t in ready]


def test_a_top_list_is_not_a_table(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    for text in ("1,a.example\n", "rank,domain\n1,a.example\n", "domain\na.example\n", "GlobalRank,TldRank,Domain\n"):
        path.write_text(text)
        assert not targets.is_table(path)
    path.write_text('\ufeffurl,"domain"\r\nhttps://a.example/,a.example\r\n')
    assert list(Subjects(path)) == [Subject(domain="a.example", url="https://a.example/")]


def test_the_crawl_takes_no_url_that_a_campaign_refuses() -> None:
    base = "https://a.example/"
    assert normal(base, "//a.example./f.iso") is None
    assert normal(base, "https://a.example:0/f.iso") is None
    assert normal(base, "https://me@a.example/f.iso") is None
    assert normal(base, "f ä.iso") == "https://a.example/f%20%C3%A4.iso"
