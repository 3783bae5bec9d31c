"""aioquic as the download client sets it up, with a server of aioquic in memory: its windows and its first probe."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, StreamDataReceived
from aioquic.quic.packet import QuicStreamFrame, pull_quic_header
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.quic.recovery import QuicPacketPacer
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch

from core.domain import Outcome
from downloader.programs import aioquic_get
from downloader.programs.aioquic_connection import VerifyingConnection, load_certificates
from downloader.programs.aioquic_get import _configuration, _Download
from downloader.programs.common import Document, Options

SERVER, CLIENT = ("127.0.0.1", 4430), ("127.0.0.1", 50_000)
WIDE, NARROW = 1 << 26, 65_535
ROUND_TRIP_S = 0.1
BODY_BYTES = 1_000_000
AUTHORITY = trustme.CA()


class _Unpaced(QuicPacketPacer):
    def next_send_time(self, now: float) -> Any:
        return None


class _Full:
    """A packet without room for a frame."""

    def start_frame(self, *_: Any, **__: Any) -> None:
        raise QuicPacketBuilderStop


def client(folder: Path, max_data: int = WIDE, max_stream_data: int = WIDE) -> VerifyingConnection:
    options = asked(folder)
    configuration = _configuration(options, max_data, max_stream_data, None, None)
    return VerifyingConnection(configuration, load_certificates(options))


def asked(folder: Path) -> Options:
    AUTHORITY.cert_pem.write_to_path(str(folder / "ca.pem"))
    return Options(
        url="https://a.example/r",
        host="a.example",
        path="/r",
        address=SERVER[0],
        port=SERVER[1],
        ca=str(folder / "ca.pem"),
        budget_s=60.0,
        max_bytes=None,
        user_agent="tests",
        allowed=(ipaddress.ip_network("127.0.0.0/8"),),
    )


def server(folder: Path, first: bytes) -> QuicConnection:
    """One that only the client's windows limit."""
    issued = AUTHORITY.issue_cert("a.example")
    issued.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
    configuration.load_cert_chain(folder / "server.pem", folder / "key.pem")
    header = pull_quic_header(Buffer(data=first), host_cid_length=8)
    made = QuicConnection(configuration=configuration, original_destination_connection_id=header.destination_cid)
    made._loss._cc.congestion_window = 1 << 40
    made._loss._pacer = _Unpaced(max_datagram_size=configuration.max_datagram_size)
    return made


def test_the_first_probe_comes_after_a_second(tmp_path: Path) -> None:
    connection = client(tmp_path)
    connection.connect(SERVER, now=0.0)
    assert connection.datagrams_to_send(now=0.0)
    assert connection.get_timer() == pytest.approx(1.0), "RFC 9002, section 6.2.2, and the other clients"


class _Queue:
    """A socket whose host drops the first datagrams in a full queue, which the kernel tells with IP_RECVERR."""

    def __init__(self, full: int) -> None:
        self.full, self.sent = full, 0

    def getpeername(self) -> tuple[str, int]:
        return SERVER

    def send(self, data: bytes) -> int:
        self.full -= 1
        if self.full >= 0:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        self.sent += 1
        return len(data)


