"""aioquic as the download client sets it up, with a server of aioquic in memory: its windows and its first probe."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest
import trustme
from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, StreamDataReceived
from aioquic.quic.packet import pull_quic_header
from aioquic.quic.packet_builder import QuicPacketBuilderStop
from aioquic.quic.recovery import QuicPacketPacer
from aioquic.tls import Epoch

from downloader.programs.aioquic_connection import VerifyingConnection, load_certificates
from downloader.programs.aioquic_get import _configuration
from downloader.programs.common import Options

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
    AUTHORITY.cert_pem.write_to_path(str(folder / "ca.pem"))
    options = Options(
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
    configuration = _configuration(options, max_data, max_stream_data, None, None)
    return VerifyingConnection(configuration, load_certificates(options))


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
