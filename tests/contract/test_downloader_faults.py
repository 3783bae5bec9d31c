"""One fault, one cause, one outcome: every client against every row of the table in docs/method/failures.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from core.domain import FAILURE_CODES, Failure, FailureCode, Outcome, Transport
from downloader import clients
from downloader.client import Client, ClientResult, DownloadRequest
from tests.cells import cells
from tests.contract._programs import Programs, is_here
from tests.contract.conftest import Faulty
from tests.lab.noise import TOO_NOISY

OK, FAILED, CENSORED = Outcome.OK, Outcome.FAILED, Outcome.CENSORED
BODY_BYTES = 102_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a server does, and how the download ends with every client."""

    path: str = "/ok"
    port: str = "answers"
    called: str = ""
    """The row's name, where path and port do not say it."""
    outcome: Outcome = FAILED
    failure: Failure | None
    status: int | None = None
    """The final status that was seen; None where none came, or where it does not matter."""
    budget_s: float = 10.0
    max_bytes: int | None = None
    body_bytes: int | None = None
    transports: tuple[Transport, ...] = (Transport.TCP, Transport.QUIC)
    versions: tuple[str, ...] = ("1.1", "2", "3")
    """HTTP versions that know the fault."""
    code: FailureCode | None = None
    number: int | None = None
    """The failure code and its number, the same for all clients."""
    codes: Mapping[str, tuple[FailureCode, int | None]] = field(default_factory=dict)
    """HTTP version -> both, where the fault is another one there."""
    hidden_as: Failure | None = None
    """What a client's `hides` calls the fault, if not by the cause: a client that does not wait for credit."""

    @property
    def fault(self) -> Failure | None:
        return self.hidden_as or self.failure

    def second(self, client: Client) -> tuple[FailureCode | None, int | None]:
        """The failure code that the client should say."""
        return self.codes.get(client.http or "", (self.code, self.number))

    def is_for(self, client: Client) -> bool:
        """Whether a server can do this to the client."""
        return client.transport in self.transports and client.http in self.versions

    @property
    def name(self) -> str:
        if self.called:
            return self.called
        budget = "" if self.max_bytes is None else f"-{self.max_bytes}"
        return (self.path.removeprefix("/") if self.port == "answers" else self.port) + budget


def whole(path: str = "/ok", **more: object) -> Row:
    return Row(path=path, outcome=OK, failure=None, status=200, body_bytes=BODY_BYTES, **more)  # type: ignore[arg-type]


def frames(called: str, answer: str, number: int | None = None) -> Row:
    """Bytes of HTTP/3 on the request's stream, in hexadecimal, then its end. Without a number, no response came."""
    code, failure = FailureCode.HTTP_SYNTAX if number is None else FailureCode.H3_CODE, Failure.PROTOCOL_ERROR
    path = f"/bytes/{answer}"
    return Row(called=called, path=path, transports=QUIC_ONLY, failure=failure, code=code, number=number)


def reset_in_body(path: str, **more: object) -> Row:
    failure, code = Failure.CONNECTION_RESET, FailureCode.IN_BODY
    return Row(path=path, failure=failure, code=code, status=200, **more)  # type: ignore[arg-type]


def said(called: str, answer: bytes, version: str = "1.1", **more: object) -> Row:
    """Bytes of HTTP over TCP, and then TCP's end without TLS's."""
    path = f"/bytes/{answer.hex()}"
    return Row(called=called, path=path, transports=TCP_ONLY, versions=(version,), **more)  # type: ignore[arg-type]


QUIC_ONLY, TCP_ONLY = (Transport.QUIC,), (Transport.TCP,)
SHORT_S = 2.0
H3_FRAME_UNEXPECTED, H3_FRAME_ERROR, QPACK_DECOMPRESSION_FAILED = 0x105, 0x106, 0x200
STATUS_200 = "01030000d9"
"""HEADERS with this status alone."""
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BAD_SYNTAX = {"failure": Failure.PROTOCOL_ERROR, "code": FailureCode.HTTP_SYNTAX}
WHOLE_3 = {"outcome": OK, "failure": None, "status": 200, "body_bytes": 3}
H2_STATUS_200 = bytes.fromhex("00000101040000000188")
"""HEADERS of the first stream with this status alone, without its end (RFC 9113, section 6.2)."""
H2_DATA_3 = bytes.fromhex("000003000000000001616161")
"""Three bytes of its body, without their end."""
H2_ENDED_3 = H2_DATA_3[:4] + b"\x01" + H2_DATA_3[5:]
"""The same with the stream's end."""

