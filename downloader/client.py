"""The type `Client`: how to call a download program, and how to parse its result. Pure values and functions.

All programs share one contract (docs/design/house.md): arguments in, one JSON document out. A program with
another interface brings its own `arguments` and `parse`.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from core.domain import FAILURE_CODES, ClientColumns, Failure, FailureCode, Outcome, Transport
from core.errors import PlaceError, UsageError, use_one_of
from core.system.process import find_program, is_debug_build, refuse_debug_build
from core.untrusted import last_line, scrub
from downloader.pages import page_of_edge

SCHEMA = 1
"""Version of the JSON document that is parsed here."""

PROGRAMS = "downloader.programs."
"""Programs with this prefix are our own Python modules, which are forked from a warm interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOption:
    """A numeric option of a client, e.g. a flow-control window."""

    name: str
    help: str
    default: int
    least: int = 1
    most: int = (1 << 62) - 1
    """RFC 9000, section 16: the largest number that QUIC can carry."""

    def parse(self, value: object, *, where: str | None = None) -> int:
        """Parses the number. Raises UsageError if it is not one, or out of range."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise UsageError(
                f"option {self.name} is not a whole number from {self.least} to {self.most}",
                where=where,
                remedy=f"leave it out for {self.default}",
            )
        return value


WINDOW_BYTES = 1 << 26
"""64 MiB: above rate x round-trip time of all intended paths (1 Gbit/s x 0.5 s), so that flow control is never the
limit, for either client."""

WINDOWS = (
    ClientOption(name="max_data", help="connection flow-control window [bytes]", default=WINDOW_BYTES, most=1 << 40),
    ClientOption(name="max_stream_data", help="stream flow-control window [bytes]", default=WINDOW_BYTES, most=1 << 40),
)
"""Options of QUIC clients whose flow-control windows can be set."""

RECEIVE_BUFFER = ClientOption(
    name="receive_buffer",
    help="receive buffer of the socket to request [bytes]; the kernel grants at most net.core.rmem_max",
    default=1 << 24,
    most=(1 << 31) - 1,
)
POST_QUANTUM = ClientOption(
    name="post_quantum",
    help="1: also offer X25519MLKEM768, in a ClientHello of two packets",
    default=0,
    least=0,
    most=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadRequest:
    """One download, as passed to a client program."""

    url: str
    address: str
    """The server's address, just resolved. Nothing else is contacted."""
    port: int
    ca_file: Path
    """Certificates to trust, the same for all clients of a campaign."""
    budget_s: float
    """Time from the first packet after which the download is censored."""
    max_bytes: int | None
    """Body bytes after which the download is censored."""
    expected_bytes: int | None = None
    """Body bytes that the target should have; None: not known."""
    user_agent: str
    allowed: tuple[str, ...]
    """Prefixes that may be contacted; the program checks them again before its first packet."""
    options: Mapping[str, int] = field(default_factory=dict)
    logs: Path | None = None
    """Folder for logs of the client itself, if a quirk wants some."""
    nameservers: tuple[str, ...] = ()
    """DNS servers of the vantage point, for a client that looks names up itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientResult(ClientColumns):
    """A client's result: columns of its row as they are, and what becomes a column."""

    outcome: Outcome
    failure: Failure | None
    failure_code: FailureCode | None = None
    body_bytes: int = 0
    response_headers: Mapping[str, str] = field(default_factory=dict)
    tcp: Mapping[str, Any] | None = None
    quic: Mapping[str, Any] | None = None


def version(package: str) -> str | None:
    """The installed version of a distribution, None if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class AnswerError(ValueError):
    """A client's standard output is not a valid document. It becomes a `client_crashed` record."""


