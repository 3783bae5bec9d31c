"""One HTTPS download over TCP by requests, to a forced address: arguments in, one JSON document out.

Certificate and SNI are those of the URL's host (forcediphttpsadapter). One new connection, HTTP/1.1, no redirects, no
TLS resumption, no proxies from the environment. The body is hashed afterwards and discarded.
"""

from __future__ import annotations

import contextlib
import email.errors
import errno
import http.client
import io
import re
import select
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import requests
import urllib3
from forcediphttpsadapter.adapters import (
    ForcedIPHTTPSAdapter,
    ForcedIPHTTPSConnection,
    ForcedIPHTTPSConnectionPool,
    ForcedIPHTTPSPoolManager,
)
from urllib3.connectionpool import HTTPSConnectionPool
from urllib3.util.ssl_ import create_urllib3_context

from core.domain import Failure, Outcome
from downloader.programs import codes
from downloader.programs.common import (
    Document,
    Options,
    argument_parser,
    causes,
    no_certificates,
    options_from,
    print_document,
    version_of,
)
from downloader.programs.kernel import drain, tcp_info

CHUNK = 1 << 18
"""Most bytes of one read; a TLS record gives at most 2^14 at a time."""


class BudgetSpentError(BaseException):
    """The time budget is over. Not an `Exception`, so that no library treats it as a network error."""


class _Socket(ssl.SSLSocket):
    """Distinguishes a reset from an end of the stream: Python's ssl returns no data for both (3.11 with OpenSSL 3.0).

    Checking afterwards is too late, as OpenSSL answers an unexpected end with an alert, which then causes a reset. So
    the state is checked before each read that may sleep: after RST the kernel reports POLLERR, after FIN it does not.
    """

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        was_reset = False
        if self.gettimeout() != 0 and not self.pending():
            poll = select.poll()
            poll.register(self, select.POLLIN)
            was_reset = any(events & select.POLLERR for _, events in poll.poll())
        data = super().read(len, buffer)
        if not data and was_reset:
            raise ConnectionResetError(errno.ECONNRESET, "the server reset the connection")
        return data


_CHUNK_SIZE = re.compile(rb"(0*[0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?\r?\n")
_LONGEST_LINE = 1 << 16
http.client._MAXHEADERS = 5000  # type: ignore[attr-defined]  # libcurl's; more than its own 100 are no fault


class _Reader(io.BufferedReader):
    """Keeps the last line. One that is cut is the last: reading on could find the reset that answers our TLS alert."""

    last = b""

    def readline(self, size: int | None = -1, /) -> bytes:
        is_cut = self.last != b"" and not self.last.endswith(b"\n")
        self.last = b"" if is_cut else super().readline(size)
        return self.last


class _Response(http.client.HTTPResponse):
    """Skips every interim response (RFC 9110, section 15.2), where http.client skips only 100; takes no end of the
    connection for an end of the headers, and no chunk without a size (RFC 9112, section 7.1) for an end of the body.
    """

    fp: _Reader

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = _Reader(self.fp.detach())

    def begin(self) -> None:
        reader = self.fp
        super().begin()
        if not reader.last:
            raise http.client.HTTPException("the connection ended in the headers")
        if any(isinstance(defect, email.errors.MissingHeaderBodySeparatorDefect) for defect in self.msg.defects):
            raise http.client.HTTPException("a header line that is no field")  # those after it would be lost

    def _safe_read(self, amt: int) -> bytes:
        """Reads what ends a chunk: `read1` asks for nothing else."""
        end: bytes = super()._safe_read(amt)  # type: ignore[misc]  # typeshed leaves it out
        if end != b"\r\n":
            raise http.client.HTTPException(f"a chunk that does not end with its size: {end!r}")
        return end

    def _read_next_chunk_size(self) -> int:
        line = self.fp.readline(_LONGEST_LINE)
        if (size := _CHUNK_SIZE.fullmatch(line)) is not None:
            return int(size[1], 16)
        if len(line) < _LONGEST_LINE and not line.endswith(b"\n"):
            raise http.client.IncompleteRead(b"")
        raise http.client.HTTPException(f"a chunk without a size: {line[:20]!r}")

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]  # typeshed leaves it out
        is_interim = 100 <= status < 200 and status != http.HTTPStatus.SWITCHING_PROTOCOLS
        return version, http.HTTPStatus.CONTINUE if is_interim else status, reason