ROWS = [
    # the handshake
    Row(
        port="silent",
        failure=Failure.CONNECT_TIMEOUT,
        code=FailureCode.TLS_UNANSWERED,
        codes={"3": (FailureCode.QUIC_UNANSWERED, None)},
        budget_s=SHORT_S,
    ),
    Row(
        port="full",
        failure=Failure.CONNECT_TIMEOUT,
        code=FailureCode.SYN_UNANSWERED,
        transports=TCP_ONLY,
        budget_s=SHORT_S,
    ),
    Row(
        port="closed",
        failure=Failure.CONNECTION_REFUSED,
        code=FailureCode.RST,
        codes={"3": (FailureCode.ICMP_PORT, None)},
    ),
    Row(
        port="closing",
        failure=Failure.CONNECTION_RESET,
        code=FailureCode.IN_TLS,
        codes={"3": (FailureCode.IN_HANDSHAKE, None)},
    ),
    Row(port="notify", failure=Failure.CONNECTION_RESET, code=FailureCode.IN_TLS, transports=TCP_ONLY),
    Row(
        port="alert",
        failure=Failure.TLS_ERROR,
        code=FailureCode.ALERT,
        number=40,
        codes={"3": (FailureCode.ALERT, 120)},
    ),
    Row(
        port="no_alpn",
        failure=Failure.TLS_ERROR,
        code=FailureCode.ALERT,
        number=120,
        transports=QUIC_ONLY,
    ),
    Row(port="plain", failure=Failure.TLS_ERROR, code=FailureCode.NOT_TLS, transports=TCP_ONLY),
    Row(port="old", failure=Failure.TLS_ERROR, code=FailureCode.VERSION, transports=TCP_ONLY),
    *(
        Row(port=code.value, failure=Failure.TLS_CERTIFICATE, code=code)
        for code in sorted(FAILURE_CODES[Failure.TLS_CERTIFICATE])
    ),
    Row(port="forged", failure=Failure.TLS_ERROR, code=FailureCode.ALERT, number=51, transports=QUIC_ONLY),
    Row(
        port="refusing",
        failure=Failure.CONNECTION_REFUSED,
        code=FailureCode.QUIC_TRANSPORT,
        number=0x2,
        transports=QUIC_ONLY,
    ),
    Row(
        port="version",
        failure=Failure.PROTOCOL_ERROR,
        code=FailureCode.VERSION_NEGOTIATION,
        transports=QUIC_ONLY,
    ),
    # the request
    Row(port="zero", outcome=CENSORED, failure=Failure.STALLED, budget_s=SHORT_S, transports=QUIC_ONLY),
    whole(port="credit", transports=QUIC_ONLY, hidden_as=Failure.STALLED),
    # the response
    whole(),
    whole("/interim"),
    Row(path="/interim-for-ever", outcome=CENSORED, failure=Failure.STALLED, budget_s=SHORT_S),
    Row(path="/switching", failure=Failure.PROTOCOL_ERROR, code=FailureCode.UPGRADE),
    Row(path="/no-response", failure=Failure.CONNECTION_RESET, code=FailureCode.BEFORE_HEADERS),
    Row(
        path="/stream-limit",
        failure=Failure.PROTOCOL_ERROR,
        code=FailureCode.QUIC_TRANSPORT,
        number=0x4,
        transports=QUIC_ONLY,
    ),
    Row(path="/silence", outcome=CENSORED, failure=Failure.STALLED, budget_s=SHORT_S),
    Row(path="/late", outcome=CENSORED, failure=Failure.TIME_BUDGET, status=200, budget_s=5.0, body_bytes=0),
    Row(
        path="/garbage",
        failure=Failure.PROTOCOL_ERROR,
        code=FailureCode.HTTP_SYNTAX,
        codes={"2": (FailureCode.H2_CODE, 1), "3": (FailureCode.H3_CODE, 0x105)},
    ),
    Row(path="/bad-status", failure=Failure.PROTOCOL_ERROR, code=FailureCode.HTTP_SYNTAX),
    Row(path="/low-status", failure=Failure.PROTOCOL_ERROR, code=FailureCode.HTTP_SYNTAX),
    frames("no-frame", ""),
    frames("no-headers", "2100"),  # a frame of a type that has no meaning (RFC 9114, section 7.2.8)
    frames("no-field", "01020000"),
    frames("cut-type", "40", H3_FRAME_ERROR),
    frames("cut-headers", "01100000d9", H3_FRAME_ERROR),
    frames("huge-frame", "01c000000040000000", H3_FRAME_ERROR),
    frames("settings", "0400", H3_FRAME_UNEXPECTED),
    frames("priority", "020100", H3_FRAME_UNEXPECTED),  # of HTTP/2 (RFC 9114, section 7.2.8)
    frames("field-unknown", "01040000ff7f", QPACK_DECOMPRESSION_FAILED),
    said("cut-head", HEAD + b"Content-Le", **BAD_SYNTAX),
    said("cut-after-line", HEAD, **BAD_SYNTAX),
    *(
        said(f"coding-{name}", HEAD + f"Transfer-Encoding: {coding}\r\n\r\n3\r\n".encode(), **BAD_SYNTAX)
        for name, coding in (("twice", "gzip, chunked"), ("other", "gzip"), ("none", "identity"))
    ),
    *(said(f"size-{size}", CHUNKED + f"{size}\r\nabc\r\n0\r\n\r\n".encode(), **BAD_SYNTAX) for size in ("zz", "-3")),
    said("no-colon", HEAD + b"name\r\nContent-Length: 9\r\n\r\nabc", **BAD_SYNTAX),
    said("bare-cr", HEAD + b"name: a\rb\r\nContent-Length: 9\r\n\r\nabc", **BAD_SYNTAX),
    said("chunk-too-long", CHUNKED + b"3\r\nabcde0\r\n\r\n", **BAD_SYNTAX),
    Row(path="/fields-5001", transports=TCP_ONLY, versions=("1.1",), **BAD_SYNTAX),  # type: ignore[arg-type]
    Row(path="/long-field", transports=TCP_ONLY, versions=("1.1",), **BAD_SYNTAX),  # type: ignore[arg-type]
    Row(path="/long-fields", transports=TCP_ONLY, versions=("1.1",), **BAD_SYNTAX),  # type: ignore[arg-type]
    Row(path="/missing", failure=Failure.HTTP_STATUS, status=404),
    Row(path="/redirect", failure=Failure.HTTP_STATUS, status=302),
    Row(path="/redirect-open", failure=Failure.HTTP_STATUS, status=302, budget_s=SHORT_S, body_bytes=0),
    Row(path="/no-content", failure=Failure.HTTP_STATUS, status=204),
    Row(path="/partial", failure=Failure.HTTP_STATUS, status=206),
    Row(path="/challenge", failure=Failure.CHALLENGE_PAGE, status=403),
    Row(path="/waf", failure=Failure.CHALLENGE_PAGE, status=202),
    Row(path="/block", failure=Failure.BLOCK_PAGE, status=403),
    Row(path="/limited", failure=Failure.BLOCK_PAGE, status=429),
    Row(path="/forbidden", failure=Failure.HTTP_STATUS, status=403),
    Row(path="/negative-length", failure=Failure.PROTOCOL_ERROR, code=FailureCode.BAD_LENGTH),
    Row(path="/odd-length", failure=Failure.PROTOCOL_ERROR, code=FailureCode.BAD_LENGTH),
    Row(path="/huge-length", failure=Failure.PROTOCOL_ERROR, code=FailureCode.BAD_LENGTH),
    Row(path="/two-lengths", failure=Failure.PROTOCOL_ERROR, code=FailureCode.BAD_LENGTH),
    # the body
    whole("/no-length"),
    Row(path="/empty", outcome=OK, failure=None, status=200, body_bytes=0),
    whole("/open-end"),
    Row(  # DATA frames may be empty (RFC 9114, section 7.2.1)
        called="empty-frames",
        path=f"/bytes/{STATUS_200}00000000000161",
        outcome=OK,
        failure=None,
        status=200,
        body_bytes=1,
        transports=QUIC_ONLY,
    ),
    said("padded-size", CHUNKED + b"0000000000000003\r\nabc\r\n0\r\n\r\n", **WHOLE_3),
    said("length-and-space", HEAD + b"Content-Length: 3 \t\r\n\r\nabc", **WHOLE_3),
    Row(path="/fields-300", outcome=OK, failure=None, status=200, body_bytes=0),
    Row(path="/truncated", failure=Failure.TRUNCATED_BODY, status=200, body_bytes=5000),
    said("cut-chunk", CHUNKED + b"5\r\naaa", failure=Failure.TRUNCATED_BODY, status=200, body_bytes=3),
    said("cut-chunks", CHUNKED + b"3\r\naaa\r\n", failure=Failure.TRUNCATED_BODY, status=200, body_bytes=3),
    said("cut-stream", H2_STATUS_200 + H2_DATA_3, "2", failure=Failure.TRUNCATED_BODY, status=200, body_bytes=3),
    Row(path="/refused-once", failure=Failure.CONNECTION_RESET, code=FailureCode.BEFORE_HEADERS, versions=("2",)),
    said("ended-stream", H2_STATUS_200 + H2_ENDED_3, "2", outcome=OK, failure=None, status=200, body_bytes=3),
    Row(path="/long", failure=Failure.LENGTH_MISMATCH, status=200),
    Row(path="/stall", outcome=CENSORED, failure=Failure.STALLED, status=200, budget_s=SHORT_S, body_bytes=5000),
    Row(path="/no-length-open", outcome=CENSORED, failure=Failure.STALLED, budget_s=SHORT_S, body_bytes=5000),
    Row(path="/trickle", outcome=CENSORED, failure=Failure.TIME_BUDGET, status=200, budget_s=SHORT_S),
    reset_in_body("/reset"),
    reset_in_body("/reset-stream"),
    Row(path="/not-tls", failure=Failure.TLS_ERROR, code=FailureCode.NOT_TLS, status=200, transports=TCP_ONLY),
    reset_in_body("/reset-no-error", body_bytes=5000, versions=("2", "3")),
    reset_in_body("/stateless-reset", body_bytes=5000, budget_s=SHORT_S, transports=QUIC_ONLY),
    frames("cut-data", f"{STATUS_200}0010aabb", H3_FRAME_ERROR),
    frames("cut-data-later", f"{STATUS_200}0010aabb/later", H3_FRAME_ERROR),
    frames("cut-after-body", f"{STATUS_200}0002aabb2103", H3_FRAME_ERROR),
    frames("settings-after-body", f"{STATUS_200}0002aabb0400", H3_FRAME_UNEXPECTED),
    # the byte budget
    Row(outcome=CENSORED, failure=Failure.BYTE_BUDGET, status=200, max_bytes=10_001, body_bytes=10_001),
    whole(max_bytes=BODY_BYTES),
    whole("/no-length", max_bytes=BODY_BYTES),
    Row(path="/no-length", outcome=CENSORED, failure=Failure.BYTE_BUDGET, max_bytes=BODY_BYTES - 1),
]

