"""What our client programs share: arguments, the JSON document, the time budget, and causes of failure."""

from __future__ import annotations

import argparse
import encodings.idna  # noqa: F401 - `ssl` needs it for a host name, and a confined client imports nothing
import http
import ipaddress
import json
import math
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote, urlsplit

from core.domain import ClientColumns, Failure, FailureCode, Outcome
from core.errors import UpshiftError
from core.reach import ANYWHERE, IPNetwork, check_address, parse_prefixes
from core.system.confine import NOBODY, add_run_as, confine
from core.system.this_host import system_bundle
from core.untrusted import scrub
from downloader.programs.body import Body
from downloader.programs.kernel import Usage, open_schedstat

KEPT_HEADERS = frozenset(
    {"server", "via", "age", "x-cache", "cf-cache-status", "cf-mitigated", "alt-svc", "cache-status", "x-served-by"}
    | {"content-encoding", "etag", "last-modified", "x-amz-cf-pop", "cf-ray", "x-amzn-waf-action"}
    | {"x-cache-status", "server-timing"}
)
"""Response headers that are kept: they identify the server, the cache, and the object. Every client
keeps the same ones (rust/clientkit/src/response.rs)."""

_KEYS = ("tcp", "quic", "dns_s", *(entry.name for entry in fields(ClientColumns) if entry.name != "setup_s"))
"""Keys of the document that are unknown at first; the set-up is measured by the caller."""


@lru_cache
def version_of(package: str) -> str | None:
    """A distribution's version; None: it is missing. Programs ask when they are imported: it takes 5 ms."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class WrongUseError(Exception):
    """Wrong arguments; exit code 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments that all programs share."""

    url: str
    host: str
    path: str
    """Path and query as in the URL, not normalised (rust/clientkit/src/url.rs): all clients ask for the same."""
    address: str
    port: int
    ca: str
    budget_s: float
    max_bytes: int | None
    expected_bytes: int | None = None
    user_agent: str
    allowed: tuple[IPNetwork, ...]
    run_as: tuple[int, int] = NOBODY
    """User and group to become before the first packet, where the user may be changed."""

    @property
    def authority(self) -> str:
        """Host and port as in the URL (RFC 3986, section 3.2); the port only if it is not https's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 443 else f"{host}:{self.port}"


def argument_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """The parser of the shared arguments."""
    parser = argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--url", required=True, help="https URL; its host is checked against the certificate")
    parser.add_argument("--address", required=True, help="IP address to get it from; nothing is looked up")
    parser.add_argument("--port", type=int, help="port (default: the URL's, else 443)")
    parser.add_argument("--ca", help="PEM file with the trusted CA certificates (default: the system's)")
    parser.add_argument("--budget-s", type=float, default=30.0, help="time from the first packet [s]")
    parser.add_argument("--max-bytes", type=int, help="body bytes after which the download is censored")
    parser.add_argument("--expected-bytes", type=int, help="body bytes for which memory is provided (default: 80 MiB)")
    parser.add_argument("--user-agent", default="upshift")
    parser.add_argument("--allow", action="append", metavar="PREFIX", help="may be repeated; others get no packet")
    add_run_as(parser)
    return parser


def options_from(arguments: argparse.Namespace) -> Options:
    """The shared arguments, checked. Raises WrongUseError."""
    try:
        parts = urlsplit(arguments.url)
        port = arguments.port or parts.port or 443
        host = parts.hostname
        address = str(ipaddress.ip_address(arguments.address))
        allowed = parse_prefixes(",".join(arguments.allow), where="--allow") if arguments.allow else ANYWHERE
        ca = arguments.ca or str(system_bundle())
    except (ValueError, UpshiftError) as error:
        raise WrongUseError(str(error)) from None
    if parts.scheme != "https" or not host:
        raise WrongUseError("--url must be https://HOST/PATH")
    if not 0 < arguments.budget_s < 1e6 or not 0 < port < 65536:
        raise WrongUseError("--budget-s and --port must be positive")
    if min(arguments.max_bytes or 0, arguments.expected_bytes or 0) < 0:
        raise WrongUseError("--max-bytes and --expected-bytes must not be negative")
    path = arguments.url.partition("://")[2].partition("#")[0][len(parts.netloc) :]
    return Options(
        url=arguments.url,
        host=host,
        path=quote(path if path.startswith("/") else f"/{path}", safe=string.punctuation),
        address=address,
        port=port,
        ca=ca,
        budget_s=arguments.budget_s,
        max_bytes=arguments.max_bytes,
        expected_bytes=arguments.expected_bytes,
        user_agent=arguments.user_agent,
        allowed=allowed,
        run_as=arguments.run_as,
    )


