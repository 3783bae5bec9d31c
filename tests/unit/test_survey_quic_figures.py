"""Verdicts of single endpoints, what is offered, and the figures of a survey."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import errno
import io
import itertools
import json
import math
import socket
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from core.errors import UsageError
from core.files import store
from core.outreach.blocks import BlockLists
from core.outreach.dns import Answer, Cause, ResolveError, Service
from core.outreach.pace import Lanes, TokenBucket
from survey.access import Access, NotAskedError
from survey.charts import _groups
from survey.figures import Figures, as_document, as_rows, clustered, print_figures, wilson
from survey.options.record import OptionsRecord
from survey.quic import candidates
from survey.quic.candidates import Candidate, OfferSource, parse_alt_svc
from survey.quic.exchange import ExchangeResult
from survey.quic.negotiate import NegotiationAnswer, NegotiationKind, Negotiator
from survey.quic.record import NOT_ASKED, QuicCause, QuicRecord, figures
from survey.quic.visit import QuicVisitor, verdict
from survey.quic.wire import Flaw, VersionOffer
from survey.subjects import Subject
from survey.surveys.quic import supports
from tests.terminals import on_terminal
from upshift import cli

SILENT = ExchangeResult(cause=QuicCause.HANDSHAKE_TIMEOUT, detail="no packet received")
BEGUN = ExchangeResult(cause=QuicCause.HANDSHAKE_TIMEOUT, detail="1 datagrams came", received=1)


@pytest.mark.parametrize(
    ("kind", "finding", "cause"),
    [
        (NegotiationKind.VERSIONS, SILENT, QuicCause.VERSION_NEGOTIATION_ONLY),
        (NegotiationKind.VERSIONS, BEGUN, QuicCause.HANDSHAKE_TIMEOUT),
        (NegotiationKind.SILENT, SILENT, QuicCause.ADVERTISED_ONLY),
        (NegotiationKind.SILENT, BEGUN, QuicCause.HANDSHAKE_TIMEOUT),
        (NegotiationKind.FLAWED, SILENT, QuicCause.TRANSPORT_ERROR),
        (NegotiationKind.FLAWED, BEGUN, QuicCause.TRANSPORT_ERROR),
        *((kind, ExchangeResult(cause=QuicCause.OK), QuicCause.OK) for kind in NegotiationKind),
        *((kind, ExchangeResult(cause=QuicCause.CERTIFICATE), QuicCause.CERTIFICATE) for kind in NegotiationKind),
    ],
)
def test_a_handshake_that_did_not_end_is_told_apart_by_the_negotiation(
    kind: NegotiationKind, finding: ExchangeResult, cause: QuicCause
) -> None:
    flaw = Flaw.TRUNCATED if kind is NegotiationKind.FLAWED else None
    assert verdict(NegotiationAnswer(kind=kind, flaw=flaw), finding)[0] is cause


def _service(target: str, *alpn: str, port: int | None = None) -> Service:
    return Service(priority=1, target=target, alpn=alpn, port=port, ipv4_hints=("192.0.2.1",), ipv6_hints=())


def test_offers_in_order_each_place_once_and_the_origin_s_own_first() -> None:
    records = candidates.of_services(
        [_service("a.example", "h2"), _service("b.example", "h3", port=8443), _service("a.example", "h3")]
    )
    header = candidates.of_alt_svc("a.example", parse_alt_svc('h3=":443", h3=":8443", h3="[2001:db8::1]:443", h2=":1"'))
    chosen = candidates.chosen("a.example", records, header, guess=True)
    assert [(e.host, e.port, e.source) for e in chosen] == [
        ("a.example", 443, OfferSource.HTTPS_RECORD),
        ("b.example", 8443, OfferSource.HTTPS_RECORD),
        ("a.example", 8443, OfferSource.ALT_SVC),
    ], "no more than three are tried"
    assert chosen[0].hints == ("192.0.2.1",)
    assert candidates.chosen("a.example", [], [], guess=False) == []
    guess = Candidate(host="a.example", port=443, source=OfferSource.GUESS)
    assert candidates.chosen("a.example", [], [], guess=True) == [guess]


def _visitor(blocked: Path, opts_out: str) -> QuicVisitor:
    """A visitor for whom the owner of a name opts out whenever it waits for the rate."""
    blocked.touch()
    lists = BlockLists([blocked])

    class Rate:
        async def turn(self, _: object = None) -> None:
            await asyncio.sleep(0)
            blocked.write_text(f"{opts_out}\n")
            lists._looked = -100.0

    return QuicVisitor(
        access=Access(
            resolver=mock.Mock(),
            blocks=lists,
            names=mock.Mock(),
            rate=Rate(),  # type: ignore[arg-type]
            lanes=Lanes(1000, 1),
            places=asyncio.Semaphore(1),
        ),
        resolver=mock.Mock(),
        negotiator=mock.AsyncMock(),
        handshakes=asyncio.Semaphore(1),
        user_agent="x",
    )


def test_the_first_address_that_may_be_contacted_is(tmp_path: Path) -> None:
    """A domain whose first address is blocked, or private, was a domain that may not be contacted."""
    visitor = _visitor(tmp_path / "blocked.txt", "")
    visitor.access.blocks._state.clear()
    visitor.access = replace(visitor.access, names=mock.AsyncMock())
    answers = mock.AsyncMock(return_value=Answer(addresses=("10.0.0.1", "198.18.0.8", "198.18.0.9"), chain=()))
    visitor.resolver = mock.Mock(addresses=answers)
    endpoint = Candidate(host="h3.a.example", port=443, source=OfferSource.ALT_SVC)

    def chosen(crawled: str | None) -> str:
        return asyncio.run(visitor._address(Subject(domain="a.example", server_ip=crawled), endpoint))

    crawled = (None, "10.0.0.1", "198.18.0.9")
    assert list(map(chosen, crawled)) == ["198.18.0.8", "198.18.0.8", "198.18.0.9"]
    answers.return_value = Answer(addresses=("10.0.0.1", "10.0.0.2"), chain=())
    with pytest.raises(NotAskedError, match=r"^address_refused: 10\.0\.0\.1 "):
        chosen(None)


def test_results_that_were_mapped_afterwards_have_no_shares_per_provider() -> None:
    """Of domains that offer nothing there is no address, so all others at a provider offered HTTP/3."""
    offers: dict[str, Any] = {"https_record_h3": True, "cause": QuicCause.OK, "provider": "google"}
    none: dict[str, Any] = {"https_record_h3": False}
    some = [QuicRecord(domain=f"{n}.example", surveyed_at=1.0, **(offers if n < 5 else none)) for n in range(10)]
    found = figures(some)
    assert found.shares["all"]["offered"].share == 0.5
    assert found.shares.keys() == {"all"} and found.notes[-1].startswith("No shares per provider: ")
    mapped_before = figures([replace(record, provider="google") for record in some])
    assert mapped_before.shares["google"]["offered"].share == 0.5
    assert not mapped_before.notes[-1].startswith("No shares")


def test_an_endpoint_that_was_not_asked_does_not_decide_where_another_was(tmp_path: Path) -> None:
    """The domain offers HTTP/3 and was asked, but it counted in no share: the first endpoint has no address."""
    visitor = _visitor(tmp_path / "blocked.txt", "nobody.example")
    visitor.access.names.turn = mock.AsyncMock()  # type: ignore[method-assign]
    visitor.resolver.services = mock.AsyncMock(return_value=())  # type: ignore[method-assign]

    async def addresses(host: str, **_: object) -> Answer:
        if host == "gone.example":
            raise ResolveError(Cause.NO_SUCH_DOMAIN, "NXDOMAIN")
        return Answer(addresses=("198.18.0.9",), chain=())

    visitor.resolver.addresses = addresses  # type: ignore[method-assign]
    visitor.negotiator.ask.return_value = NegotiationAnswer(kind=NegotiationKind.REFUSED)  # type: ignore[attr-defined]
    for gone, cause in ((True, QuicCause.ADVERTISED_ONLY), (False, QuicCause.DNS_ERROR)):
        subject = Subject(domain="a.example", alt_svc='h3="gone.example:443"' + ', h3="b.example:443"' * gone)
        found = asyncio.run(visitor.visit(subject, _record(QuicCause.NO_CANDIDATE)))
        assert (found.cause, found.host, found.endpoints) == (cause, "b.example" if gone else "gone.example", 1 + gone)
    assert figures([found]).counts == {"domains": 1, "asked": 0}


def test_every_look_up_waits_for_the_rate(tmp_path: Path) -> None:
    visitor, turns = _visitor(tmp_path / "blocked.txt", "nobody.example"), mock.AsyncMock()
    visitor.access.names.turn = turns  # type: ignore[method-assign]
    visitor.resolver.services = mock.AsyncMock(return_value=())  # type: ignore[method-assign]
    visitor.resolver.addresses = looked_up = mock.AsyncMock(  # type: ignore[method-assign]
        return_value=Answer(addresses=("198.18.0.9",), chain=())
    )
    visitor.negotiator.ask.return_value = NegotiationAnswer(kind=NegotiationKind.REFUSED)  # type: ignore[attr-defined]
    subject = Subject(domain="a.example", alt_svc='h3=":443", h3="b.example:443"')
    asyncio.run(visitor.visit(subject, _record(QuicCause.NO_CANDIDATE)))
    assert (looked_up.await_count, turns.await_count) == (2, 3)


def test_probes_hold_the_limits_of_an_address(tmp_path: Path) -> None:
    """Of many domains each may name other ports of it in Alt-Svc."""
    visitor = _visitor(tmp_path / "blocked.txt", "")
    visitor.access = replace(visitor.access, lanes=Lanes(20.0, 1), rate=TokenBucket(10_000.0))
    visitor.unpadded = True
    asked: list[float] = []
    at_once = 0

    async def ask(*_: object, **__: object) -> NegotiationAnswer:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        asked.append(time.monotonic())
        await asyncio.sleep(0)
        at_once -= 1
        return NegotiationAnswer(kind=NegotiationKind.VERSIONS if len(asked) > 2 else NegotiationKind.SILENT)

    visitor.negotiator.ask = ask  # type: ignore[method-assign]

    async def three() -> None:
        ports = (443, 8443, 9443)
        await asyncio.gather(*(visitor._negotiate((f"{n}.example", "b.example"), "198.18.0.9", n) for n in ports))

    asyncio.run(three())
    assert len(asked) == 8  # three, one more to each of two that were silent, and one more to each as all answered
    assert all(later - earlier >= 0.03 for earlier, later in pairwise(asked)), asked


LATE = 0.02
"""Time-out of a probe whose answer comes after it [s]."""


def _late(rest: bytes, probes: int = 2, last_s: float = LATE) -> tuple[QuicVisitor, list[int]]:
    """A visitor, and the sizes of its probes; the server answers the first one when it has the last, and no other."""
    negotiator, first, sizes = Negotiator(), list[Any](), list[int]()

    def send(waiting: Any) -> bool:
        first.append(waiting.probe)
        sizes.append(waiting.size_bytes)
        ids = b"".join(bytes((8,)) + each for each in (first[0].source_id, first[0].destination_id))
        if len(first) == probes:
            answer = b"\x80\0\0\0\0" + ids + rest
            asyncio.get_running_loop().call_soon(negotiator._take, answer, waiting.peer)
        elif len(first) == probes - 1:
            visitor.timeout_s = last_s
        return True

    negotiator._send = send  # type: ignore[method-assign]
    access: Any = mock.Mock(turn=lambda *_, **__: contextlib.nullcontext())
    visitor = QuicVisitor(
        access=access, resolver=mock.Mock(), negotiator=negotiator, handshakes=asyncio.Semaphore(1),
        user_agent="x", timeout_s=LATE,
    )  # fmt: skip
    return visitor, sizes


def test_an_answer_to_the_probe_before_still_counts() -> None:
    """It was `wrong_connection_id`, and the server's verdict that its negotiation is flawed."""
    visitor, _ = _late(b"\0\0\0\1", last_s=60)
    answer, _ = asyncio.run(visitor._ask(("a.example",) * 2, "198.18.0.9", 443))
    assert (answer.kind, answer.flaw, answer.probes, answer.answer_s) == (NegotiationKind.VERSIONS, None, 2, None)
    assert verdict(answer, SILENT)[0] is QuicCause.VERSION_NEGOTIATION_ONLY