_UNTOLD = (
    "libcurl keeps no error of nghttp3's: ngtcp2 closes by itself, and libcurl says ERR_CLOSING whatever the reason"
)
_AS_RESET = "libcurl tells no reason of QUIC's, so that this counts as a reset"
_CUT = "quiche takes a stream that ends inside a frame for one that ends"
_CUT_LATER = "h3 sees the cut only where the frame's header, its bytes and the end come in one packet"
OTHERWISE: Mapping[tuple[str, str], tuple[FailureCode | None, int | None, str]] = {
    **{
        ("curl-h3", row): (None, None, _UNTOLD)
        for row in ("switching", "garbage", "bad-status", "low-status", "negative-length", "odd-length", "two-lengths")
    },
    ("curl-h3", "huge-length"): (None, None, _UNTOLD),
    **{("curl-h3", row.name): (None, None, _UNTOLD) for row in ROWS if row.path.startswith("/bytes/") and row.failure},
    ("curl-h3", "alert"): (FailureCode.IN_HANDSHAKE, None, _AS_RESET),
    ("curl-h3", "forged"): (FailureCode.ALERT, None, "libcurl does not tell which alert it sent"),
    ("curl-h3", "version"): (FailureCode.IN_HANDSHAKE, None, _AS_RESET),
    ("curl-h3", "stream-limit"): (FailureCode.BEFORE_HEADERS, None, _AS_RESET),
    ("curl-h2", "long"): (FailureCode.H2_CODE, None, "nghttp2 takes the length for a rule of framing"),
    ("curl-h2", "truncated"): (FailureCode.H2_CODE, None, "nghttp2 takes the length for a rule of framing"),
    ("quiche", "garbage"): (FailureCode.HTTP_SYNTAX, None, "quiche skips DATA before HEADERS: no response comes"),
    ("quiche", "priority"): (FailureCode.HTTP_SYNTAX, None, "quiche skips the frames that only HTTP/2 has"),
    ("quiche", "cut-type"): (FailureCode.HTTP_SYNTAX, None, _CUT),
    ("quiche", "cut-headers"): (FailureCode.HTTP_SYNTAX, None, _CUT),
    ("quiche", "huge-frame"): (FailureCode.H3_CODE, 0x107, "quiche refuses the announced length (H3_EXCESSIVE_LOAD)"),
    ("aioquic", "no-field"): (FailureCode.H3_CODE, QPACK_DECOMPRESSION_FAILED, "pylsqpack takes no empty section"),
    ("quinn", "self_signed"): (FailureCode.UNKNOWN_CA, None, "rustls knows only that no trusted authority issued it"),
}
"""(client, row) -> what it says in place of the row's failure code, and why."""


