"""One HTTP/3 download over QUIC by aioquic, to a forced address: arguments in, one JSON document out.

aioquic's protocol engine does no I/O, so this is a plain loop around a connected UDP socket: read all waiting
datagrams, let the engine answer once, sleep until the next datagram or timer. Without asyncio's overhead per datagram,
as this client is CPU-bound. A qlog is written only if `--logs` asks for it (the quirk `aioquic-logs`).
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from aioquic.h3.connection import H3_ALPN, ErrorCode
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import HandshakeCompleted, QuicEvent, StreamReset
from aioquic.quic.logger import QuicFileLogger
from aioquic.quic.packet import QuicProtocolVersion
from OpenSSL import crypto

from core.domain import Failure, FailureCode, Outcome
from core.outreach.quic_engine import NO_COMMON_VERSION, UncheckedHttp3, request_fields
from core.outreach.sockets import socket_drops
from downloader.programs import codes, kernel
from downloader.programs.aioquic_connection import (
    VerifyingConnection,
    closed_here,
    closed_there,
    load_certificates,
    parameters,
)
from downloader.programs.common import (
    Document,
    Options,
    argument_parser,
    is_status,
    options_from,
    print_document,
    version_of,
)

WINDOW_BYTES = 1 << 26
"""Default of both flow-control windows; the reason is in `downloader.client`."""

_DATAGRAMS_PER_TURN = 64
"""Most datagrams that are read before the engine may answer: acknowledgements must not wait for a long burst."""

_LEAST_RESET = 21
"""Bytes of a stateless reset, which ends with the token; aioquic itself knows none (RFC 9000, section 10.3)."""

_LOST_AFTER_PACKETS = 3
"""A packet is lost, and not only late, when so many later ones came."""

_INITIAL_RTT_S = 0.5
"""aioquic repeats its first packet after twice this. The other clients, and TCP, do so after 1 s, which RFC 9002,
section 6.2.2, recommends; aioquic's own value of 0.1 would make a lost one cheaper here than anywhere else."""