def test_a_late_answer_has_its_own_flaw() -> None:
    visitor, _ = _late(b"")
    answer, _ = asyncio.run(visitor._ask(("a.example",) * 2, "198.18.0.9", 443))
    assert (answer.kind, answer.flaw) == (NegotiationKind.FLAWED, Flaw.EMPTY)


def test_an_answer_to_a_whole_probe_is_none_to_one_that_is_too_small() -> None:
    visitor, sizes = _late(b"\0\0\0\1")

    async def both() -> list[NegotiationKind]:
        ask = visitor.negotiator.ask
        return [(await ask("198.18.0.9", 443, timeout_s=LATE, size_bytes=size)).kind for size in (1_200, 64)]

    assert asyncio.run(both()) == [NegotiationKind.SILENT] * 2 and sizes == [1_200, 64]


def test_errors_of_others_that_wait_are_no_error_of_the_next_server() -> None:
    """Eight closed ports, whose ICMP errors came while we were busy, made the next server `unreachable`, unasked."""

    async def probe(closed: int) -> tuple[NegotiationAnswer, int]:
        async with Negotiator() as negotiator:
            sock, target = negotiator._socket(socket.AF_INET), ("127.0.0.9", 9)
            sent = 0
            while sent < closed:
                with contextlib.suppress(ConnectionRefusedError):  # of the datagram before
                    sock.sendto(b"x", target)
                    sent += 1
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
                server.bind(("127.0.0.8", 0))
                server.settimeout(1)
                found = await negotiator.ask(*server.getsockname(), timeout_s=LATE)
                return found, len(server.recv(2_000)) if found.probes else 0

    for closed in (0, 1, 8, 50):
        found, received = asyncio.run(probe(closed))
        assert (found.kind, found.probes, received) == (NegotiationKind.SILENT, 1, 1_200), closed