UNNOTICED = {
    **{("quiche", row): _CUT for row in ("cut-data", "cut-data-later", "cut-after-body")},
    ("quinn", "cut-data-later"): _CUT_LATER,
    **{(client, "reset-no-error"): "libcurl takes NO_ERROR for the stream's end" for client in ("curl-h2", "curl-h3")},
    ("curl-h3", "no_alpn"): "libcurl speaks HTTP/3 whether or not the server agreed on it",
}
"""(client, row) -> why the download may be whole to it. quiche sees cut-after-body if our end was acknowledged."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs() as found:
        yield found


def ended(client: Client, row: Row, faulty: Faulty, programs: Programs) -> ClientResult:
    """How the download ends with this client."""
    port = faulty.ports[row.port]
    request = DownloadRequest(
        url=f"https://{faulty.host}:{port}{row.path}",
        address="127.0.0.1",
        port=port,
        ca_file=faulty.ca,
        budget_s=row.budget_s,
        max_bytes=row.max_bytes,
        user_agent="upshift-test",
        allowed=("127.0.0.0/8",),
        expected_bytes=BODY_BYTES,  # or each client writes 80 MiB of memory first
    )
    return programs.call(client, request)


def is_late(result: ClientResult, row: Row) -> bool:
    """Whether the host was so busy that the last thing that a server says came in the second half of the budget, where
    it is a sign of life (docs/method/failures.md).
    """
    heard = (result.connect_s, result.tls_s, result.headers_s, result.last_byte_s)
    return row.failure is Failure.STALLED and any(time is not None and time > row.budget_s / 2 for time in heard)


def hidden(client: Client, cause: Failure) -> tuple[Outcome, Failure | None]:
    """How a download ends where the client's library hides this cause."""
    instead = client.hides[cause]
    return (OK if instead is None else FAILED), instead