class _Download:
    """State of one download."""

    def __init__(
        self, document: Document, sock: socket.socket, configuration: QuicConfiguration, trusted: crypto.X509Store
    ) -> None:
        self.document = document
        self.sock = sock
        self.quic = VerifyingConnection(configuration, trusted)
        self.http: UncheckedHttp3 | None = None
        self.stream: int | None = None
        self.received = 0
        self.behind = 0
        self.highest = 0
        self.loss_episodes = 0

    def run(self) -> None:
        """From the first packet to the last byte, a failure, or the end of the budget."""
        address = self.sock.getpeername()
        self.quic.connect(address, now=time.monotonic())
        datagrams = self.quic.datagrams_to_send(now=time.monotonic())
        self.document.start()
        self._send(datagrams)
        while not self.document.is_over():
            timer = self.quic.get_timer()
            wake = self.document.deadline if timer is None else min(timer, self.document.deadline)
            self._wait(max(wake - time.monotonic(), 0.0))
            if time.monotonic() >= self.document.deadline:
                self.document.spent()
                break
            self._take(address)
            if self.document.is_over():
                return  # nothing may be sent after a stateless reset
            now = time.monotonic()
            if timer is not None and now >= timer:
                self.quic.handle_timer(now=now)
            while (event := self.quic.next_event()) is not None:
                self._on_quic(event)
            if self.document.is_whole and not self.document.is_over():
                self.document.end_of_body()  # all announced bytes are here; their stream need not have ended
            if not self.document.is_over():
                self._check_closed()
            self._send()
        self.quic.close(error_code=ErrorCode.H3_NO_ERROR)
        with contextlib.suppress(OSError):  # the result is known; an error while closing does not matter
            self._send()

    def _wait(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        # Rounded up: poll has a resolution of 1 ms, and a timer that fires too early would spin.
        poll.poll(int(timeout_s * 1000) + 1)

    def _take(self, address: Any) -> None:
        for _ in range(_DATAGRAMS_PER_TURN):
            try:
                data = self.sock.recv(65535)
            except BlockingIOError:
                return None
            self.received += 1
            if len(data) >= _LEAST_RESET and data[-16:] == self.quic._peer_cid.stateless_reset_token:
                return self.document.fail(Failure.CONNECTION_RESET, "the peer sent a stateless reset")
            self.quic.receive_datagram(data, address, now=time.monotonic())
            self._note_order()
        return None

    def _note_order(self) -> None:
        """Counts a loss where a part of the body stays missing for three packets of it (RFC 9002, section 6.1.1)."""
        stream = self.quic._streams.get(self.stream) if self.stream is not None else None
        if stream is None or not len(stream.receiver._ranges):
            self.behind = 0
        elif stream.receiver.highest_offset > self.highest:  # what brings nothing new waits for nothing
            self.behind += 1
            self.loss_episodes += self.behind == _LOST_AFTER_PACKETS
            self.highest = stream.receiver.highest_offset

    def _send(self, datagrams: list[tuple[bytes, Any]] | None = None) -> None:
        for data, _ in datagrams or self.quic.datagrams_to_send(now=time.monotonic()):
            try:
                self.sock.send(data)
            except OSError as error:
                # A full buffer or queue of this host drops the datagram, as any path may; QUIC retransmits its content.
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise

    def _on_quic(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.document.mark("connect_s")
            codes.hear_icmp(self.sock, False)
            self.document.values["alpn"] = event.alpn_protocol
            self._request()
        elif isinstance(event, StreamReset) and event.stream_id == self.stream:
            self.document.fail(Failure.CONNECTION_RESET, f"the server reset the stream (error {event.error_code:#x})")
        if self.http is not None and not self.document.is_over():
            for answer in self.http.handle_event(event):
                self._on_http(answer)

    def _request(self) -> None:
        options = self.document.options
        self.http = UncheckedHttp3(self.quic)  # lengths are checked by `Document`
        self.stream = self.quic.get_next_available_stream_id()
        fields = request_fields("GET", options.authority, options.path, options.user_agent)
        self.http.send_headers(self.stream, fields, end_stream=True)

    def _on_http(self, event: H3Event) -> None:
        if self.document.is_over():
            return
        if isinstance(event, HeadersReceived | DataReceived) and event.stream_id == self.stream:
            if isinstance(event, HeadersReceived):
                self._on_headers(event)
            else:
                self.document.take_body(event.data)
            if event.stream_ended and not self.document.is_over():
                self.document.end_of_body()

    def _on_headers(self, event: HeadersReceived) -> None:
        fields = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in event.headers]
        status = dict(fields).get(":status", "")
        is_interim = len(status) == 3 and status.startswith("1") and status != "101"
        if self.document.values["http_status"] is not None or is_interim:
            return None  # trailers, or an interim response
        if not is_status(status):
            return self.document.fail(
                Failure.PROTOCOL_ERROR, "a response without a valid :status", FailureCode.HTTP_SYNTAX
            )
        self.document.values["http_version"] = "3"
        return self.document.take_headers(int(status), fields)

    def _check_closed(self) -> None:
        """Whether either side has closed before the body was complete."""
        here, event = self.quic.closed_here, self.quic._close_event
        values = self.document.values
        if here is not None:
            self.document.fail(*closed_here(*here, self.quic.rejected))
        elif event is not None:
            by_application = event.frame_type is None
            if event.reason_phrase == NO_COMMON_VERSION:
                detail = "the server speaks no version of QUIC that we speak"
                return self.document.fail(Failure.PROTOCOL_ERROR, detail, FailureCode.VERSION_NEGOTIATION)
            if event.reason_phrase == "Idle timeout":
                if values["connect_s"] is None:
                    self.document.fail(Failure.CONNECT_TIMEOUT, "idle timeout before the handshake completed")
                else:
                    self.document.end(Outcome.CENSORED, Failure.STALLED, "idle timeout: the peer fell silent")
                return None
            established = values["connect_s"] is not None
            self.document.fail(*closed_there(event.error_code, by_application, event.reason_phrase, established))
        return None


def _open_socket(options: Options) -> socket.socket:
    """A connected, non-blocking UDP socket with a large receive buffer. Nothing is sent yet."""
    family = socket.AF_INET6 if ":" in options.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kernel.RECEIVE_BUFFER_BYTES)
    codes.hear_icmp(sock, True)
    sock.connect((options.address, options.port))
    return sock


def _configuration(
    options: Options, max_data: int, max_stream_data: int, logs: Path | None, secrets: TextIO | None
) -> QuicConfiguration:
    return QuicConfiguration(
        quic_logger=None if logs is None else QuicFileLogger(str(logs)),
        secrets_log_file=secrets,
        alpn_protocols=H3_ALPN,
        is_client=True,
        idle_timeout=options.budget_s + 5,  # the budget applies, not the idle timeout
        max_data=max_data,
        max_stream_data=max_stream_data,
        initial_rtt=_INITIAL_RTT_S,
        supported_versions=[QuicProtocolVersion.VERSION_1],  # offered both, some servers change to version 2
        server_name=options.host,
        verify_mode=ssl.CERT_NONE,  # `Connection` verifies
    )