def test_probes_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("survey.quic.negotiate.LATE_KEPT", 1)
    visitor, _ = _late(b"\0\0\0\1", probes=3)
    visitor.probes = 3
    answer, _ = asyncio.run(visitor._ask(("a.example",) * 2, "198.18.0.9", 443))
    assert (answer.kind, answer.flaw) == (NegotiationKind.FLAWED, Flaw.WRONG_CONNECTION_ID)
    assert len(visitor.negotiator._by_id) == 1 and not visitor.negotiator._by_peer


@pytest.mark.parametrize(("kind", "sent", "probes"), [("unreachable", 0, 0), ("silent", 1, 2)])
def test_probes_that_our_kernel_did_not_send_do_not_count(tmp_path: Path, kind: str, sent: int, probes: int) -> None:
    visitor = _visitor(tmp_path / "blocked.txt", "nobody.example")
    answer = NegotiationAnswer(kind=NegotiationKind(kind), probes=sent)
    visitor.negotiator.ask.return_value = answer  # type: ignore[attr-defined]
    assert asyncio.run(visitor._ask(("a.example",) * 2, "198.18.0.9", 443)) == (replace(answer, probes=probes), None)


@pytest.mark.parametrize("is_probed", [False, True])
def test_what_our_kernel_did_not_send_is_no_result_of_the_server(tmp_path: Path, is_probed: bool) -> None:
    """A host that had lost its route wrote `quic = false` of all targets; once the negotiation was over, too."""
    visitor = _visitor(tmp_path / "blocked.txt", "nobody.example")
    answer = NegotiationAnswer(kind=NegotiationKind.UNREACHABLE, probes=0)
    if is_probed:
        offer = VersionOffer(versions=(1,), greased=False, duplicates=False)
        answer = NegotiationAnswer(kind=NegotiationKind.VERSIONS, offer=offer)
    no_route = OSError(errno.ENETUNREACH, "Network is unreachable")

    async def work() -> QuicRecord:
        opening = mock.patch.object(asyncio.get_running_loop(), "create_datagram_endpoint", side_effect=no_route)
        with opening, mock.patch.object(QuicVisitor, "_negotiate", return_value=(answer, None)):
            endpoint = Candidate(host="198.18.0.9", port=443, source=OfferSource.ALT_SVC)
            record = QuicRecord(domain="198.18.0.9", surveyed_at=0.0)
            return await visitor._try(Subject(domain="198.18.0.9"), endpoint, record)

    found = asyncio.run(work())
    assert (found.cause, supports(found)) == (QuicCause.ADDRESS_REFUSED, None), found.detail
    assert figures([found]).counts["asked"] == 0


