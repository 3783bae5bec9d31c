"""One HTTPS download by libcurl, over HTTP/1.1 and HTTP/2 (TCP) or HTTP/3 (QUIC), to a forced address.

Arguments in, one JSON document out. libcurl keeps the connection; this is the loop around it, as its own knows neither
our budget nor our clock. One new connection, no redirects, no TLS resumption, no proxies. Where the server does not
speak the version that was chosen, HTTP/2 falls back to HTTP/1.1: the document says which it was.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import select
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import pycurl

from core.domain import Failure, FailureCode, Outcome
from core.errors import UpshiftError
from core.outreach.sockets import socket_drops
from core.reach import check_address
from downloader.programs import codes, kernel
from downloader.programs.common import (
    Document,
    Options,
    argument_parser,
    is_status,
    no_certificates,
    options_from,
    print_document,
    version_of,
)
from downloader.programs.kernel import drain, first_packet_at, note_first_packet, tcp_info

VERSIONS = {
    "1.1": pycurl.CURL_HTTP_VERSION_1_1,
    "2": pycurl.CURL_HTTP_VERSION_2TLS,
    "3": pycurl.CURL_HTTP_VERSION_3ONLY,
}
GROUPS = "X25519:P-256:P-384"
"""One key share, for the first: the ClientHello fits into one packet."""

POST_QUANTUM_GROUPS = f"*X25519MLKEM768:*{GROUPS}"
"""A share for each that is marked (SSL_CTX_set1_groups_list(3)), as quiche and browsers send them: a server that has no
post-quantum group would ask for the other by a HelloRetryRequest, a round trip more."""

CHUNK_BYTES = 1 << 19
"""libcurl's largest buffer is 10 MiB; more than this makes no download faster."""

_END_S = 0.3
"""Time to wait, after the last announced byte, for the end of its stream. Not included in any time."""

_SETUP_S = 5.0
_LONGEST_WAIT_S, _LAST_SENTENCES = 1.0, 5
_CODES = {
    pycurl.E_COULDNT_CONNECT: Failure.CONNECTION_RESET,  # over QUIC: the server closed, for whatever reason
    pycurl.E_PEER_FAILED_VERIFICATION: Failure.TLS_CERTIFICATE,
    pycurl.E_SSL_CONNECT_ERROR: Failure.TLS_ERROR,
    pycurl.E_PARTIAL_FILE: Failure.TRUNCATED_BODY,
    pycurl.E_GOT_NOTHING: Failure.CONNECTION_RESET,
    pycurl.E_RECV_ERROR: Failure.CONNECTION_RESET,
    pycurl.E_SEND_ERROR: Failure.CONNECTION_RESET,
    pycurl.E_UNSUPPORTED_PROTOCOL: Failure.PROTOCOL_ERROR,  # HTTP/0.9
    8: Failure.PROTOCOL_ERROR,  # CURLE_WEIRD_SERVER_REPLY
    61: Failure.PROTOCOL_ERROR,  # CURLE_BAD_CONTENT_ENCODING: a transfer-encoding that was not asked for
    100: Failure.PROTOCOL_ERROR,  # CURLE_TOO_LARGE: 100 KiB of a header field, or 5,000 fields
    16: Failure.PROTOCOL_ERROR,  # CURLE_HTTP2
    92: Failure.PROTOCOL_ERROR,  # CURLE_HTTP2_STREAM
    95: Failure.PROTOCOL_ERROR,  # CURLE_HTTP3
    96: Failure.CONNECTION_RESET,  # CURLE_QUIC_CONNECT_ERROR
}
"""libcurl-errors(3); pycurl has no names for those with a number."""

_SENTENCES = {
    "refused": Failure.CONNECTION_REFUSED,
    "ERR_CLOSING": Failure.PROTOCOL_ERROR,  # of ngtcp2: we closed; after the peer's close it is ERR_DRAINING
    "lacks 3 uni streams": Failure.PROTOCOL_ERROR,  # RFC 9114, section 6.2: a server has to grant them
    "chunk hex-length": Failure.PROTOCOL_ERROR,
    "invalid chunk size": Failure.PROTOCOL_ERROR,
    "chunked-encoding": Failure.PROTOCOL_ERROR,
    "Too large response headers": Failure.PROTOCOL_ERROR,
    "reset by server": Failure.CONNECTION_RESET,
    "closed cleanly": Failure.CONNECTION_RESET,
    "TLS connect error: error:00000000": Failure.CONNECTION_RESET,  # the end of TLS's stream
}
"""What libcurl says -> the cause, where its codes differ from ours."""