ALIKE = {"redirect", "no-content", "partial", "waf", "limited", "odd-length", "no-length-102400"}
ALIKE |= {"no-frame", "cut-headers", "huge-frame", "settings"}
"""Rows for `make soak`: another row goes the same way; tests/unit/test_downloader_pages.py tells the pages apart."""


@cells("row", every=ROWS, quick=[row for row in ROWS if row.name not in ALIKE], ids=lambda row: row.name)
def test_a_fault_ends_alike_for_all_clients(row: Row, faulty: Faulty, programs: Programs) -> None:
    """All clients at once: some faults are waiting for what never comes."""
    able = [client for client in clients.ALL.values() if row.is_for(client) and is_here(client)]
    with ThreadPoolExecutor(len(able)) as threads:
        results = list(threads.map(lambda client: ended(client, row, faulty, programs), able))
    for client, first in zip(able, results, strict=True):
        result = ended(client, row, faulty, programs) if is_late(first, row) else first
        if is_late(result, row):
            pytest.skip(f"{TOO_NOISY}: {client.name} was answered after half of its {row.budget_s} s, alone, too")
        if (client.name, row.name) in UNNOTICED and result.outcome is OK:
            _check_account(client, result, row)
            continue
        *second, _ = OTHERWISE.get((client.name, row.name), (*row.second(client), ""))
        words = [result.failure_code, result.failure_number]
        assert words == second, (client.name, result.failure, result.failure_detail)
        ending = (result.outcome, result.failure)
        if row.fault in client.hides and ending == hidden(client, row.fault):
            _check_account(client, result, row)
            continue
        assert ending == (row.outcome, row.failure), (client.name, result.failure_detail)
        if row.status is not None:
            assert result.http_status == row.status, client.name
        if row.body_bytes is not None:
            assert result.body_bytes == row.body_bytes, client.name
        _check_account(client, result, row)