@pytest.mark.parametrize("opts_out", ["a.example", "cdn.example"])
def test_who_opts_out_while_a_probe_waits_is_not_probed_and_others_there_are(tmp_path: Path, opts_out: str) -> None:
    visitor = _visitor(tmp_path / "blocked.txt", opts_out)
    visitor.negotiator.ask.return_value = NegotiationAnswer(kind=NegotiationKind.REFUSED)  # type: ignore[attr-defined]
    names = [("a.example", "www.cdn.example"), ("b.example", "b.example")]

    async def both() -> list[Any]:
        work = (visitor._negotiate(pair, "198.18.0.9", 443) for pair in names)
        return await asyncio.gather(*work, return_exceptions=True)

    first, second = asyncio.run(both())
    assert isinstance(first, NotAskedError) and f"{opts_out} is in" in first.detail.removeprefix("www.")
    assert second[0].kind is NegotiationKind.REFUSED
    assert visitor.negotiator.ask.await_count == 1  # type: ignore[attr-defined]


def test_an_endpoint_that_opts_out_while_its_handshake_waits_is_not_contacted(tmp_path: Path) -> None:
    async def settle() -> None:
        visitor = _visitor(tmp_path / "blocked.txt", "cdn.example")
        endpoint = Candidate(host="www.cdn.example", port=443, source=OfferSource.ALT_SVC)
        answer = NegotiationAnswer(kind=NegotiationKind.SILENT, probes=1)
        await visitor._settle(Subject(domain="a.example"), endpoint, "198.18.0.9", answer, _record(QuicCause.OK))

    with mock.patch("survey.quic.visit.exchange") as asked, pytest.raises(NotAskedError, match=r"cdn\.example is in"):
        asyncio.run(settle())
    asked.assert_not_called()