_TLS = re.compile(rb"SSL connection using (\S+) / (\S+) / (\S+)")
_NO_VERDICT = (0, 1)
_WRONG_NAME = re.compile(r"SSL: .*(?:subject name|common name|cert name)")
_TLS_CODE = re.compile(r"error:([0-9A-F]{8}):SSL routines:")
_ERRNO = re.compile(r"\(errno (\d+)\)")
_H2_CODE = re.compile(r"\berr(?:or)? (\d+)\b")
_BAD_FIELD = "Invalid HTTP header field"
_ALPN = re.compile(rb"ALPN: server accepted (\S+)")


class _Download:
    """State of one download."""

    def __init__(self, document: Document, http: str, *, post_quantum: bool, receive_buffer: int) -> None:
        self.document, self.over_udp = document, http == "3"
        self._receive_buffer = receive_buffer
        self._socket: socket.socket | None = None
        self._is_new = False
        self._shaken = False
        self._is_final = False
        self._ends_with_tcp = False
        """Whether the body may end with TCP's stream: that of HTTP/1 without chunks (RFC 9112, section 6.3)."""
        self._lines: list[bytes] = []
        self._said: list[str] = []
        self._easy, self._multi = pycurl.Curl(), pycurl.CurlMulti()
        self._set_up(http, post_quantum)

    def _set_up(self, http: str, post_quantum: bool) -> None:
        options, easy = self.document.options, self._easy
        host = f"[{options.host}]" if ":" in options.host else options.host
        fields = ["Accept-Encoding: identity"]
        if not self.over_udp:
            # The server then ends the connection with the last byte; libcurl leaves it out of HTTP/2.
            fields.append("Connection: close")
        for option, value in (
            (pycurl.URL, f"https://{options.authority}/"),
            (pycurl.REQUEST_TARGET, options.path),  # in a URL libcurl would change it
            (pycurl.RESOLVE, [f"{host}:{options.port}:{options.address}"]),
            (pycurl.USERAGENT, options.user_agent.encode("utf-8", "replace")),
            (pycurl.HTTPHEADER, fields),
            (pycurl.CAINFO, options.ca),
            (pycurl.SSL_EC_CURVES, POST_QUANTUM_GROUPS if post_quantum else GROUPS),
            (pycurl.SSL_SESSIONID_CACHE, 0),
            (pycurl.FRESH_CONNECT, 1),
            (pycurl.FORBID_REUSE, 1),
            (pycurl.PROXY, ""),
            (pycurl.TCP_NODELAY, 1),
            (pycurl.HTTP09_ALLOWED, 0),
            (pycurl.NOSIGNAL, 1),
            (pycurl.BUFFERSIZE, CHUNK_BYTES),
            (pycurl.CONNECTTIMEOUT_MS, round((options.budget_s + _SETUP_S) * 1000)),  # the budget applies, not this
            (pycurl.HTTP_VERSION, VERSIONS[http]),
            (pycurl.VERBOSE, 1),
            (pycurl.DEBUGFUNCTION, self._on_debug),
            (pycurl.PREREQFUNCTION, self._on_handshake),
            (pycurl.HEADERFUNCTION, self._on_header),
            (pycurl.WRITEFUNCTION, self._on_body),
        ):
            easy.setopt(option, value)

    def load_certificates(self, http: str) -> None:
        """Begins a handshake with nobody: libcurl reads the certificates only after TCP's, and then keeps them.

        Raises WrongUseError if they cannot be read.
        """
        ours, theirs = socket.socketpair()
        easy = self._easy
        easy.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        easy.setopt(pycurl.OPENSOCKETFUNCTION, lambda _purpose, _address: ours)
        easy.setopt(pycurl.SOCKOPTFUNCTION, lambda _number, _purpose: pycurl.SOCKOPT_ALREADY_CONNECTED)
        self._multi.add_handle(easy)
        until = time.monotonic() + _SETUP_S
        with theirs, ours:
            while time.monotonic() < until and not select.select([theirs], [], [], 0)[0]:
                self._multi.perform()
                ended = self._result()
                if ended is not None and ended[0] != pycurl.E_OPERATION_TIMEDOUT:  # we were stopped for so long
                    raise no_certificates(self.document.options)
            self._multi.remove_handle(easy)
        easy.setopt(pycurl.HTTP_VERSION, VERSIONS[http])
        easy.setopt(pycurl.OPENSOCKETFUNCTION, self._on_socket)
        easy.setopt(pycurl.SOCKOPTFUNCTION, self._on_start)

    def run(self) -> None:
        """From the first packet to the last byte, a failure, or the end of the budget."""
        document = self.document
        document.start()  # again with the first packet; libcurl may end before it
        self._multi.add_handle(self._easy)
        is_verbose = True
        while not document.is_over():
            self._multi.perform()
            self._note_start()
            result = self._result()
            if document.is_over():
                self._let_it_end(has_ended=result is not None)
            elif result is not None and (result[0] == 0 or time.monotonic() < document.deadline):
                self._take_result(*result)
            elif time.monotonic() >= document.deadline:
                document.spent()  # whatever libcurl says now: after the sleep of a host its own limits are over, too
            else:
                if self._shaken and is_verbose:
                    self._easy.setopt(pycurl.VERBOSE, 0)  # or libcurl copies each piece of the body
                    is_verbose = False
                self._wait()
        self._finish()

    def _let_it_end(self, *, has_ended: bool) -> None:
        """After the last byte: libcurl closes a transfer that has ended, and just drops one that is cut, so that a QUIC
        server would go on for seconds."""
        until = time.monotonic() + _END_S
        while self.document.values["outcome"] == Outcome.OK and not has_ended and time.monotonic() < until:
            readable, writable, broken = self._multi.fdset()
            select.select(readable, writable, broken, 0.01)
            self._multi.perform()
            has_ended = self._result() is not None

    def _wait(self) -> None:
        """Sleeps until the socket, a timer of libcurl or the end of the budget; notes the end of TCP's handshake."""
        until_s, timer_ms = self.document.deadline - time.monotonic(), self._multi.timeout()
        readable, writable, broken = self._multi.fdset()
        limit_s = until_s if timer_ms < 0 else min(until_s, timer_ms / 1000)
        select.select(readable, writable, broken, min(max(limit_s, 0.0), _LONGEST_WAIT_S))
        if self._socket is not None and not self.over_udp and self.document.values["connect_s"] is None:
            with contextlib.suppress(OSError):
                self._socket.getpeername()
                self.document.mark("connect_s")
                codes.hear_icmp(self._socket, False)

    def _note_start(self) -> None:
        """Moves the clock to the first packet: libcurl prepares QUIC for 2 ms after it has opened the socket."""
        if self._is_new and self._socket is not None and (at := first_packet_at(self._socket)) is not None:
            self._is_new = False
            self.document.start(at=at)

    def _result(self) -> tuple[int, str] | None:
        """libcurl's code and sentence when the transfer has ended; code 0 is a success."""
        _, done, failed = self._multi.info_read()
        return (0, "") if done else next(((code, str(text)) for _, code, text in failed), None)

    def _on_socket(self, _purpose: int, address: tuple[int, int, int, Any]) -> socket.socket | int:
        family, kind, protocol, (host, *_) = address
        if self._socket is not None:  # it would ask five times more, on connections of their own
            if self.over_udp and not self._shaken:  # only after a CONNECTION_REFUSED does libcurl try it again
                detail = "the peer closed the connection: QUIC error 0x2"
                self.document.fail(Failure.CONNECTION_REFUSED, detail, FailureCode.QUIC_TRANSPORT, 2)
            else:
                self.document.fail(Failure.CONNECTION_RESET, "the server left the request to another connection")
            return int(pycurl.SOCKET_BAD)
        try:
            check_address(host, self.document.options.allowed)
        except UpshiftError as error:
            self.document.fail(Failure.ADDRESS_REFUSED, error.what)
            return int(pycurl.SOCKET_BAD)
        made = socket.socket(family, kind, protocol)
        if self.over_udp:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        codes.hear_icmp(made, True)
        self._socket = made.dup()  # to query the kernel after libcurl has closed its own
        return made

    def _on_start(self, _number: int, _purpose: int) -> int:
        """The socket is about to connect: TCP's SYN comes next."""
        if self.over_udp and self._socket is not None:
            note_first_packet(self._socket)
            self._is_new = True
        self.document.start()
        return int(pycurl.SOCKOPT_OK)

    def _on_handshake(self, _there: str, here: str, _port: int, local_port: int) -> int:
        self.document.mark("connect_s" if self.over_udp else "tls_s")
        if self.over_udp and self._socket is not None:
            codes.hear_icmp(self._socket, False)
        self.document.values |= {"local_ip": here, "local_port": local_port}
        if self.over_udp:
            self.document.values["alpn"] = "h3"  # libcurl speaks nothing else
        self._shaken = True
        return int(pycurl.PREREQFUNC_OK)

    def _on_debug(self, kind: int, data: bytes) -> None:
        if kind != pycurl.INFOTYPE_TEXT:
            return
        values = self.document.values
        if (tls := _TLS.search(data)) is not None:
            version, cipher, group = (part.decode("ascii", "replace") for part in tls.groups())
            values |= {"tls_version": version, "tls_cipher": cipher, "tls_group": group}
        elif (alpn := _ALPN.search(data)) is not None:
            values["alpn"] = alpn[1].decode("ascii", "replace")
        else:
            self._said.append(data.decode("utf-8", "replace"))

    def _on_header(self, line: bytes) -> int | None:
        if self.document.is_over():
            return -1
        if self._is_final:  # trailers
            return None
        if line.strip():
            self._lines.append(line.strip())
            return None
        (first, *fields), self._lines = self._lines, []
        version, status, *_ = [*first.split(b" ", 2), b""]
        if not is_status(status.decode("latin-1")):
            self.document.fail(Failure.PROTOCOL_ERROR, "a response without a valid status", FailureCode.HTTP_SYNTAX)
        elif status[:1] != b"1" or status == b"101":
            self._is_final = True
            self.document.values["http_version"] = version.removeprefix(b"HTTP/").decode("ascii", "replace")
            pairs = (field.partition(b":") for field in fields)
            headers = [(name.decode("latin-1"), value.strip().decode("latin-1")) for name, _, value in pairs]
            chunked = any(name.lower() == "transfer-encoding" for name, _ in headers)
            self._ends_with_tcp = version.startswith(b"HTTP/1.") and not chunked
            self.document.take_headers(int(status), headers)
        return -1 if self.document.is_over() else None

    def _on_body(self, data: bytes) -> int | None:
        document = self.document
        if not document.is_over():
            document.take_body(data)
            if not document.is_over() and document.is_whole:
                document.end_of_body()  # all announced bytes are here; their stream need not have ended
        return -1 if document.is_over() and document.values["outcome"] != Outcome.OK else None

    def _take_result(self, code: int, text: str) -> None:
        document = self.document
        if code == 0:
            return document.end_of_body()
        connected = document.values["connect_s"] is not None
        if "unexpected eof" in text:  # the end of TCP's stream without TLS's, which many servers leave out
            if self._lines:
                detail = "the connection ended in the headers"
                return document.fail(Failure.PROTOCOL_ERROR, detail, FailureCode.HTTP_SYNTAX)
            if document.values["http_status"] is None:
                return document.fail(Failure.CONNECTION_RESET, f"the server closed the connection: {text}")
            if self._ends_with_tcp:
                return document.end_of_body()
            detail = f"{document.values['body_bytes']} bytes, and the connection ended before the body did"
            return document.fail(Failure.TRUNCATED_BODY, detail)
        if "ERR_IDLE_CLOSE" in text:
            return document.end(Outcome.CENSORED, Failure.STALLED, "idle timeout: the peer fell silent")
        detail = f"libcurl {code}: {text}"
        icmp = None if self._socket is None or connected else codes.heard(self._socket)
        messages = " ".join((text, *self._said[-_LAST_SENTENCES:]))
        sending = _ERRNO.search(messages)
        if number := self._easy.getinfo(pycurl.OS_ERRNO) or (int(sending[1]) if sending and not connected else 0):
            over_tcp = not self.over_udp
            ending = codes.of_os_error(OSError(number, text), icmp, connected=connected, over_tcp=over_tcp)
            if ending[0] is not Failure.UNKNOWN:
                return document.fail(ending[0], detail, *ending[2:])
        if icmp is not None and (word := codes.of_network(None, icmp, over_tcp=False)) is not None:
            refused = word is FailureCode.ICMP_PORT
            return document.fail(Failure.CONNECTION_REFUSED if refused else Failure.NETWORK_UNREACHABLE, detail, word)
        known = (failure for words, failure in _SENTENCES.items() if words in messages)
        # A port that closes after the handshake refuses nothing any more.
        by_sentence = next((one for one in known if not (connected and one is Failure.CONNECTION_REFUSED)), None)
        failure = by_sentence or _CODES.get(code, Failure.UNKNOWN)
        if failure is Failure.CONNECTION_RESET and _TLS_CODE.search(text) is not None:
            failure = Failure.TLS_ERROR  # a record that is none, or an alert, after the handshake
        if failure is Failure.TLS_CERTIFICATE and self.over_udp:  # libcurl's code for whatever fails in TLS's handshake
            judged = self._easy.getinfo(pycurl.SSL_VERIFYRESULT) not in _NO_VERDICT
            if not judged and _WRONG_NAME.search(messages) is None:
                return document.fail(Failure.TLS_ERROR, detail, FailureCode.ALERT)
        return document.fail(failure, detail, *self._failure_code(failure, code, messages))

    def _failure_code(self, failure: Failure, code: int, messages: str) -> codes.Coded:
        """What libcurl's code and sentences add to the cause."""
        if failure is Failure.TLS_CERTIFICATE:
            rejected = self._easy.getinfo(pycurl.SSL_VERIFYRESULT)
            # libcurl itself compares the names, before it takes over OpenSSL's verdict.
            return (FailureCode.WRONG_NAME if rejected in _NO_VERDICT else codes.of_verification(rejected)), None
        if failure is Failure.TLS_ERROR and (match := _TLS_CODE.search(messages)) is not None:
            return codes.of_tls_number(int(match[1], 16) & 0x7FFFFF)
        if failure is not Failure.PROTOCOL_ERROR or self.over_udp:
            return None, None
        if code in (16, 92) and _BAD_FIELD not in messages:
            number = _H2_CODE.search(messages)
            return FailureCode.H2_CODE, int(number[1]) if number else None
        return codes.of_message(messages), None

    def _finish(self) -> None:
        """Queries the kernel, closes, and waits for the server's FIN."""
        document, sock = self.document, self._socket
        if sock is not None and document.values["local_port"] is None:
            with contextlib.suppress(OSError):
                here, port = sock.getsockname()[:2]
                if port and not ipaddress.ip_address(here).is_unspecified:  # else it found no route, and sent nothing
                    document.values |= {"local_ip": here, "local_port": port}
        if sock is not None and self.over_udp:
            document.values["socket_drops"] = socket_drops(sock)
            size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            document.values["quic"] = {"rcvbuf_bytes": size} if self._shaken else None
        elif sock is not None and document.values["connect_s"] is not None:
            with contextlib.suppress(OSError):
                document.values["tcp"] = tcp_info(sock)
        self._multi.remove_handle(self._easy)
        self._easy.close()
        self._multi.close()
        if sock is None:
            return
        with sock, contextlib.suppress(OSError):
            if not self.over_udp and document.values["outcome"] == Outcome.OK:
                drain(sock)