class _Connection(ForcedIPHTTPSConnection):  # type: ignore[misc]  # the library ships no types
    """A connection that starts the clock with its SYN, and records the end of TCP's and TLS's handshakes."""

    response_class = _Response
    document: Document
    observer: socket.socket | None = None
    """A second handle of the connection, to query the kernel after the libraries have closed theirs."""
    kept: socket.socket | None = None
    icmp: codes.Icmp | None = None
    """What the kernel heard while it was connecting."""

    def _new_conn(self) -> socket.socket:
        # urllib3's own does more between our clock and the SYN, and may not set TCP_NODELAY.
        values, goal = self.document.values, (self.dest_ip, self.port)
        sock = socket.socket(socket.AF_INET6 if ":" in self.dest_ip else socket.AF_INET)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            codes.hear_icmp(sock, True)
            # Repeated, because an exception is lost if the signal arrives inside a destructor.
            signal.setitimer(signal.ITIMER_REAL, self.document.options.budget_s, 0.05)
            self.document.start()
            sock.connect(goal)
            self.document.mark("connect_s")
            codes.hear_icmp(sock, False)
            self.observer = sock.dup()
        except BaseException:
            self.icmp = codes.heard(sock)
            sock.close()
            raise
        values["local_ip"], values["local_port"] = sock.getsockname()[:2]
        values["server_ip"], values["server_port"] = sock.getpeername()[:2]
        return sock

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        super().putrequest(method, self.document.options.path, *args, **kwargs)

    def connect(self) -> None:
        super().connect()
        self.document.mark("tls_s")
        sock, values = self.sock, self.document.values
        values["tls_version"], values["alpn"] = sock.version(), sock.selected_alpn_protocol()
        values["tls_cipher"] = (sock.cipher() or (None,))[0]
        if (group := getattr(sock, "group", None)) is not None:  # Python 3.14 has it
            values["tls_group"] = group()
        # http.client closes the socket with the response. Another reference keeps it open until we have checked for
        # bytes after the body.
        self.kept = sock
        self.keeper = sock.makefile("rb", buffering=0)


class _Pool(ForcedIPHTTPSConnectionPool):  # type: ignore[misc]  # the library ships no types
    def _new_conn(self) -> _Connection:
        self.ConnectionCls = _Connection
        connection: _Connection = HTTPSConnectionPool._new_conn(self)  # type: ignore[assignment]
        connection.dest_ip = self.dest_ip
        connection.document = self.document
        self.connections.append(connection)
        return connection


class _Manager(ForcedIPHTTPSPoolManager):  # type: ignore[misc]  # the library ships no types
    document: Document
    connections: list[_Connection]

    def _new_pool(self, scheme: str, host: str, port: int, request_context: Any = None) -> _Pool:  # noqa: ARG002
        pool = _Pool(host, port, dest_ip=self.dest_ip, **self.connection_pool_kw)
        pool.document, pool.connections = self.document, self.connections
        return pool


