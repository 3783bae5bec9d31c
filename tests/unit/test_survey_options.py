"""The options survey without a network: tcp_info, figures, the files, and what is refused."""

from __future__ import annotations

import asyncio
import csv
import errno
import functools
import io
import json
import math
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from core import terminal
from core.domain import Target
from core.errors import UsageError
from core.files import schemas, store
from core.outreach.arguments import ledger_beside
from core.outreach.blocks import BlockLists
from core.outreach.dns import Answer
from core.outreach.pace import Lanes
from survey import engine, figures
from survey.access import Access, NotAskedError
from survey.charts import draw_figures
from survey.engine import fill_targets, known
from survey.figures import CSV_HEADER, as_document, as_rows, print_figures
from survey.options import prober
from survey.options import record as counted
from survey.options.prober import REPLY, REQUEST, TCP_INFO_BYTES, parse_tcp_info
from survey.options.record import LOCAL_FAULTS, SHAKEN, HandshakeFailure, OptionsRecord, failure_of
from survey.options.visit import OptionsVisitor
from survey.subjects import Subject
from survey.surveys import SurveyOptions
from survey.surveys.options import OPTIONS, OptionsSettings
from tests.terminals import on_terminal
from upshift import cli

BITS = st.integers(0, 255)
NUMBERS = st.integers(0, 2**32 - 1)


@given(st.lists(BITS, min_size=8, max_size=8), st.lists(NUMBERS, min_size=24, max_size=24), st.binary(max_size=140))
def test_tcp_info_is_read_by_offset(head: list[int], numbers: list[int], later: bytes) -> None:
    """Offsets of linux/include/uapi/linux/tcp.h: options 5, scales 6, snd_mss 16, rtt 68, total_retrans 100."""
    data = bytes(head) + struct.pack("=24I", *numbers)
    found = parse_tcp_info(data + later)
    assert (found.timestamps, found.sack, found.window_scaling, found.ecn) == tuple(
        bool(data[5] & bit) for bit in (1, 2, 4, 8)
    )
    assert found.peer_window_scale == (data[6] & 15 if data[5] & 4 else None)
    (mss,), (rtt,), (again,) = (struct.unpack_from("=I", data, at) for at in (16, 68, 100))
    assert (found.snd_mss_bytes, found.retransmissions) == (mss, again)
    assert found.rtt_s == (rtt / 1e6 if rtt else None)


@given(st.integers(0, TCP_INFO_BYTES - 1))
def test_tcp_info_that_is_too_short_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="104 needed"):
        parse_tcp_info(bytes(length))


def test_tcp_info_of_this_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        found = parse_tcp_info(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES))
        assert found.retransmissions == 0
        assert found.rtt_s is not None
        assert 0 < found.rtt_s < 1
        assert found.snd_mss_bytes == client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


def test_handshakes_that_ended_in_time_are_no_time_outs_after_a_stall() -> None:
    """After Ctrl-Z and fg each server beyond the first 256 was a `connect_timeout`, although it had answered."""

    class Established(mock.Mock):
        def getsockopt(self, level: int, option: int, size: int | None = None) -> int | bytes:
            return 0 if size is None else bytes(size)

    source, ended = os.pipe()
    os.close(ended)
    loop = prober.HandshakeLoop(source, source, 5.0)
    codes: Counter[int] = Counter()
    loop._reply = lambda number, code, info: codes.update([code])  # type: ignore[method-assign]
    for number in range(300):
        descriptor = os.eventfd(0)
        sock = Established(close=functools.partial(os.close, descriptor))
        loop._open[descriptor] = (number, sock)
        loop._epoll.register(descriptor, select.EPOLLOUT if number < 299 else select.EPOLLIN)  # which does not come
        loop._deadlines.append((time.monotonic() - 1, descriptor, number))
    loop.run()
    assert codes == {0: 299, errno.ETIMEDOUT: 1}
    os.close(source)


def test_records_of_the_prober_have_fixed_sizes() -> None:
    assert (REQUEST.size, REPLY.size) == (24, 112)
    assert {failure_of(code) for code in (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENETUNREACH)} == {
        HandshakeFailure.CONNECTION_REFUSED,
        HandshakeFailure.CONNECT_TIMEOUT,
        HandshakeFailure.UNREACHABLE,
    }
    assert failure_of(errno.EPROTO) is HandshakeFailure.CONNECT_ERROR
    assert not SHAKEN & LOCAL_FAULTS


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3 (Wilson score).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_against_published_ones(count: int, n: int, low: float, high: float) -> None:
    found = figures.wilson(count, n)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert found.share == count / n