def common_arguments(request: DownloadRequest) -> list[str]:
    """The arguments that all our programs share; options become `--name-with-dashes`."""
    arguments = ["--url", request.url, "--address", request.address, "--port", str(request.port)]
    arguments += ["--ca", str(request.ca_file), "--budget-s", f"{request.budget_s:.3f}"]
    arguments += ["--user-agent", request.user_agent]
    if request.max_bytes is not None:
        arguments += ["--max-bytes", str(request.max_bytes)]
    if request.expected_bytes is not None:
        arguments += ["--expected-bytes", str(request.expected_bytes)]
    for prefix in request.allowed:
        arguments += ["--allow", prefix]
    for name, value in request.options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


_EXPECTED: Mapping[str, tuple[type[Any], ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "Mapping": (dict,),
}


def parse_document(stdout: str) -> ClientResult:
    """A client's JSON document as a value. Raises AnswerError for anything else."""
    try:
        document = json.loads(stdout)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the answer is not JSON ({scrub(str(error), most=80)})") from None
    if not isinstance(document, dict):
        raise AnswerError("the answer is not a JSON object")
    if document.get("schema") != SCHEMA:
        raise AnswerError(f"the answer has schema {scrub(str(document.get('schema')), most=20)}, not {SCHEMA}")
    values: dict[str, Any] = {}
    for entry in fields(ClientResult):
        if entry.name in document:
            values[entry.name] = _checked(entry.name, str(entry.type), document[entry.name])
    try:
        result = ClientResult(**values)
    except TypeError:
        raise AnswerError("the answer lacks outcome, failure, failure_detail or started_at") from None
    if (result.outcome is Outcome.OK) != (result.failure is None):
        raise AnswerError(f"the answer says {result.outcome} with the cause {result.failure}")
    words = FAILURE_CODES.get(result.failure, frozenset()) if result.failure is not None else frozenset()
    if result.failure_code is not None and result.failure_code not in words:
        raise AnswerError(f"the answer says {result.failure} with the failure code {result.failure_code}")
    if result.outcome is Outcome.OK and (result.last_byte_s is None or result.body_sha256 is None):
        raise AnswerError("the answer says ok without a time or a hash")
    return _challenged(result)


def _challenged(result: ClientResult) -> ClientResult:
    """The result; failed if a CDN served a page instead of the file."""
    page = page_of_edge(result.http_status, result.response_headers)
    if page is None:
        return result
    failure, detail = page
    failed = replace(result, outcome=Outcome.FAILED, failure=failure, failure_detail=detail)
    return replace(failed, failure_code=None, failure_number=None)


def _phase(result: ClientResult, transport: Transport, *, times_connect: bool) -> FailureCode | None:
    """What was under way when nothing more came, or the connection ended; None if the client does not tell."""
    over_quic, timed_out = transport is Transport.QUIC, result.failure is Failure.CONNECT_TIMEOUT
    if result.headers_s is not None:
        return FailureCode.IN_BODY
    if (result.connect_s if over_quic else result.tls_s) is not None:
        return FailureCode.BEFORE_HEADERS
    if over_quic:
        return FailureCode.QUIC_UNANSWERED if timed_out else FailureCode.IN_HANDSHAKE
    if not times_connect:
        return None
    if result.connect_s is None:
        return FailureCode.SYN_UNANSWERED if timed_out else FailureCode.IN_HANDSHAKE
    return FailureCode.TLS_UNANSWERED if timed_out else FailureCode.IN_TLS


def _checked(name: str, declared: str, value: Any) -> Any:
    """A field's value, of the declared type, with untrusted text scrubbed."""
    if value is None and (declared.endswith("| None") or name == "response_headers"):
        return {} if name == "response_headers" else None
    try:
        if name == "outcome":
            return Outcome(value)
        if name == "failure":
            return Failure(value)
        if name == "failure_code":
            return FailureCode(value)
    except ValueError:
        raise AnswerError(f"the answer has an unknown {name}: {scrub(str(value), most=40)}") from None
    kinds = _EXPECTED[declared.partition("[")[0].partition(" ")[0]]
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise AnswerError(f"the answer's {name} is of the wrong type")
    if isinstance(value, dict):
        if name != "response_headers":
            return _facts(name, value)
        return {scrub(str(key), most=60): scrub(str(text)) for key, text in list(value.items())[:40]}
    if isinstance(value, str):
        return scrub(value)
    return checked_number(name, value, as_float=declared.startswith("float"))


_COUNTS = frozenset(
    (
        *("packets_lost", "loss_episodes", "data_blocked_received", "stream_data_blocked_received"),
        *("window_bytes", "initial_max_data", "initial_max_stream_data_bidi_local"),
    )
)
"""What inspection counts with, of what a client tells of its connection: whole numbers. Null is as good as left out."""


def _facts(name: str, detail: Mapping[str, Any]) -> dict[str, Any]:
    """What a client tells of its connection, in the form in which inspection reads it."""
    facts = _flat(name, detail)
    if "transport_parameters" in detail:
        sides = detail["transport_parameters"]
        if sides is not None:
            if not isinstance(sides, dict) or not all(isinstance(side, dict | None) for side in sides.values()):
                raise AnswerError(f"the answer's {name}.transport_parameters is of the wrong type")
            sides = {scrub(whose): None if side is None else _flat(name, side) for whose, side in sides.items()}
        facts["transport_parameters"] = sides
    return facts


def _flat(name: str, detail: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, texts and lists of these. What else a client may tell is left out, as nobody reads it."""
    facts: dict[str, Any] = {}
    for key, value in detail.items():
        if key in _COUNTS:
            facts |= {} if value is None else {key: _checked(f"{name}.{key}", "int", value)}
        elif isinstance(value, list):
            facts[scrub(key)] = [_plain(one) for one in value if _is_plain(one)]
        elif _is_plain(value):
            facts[scrub(key)] = _plain(value)
    return facts


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _plain(value: Any) -> Any:
    return scrub(value) if isinstance(value, str) else value


def checked_number(name: str, value: float, *, as_float: bool) -> float:
    """A number of an answer. Raises AnswerError for one that is out of range, TypeError for what is none."""
    if not 0 <= value < 1 << 62:  # nor is NaN
        raise AnswerError(f"the answer's {name} is out of range")
    return float(value) if as_float else value


def with_setup(result: ClientResult, *, called_at: float) -> ClientResult:
    """The result with its set-up time: from the call to the first packet, if there was one.

    Only the caller can measure it, as the program's start is part of it.

    Args:
        called_at: Unix time of the call, by the clock of `started_at`.
    """
    setup_s = result.started_at - called_at
    unsent = result.failure_code in (FailureCode.NO_ROUTE, FailureCode.HOST_FIREWALL)
    if unsent or result.failure is Failure.ADDRESS_REFUSED or setup_s < 0:  # or the host's clock was set
        return replace(result, setup_s=None)
    return replace(result, setup_s=round(setup_s, 6))


def crashed(stderr: str, *, why: str, started_at: float, request: DownloadRequest) -> ClientResult:
    """The record of a client without a valid result: a crash is recorded, not raised.

    Args:
        stderr: its standard error; the last line is kept.
        why: the reason (an exit code, a signal, an unreadable result).
    """
    message = last_line(stderr)
    return ClientResult(
        outcome=Outcome.FAILED,
        failure=Failure.CLIENT_CRASHED,
        failure_detail=scrub(f"{why}: {message}" if message else why),
        started_at=started_at,
        server_ip=request.address,
        server_port=request.port,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client. Each file in `downloader/clients` has one, and the registry finds it there."""

    name: str
    """Its name in campaign files."""
    help: str
    """One sentence."""
    transport: Transport
    http: str | None
    """The HTTP version that it is for: 1.1, 2 or 3. A download by another one is a mismatch (`http_version`).
    None: any, as client and server agree."""
    program: str
    """A module of `downloader.programs` with a `main(argv) -> int`, or the name of a binary beside our interpreter."""
    family: str = ""
    """What it shares program and libraries with; by default its name. Within a family only the transport differs."""
    times_connect: bool = True
    """Whether it tells when TCP's handshake was complete (`connect_s`)."""
    window_bytes: int | None = None
    """The most that it lets a server send ahead on a connection; None: the kernel's, or that of an option."""
    variant: tuple[str, ...] = ()
    """Arguments that make its program this client, where several clients share one."""
    hides: Mapping[Failure, Failure | None] = field(default_factory=dict)
    """Cause of a failure -> the cause that its library gives for it in some cases; None: it does not notice."""
    packages: tuple[str, ...] = ()
    """Distributions (PyPI names) that the program uses; their versions are stored with the data."""
    installed_by: str = "make setup"
    """What builds the program."""
    debug_build: bool = False
    """The program has to be a debug build (a quirk of the published code); else one is refused."""
    system_programs: Mapping[str, str] = field(default_factory=dict)
    """Programs of the operating system that it calls -> what installs them."""
    options: tuple[ClientOption, ...] = ()
    """Options that a configuration may set."""
    arguments: Callable[[DownloadRequest], list[str]] = common_arguments
    parse: Callable[[str], ClientResult] = parse_document
    """(standard output) -> result; raises AnswerError."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.family or self.name)

    @property
    def is_python(self) -> bool:
        """Whether the program is forked from a warm interpreter."""
        return self.program.startswith(PROGRAMS)

    def result(self, stdout: str) -> ClientResult:
        """What its output says; how far it got is the failure code of a time-out or a reset. Raises AnswerError."""
        result = self.parse(stdout)
        if result.failure not in (Failure.CONNECT_TIMEOUT, Failure.CONNECTION_RESET):
            return result
        return replace(result, failure_code=_phase(result, self.transport, times_connect=self.times_connect))

    def missing(self) -> str | None:
        """Why this client cannot run here, as one sentence; None if it can."""
        for package in self.packages:
            if version(package) is None:
                return f"the client {self.name} needs the package {package}, which is missing; run: make setup"
        for program, remedy in self.system_programs.items():
            if shutil.which(program) is None:
                return f"the client {self.name} needs the program {program}, which is missing; run: {remedy}"
        if self.is_python:
            return None
        path = find_program(self.program)
        if path is None:
            return (
                f"the client {self.name} needs the program {self.program}, which is missing; run: {self.installed_by}"
            )
        name = f"the program {self.program} of the client {self.name}"
        if not self.debug_build:
            return refuse_debug_build(name, path)
        return None if is_debug_build(path) else f"{name} is no debug build ({path}); run: {self.installed_by}"

    def command(self) -> tuple[str, ...]:
        """The command line of the program without arguments. Raises PlaceError if it is missing."""
        if (fault := self.missing()) is not None:
            raise PlaceError(fault)
        return (
            (sys.executable, "-P", "-m", self.program, *self.variant)
            if self.is_python
            else (find_program(self.program) or self.program, *self.variant)
        )

    def versions(self) -> dict[str, str | None]:
        """Versions of the packages; None for one that is missing."""
        return {package: version(package) for package in self.packages}

    def parse_options(self, options: Mapping[str, object], *, where: str | None = None) -> dict[str, int]:
        """The options of a configuration, checked. Raises UsageError that lists the known ones."""
        known = {option.name: option for option in self.options}
        for name in options:
            if name not in known:
                fixed = name in (window.name for window in WINDOWS) and self.window_bytes is not None
                raise UsageError(
                    f"the client {self.name} has no option {name!r}{': its windows are fixed' if fixed else ''}",
                    where=where,
                    remedy=use_one_of(name, known) if known else "leave it out",
                )
        return {name: known[name].parse(value, where=where) for name, value in options.items()}