def no_certificates(options: Options) -> WrongUseError:
    """The error if a library cannot load the certificates; h3get has the same sentence."""
    return WrongUseError(f"{scrub(options.ca)} is not a readable PEM file with CA certificates")


def print_document(prog: str, download: Callable[[], Document]) -> int:
    """Downloads and prints the document; the exit code: 0, or 2 for wrong use."""
    try:
        document = download()
    except WrongUseError as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return 2
    document.print()
    return 0


class Document:
    """The JSON document during the download. Times count from `start`, right before the first packet.

    It also chooses the cause of a failure; see the table for all clients in docs/method/failures.md.
    """

    def __init__(
        self, client: str, package: str, options: Options, *, handshake: str = "connect_s", confined: bool = True
    ) -> None:
        """`handshake`: the field with the time of the complete handshake, TLS included. `confined`: this process gives
        up its rights at `start`; not where another program downloads, or one that writes logs.
        """
        self.options = options
        self._confines = confined
        self._schedstat = open_schedstat()
        self._handshake = handshake
        self._body = Body(options.max_bytes, options.expected_bytes)
        self._is_over = False
        self.values: dict[str, Any] = dict.fromkeys(_KEYS)
        self.values |= {
            "schema": 1,
            "client": client,
            "client_version": version_of(package),
            "outcome": Outcome.FAILED,
            "failure": Failure.UNKNOWN,
            "url": options.url,
            "response_headers": {},
            "body_bytes": 0,
            "server_ip": options.address,
            "server_port": options.port,
            "started_at": time.time(),  # for a download that sends no packet
        }
        self._usage: Usage | None = None

    def start(self, *, at: float | None = None) -> None:
        """Gives up all rights, and starts the clock. The system call that sends the first packet (connect, sendto) must
        come next.

        Args:
            at: Unix time of the first packet, if it was sent just before.
        """
        if self._confines:
            confine(port=self.options.port, user=self.options.run_as)
            self._confines = False
        self._usage = Usage.now(self._schedstat)
        now, self._start = time.time(), time.monotonic()
        self.values["started_at"] = now if at is None else at
        self._start -= now - self.values["started_at"]

    @property
    def deadline(self) -> float:
        """Monotonic clock's reading at which the time budget ends."""
        return self._start + self.options.budget_s

    def is_over(self) -> bool:
        """Whether the outcome is set. A call, as mypy takes an attribute for unchanged by others."""
        return self._is_over

    def mark(self, name: str) -> None:
        """Sets a time to now."""
        self.values[name] = round(time.monotonic() - self._start, 6)

    def end(
        self,
        outcome: Outcome,
        failure: Failure | None = None,
        detail: str | None = None,
        code: FailureCode | None = None,
        number: int | None = None,
    ) -> None:
        """Sets the outcome."""
        self._is_over = True
        self.values |= {"outcome": outcome, "failure": failure, "failure_detail": scrub(detail) if detail else None}
        self.values |= {"failure_code": code, "failure_number": number}
        if self._usage is not None and self.values["transfer_cpu_s"] is None:
            now = Usage.now(self._schedstat)
            self.values["transfer_cpu_s"] = now.cpu_since(self._usage)
            self.values["run_delay_s"] = now.waited_since(self._usage)

    def ran_elsewhere(self, *, cpu_s: float) -> None:
        """The client was another process, which used this much CPU time [s]: what this thread used is not its."""
        self._usage = None
        self.values |= {"client_cpu_s": round(cpu_s, 6), "transfer_cpu_s": None, "run_delay_s": None}

    def fail(
        self, failure: Failure, detail: str | None = None, code: FailureCode | None = None, number: int | None = None
    ) -> None:
        """Sets the outcome to failed, with this cause, its failure code and that code's number.

        The failure code of a time-out and a reset is how far it got, which the caller sees (`downloader.client`).
        """
        self.end(Outcome.FAILED, failure, detail, code, number)

    def take_headers(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Takes a final response's status and the kept headers; fails if they end the download."""
        self.mark("headers_s")
        fields = [(name.lower(), value) for name, value in headers]
        lowered: dict[str, str] = {}
        for name, value in fields:
            lowered[name] = f"{lowered[name]}, {value}" if name in lowered else value
        self.values["http_status"] = status
        kind = lowered.get("content-type")
        self.values["content_type"] = None if kind is None else scrub(kind)
        self.values["response_headers"] = {
            name: scrub(value, most=200) for name, value in sorted(lowered.items()) if name in KEPT_HEADERS
        }
        # White space around a value is no part of it (RFC 9110, section 5.5).
        lengths = {value.strip(" \t") for name, value in fields if name == "content-length"}
        if any(not (length.isascii() and length.isdecimal() and len(length) < 19) for length in lengths):
            return self.fail(Failure.PROTOCOL_ERROR, "content-length is not a number", FailureCode.BAD_LENGTH)
        if len(lengths) > 1:
            return self.fail(Failure.PROTOCOL_ERROR, "two values of content-length", FailureCode.BAD_LENGTH)
        if lowered.get("transfer-encoding", "chunked").lower() != "chunked":
            return self.fail(Failure.PROTOCOL_ERROR, "a transfer-encoding but chunked", FailureCode.HTTP_SYNTAX)
        if lengths and "transfer-encoding" not in lowered:  # which overrides it (RFC 9112, section 6.3)
            self.values["content_length"] = int(lengths.pop())
        if status == http.HTTPStatus.SWITCHING_PROTOCOLS:
            detail = "101 Switching Protocols was not asked for"
            return self.fail(Failure.PROTOCOL_ERROR, detail, FailureCode.UPGRADE)
        return None if status == http.HTTPStatus.OK else self.fail(Failure.HTTP_STATUS, f"status {status}")

    def take_body(self, data: bytes) -> None:
        """Takes in bytes of the body; those beyond the byte budget are not counted. Ends the download at the budget."""
        values, most = self.values, self.options.max_bytes
        kept = data if most is None else data[: most - values["body_bytes"]]
        if kept:
            self.mark("last_byte_s")
            if values["first_byte_s"] is None:
                values["first_byte_s"] = values["last_byte_s"]
            self._body.add(kept)
            values["body_bytes"] += len(kept)
        length = values["content_length"]
        if len(kept) < len(data):
            self.end(Outcome.CENSORED, Failure.BYTE_BUDGET, f"more than the byte budget of {most}")
        elif length is not None and values["body_bytes"] > length:
            self.fail(Failure.LENGTH_MISMATCH, f"more than the {length} bytes that content-length announced")

    @property
    def is_whole(self) -> bool:
        """Whether all announced bytes were received: the body is then complete, even without the end of its stream."""
        return self.values["http_status"] is not None and self.values["body_bytes"] == self.values["content_length"]

    def end_of_body(self) -> None:
        """The response ended, or all announced bytes were received."""
        values = self.values
        got, length = values["body_bytes"], values["content_length"]
        if values["http_status"] is None:
            return self.fail(Failure.PROTOCOL_ERROR, "the stream ended without a response", FailureCode.HTTP_SYNTAX)
        if length is not None and got < length:
            return self.fail(Failure.TRUNCATED_BODY, f"{got} of {length} bytes")
        if values["last_byte_s"] is None:  # an empty body is complete with its headers
            values["first_byte_s"] = values["last_byte_s"] = values["headers_s"]
        return self.end(Outcome.OK)

    def spent(self) -> None:
        """The time budget is over: sets the outcome, by whether data was still arriving."""
        budget_s = self.options.budget_s
        latest_s = self.values["last_byte_s"] or self.values["headers_s"]
        if self.values[self._handshake] is None:
            self.fail(Failure.CONNECT_TIMEOUT, f"no handshake within {budget_s:g} s")
        elif latest_s is not None and latest_s >= budget_s / 2:
            self.end(Outcome.CENSORED, Failure.TIME_BUDGET, f"not complete within {budget_s:g} s")
        else:
            seen = "no byte of a response" if latest_s is None else f"no byte after {latest_s:.3f} s"
            self.end(Outcome.CENSORED, Failure.STALLED, f"{seen} within {budget_s:g} s")

    def refused(self) -> bool:
        """Whether the address may not be contacted; if so, sets that as the result."""
        try:
            check_address(self.options.address, self.options.allowed)
        except UpshiftError as error:
            self.fail(Failure.ADDRESS_REFUSED, error.what)
            return True
        return False

    def print(self) -> None:
        """Writes the document on standard output, with the hash of a whole body: nothing is timed any more."""
        if self._usage is not None:
            self.values["client_cpu_s"] = Usage.now(self._schedstat).cpu_since(self._usage)
        if self.values["outcome"] == Outcome.OK:
            self.values["body_sha256"] = self._body.sha256()
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in self.values.items()}
        sys.stdout.write(json.dumps(finite) + "\n")
        sys.stdout.flush()


def is_status(text: str) -> bool:
    """Whether it is a status code: three digits, from 100 (RFC 9110, section 15)."""
    return len(text) == 3 and text.isascii() and text.isdecimal() and text[0] != "0"


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its origins: causes, contexts, and errors that libraries keep in arguments."""
    queue, seen = [error], set()
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        behind = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        queue += [part for part in behind if isinstance(part, BaseException)]