def _record(cause: QuicCause, **more: Any) -> QuicRecord:
    return QuicRecord(domain="a.example", surveyed_at=1.0, cause=cause, **more)


RECORDS = [
    *[
        _record(
            QuicCause.OK,
            rank=900 + n,
            provider="akamai",
            https_record_h3=True,
            negotiation="versions",
            versions="00000001,ff00001d",
            handshake_s=0.01 * n,
            answers_unpadded=n == 1,
        )
        for n in (1, 2, 3)
    ],
    _record(QuicCause.ADVERTISED_ONLY, rank=2_000, provider="other", alt_svc_h3=True, negotiation="silent"),
    _record(QuicCause.TRANSPORT_ERROR, rank=3_000, alt_svc_h3=True, negotiation="flawed", negotiation_flaw="truncated"),
    _record(QuicCause.NO_CANDIDATE, rank=4_000, provider="other", https_record_h3=False, alt_svc_h3=False),
    _record(QuicCause.DNS_ERROR, rank=5),
    _record(QuicCause.BLOCKED),
]
for _number, _one in enumerate(RECORDS):
    _one.domain = f"d{_number}.example"


def test_of_a_list_that_was_not_crawled_nobody_knows_alt_svc() -> None:
    found = figures([replace(record, alt_svc_h3=None) for record in RECORDS if not record.alt_svc_h3])
    shares = {name: (share.count, share.n) for name, share in found.shares["all"].items()}
    assert (shares["alt-svc"], shares["offered"]) == ((0, 0), (3, 4))
    assert as_document(found)["shares"]["all"]["alt-svc"]["share"] is None
    text = io.StringIO()
    print_figures(found, text)
    assert " - " in next(line for line in text.getvalue().splitlines() if line.strip().startswith("all"))