class _Adapter(ForcedIPHTTPSAdapter):  # type: ignore[misc]  # the library ships no types
    """Requests to one address, on connections that record times."""

    def __init__(self, document: Document, context: ssl.SSLContext) -> None:
        self.document, self.context = document, context
        self.connections: list[_Connection] = []
        super().__init__(dest_ip=document.options.address, max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        kwargs |= {"dest_ip": self.dest_ip, "ssl_context": self.context}
        self.poolmanager = _Manager(num_pools=connections, maxsize=maxsize, block=block, **kwargs)
        self.poolmanager.document, self.poolmanager.connections = self.document, self.connections

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:  # noqa: ARG002
        """Sets no certificates: the context has them, and urllib3 would load them again during the handshake."""
        conn.cert_reqs = "CERT_REQUIRED"


def tls_context(options: Options) -> ssl.SSLContext:
    """What TLS needs, certificates included: loaded before the clock starts. Raises WrongUseError."""
    # No tickets, no compression; a new one, so nothing can be resumed. On Python 3.13 and newer urllib3 would add
    # VERIFY_X509_STRICT, which refuses chains that all other clients take.
    context = create_urllib3_context(verify_flags=0)
    context.sslsocket_class = _Socket
    try:
        context.load_verify_locations(cafile=options.ca)
    except OSError:  # which ssl.SSLError is
        raise no_certificates(options) from None
    return context


@contextlib.contextmanager
def time_budget() -> Iterator[None]:
    """Raises BudgetSpentError in the block at the alarm signal, even in a blocking system call.

    The alarm is set by `_Connection`, with the clock's start.
    """

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise BudgetSpentError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def download(options: Options) -> Document:
    """One download; whatever happens is in the document. Raises WrongUseError for certificates that cannot be read."""
    document = Document("requests", "requests", options, handshake="tls_s")
    if document.refused():
        return document
    adapter = _Adapter(document, tls_context(options))
    session = requests.Session()
    session.trust_env = False  # no proxies, no CA bundle, no .netrc of the environment
    session.get_redirect_target = lambda resp: None  # type: ignore[method-assign]  # noqa: ARG005 - it reads the body
    session.mount("https://", adapter)
    try:
        with time_budget():
            _get(session, document)
    except BudgetSpentError:
        if document.values["outcome"] != Outcome.OK:  # the signal arrived at the end
            document.spent()
    except MemoryError:
        raise  # a crash: what it holds is bounded (core.system.confine)
    except Exception as error:
        document.fail(*classify(error, document, next((one.icmp for one in adapter.connections), None)))
    for connection in adapter.connections:
        _finish(connection, document)
    session.close()
    return document


def _get(session: requests.Session, document: Document) -> None:
    options, values = document.options, document.values
    headers = {"User-Agent": options.user_agent, "Accept-Encoding": "identity", "Accept": "*/*"}
    # The server then ends the connection with the last byte. Otherwise it would wait for our FIN, and its TLS
    # close_notify would be data one round trip after the body: the capture would end later than the client.
    headers["Connection"] = "close"
    response = session.get(
        f"https://{options.authority}/",  # the path is the connection's, as requests would normalise it
        headers=headers,
        stream=True,
        allow_redirects=False,
    )
    values["http_version"] = {10: "1.0", 11: "1.1"}.get(response.raw.version, str(response.raw.version))
    document.take_headers(response.status_code, response.raw.headers.iteritems())
    while not document.is_over():
        # The body is complete; waiting for the end of the connection is not part of the download.
        if document.is_whole or not (data := response.raw.read1(CHUNK, decode_content=False)):
            document.end_of_body()
        else:
            document.take_body(data)


def classify(error: BaseException, document: Document, icmp: codes.Icmp | None = None) -> codes.Ending:
    """How an exception of requests, urllib3, http.client, ssl or the system ended the download. Specific first."""
    chain = list(causes(error))
    connected = document.values["connect_s"] is not None
    got, length = document.values["body_bytes"], document.values["content_length"]
    for part in chain:
        match part:
            case http.client.IncompleteRead() | urllib3.exceptions.IncompleteRead():
                return Failure.TRUNCATED_BODY, f"{got} of {'unknown' if length is None else length} bytes", None, None
            case http.client.RemoteDisconnected():
                return Failure.CONNECTION_RESET, "the server closed the connection without a response", None, None
            # With close_notify; Python 3.11.2 (Debian 12) calls an end without one so, too.
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
                return Failure.CONNECTION_RESET, "the server closed the connection during the TLS handshake", None, None
    for part in chain:
        # requests' own exceptions are OSErrors without a number: their origin has more information.
        if isinstance(part, OSError) and codes.classify_os_error(part, connected=connected) is not None:
            return codes.of_os_error(part, icmp, connected=connected, over_tcp=True)
    if any(isinstance(part, http.client.HTTPException | urllib3.exceptions.HTTPError) for part in chain) and connected:
        return Failure.PROTOCOL_ERROR, str(chain[-1]), codes.of_message(str(chain[-1])), None
    return Failure.UNKNOWN, f"{type(error).__name__}: {error}", None, None


def _finish(connection: _Connection, document: Document) -> None:
    """Reads TCP_INFO, closes, and waits for the server's FIN."""
    observer, sock = connection.observer, connection.kept
    if observer is None:
        return
    with observer, contextlib.suppress(OSError, ValueError):  # the server may have closed in any way by now
        document.values["tcp"] = tcp_info(observer)
        if document.values["outcome"] == Outcome.OK and sock is not None:
            if _more_than_asked(sock):
                document.fail(Failure.LENGTH_MISMATCH, "the server sent more than its Content-Length")
            drain(observer)
    if sock is not None:
        connection.keeper.close()
        sock.close()


def _more_than_asked(sock: socket.socket) -> bool:
    """Whether application data follows the body."""
    sock.setblocking(False)
    try:
        return bool(sock.recv(1))
    except (ssl.SSLWantReadError, BlockingIOError):
        return False


# Made with the import, which a warm interpreter does once.
version_of("requests")
_PARSER = argument_parser("requests_get", "One HTTPS download over TCP, one JSON document on standard output.")


def main(argv: Sequence[str]) -> int:
    """One download. Exit code 0 when a document was printed, 2 for wrong use."""
    return print_document("requests_get", lambda: download(options_from(_PARSER.parse_args(argv))))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