def download(options: Options, *, http: str, post_quantum: bool, receive_buffer: int) -> Document:
    """One download; errors are part of the document. Raises WrongUseError for certificates that cannot be read."""
    document = Document(f"curl-h{http[0]}", "pycurl", options, handshake="connect_s" if http == "3" else "tls_s")
    document.values["client_version"] = pycurl.version
    if document.refused():
        return document
    state = _Download(document, http, post_quantum=post_quantum, receive_buffer=receive_buffer)
    state.load_certificates(http)
    try:
        state.run()
    except (OSError, pycurl.error) as error:
        document.fail(Failure.UNKNOWN, f"{type(error).__name__}: {error}")
    return document


# Made with the import, which a warm interpreter does once.
version_of("pycurl")
_PARSER = argument_parser("curl_get", "One HTTPS download by libcurl, one JSON document on standard output.")
_PARSER.add_argument("--http", choices=VERSIONS, default="1.1", help="HTTP version (default: 1.1)")
_PARSER.add_argument("--post-quantum", type=int, choices=(0, 1), default=0, help="1: also offer X25519MLKEM768")
_PARSER.add_argument(
    "--receive-buffer", type=int, default=kernel.RECEIVE_BUFFER_BYTES, help="requested buffer of a UDP socket [bytes]"
)


def main(argv: Sequence[str]) -> int:
    """One download. Exit code 0 when a document was printed, 2 for wrong use."""
    arguments = _PARSER.parse_args(argv)
    chosen = {"post_quantum": bool(arguments.post_quantum), "receive_buffer": arguments.receive_buffer}
    return print_document("curl_get", lambda: download(options_from(arguments), http=arguments.http, **chosen))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