def _of_domain(number: int, cause: QuicCause, **more: Any) -> QuicRecord:
    return QuicRecord(domain=f"d{number}.example", surveyed_at=1.0, cause=cause, **more)


def test_intervals_hold_what_nobody_knows_of_domains_that_were_not_crawled() -> None:
    """Of 1,000 domains 300 may serve HTTP/3, a third of them say so in DNS: it was 10 % [8.3-12.0]."""
    served: dict[str, Any] = {"negotiation": "versions", "versions": "00000001"}
    some = [_of_domain(n, QuicCause.OK, https_record_h3=True, **served) for n in range(100)]
    some += [_of_domain(n, QuicCause.NO_CANDIDATE, https_record_h3=False) for n in range(100, 1_000)]
    found = figures(some)
    shares = {name: (share.count, share.n, share.high) for name, share in found.shares["all"].items()}
    assert {shares[name] for name in ("offered", "answers vn", "http/3")} == {(100, 1_000, 1.0)}
    assert found.shares["all"]["http/3"].low > 0.08 and shares["https record"][2] < 0.13
    assert found.notes[-1].startswith(
        "Lower bounds, with intervals up to what is possible: offered, answers vn, http/3"
    )
    assert as_document(found)["lower_bound_shares"] == ["offered", "answers vn", "http/3"]
    marks = {row[2]: row[-1] for row in as_rows(found) if row[:2] == ("shares", "all")}
    assert [name for name, mark in marks.items() if mark == "true"] == ["offered", "answers vn", "http/3"]
    crawled = figures([replace(record, alt_svc_h3=False) for record in some])
    assert (crawled.lower_bounds, crawled.shares["all"]["answers vn"].high) == (["answers vn"], 1.0), (
        "nobody asked them"
    )
    all_asked = [replace(record, cause=QuicCause.NO_ANSWER) if n >= 100 else record for n, record in enumerate(some)]
    asked = figures(all_asked).shares["all"]
    assert asked["offered"].high == 1.0 and asked["http/3"].high < 0.13, "with --all servers say what DNS does not"


def test_alt_svc_is_a_share_of_the_domains_that_were_crawled() -> None:
    crawled = [_of_domain(n, QuicCause.OK, alt_svc_h3=n < 50, https_record_h3=False) for n in range(100)]
    listed = [_of_domain(n, QuicCause.NO_CANDIDATE, https_record_h3=False) for n in range(100, 200)]
    alone, both = (figures(some).shares["all"]["alt-svc"] for some in (crawled, crawled + listed))
    assert (both.count, both.n) == (50, 100) and both == alone
    assert not any("Lower bounds" in note for note in figures(crawled).notes)
    assert as_document(figures(crawled))["lower_bound_shares"] == []
    assert "are shares of those of which it is known: alt-svc (n = 100)." in printed(figures(crawled + listed))
    assert "of which it is known" not in printed(figures(crawled))
    axis = mock.Mock()
    _groups(axis, figures(crawled + listed))
    assert axis.set_xticks.call_args.args[1] == [
        *(">= offered", "https record", "alt-svc\nn = 100", ">= answers vn", ">= http/3")
    ]


def test_domains_whose_look_up_failed_do_not_count_among_those_that_offer_nothing() -> None:
    """With `--all` they are asked all the same."""
    failed: dict[str, Any] = {"source": "guess", "https_record_h3": None}
    some = [_record(QuicCause.NO_ANSWER, **failed), _record(QuicCause.NO_ANSWER, **failed, alt_svc_h3=False)]
    some += [_record(QuicCause.OK, https_record_h3=True), _record(QuicCause.OK, **failed, alt_svc_h3=True)]
    some += [_record(QuicCause.NO_ANSWER, https_record_h3=False)]
    offered = figures(some).shares["all"]["offered"]
    assert (offered.count, offered.n) == (2, 3)