def is_hidden(client: Client, cause: Failure, faulty: Faulty, programs: Programs) -> bool:
    """Whether the library really hides this cause, in some row of the table."""
    rows = [row for row in ROWS if row.fault is cause and row.is_for(client)]
    results = (ended(client, row, faulty, programs) for row in rows)
    return any((result.outcome, result.failure) == hidden(client, cause) for result in results)


def test_what_clients_hide_is_hidden(faulty: Faulty, programs: Programs) -> None:
    for client in clients.ALL.values():
        for cause in client.hides:
            assert is_hidden(client, cause, faulty, programs), f"{client.name} does not hide {cause}: it tells it"


def test_a_client_cannot_claim_to_hide_what_it_tells(faulty: Faulty, programs: Programs) -> None:
    for instead in (None, Failure.CONNECTION_RESET):
        planted = replace(clients.ALL["requests"], hides={Failure.LENGTH_MISMATCH: instead})
        assert not is_hidden(planted, Failure.LENGTH_MISMATCH, faulty, programs)


def _check_account(client: Client, result: ClientResult, row: Row) -> None:
    """What holds for every record."""
    assert (result.body_sha256 is not None) == (result.outcome is OK), client.name
    assert (result.failure_detail is None) == (result.outcome is OK), client.name
    assert "\x1b" not in (result.failure_detail or ""), client.name
    times = [result.connect_s, result.tls_s, result.headers_s, result.first_byte_s, result.last_byte_s]
    reached = [time for time in times if time is not None]
    assert reached == sorted(reached), (client.name, times)
    assert all(0 < time <= row.budget_s + 1.0 for time in reached), (client.name, times)
    assert (result.last_byte_s is not None) == (result.body_bytes > 0 or result.outcome is OK), client.name
    assert (result.headers_s is None) == (result.http_status is None), client.name
    assert result.setup_s is not None and result.setup_s > 0, client.name


def test_headers_that_are_kept(faulty: Faulty, programs: Programs) -> None:
    """The same ones by every client; a field that comes twice is one with a comma (RFC 9110, section 5.3)."""
    port = faulty.ports["answers"]
    kept = []
    for client in clients.ALL.values():
        request = DownloadRequest(
            url=f"https://{faulty.host}:{port}/ok",
            address="127.0.0.1",
            port=port,
            ca_file=faulty.ca,
            budget_s=10.0,
            max_bytes=None,
            user_agent="upshift-test",
            allowed=("127.0.0.0/8",),
        )
        kept.append(dict(programs.call(client, request).response_headers))
    assert kept == [{"age": "7", "etag": '"e"', "x-cache": "a, b"}] * len(kept)
