"""What an initial-window survey requests, its controls, and the options that it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from core.errors import PlaceError, UsageError
from core.outreach.blocks import BlockLists
from core.outreach.dns import Answer
from core.outreach.pace import Lanes, TokenBucket
from core.system.place import Prober
from survey.access import Access, NotAskedError
from survey.iw.figures import figures
from survey.iw.probers import fault, parse_controls, visits
from survey.iw.record import IwRecord
from survey.iw.request import Request
from survey.iw.sources import our_names
from survey.iw.visit import LONG_PATH, IwVisitor, ObjectCandidates, redirect
from survey.iw.wire import Arrival, Note, ProbeReply, ProbeRequest, ProbeVerdict, Scheme
from survey.programs import Turn
from survey.subjects import Subject
from upshift.commands.survey import app


def reply(**values: Any) -> ProbeReply:
    known: dict[str, Any] = dict.fromkeys(
        (
            *("flight_bytes", "flight_segments", "largest_bytes", "holes", "http_status", "span_us", "total_us"),
            *("received_bytes", "packets_in", "packets_out", "syns", "requests", "tls_version", "handshake_bytes"),
        ),
        0,
    )
    known |= dict.fromkeys(("rtt_us", "handshake_us", "retransmission_us", "content_length"))
    known |= dict.fromkeys(("server_mss", "server_scale"))
    texts = {"location": "", "set_cookie": ""}
    return ProbeReply(**{"verdict": ProbeVerdict.LOWER_BOUND, "notes": Note(0), **known, **texts, **values})


ROOT = Request(scheme=Scheme.HTTP, host="example.org", port=80)


def test_objects_of_urls() -> None:
    found = Request.of("https://www.example.org:8443/a/b?c=d#e")
    assert (found.scheme, found.host, found.port, found.path) == (Scheme.HTTPS, "www.example.org", 8443, "/a/b?c=d")
    assert found.url == "https://www.example.org:8443/a/b?c=d"
    assert Request.of("http://example.org").url == "http://example.org/"
    assert Request.of("http://[fd00::1]/x").url == "http://[fd00::1]/x"
    for bad in ("ftp://example.org/", "http:///x", "http://example.org/" + "x" * 3000, "http://example.org/ü"):
        with pytest.raises(ValueError, match="URL"):
            Request.of(bad)


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/x?y=z", "http://example.org/x?y=z"),
        ("http://www.example.org/", "http://www.example.org/"),
        ("//www.example.org/a", "http://www.example.org/a"),
        ("http://example.com/", None),  # another domain
        ("http://notexample.org/", None),
        ("https://example.org/", None),  # another scheme
        ("http://example.org:8080/", None),
        ("/", "http://example.org/"),  # the same again, now with the cookie
        ("", None),
        ("http://[", None),
        ("http://a b.example.org/", None),  # not a host: it would have ended the whole survey
        ("http://www.example.org/" + "x" * 2_048, None),
    ],
)
def test_redirects_stay_within_the_domain(location: str, leads_to: str | None) -> None:
    found = redirect(ROOT, reply(http_status=302, location=location, set_cookie="a=b"))
    assert (found and found.url, found and found.cookie) == (leads_to, leads_to and "a=b")
    assert redirect(ROOT, reply(http_status=200, location=location)) is None
    assert redirect(ROOT, reply(http_status=302, location="/")) is None


def test_the_ladder_ends_with_a_long_path_at_the_redirects_host() -> None:
    candidates = ObjectCandidates(ROOT, is_listed=False)
    assert candidates.more(reply(http_status=301, location="http://www.example.org/start"))
    assert candidates.wanted.url == "http://www.example.org/start"
    assert candidates.more(reply()) and candidates.wanted.url == "http://www.example.org" + LONG_PATH
    assert len(LONG_PATH) == 1001 and not candidates.more(reply())
    without = ObjectCandidates(ROOT, is_listed=False)
    assert without.more(reply()) and without.wanted.path == LONG_PATH
    # One lost segment of a long answer is no reason to ask for another one.
    long = ObjectCandidates(ROOT, is_listed=False)
    assert not long.more(reply(http_status=200, content_length=100_000, flight_bytes=640))
    assert long.wanted == ROOT and long.more(reply(http_status=200, content_length=300, flight_bytes=640))
    assert not ObjectCandidates(ROOT, is_listed=True).more(reply(http_status=301, location="/x"))


@pytest.mark.parametrize("url", [None, "http://www.shop.example/"])
def test_a_host_that_opted_out_is_not_probed_although_its_domain_leads_to_it(tmp_path: Path, url: str | None) -> None:
    """By a redirect, or as the object of a list when its owner opts out while the visit waits for its turn."""
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("www.shop.example\n" if url is None else "")
    lists = BlockLists([blocked])
    asked = []

    class Names:
        async def addresses(self, host: str, *, ipv6: bool) -> Answer:
            return Answer(addresses=("198.18.0.9",), chain=())

    class Rate:
        async def turn(self, _: object) -> None:
            blocked.write_text("www.shop.example\n")
            lists._looked = -100.0

    async def ask(request: ProbeRequest, turn: Turn) -> ProbeReply:
        async with turn():
            asked.append(request.host)
        return reply(http_status=301, location="http://www.shop.example/")

    async def visit() -> None:
        access = Access(
            resolver=Names(),  # type: ignore[arg-type]
            blocks=lists,
            names=TokenBucket(1000),
            rate=Rate(),  # type: ignore[arg-type]
            lanes=Lanes(1000, 1),
            places=asyncio.Semaphore(1),
        )
        visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names())
        await visitor.visit(Subject(domain="shop.example", url=url), IwRecord(domain="shop.example"))

    with pytest.raises(NotAskedError, match=r"blocked: www\.shop\.example is in blocked\.txt"):
        asyncio.run(visit())
    assert asked == (["shop.example"] if url is None else [])


def test_merged_segments_are_neither_too_little_data_nor_a_reason_for_another_object() -> None:
    merged = reply(
        verdict=ProbeVerdict.LIMITED,
        notes=Note.MERGED,
        flight_segments=1,
        flight_bytes=640,
        largest_bytes=640,
        rtt_us=100,
        http_status=301,
        location="/elsewhere",
    )
    visitor = IwVisitor(
        access=mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ()))),
        ask=mock.AsyncMock(return_value=merged),
        user_agent="x",
        names=our_names(),
    )
    record = asyncio.run(visitor.visit(Subject(domain="a.example"), IwRecord(domain="a.example")))
    assert (record.verdict, record.failure, record.probes, record.url) == ("merged", "merged", 2, "http://a.example/")
    assert figures([record]).values["too_little"] == {"http": 0.0, "https": None}


@pytest.mark.parametrize(
    "lost",
    [
        reply(verdict=ProbeVerdict.RESET),
        reply(verdict=ProbeVerdict.NO_DATA),
        reply(flight_segments=10, flight_bytes=640, largest_bytes=64, http_status=200),  # in chunks: without a length
    ],
    ids=lambda lost: str(lost.verdict),
)
def test_an_object_that_filled_the_window_once_is_long_enough(lost: ProbeReply) -> None:
    """One reset, or one loss, took the window away: a short page was asked for from then on, with each MSS."""
    asked: list[str] = []

    async def ask(request: ProbeRequest, _: Turn) -> ProbeReply:
        asked.append(request.path)
        size = {"largest_bytes": request.mss, "http_status": 200}
        whole = {"verdict": ProbeVerdict.LIMITED, "flight_segments": 10, "flight_bytes": 10 * request.mss}
        return lost if len(asked) == 2 else reply(**whole, **size)

    access = mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ())))
    visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names())
    record = asyncio.run(visitor.visit(Subject(domain="a.example"), IwRecord(domain="a.example")))
    assert (record.verdict, record.iw_kind, record.iw_segments) == ("limited", "segments", 10)
    assert set(asked) == {"/"}


@pytest.mark.parametrize("verdict", [ProbeVerdict.LOWER_BOUND, ProbeVerdict.WINDOW_BOUND])
def test_pacing_is_asked_of_windows_alone(verdict: ProbeVerdict) -> None:
    """Of a server with too little data no flight counts, and twelve more connections were made to it."""
    bound = reply(verdict=verdict, flight_segments=12, flight_bytes=14_400, largest_bytes=1_200, http_status=200)
    access = mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ())))
    ask = mock.AsyncMock(return_value=bound)
    visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names(), mss=(1_200,), pacing=True)
    subject = Subject(domain="a.example", url="http://a.example/x")
    record = asyncio.run(visitor.visit(subject, IwRecord(domain="a.example")))
    assert (record.verdict, record.probes, record.pace, record.paced) == (verdict, 2, None, None)


@pytest.mark.parametrize(
    ("dropped", "more", "verdict", "asked"),
    [
        (500, {}, "limited", [64, 64, 536, 536, 1200, 1200]),
        (9_999, {}, "connect_timeout", [64, 64, 536, 536]),
        (9_999, {"mss": (64, 128)}, "connect_timeout", [64, 64]),
        (9_999, {"larger_mss": False}, "connect_timeout", [64, 64]),  # of prefixes
    ],
)
def test_a_firewall_that_drops_syns_with_a_small_mss_is_no_dead_host(
    dropped: int, more: dict[str, Any], verdict: str, asked: list[int]
) -> None:
    """Against CVE-2019-11477: `-m tcpmss --mss 1:500 -j DROP`."""
    found: list[int] = []

    async def ask(request: ProbeRequest, _: Turn) -> ProbeReply:
        found.append(request.mss)
        if request.mss <= dropped:
            return reply(verdict=ProbeVerdict.CONNECT_TIMEOUT)
        whole = {"flight_segments": 10, "flight_bytes": 10 * request.mss, "largest_bytes": request.mss}
        return reply(verdict=ProbeVerdict.LIMITED, http_status=200, **whole)

    access = mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ())))
    visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names(), **more)
    record = asyncio.run(visitor.visit(Subject(domain="a.example"), IwRecord(domain="a.example")))
    assert (record.verdict, found) == (verdict, asked)
    assert (record.iw_segments, record.failure) == ((10, None) if verdict == "limited" else (None, verdict))


def test_a_server_that_resets_is_not_asked_with_a_larger_mss() -> None:
    access = mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ())))
    ask = mock.AsyncMock(return_value=reply(verdict=ProbeVerdict.CONNECTION_REFUSED))
    visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names())
    record = asyncio.run(visitor.visit(Subject(domain="a.example"), IwRecord(domain="a.example")))
    assert (record.failure, record.probes) == ("connection_refused", 2)


def test_a_server_that_has_answered_and_falls_silent_is_left_alone() -> None:
    found: list[int] = []

    async def ask(request: ProbeRequest, _: Turn) -> ProbeReply:
        found.append(request.mss)
        if request.mss > 64:
            return reply(verdict=ProbeVerdict.CONNECT_TIMEOUT)
        return reply(verdict=ProbeVerdict.LIMITED, flight_segments=10, flight_bytes=640, largest_bytes=64)

    access = mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ())))
    visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names())
    asyncio.run(visitor.visit(Subject(domain="a.example"), IwRecord(domain="a.example")))
    assert found == [64, 64, 128, 128], "no firewall against small MSS"


def test_a_flight_without_a_round_trip_is_not_judged() -> None:
    """The clock was set back meanwhile: it ended the survey by a division by zero."""
    flight = {"flight_segments": 20, "flight_bytes": 24_000, "largest_bytes": 1_200, "http_status": 200, "rtt_us": 0}
    arrivals = tuple(Arrival(at_us=100 * number, end=1_200 * number + 1_200) for number in range(20))
    whole = reply(verdict=ProbeVerdict.LIMITED, arrivals=arrivals, **flight)
    access = mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ())))
    ask = mock.AsyncMock(return_value=whole)
    visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names(), mss=(1_200,), pacing=True)
    subject = Subject(domain="a.example", url="http://a.example/x")
    record = asyncio.run(visitor.visit(subject, IwRecord(domain="a.example")))
    assert (record.verdict, record.pace, record.spread_rtt) == (ProbeVerdict.LIMITED, "cannot_tell", None)


def test_a_flight_after_a_lost_syn_ack_is_not_judged() -> None:
    """The server has no round trip of the second SYN-ACK, and does not pace: 32 segments took 0.15 ms, and not 24."""
    asked: list[int] = []

    async def ask(request: ProbeRequest, _: Turn) -> ProbeReply:
        asked.append(request.ack_delay_ms)
        is_second = request.ack_delay_ms == 0 and len(asked) == 3  # after the two probes of the vote
        rtt_us = 1_100_000 if is_second else 100_000
        gap_us = 0 if is_second else (100_000 + 1_000 * request.ack_delay_ms) / 64
        arrivals = (Arrival(round(gap_us * max(0, n - 9)), 1_200 * n + 1_200) for n in range(32))
        flight = {"flight_segments": 32, "flight_bytes": 38_400, "largest_bytes": 1_200}
        times = {"rtt_us": rtt_us, "handshake_us": rtt_us, "arrivals": tuple(arrivals)}
        return reply(verdict=ProbeVerdict.LIMITED, **flight, **times)

    access = mock.Mock(address=mock.AsyncMock(return_value=("198.18.0.9", ())))
    visitor = IwVisitor(access=access, ask=ask, user_agent="x", names=our_names(), mss=(1_200,), pacing=True)
    subject = Subject(domain="a.example", url="http://a.example/x")
    record = asyncio.run(visitor.visit(subject, IwRecord(domain="a.example")))
    assert (record.pace, record.probes) == ("paced", 9)
    assert record.pacing_ratio == pytest.approx(2.0, abs=0.01)


def test_a_target_whose_url_cannot_be_requested_is_a_failure_of_its_own() -> None:
    async def ask(request: ProbeRequest, _: Turn) -> ProbeReply:
        raise AssertionError(request)

    visitor = IwVisitor(access=mock.Mock(), ask=ask, user_agent="x", names=our_names())
    for url in ("http://a.example/" + "x" * 2_048, "http://a.example/ü", "http://a.example:70000/"):
        with pytest.raises(NotAskedError, match=r"^url_refused: "):
            asyncio.run(visitor.visit(Subject(domain="a.example", url=url), IwRecord(domain="a.example")))


def test_controls() -> None:
    [control] = parse_controls(["http://example.org/x?first=3=10"])
    assert (control.subject.url, control.subject.domain, control.segments) == (
        "http://example.org/x?first=3", "example.org", 10,
    )  # fmt: skip
    assert fault(control, IwRecord(domain="example.org", iw_segments=10)) is None
    assert fault(control, IwRecord(domain="example.org", iw_segments=1)) == (
        "http://example.org/x?first=3 was measured as 1, not 10"
    )
    assert "no_data" in (fault(control, IwRecord(domain="example.org", failure="no_data")) or "")
    for bad in ("example.org=10", "http://example.org/", "http://example.org/=0", "http://example.org/=x"):
        with pytest.raises(UsageError, match="is not a control"):
            parse_controls([bad])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list.txt", "--mss", "40"], "--mss: 40 is not a valid MSS"),
        (["list.txt", "--votes", "three"], "--votes: 'three' is not known"),
        (["list.txt", "--scheme", "ftp"], "--scheme: 'ftp' is not known"),
        (["list.txt", "--path", "x"], "--path: 'x' is not a path"),
        (["list.txt", "--path", "/" * 2_049], "--path: it is too long"),
        (["list.txt", "--control", "x"], "--control: 'x' is not a control"),
        (["list.txt", "--pacing", "--mss", "64"], "--pacing: it is judged at MSS 1200"),
        (["list.txt", "--sample", "0.1"], "--sample: it is a share of --prefixes"),
        (["--prefixes", "p.txt", "--sample", "0"], "--sample: 0 is not a share"),
        (["--prefixes", "p.txt", "--sample", "0.0001"], "--sample: the sample is empty"),
        (["--prefixes", "large.txt"], "--block-list: a sample of 131,072 addresses"),
        (["list.txt", "--prefixes", "p.txt"], "INPUT and --prefixes cannot be combined"),
        ([], "there is no INPUT"),
        (["list.txt", "--targets-out", "t.csv"], "--targets-out: this list has no targets"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("www.example.org\n")
    Path("p.txt").write_text("198.18.0.0/24\n")
    Path("large.txt").write_text("198.18.0.0/15\n")
    command = ["iw", *arguments, "-o", "o.parquet", "--contact", "a@b.example", "--isolation", "here"]
    with pytest.raises(UsageError) as error:
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert said in error.value.sentence()
    assert not Path("o.parquet").exists()


def test_a_prober_without_ipv6_is_no_verdict_about_servers() -> None:
    """As in `--isolation host` where IPv6 has another gateway: each server would be recorded as `address_refused`."""
    context = mock.Mock(prober=Prober(ipv4="198.18.0.1", ipv6=None, device="lo", neighbour=None))
    context.options.ipv6 = True

    async def opened() -> None:
        async with visits(context):
            pass

    with pytest.raises(PlaceError, match="the prober has no IPv6 address here; use --isolation netns"):
        asyncio.run(opened())