def test_figures() -> None:
    found = figures(RECORDS)
    assert found.counts == {"domains": 8, "asked": 6}
    counts = {g: {n: (s.count, s.n) for n, s in shares.items()} for g, shares in found.shares.items()}
    assert counts["all"] == {
        "offered": (5, 6),
        "https record": (3, 4),  # of two the look-up failed
        "alt-svc": (2, 3),  # three were not crawled
        "answers vn": (3, 6),
        "http/3": (3, 6),
    }
    assert list(counts) == ["all", "rank <= 1,000", "rank <= 10,000", "akamai", "other"]
    assert counts["rank <= 1,000"]["http/3"] == (3, 3) and counts["rank <= 10,000"]["http/3"] == (3, 6)
    assert (found.singles["usable_of_offered"].count, found.singles["usable_of_offered"].n) == (3, 5)
    assert {cause: share.count for cause, share in found.breakdowns["causes"].shares.items()}["ok"] == 3
    assert {version: (s.count, s.n) for version, s in found.breakdowns["versions"].shares.items()} == {
        "00000001": (3, 3),
        "ff00001d": (3, 3),
    }
    assert (found.singles["answers_unpadded"].count, found.singles["answers_unpadded"].n) == (1, 3)
    assert found.values == {"flaws": {"truncated": 1}, "handshake_median_s": pytest.approx(0.02)}
    # Wilson, by hand: 3 of 6, z = 1.96: centre 0.5, half (1.96 / (1 + z²/6)) * sqrt(1/24 + z²/144)
    z = 1.959963984540054
    half = z / (1 + z * z / 6) * math.sqrt(1 / 24 + z * z / 144)
    share = found.shares["all"]["http/3"]
    assert (share.low, share.high) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_results_of_one_domain_are_no_further_evidence() -> None:
    """Three files with the same domains narrowed the intervals of causes, versions and single shares by two fifths."""
    served: dict[str, Any] = {"https_record_h3": True, "negotiation": "versions", "answers_unpadded": False}
    some = [
        _of_domain(n, QuicCause.OK, versions="00000001,6b3343cf", versions_greased=True, **served) for n in range(30)
    ]
    some += [_of_domain(n, QuicCause.ADVERTISED_ONLY, versions="00000001", **served) for n in range(30, 40)]
    once, thrice = figures(some), figures(some * 3)
    share = thrice.shares["all"]["http/3"]
    assert share == clustered([(3, 3)] * 30 + [(0, 3)] * 10)
    versions = thrice.breakdowns["versions"].shares
    assert (thrice.breakdowns["causes"].shares["ok"], versions["6b3343cf"]) == (share, share)
    assert (thrice.singles["usable_of_offered"], thrice.singles["greased"]) == (share, share)
    assert thrice.singles["answers_unpadded"] == clustered([(0, 3)] * 40)
    assert list(versions) == ["00000001", "6b3343cf"]
    assert thrice.title.startswith("120 of 120 results of 40 domains could be surveyed. ")
    assert once.title.startswith("40 of 40 domains could be surveyed. ")
    assert once.breakdowns["versions"].shares["6b3343cf"] == once.breakdowns["causes"].shares["ok"] == wilson(30, 40)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_figures_fit_the_terminal(width: int) -> None:
    lines = on_terminal(lambda stream: print_figures(figures(RECORDS), stream), width)
    assert max(map(len, lines)) <= width
    [row] = [line for line in lines if line.startswith("all ")]
    assert len([word for word in row.split() if word.startswith("[")]) == (5 if width >= 100 else 0), row
    assert row.endswith(" 6")


def printed(found: Figures) -> str:
    out = io.StringIO()
    print_figures(found, out)
    return out.getvalue()


def test_figures_as_text_and_document() -> None:
    text = printed(figures(RECORDS))
    # Domains are counted: many are behind one server, which answers one probe for all of them.
    headings = [line.split()[-1] for line in text.splitlines() if line.strip().startswith(("group ", "cause "))]
    assert headings == ["n", "count"], "of all domains in n, so many have a cause"
    assert "servers %" not in text and "Of domains whose servers answered, 33.3" in text
    assert "00000001 QUIC 1" in text and "truncated 1" in text and "60.0 [23.1-88.2] % serve it" in text
    document = json.loads(json.dumps(as_document(figures(RECORDS)), allow_nan=False))
    assert document["causes"]["ok"]["share"] == 3 / 8
    nothing = json.dumps(as_document(figures([])), allow_nan=False)
    assert json.loads(nothing)["usable_of_offered"]["share"] is None
    assert "0 of 0" in printed(figures([]))