def _facts(download: _Download) -> dict[str, Any]:
    """The connection's data, in the same form as h3get's."""
    quic = download.quic
    return {
        "version": f"{quic._version:#010x}" if quic._version else None,
        "transport_parameters": {
            "local": parameters(quic.local_parameters),
            "peer": parameters(quic.peer_parameters),
        },
        "packets_received": download.received,
        "rtt_ms": round(quic._loss._rtt_smoothed * 1000, 3) if quic._loss._rtt_initialized else None,
        "min_rtt_ms": round(quic._loss._rtt_min * 1000, 3) if quic._loss._rtt_initialized else None,
        "rcvbuf_bytes": download.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        "congestion_control": quic.configuration.congestion_control_algorithm,
        "gro": False,
        "data_blocked_received": quic.data_blocked,
        "stream_data_blocked_received": quic.stream_data_blocked,
        "loss_episodes": download.loss_episodes,
    }


def download(
    options: Options,
    *,
    max_data: int = WINDOW_BYTES,
    max_stream_data: int = WINDOW_BYTES,
    logs: Path | None = None,
) -> Document:
    """One download; errors are part of the document. Raises WrongUseError for certificates that cannot be read.

    Args:
        logs: write a qlog (`CONNECTION.qlog`) and the secrets (`secrets.log`) into this folder.
    """
    document = Document("aioquic", "aioquic", options, confined=logs is None)
    if document.refused():
        return document
    trusted = load_certificates(options)
    with _secrets(logs) as secrets:
        _download(document, trusted, _configuration(options, max_data, max_stream_data, logs, secrets))
    return document


@contextlib.contextmanager
def _secrets(logs: Path | None) -> Iterator[TextIO | None]:
    if logs is None:
        yield None
        return
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "secrets.log").open("a", encoding="ascii") as file:
        yield file


def _download(document: Document, trusted: crypto.X509Store, configuration: QuicConfiguration) -> None:
    options = document.options
    try:
        sock = _open_socket(options)
    except OSError as error:
        document.fail(*codes.of_os_error(error, None, connected=False, over_tcp=False))
        return
    with sock:
        values = document.values
        values["local_ip"], values["local_port"] = sock.getsockname()[:2]
        state = _Download(document, sock, configuration, trusted)
        try:
            state.run()
        except OSError as error:
            connected = values["connect_s"] is not None
            if not document.is_over():  # else it is the acknowledgement of the last byte that cannot be sent
                document.fail(*codes.of_os_error(error, codes.heard(sock), connected=connected, over_tcp=False))
        except MemoryError:
            raise  # a crash: what it holds is bounded (core.system.confine)
        except Exception as error:
            document.fail(Failure.UNKNOWN, f"{type(error).__name__}: {error}")
        if values["connect_s"] is not None:
            values["tls_version"] = "TLSv1.3"  # RFC 9001, section 4.2: no older version
            suite = state.quic.tls.key_schedule
            values["tls_group"] = state.quic.group
            values["tls_cipher"] = f"TLS_{suite.cipher_suite.name}" if suite is not None else None
        values["socket_drops"] = socket_drops(sock)
        values["quic"] = _facts(state)
    trace = state.quic._quic_logger
    if trace is not None and configuration.quic_logger is not None:  # aioquic itself writes it after its closing period
        configuration.quic_logger.end_trace(trace)


# Made with the import, which a warm interpreter does once.
version_of("aioquic")
_PARSER = argument_parser("aioquic_get", "One HTTP/3 download by aioquic, one JSON document on standard output.")
_PARSER.add_argument("--max-data", type=int, default=WINDOW_BYTES, help="connection window [bytes]")
_PARSER.add_argument("--max-stream-data", type=int, default=WINDOW_BYTES, help="stream window [bytes]")
_PARSER.add_argument("--logs", type=Path, metavar="DIR", help="write a qlog and the secrets into this folder")


def main(argv: Sequence[str]) -> int:
    """One download. Exit code 0 when a document was printed, 2 for wrong use."""
    arguments = _PARSER.parse_args(argv)
    windows = {"max_data": arguments.max_data, "max_stream_data": arguments.max_stream_data}
    return print_document("aioquic_get", lambda: download(options_from(arguments), **windows, logs=arguments.logs))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