@given(st.integers(0, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_intervals_hold_their_share_and_mirror(pair: tuple[int, int]) -> None:
    count, n = pair
    found, other = figures.wilson(count, n), figures.wilson(n - count, n)
    assert 0 <= found.low <= found.high <= 1
    assert found.low == pytest.approx(1 - other.high)
    if n == 0:
        assert math.isnan(found.share)
        assert (found.low, found.high) == (0, 1)
    else:
        assert found.low <= found.share <= found.high
        # It holds those p for which the observed share is within z standard errors of p (its definition).
        for end in (found.low, found.high):
            if 0 < end < 1:
                error = math.sqrt(end * (1 - end) / n)
                assert abs(found.share - end) == pytest.approx(figures.Z95 * error, rel=1e-6)


RECORDS = st.builds(
    lambda number, rank, provider, on, failure, again: OptionsRecord(
        domain=f"d{number}.example",
        rank=rank,
        provider=provider,
        outcome="failed" if failure else "ok",
        failure=failure,
        **dict.fromkeys(("ecn", "sack", "window_scaling", "timestamps"))
        if failure
        else dict(zip(("ecn", "sack", "window_scaling", "timestamps"), on, strict=True)),
        syn_retransmissions=again,
    ),
    st.integers(0, 99),
    st.none() | st.integers(1, 2_000_000),
    st.sampled_from([None, "akamai", "other"]),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from([None, None, *map(str, HandshakeFailure)]),
    st.integers(0, 3),
)


@given(st.lists(RECORDS, max_size=60))
def test_figures_add_up(records: list[OptionsRecord]) -> None:
    found = counted.figures(records)
    hosts = [record for record in records if record.outcome == "ok"]
    assert found.counts["hosts"] == len(hosts)
    assert sum(share.count for share in found.breakdowns["combinations"].shares.values()) == len(hosts)
    assert sum(share.count for share in found.breakdowns["failures"].shares.values()) == len(records) - len(hosts)
    of_all = found.shares["all hosts"]
    combinations = found.breakdowns["combinations"].shares
    assert of_all["all"].count == combinations["ECN+SACK+WS"].count
    assert of_all["none"].count == combinations["none"].count
    assert of_all["sack"].count == sum(s.count for name, s in combinations.items() if "SACK" in name)
    buckets = [group for group in found.shares if group.startswith("rank")]
    sizes = [found.shares[group]["ecn"].n for group in buckets]
    assert sizes == sorted(sizes)
    assert sum(found.shares[p]["ecn"].n for p in ("akamai", "other") if p in found.shares) == sum(
        record.provider is not None for record in hosts
    )
    json.dumps(as_document(found), allow_nan=False)
    rows = list(as_rows(found))
    assert {len(row) for row in rows} == {len(CSV_HEADER)}


def test_a_share_has_one_interval_wherever_it_is_printed() -> None:
    """Of three files with the same domains the table said `all 3` 75.0 [58.6-86.4], and combinations [66.4-82.0]."""
    every = [record(n, ecn=n % 4 > 0) for n in range(40)] + [record(n, outcome="failed") for n in range(40, 60)]
    found = counted.figures(every * 3)
    combinations, of_all = found.breakdowns["combinations"].shares, found.shares["all hosts"]["all"]
    assert combinations["ECN+SACK+WS"] == of_all and of_all.n == 120
    domains = figures.clustered([(3, 3)] * 20 + [(0, 3)] * 40)
    assert found.breakdowns["failures"].shares == {"unknown": domains}
    assert found.title.startswith("120 of 180 results of 60 domains completed a handshake. ")
    once = counted.figures(every).breakdowns["combinations"].shares["ECN+SACK+WS"]
    assert once == figures.wilson(30, 40)


@pytest.mark.parametrize(
    ("width", "cell"), [(60, " 95.7 "), (80, " 95.7 "), (120, " 95.7 [79-99] "), (160, " 95.7 [79.0-99.2] ")]
)
def test_figures_fit_the_terminal(width: int, cell: str) -> None:
    records = [record(number, ecn=number > 0, provider="cloudflare") for number in range(23)]
    records += [record(99, outcome="failed", failure="timeout", ecn=None)]
    lines = on_terminal(lambda stream: print_figures(counted.figures(records), stream), width)
    assert max(map(len, lines)) <= width
    [row] = [line for line in lines if line.startswith("cloudflare ")]
    assert cell in row and row.endswith(" 23"), row
    [cause] = [line for line in lines if line.startswith("timeout ")]
    assert cause.split()[1:] == ["4.2", "[0.7-20.2]", "1"], "there is room enough in this table"
    assert ("in a wider terminal" in "\n".join(lines)) == (width < 120)


def record(number: int, **values: object) -> OptionsRecord:
    known = {"ecn": True, "sack": True, "window_scaling": True, "timestamps": True, "outcome": "ok"} | values
    return OptionsRecord(domain=f"d{number}.example", rank=number, syn_retransmissions=0, **known)  # type: ignore[arg-type]


def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.parquet"
    rows = [record(1), record(2, ecn=False), record(5_000, outcome="failed", failure="dns_error")]
    rows.append(record(20_000, sack=False, provider="akamai"))
    store.write_rows(path, OPTIONS.kind, rows, OptionsRecord)
    return path


def test_a_provider_is_no_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    store.write_rows(tmp_path / "r.parquet", OPTIONS.kind, [record(1, provider="=1+1")], OptionsRecord)
    said = CliRunner().invoke(cli.app, ["survey", "figures", str(tmp_path / "r.parquet"), "--csv"]).output
    assert {row["group"] for row in csv.DictReader(io.StringIO(said))} >= {"all hosts", " =1+1"}


@pytest.mark.thorough
def test_figures_are_printed_and_drawn(tmp_path: Path) -> None:
    path = results(tmp_path)
    runner = CliRunner()
    said = runner.invoke(cli.app, ["survey", "figures", str(path)], catch_exceptions=False).output
    assert said.startswith("3 of 4 domains completed a handshake.")
    assert "rank <= 1,000 " in said
    assert "dns_error" in said
    document = json.loads(runner.invoke(cli.app, ["survey", "figures", str(path), str(path), "--json"]).output)
    assert document["hosts"] == 6
    assert document["shares"]["akamai"]["sack"]["share"] == 0
    rows = list(csv.DictReader(io.StringIO(runner.invoke(cli.app, ["survey", "figures", str(path), "--csv"]).output)))
    (ecn,) = (row for row in rows if (row["group"], row["name"]) == ("all hosts", "ecn"))
    assert (ecn["count"], ecn["n"]) == ("2", "3")
    pytest.importorskip("matplotlib")
    pictures = [tmp_path / "a.svg", tmp_path / "b.png"]
    options = [word for picture in pictures for word in ("--picture", str(picture))]
    assert runner.invoke(cli.app, ["survey", "figures", str(path), *options]).exit_code == 0
    assert b"<svg" in pictures[0].read_bytes()[:400]
    assert pictures[1].read_bytes().startswith(b"\x89PNG")
    found = counted.figures(store.read_rows(path, OPTIONS.kind, OptionsRecord))
    assert draw_figures(found, "svg") == pictures[0].read_bytes()


def test_targets_are_filled_in_and_keep_their_columns(tmp_path: Path) -> None:
    source, out = tmp_path / "t.parquet", tmp_path / "out.parquet"
    names = [(1, "a"), (1, "b"), (2, "a"), (7, "a")]
    rows = [Target(domain=f"d{n}.example", url=f"https://d{n}.example/{f}", rank=n, sack=None) for n, f in names]
    store.write_rows(source, "targets", [*rows, Target(domain="old.example", url="https://old.example/", ecn=True)])
    table = store.read_table(source, "targets")
    extra = pa.field("mine", pa.string(), metadata={"note": "kept"})
    store.write_table(source, "targets", table.append_column(extra, pa.array(["h3", None, None, "x", None])))
    records = [record(1, ecn=False), record(2, outcome="failed", failure="dns_error")]
    fill_targets(source, out, known(OPTIONS, records))
    written = store.read_table(out, "targets")
    assert written.column_names == [*schemas.row_schema("targets").names, "mine"]
    assert written.schema.field("mine").metadata == {b"note": b"kept"}
    assert written.column("ecn").to_pylist() == [False, False, None, None, True]
    assert written.column("sack").to_pylist() == [True, True, None, None, None]
    assert written.drop_columns(["ecn", "sack", "window_scaling"]).equals(
        store.read_table(source, "targets").drop_columns(["ecn", "sack", "window_scaling"])
    )


def test_a_file_at_another_host_of_a_domain_is_not_filled_in(tmp_path: Path) -> None:
    """What the server of a domain's first file said was written of the other's as well, which nobody had asked."""
    urls = ["https://www.a.example/1", "https://dl.a.example/2", "https://www.a.example/3", "https://b.example/"]
    rows = [Target(domain="a.example", url=url) for url in urls[:3]]
    rows.append(Target(domain="b.example", url=urls[3], ecn=False))
    store.write_rows(tmp_path / "t.parquet", "targets", rows)
    fill_targets(tmp_path / "t.parquet", tmp_path / "out.parquet", {"ecn": {"a.example": True}})
    assert store.read_table(tmp_path / "out.parquet", "targets").column("ecn").to_pylist() == [True, None, True, False]


def test_what_another_port_says_is_not_of_the_url(tmp_path: Path) -> None:
    """Where port 443 was closed, targets had the options of port 80, and campaigns over 443 took them."""
    source, out = tmp_path / "t.csv", tmp_path / "out.parquet"
    urls = [f"https://d{n}.example{end}" for n, end in enumerate(("/f", "/f", ":8443/f"))]
    source.write_text("domain,url\n" + "".join(f"d{n}.example,{url}\n" for n, url in enumerate(urls)))
    asked = [record(0, server_port=443), record(1, server_port=80), record(2, server_port=443)]
    options = SurveyOptions(source=source, out=tmp_path / "r.parquet", targets_out=out)
    subjects = engine.check(OPTIONS, options, OptionsSettings())
    ledger = engine.SurveyLedger(
        ledger_beside(options.out, None), engine.plan_of(OPTIONS, options, OptionsSettings(), source)
    )
    ledger.fill(subjects)
    ledger.record([(one.domain, "ok", engine.document_of(one)) for one in asked])
    ledger.close()
    with terminal.show_progress() as shown:
        engine.run(OPTIONS, options, OptionsSettings(), subjects, shown)
    for column in ("ecn", "sack", "window_scaling"):
        assert store.read_table(out, "targets").column(column).to_pylist() == [True, None, None]


def test_a_host_that_opts_out_while_its_handshake_waits_is_not_contacted(tmp_path: Path) -> None:
    """Of a target whose URL is at another host than its domain, the domain alone was looked for just before the SYN."""
    blocked, asked = tmp_path / "blocked.txt", mock.Mock()
    blocked.touch()
    lists = BlockLists([blocked])

    class Rate:
        async def turn(self, _: object = None) -> None:
            blocked.write_text("www.a.example\n")
            lists._looked = -100.0

    class Probers:
        async def ask(self, request: object, turn: Callable[[], AbstractAsyncContextManager[object]]) -> None:
            async with turn():
                asked(request)

    async def visit() -> None:
        found = mock.AsyncMock(return_value=Answer(addresses=("198.18.0.9",), chain=()))
        limits: Any = {
            "names": mock.AsyncMock(),
            "rate": Rate(),
            "lanes": Lanes(1000, 1),
            "places": asyncio.Semaphore(),
        }
        access = Access(resolver=mock.Mock(addresses=found), blocks=lists, **limits)
        visitor = OptionsVisitor(access=access, probers=Probers())  # type: ignore[arg-type]
        await visitor.visit(Subject(domain="a.example", url="https://www.a.example/f"), record(1))

    with pytest.raises(NotAskedError, match=r"www\.a\.example is in"):
        asyncio.run(visit())
    asked.assert_not_called()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["options", "none.csv", "-o", "r"], "none.csv: file not found; give a top list or a targets file"),
        (["options", "list.csv", "-o", "r", "--targets-out", "t"], "--targets-out: this list has no targets"),
        (
            ["options", "t.parquet", "-o", "r", "--targets-out", "r"],
            "--targets-out: already used for the input or the results",
        ),
        (["options", "t.parquet", "-o", "./t.parquet"], "--out: this is the input, which it would replace"),
        (["options", "list.csv", "-o", "r", "--shard", "3/2"], "--shard: '3/2' is not a valid shard; write i/n"),
        (["options", "list.csv", "-o", "r", "--isolation", "jail"], "--isolation: 'jail' is not a valid isolation"),
        (["options", "list.csv", "-o", "r", "--block-list", "none"], "none: file not found; check the path"),
        (["options", "odd.csv", "-o", "r"], "odd.csv: the first row, 'a;b c,d', matches no known list format"),
        (["figures", "list.csv"], "list.csv: not a readable Parquet file"),
        (
            ["figures", "t.parquet"],
            "t.parquet: this holds targets records of Upshift, not survey results; give a",
        ),
        (["figures", "t.parquet", "--json", "--csv"], "--json and --csv cannot be combined; leave one out"),
        (["figures", "t.parquet", "--picture", "a.gif"], "--picture: a.gif is not a supported picture format"),
    ],
)
def test_wrong_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.csv").write_text("1,a.example\n")
    Path("odd.csv").write_text("a;b c,d\n")
    store.write_rows(Path("t.parquet"), "targets", [Target(domain="a.example", url="https://a.example/")])
    before = set(tmp_path.iterdir())
    if arguments[0] == "options" and "--isolation" not in arguments:
        arguments = [*arguments, "--isolation", "here"]
    result = CliRunner().invoke(cli.app, ["survey", *arguments])
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    assert said in result.exception.sentence()
    assert set(tmp_path.iterdir()) == before
