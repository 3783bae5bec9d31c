"""Names to addresses and services: the wire reader against dnspython, and the resolver against a server on loopback."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdn_mapping import mapping
from core.errors import PlaceError, ReachError, UsageError
from core.outreach import dns_wire as wire
from core.outreach.dns import Answer, Cause, ResolveError, Resolver, Service, _Receiver, read_services
from core.system import process
from survey import lookups
from survey.quic.candidates import of_services
from survey.quic.record import QuicCause, QuicRecord
from survey.surveys.quic import supports
from tests.cells import examples
from tests.ports import free_port

LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9])?", fullmatch=True)
NAMES = st.lists(LABELS, min_size=2, max_size=5).map(".".join)


def reply_to(question: dns.message.Message, *records: tuple[str, str, str]) -> dns.message.Message:
    reply = dns.message.make_response(question)
    for owner, kind, value in records:
        reply.answer.append(dns.rrset.from_text(owner + ".", 60, "IN", kind, value))
    return reply


@settings(max_examples=examples(8))
@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), st.lists(st.ip_addresses(), max_size=5), st.booleans())
def test_the_reader_tells_what_dnspython_wrote(names: list[str], found: list[object], upper: bool) -> None:
    addresses = list(dict.fromkeys(map(str, found)))
    for kind, version in (("A", "."), ("AAAA", ":")):
        wanted = [address for address in addresses if version in address]
        asked = names[0].upper() if upper else names[0]
        question = dns.message.from_wire(wire.query(7, asked, wire.Type[kind]))
        assert question.question[0].name.to_text(omit_final_dot=True) == asked
        chain = [(a, "CNAME", b + ".") for a, b in itertools.pairwise(names)]
        reply = reply_to(question, *chain, *((names[-1], kind, address) for address in wanted))
        read = wire.parse(reply.to_wire())
        assert read.question == (names[0], wire.Type[kind])
        assert wire.answers(reply.to_wire(), wire.query(7, names[0], wire.Type[kind]))
        assert not wire.answers(reply.to_wire(), wire.query(7, names[0] + "x", wire.Type[kind]))
        assert not wire.answers(reply.to_wire(), wire.query(8, names[0], wire.Type[kind]))
        assert read.chain == tuple(names[1:])
        assert {ipaddress.ip_address(address) for address in read.addresses} == set(map(ipaddress.ip_address, wanted))
        assert read.rcode == 0


@given(st.binary(max_size=80), st.integers(0, 100), st.binary(max_size=3))
def test_noise_is_a_wire_error_and_nothing_else(noise: bytes, cut: int, put: bytes) -> None:
    whole = reply_to(dns.message.make_query("a.example", "A"), ("a.example", "A", "192.0.2.1")).to_wire()
    for data in (noise, whole[:cut], whole[:cut] + put + whole[cut + len(put) :]):
        try:
            wire.parse(data)
        except wire.WireError:
            continue


@pytest.mark.parametrize("opcode", range(1, 16))
def test_a_reply_of_another_kind_is_a_wire_error(opcode: int) -> None:
    """dnspython makes something else of it than of a reply to a query."""
    asked = wire.query(7, "www.example.org", wire.Type.HTTPS)
    reply = struct.pack(">HHHHHH", 7, 0x8000 | opcode << 11, 1, 0, 0, 0) + asked[12:-11]
    assert wire.answers(reply, asked)
    with pytest.raises(wire.WireError):
        wire.parse(reply)


def test_names_that_do_not_fit_and_pointers_that_loop() -> None:
    for name in ("a..b", "x" * 64 + ".example", "", "a." * 130 + "b"):
        with pytest.raises(wire.WireError):
            wire.query(1, name, wire.Type.A)
    looped = bytes.fromhex("000181800001000000000000c00c00010001")
    with pytest.raises(wire.WireError, match="a name that does not end"):
        wire.parse(looped)


def https(*values: str, owner: str = "a.example") -> bytes:
    question = dns.message.make_query("a.example", "HTTPS")
    return reply_to(question, *((owner, "HTTPS", value) for value in values)).to_wire()


def test_https_records() -> None:
    found, alias = read_services(
        https(
            '2 . alpn="h2,h3" port=8443 ipv4hint=192.0.2.1,192.0.2.2 ipv6hint=2001:db8::1',
            "1 cdn.Example. alpn=h3 no-default-alpn",
            "3 x.example. mandatory=key4000 key4000=1",
        )
    )
    assert alias is None
    assert found == (
        Service(priority=1, target="cdn.example", alpn=("h3",), port=None, ipv4_hints=(), ipv6_hints=()),
        Service(
            priority=2,
            target="a.example",
            alpn=("h2", "h3", "http/1.1"),
            port=8443,
            ipv4_hints=("192.0.2.1", "192.0.2.2"),
            ipv6_hints=("2001:db8::1",),
        ),
    )
    assert read_services(https("0 other.example.")) == ((), "other.example")
    assert read_services(https("0 .")) == ((), None)
    assert read_services(https()) == ((), None)


@pytest.mark.parametrize(
    ("target", "host"), [(".", "www.a.example"), ("CDN.example.", "www.a.example"), ("b.example.", "b.example")]
)
def test_the_name_that_was_asked_is_its_own_host_behind_cnames(target: str, host: str) -> None:
    """The records of both are those of where the CNAMEs lead."""
    question = dns.message.make_query("www.a.example", "HTTPS")
    chain = [("www.a.example", "CNAME", "x.example."), ("x.example", "CNAME", "cdn.example.")]
    reply = reply_to(question, *chain, ("cdn.example", "HTTPS", f"1 {target} alpn=h3")).to_wire()
    [service], alias = read_services(reply)
    assert (service.target, alias) == (host, None)
    [endpoint] = of_services([service])
    record = QuicRecord(
        domain="www.a.example", surveyed_at=0.0, cause=QuicCause.OK, host=endpoint.host, port=endpoint.port
    )
    assert supports(record) is (True if host == record.domain else None)


class Server:
    """A name server on loopback; `answer` makes a reply, or None to stay silent."""

    def __init__(self, answer: Callable[[dns.message.Message, bool], dns.message.Message | None]) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.port = free_port()
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.port))
        self.tcp = socket.create_server(("127.0.0.1", self.port))
        self.threads = [threading.Thread(target=target) for target in (self._udp, self._tcp)]
        for thread in self.threads:
            thread.start()

    def _reply(self, data: bytes, *, tcp: bool) -> bytes | None:
        question = dns.message.from_wire(data)
        self.asked.append(question.question[0].to_text() + (" tcp" if tcp else ""))
        reply = self.answer(question, tcp)
        if reply is None:
            return None
        return reply.to_wire() if tcp else reply.to_wire()[:512]  # wherever that is (RFC 2181, section 9)

    def _udp(self) -> None:
        while True:
            data, peer = self.udp.recvfrom(4096)
            if not data:
                return
            reply = self._reply(data, tcp=False)
            if reply is not None:
                wrong = bytes((data[0] ^ 1,)) + reply[1:]
                for candidate in (b"", b"\0", wrong, reply):  # noise and a wrong number before the answer
                    self.udp.sendto(candidate, peer)

    def _tcp(self) -> None:
        while True:
            connection, _ = self.tcp.accept()
            with connection:
                data = connection.recv(4096)
                if not data:
                    return
                reply = self._reply(data[2:], tcp=True) or b""
                connection.sendall(len(reply).to_bytes(2, "big") + reply)

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", ("127.0.0.1", self.port))
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self.threads:
            thread.join()
        self.udp.close()
        self.tcp.close()


def zone(question: dns.message.Message, tcp: bool) -> dns.message.Message | None:
    name = question.question[0].name.to_text(omit_final_dot=True)
    kind = dns.rdatatype.to_text(question.question[0].rdtype)
    match name.split(".")[0]:
        case "silent":
            return None
        case "missing" | "broken":
            reply = reply_to(question)
            reply.set_rcode(dns.rcode.NXDOMAIN if name.startswith("missing") else dns.rcode.SERVFAIL)
            return reply
        case "big" if not tcp:
            reply = reply_to(question)
            reply.flags |= dns.flags.TC
            return reply
        case "cut":
            reply = reply_to(question, *((name, "A", f"198.18.0.{number}") for number in range(40)))
            reply.flags |= 0 if tcp else dns.flags.TC
            return reply
        case "dangling":
            return reply_to(question, (name, "CNAME", "gone.example."))
        case "alias" if kind == "HTTPS":
            return reply_to(question, (name, "HTTPS", "0 end.example."))
        case "loop" if kind == "HTTPS":
            return reply_to(question, (name, "HTTPS", "0 loop.example."))
        case "end" if kind == "HTTPS":
            return reply_to(question, (name, "CNAME", "far.example."), ("far.example", "HTTPS", "1 . alpn=h3"))
    if kind == "A":
        return reply_to(question, (name, "A", "198.18.0.7"))
    return reply_to(question)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(zone)
    yield found
    found.close()


def test_answers_and_causes(server: Server) -> None:
    async def look_up() -> None:
        async with Resolver("127.0.0.1", port=server.port, timeout_s=0.3) as hasty:
            with pytest.raises(ResolveError, match="timeout") as caught:
                await hasty.addresses("silent.example")
            assert caught.value.cause is Cause.DNS_ERROR
        async with Resolver("127.0.0.1", port=server.port, timeout_s=60) as resolver:
            many = await asyncio.gather(*(resolver.addresses(f"h{n}.example") for n in range(200)))
            assert set(many) == {Answer(addresses=("198.18.0.7",), chain=())}
            assert await resolver.addresses("big.example") == many[0]
            assert len((await resolver.addresses("cut.example")).addresses) == 40
            for name, cause, detail in (
                ("missing.example", Cause.NO_SUCH_DOMAIN, "NXDOMAIN"),
                ("broken.example", Cause.DNS_ERROR, "SERVFAIL"),
                ("a..example", Cause.DNS_ERROR, "not a valid name"),
            ):
                with pytest.raises(ResolveError, match=detail) as caught:
                    await resolver.addresses(name)
                assert caught.value.cause is cause
            with pytest.raises(ResolveError, match="no A record"):
                await resolver.addresses("dangling.example")
            assert await resolver.cnames("dangling.example") == ("gone.example",)
            assert await resolver.cnames("h.example") == ()
            with pytest.raises(ResolveError, match="NXDOMAIN"):
                await resolver.cnames("missing.example")
            with pytest.raises(ResolveError, match="no AAAA record") as caught:
                await resolver.addresses("h.example", ipv6=True)
            assert caught.value.cause is Cause.NO_ADDRESS
            (service,) = await resolver.services("alias.example")
            assert (service.target, service.alpn) == ("end.example", ("h3", "http/1.1")), "another than was asked"
            assert await resolver.services("h.example") == ()
            with pytest.raises(ResolveError, match="more than 8 aliases"):
                await resolver.services("loop.example")

    asyncio.run(look_up())
    assert server.asked.count("silent.example. IN A") == 2
    assert "big.example. IN A tcp" in server.asked


def test_another_process_without_rights_answers_the_same(server: Server) -> None:
    names = ["h.example", "big.example", "missing.example", "broken.example", "a..example", "dangling.example"]

    async def all_of(resolver: Resolver | lookups.Lookups) -> list[object]:
        asked = [resolver.addresses(name, ipv6=six) for name in names for six in (False, True)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [(one.cause, one.detail) if isinstance(one, ResolveError) else one for one in found]

    async def look_up() -> None:
        async with Resolver("127.0.0.1", port=server.port) as resolver, lookups.confined(resolver) as there:
            here = await all_of(resolver)
            assert await all_of(there) == here
            pid = there.pool._processes[0]._child.pid
            status = Path(f"/proc/{pid}/status").read_text()
            assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status
            os.kill(pid, signal.SIGKILL)
            assert await all_of(there) == here, "it is started again"

    asyncio.run(look_up())


@pytest.mark.parametrize(
    "reply",
    [
        r"b'\n'",
        r"b'[]\n'",
        r"""b'{"n": 7, "addresses": [], "chain": []}\n'""",
        r"""b'{"n": 1, "addresses": ["www.example"], "chain": []}\n'""",
        r"""b'{"n": 1, "addresses": 5, "chain": []}\n'""",
        r"""b'{"n": 1, "cause": "because", "detail": ""}\n'""",
        r"b'[' * 100_000 + b'\n'",
        r"b'x' * (2 << 20)",
    ],
)
def test_what_a_process_says_that_was_taken_over_is_no_answer(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        f"import os, sys; print('ready', flush=True); sys.stdin.readline(); os.write(1, {reply}); sys.stdin.read()"
    )

    def start(_: object) -> process.Child:
        return process.start([sys.executable, "-c", program], stdin=True, stdout=True, binary=True)

    async def look_up() -> None:
        async with lookups.confined(Resolver("127.0.0.1")) as there:
            await asyncio.wait_for(there.addresses("a.example"), 30)

    monkeypatch.setattr(lookups, "start_here", start)
    with pytest.raises(PlaceError, match="crashed 3 times in a row"):
        asyncio.run(look_up())


def test_a_name_server_that_is_not_there_is_a_fault_of_this_host() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]

    async def look_up() -> None:
        async with Resolver("127.0.0.1", port=port, timeout_s=0.1) as resolver:
            await resolver.addresses("a.example")

    said = r"the name server 127.0.0.1 cannot be reached \(.*refused\); check the network"
    with pytest.raises(PlaceError, match=said):
        asyncio.run(look_up())

    async def ask_the_other_process() -> None:
        async with lookups.confined(Resolver("127.0.0.1", port=port)) as there:
            await there.addresses("a.example")

    with pytest.raises(PlaceError, match=said):
        asyncio.run(ask_the_other_process())
    with pytest.raises(PlaceError, match=said):
        mapping.look_up(["a.example"], nameserver="127.0.0.1", port=port, timeout_s=0.01)


def test_a_name_server_that_is_restarted_meanwhile_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = asyncio.sleep
    monkeypatch.setattr("core.outreach.dns.asyncio.sleep", lambda _: pause(0))

    async def look_up() -> Answer:
        async with Resolver("127.0.0.1", port=server.port, timeout_s=30) as resolver:
            work = asyncio.create_task(resolver.addresses("again.example"))
            await asyncio.sleep(0)
            _Receiver(resolver._waiting).error_received(ConnectionRefusedError())
            return await work

    assert asyncio.run(look_up()).addresses == ("198.18.0.7",)


def test_the_name_server_is_checked() -> None:
    with pytest.raises(UsageError, match="is not a valid address; write 192"):
        Resolver("dns.example")
    with pytest.raises(ReachError, match="is outside what may be contacted"):
        Resolver("8.8.8.8")