def test_a_datagram_that_this_host_drops_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other QUIC clients of ours send it again, and so does TCP its SYN."""
    options, queue = asked(tmp_path), _Queue(full=1)
    document = Document("aioquic", "aioquic", options, confined=False)
    configuration = _configuration(options, WIDE, WIDE, None, None)
    state = _Download(document, queue, configuration, load_certificates(options))  # type: ignore[arg-type]
    monkeypatch.setattr(state, "_wait", lambda _seconds: document.spent())
    monkeypatch.setattr(state, "_take", lambda _address: None)
    state.run()
    assert (document.values["failure"], queue.sent) == ("connect_timeout", 0), "it went on, and waited for its timer"
    queue.full = 1
    state.quic = client(tmp_path)
    state.quic.connect(SERVER, now=0.0)
    state._send()
    assert queue.sent == 0


DATA, NOTHING = 1200, 0


@pytest.mark.parametrize(
    ("behind", "losses"),
    [
        ([DATA, DATA], 0),
        ([DATA, DATA, DATA], 1),
        ([DATA, NOTHING, NOTHING, NOTHING], 0),
        ([NOTHING, NOTHING, DATA, DATA, NOTHING], 0),
    ],
)
def test_a_loss_is_what_three_packets_of_the_body_came_before(tmp_path: Path, behind: list[int], losses: int) -> None:
    """As with quiche: acknowledgements, probes of a larger MTU and repetitions wait for nothing."""
    options = asked(tmp_path)
    document = Document("aioquic", "aioquic", options, confined=False)
    configuration = _configuration(options, WIDE, WIDE, None, None)
    state = _Download(document, _Queue(full=0), configuration, load_certificates(options))  # type: ignore[arg-type]
    state.stream, receiver, end = 0, QuicStream(0).receiver, 2 * DATA
    state.quic._streams[0] = SimpleNamespace(receiver=receiver)  # type: ignore[assignment]
    receiver.handle_frame(QuicStreamFrame(data=bytes(DATA), offset=0))
    state._note_order()
    for size in behind:
        if size:
            receiver.handle_frame(QuicStreamFrame(data=bytes(size), offset=end))
        end += size
        state._note_order()
    receiver.handle_frame(QuicStreamFrame(data=bytes(DATA), offset=DATA))
    state._note_order()
    assert (state.loss_episodes, state.behind) == (losses, 0)


def test_an_error_after_the_last_byte_leaves_the_download_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last acknowledgement meets a port that has closed."""

    def run(state: _Download) -> None:
        state.document.end(Outcome.OK)
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    options = asked(tmp_path)
    document = Document("aioquic", "aioquic", options, confined=False)
    monkeypatch.setattr(_Download, "run", run)
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.connect(SERVER)
        monkeypatch.setattr(aioquic_get, "_open_socket", lambda _options: sock)
        configuration = _configuration(options, WIDE, WIDE, None, None)
        aioquic_get._download(document, load_certificates(options), configuration)
    assert (document.values["outcome"], document.values["failure"]) == (Outcome.OK, None)


@pytest.mark.parametrize(("max_data", "max_stream_data"), [(NARROW, WIDE), (WIDE, NARROW)])
def test_a_window_stays_as_asked_for(tmp_path: Path, max_data: int, max_stream_data: int) -> None:
    """aioquic by itself would double it, round trip by round trip."""
    *came, last = _round_trips(client(tmp_path, max_data, max_stream_data), tmp_path)
    assert came == [NARROW] * (BODY_BYTES // NARROW) and last == BODY_BYTES % NARROW


def test_a_full_packet_does_not_change_what_came(tmp_path: Path) -> None:
    """Or the next byte would be one too many, and end the connection."""
    connection, full = client(tmp_path, NARROW, NARROW), _Full()
    connection.connect(SERVER, now=0.0)
    stream = connection._get_or_create_stream_for_send(connection.get_next_available_stream_id())
    space = connection._spaces[Epoch.ONE_RTT]
    connection._local_max_data.used = stream.receiver.highest_offset = NARROW
    with pytest.raises(QuicPacketBuilderStop):
        connection._write_connection_limits(full, space)  # type: ignore[arg-type]
    with pytest.raises(QuicPacketBuilderStop):
        connection._write_stream_limits(full, space, stream)  # type: ignore[arg-type]
    assert connection._local_max_data.used == stream.receiver.highest_offset == NARROW


def _round_trips(ours: VerifyingConnection, folder: Path) -> list[int]:
    """Bytes of the body by round trip."""
    ours.connect(SERVER, now=0.0)
    up, now, came = _sent(ours, 0.0), 0.0, [0]
    theirs = server(folder, up[0])
    while sum(came) < BODY_BYTES and now < 60:
        for data in up:
            theirs.receive_datagram(data, CLIENT, now=now)
        while (event := theirs.next_event()) is not None:
            if isinstance(event, StreamDataReceived) and event.end_stream:
                theirs.send_stream_data(event.stream_id, bytes(BODY_BYTES), end_stream=True)
        down = _sent(theirs, now)
        now += ROUND_TRIP_S
        for data in down:
            ours.receive_datagram(data, SERVER, now=now)
        came.append(0)
        while (event := ours.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                ours.send_stream_data(ours.get_next_available_stream_id(), b"GET", end_stream=True)
            elif isinstance(event, StreamDataReceived):
                came[-1] += len(event.data)
        up = _sent(ours, now)
    return [part for part in came if part]


def _sent(connection: QuicConnection, now: float) -> list[bytes]:
    """What one side sends."""
    if (timer := connection.get_timer()) is not None and timer <= now:
        connection.handle_timer(now=now)
    return [data for data, _ in connection.datagrams_to_send(now=now)]