def test_what_targets_learn() -> None:
    assert supports(_record(QuicCause.OK)) is True
    # Campaigns ask the URL's own host at port 443.
    domain = _record(QuicCause.OK).domain
    assert supports(_record(QuicCause.OK, host=domain, port=443)) is True
    assert supports(_record(QuicCause.OK, host=domain, port=8443)) is False
    www = f"www.{domain}"
    for host, port, says in ((www, 443, True), (www, 8443, False), (domain, 443, None)):
        assert supports(_record(QuicCause.OK, origin=www, host=host, port=port)) is says
    for cause in QuicCause:  # port 443 says nothing of another one
        assert supports(_record(cause, origin=f"{www}:8443", host=www, port=443, alt_svc_h3=False)) is None
    for cause, port in itertools.product(QuicCause, (443, 8443)):
        assert supports(_record(cause, host="alt.example", port=port)) is None
    assert {supports(_record(cause)) for cause in NOT_ASKED} == {None}
    refused = set(QuicCause) - NOT_ASKED - {QuicCause.OK, QuicCause.NO_CANDIDATE, QuicCause.HTTP_ERROR}
    assert {supports(_record(cause)) for cause in refused} == {False}
    # Who was not asked is not known to be without HTTP/3, unless the crawl has read its headers.
    assert supports(_record(QuicCause.NO_CANDIDATE, https_record_h3=False)) is None
    assert supports(_record(QuicCause.NO_CANDIDATE, https_record_h3=False, alt_svc_h3=False)) is False
    # Nor is who answered by HTTP/3 that its start page is not to be had.
    assert [supports(_record(QuicCause.HTTP_ERROR, http_status=status)) for status in (503, None, 421)] == [
        *(None, None, False)
    ]


def test_records_survive_the_file_with_their_units(tmp_path: Any) -> None:
    path = tmp_path / "quic.parquet"
    store.write_rows(path, "survey_quic", RECORDS, QuicRecord)
    assert store.read_rows(path, "survey_quic", QuicRecord) == RECORDS
    table = store.read_table(path, "survey_quic")
    units = {f.name: f.metadata[b"unit"].decode() for f in table.schema if f.metadata and b"unit" in f.metadata}
    assert units["handshake_s"] == "s" and units["max_idle_timeout_ms"] == "ms"
    assert units["initial_max_data_bytes"] == "B"


def test_the_command_tells_the_kinds_of_files_apart(tmp_path: Any) -> None:
    quic, options = tmp_path / "quic.parquet", tmp_path / "options.parquet"
    store.write_rows(quic, "survey_quic", RECORDS, QuicRecord)
    store.write_rows(options, "survey_options", [OptionsRecord(domain="a.example", failure="dns_error")], OptionsRecord)

    def told(*words: object) -> Any:
        return CliRunner().invoke(cli.app, ["survey", "figures", *map(str, words)])

    assert "6 of 8 domains could be surveyed" in told(quic).stdout
    assert "0 of 1 domains completed a handshake" in told(options).stdout
    rows = list(csv.DictReader(io.StringIO(told(quic, quic, "--csv").stdout)))
    assert [(r["count"], r["n"]) for r in rows if (r["figure"], r["name"]) == ("causes", "ok")] == [("6", "16")]
    assert [(r["count"], r["n"]) for r in rows if r["name"] == "usable_of_offered"] == [("6", "10")]
    mixed = told(quic, options)
    assert isinstance(mixed.exception, UsageError)
    assert "options.parquet: this holds survey_options records of Upshift, not survey_quic" in str(mixed.exception)
    pytest.importorskip("matplotlib")
    assert told(quic, "--picture", tmp_path / "q.svg").exit_code == 0
    assert b"<svg" in (tmp_path / "q.svg").read_bytes()[:400]
