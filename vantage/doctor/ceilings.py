"""A client's ceiling, from its transfers at rising rates; and the stored ones of this host.

Rates are in Mbit/s (10^6 bit/s) of body bytes. `ceilings.json` is in a folder that survives a restart:
`$UPSHIFT_STATE_DIR`, else `$XDG_STATE_HOME/upshift`, else `~/.local/state/upshift` (XDG Base Directory Specification).
A ceiling is stale if the host, its kernel, its processor, Upshift or a package of the client has changed since it was
measured.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import core
from core.errors import UsageError
from core.files.config import read_json
from core.files.disk import write_json
from core.system.place import Program
from vantage.doctor.checks import BUSY_LIMIT
from vantage.linux import environment

BUSY_SHARE = 0.7
"""Share of a core from which an end may be the limit of a transfer."""


class Limit(StrEnum):
    """Which end limited the fastest transfer."""

    CLIENT = "client"
    SERVER = "server"
    """The server: the client's ceiling is a lower bound."""
    NEITHER = "neither"
    """Neither used `BUSY_SHARE` of a core: the kernel, or other programs on these CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One download at one offered rate."""

    server: str
    """Name of the server program."""
    offered_mbit_s: float | None = None
    """Rate limit of the path (Ethernet frames); None: no limit."""
    mbit_s: float | None = None
    """Body bytes over the time from the first to the last of them."""
    seconds: float | None = None
    """This time [s]."""
    body_bytes: int = 0
    client_cpu_s: float | None = None
    """CPU time of the transfer, without hashing: the client's `transfer_cpu_s`."""
    server_cpu_s: float | None = None
    socket_drops: int | None = None
    """Datagrams that the kernel dropped because the client read its socket too late; None for TCP."""
    fault: str | None = None
    """Why there is no rate."""

    @property
    def client_core_share(self) -> float | None:
        """CPU seconds of the client per second of the transfer."""
        return _ratio(self.client_cpu_s, self.seconds)

    @property
    def server_core_share(self) -> float | None:
        """CPU seconds of the server per second of the transfer."""
        return _ratio(self.server_cpu_s, self.seconds)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def read_answer(
    answer: Mapping[str, Any], *, server: str, offered_mbit_s: float | None = None, server_cpu_s: float | None = None
) -> Transfer:
    """A transfer from a client's JSON document. It is valid if the file was complete or the time budget ended it."""
    if answer.get("outcome") != "ok" and answer.get("failure") != "time_budget":
        fault = f"{answer.get('failure')}: {answer.get('failure_detail')}"
        return Transfer(server=server, offered_mbit_s=offered_mbit_s, fault=fault)
    received, first, last = answer.get("body_bytes"), answer.get("first_byte_s"), answer.get("last_byte_s")
    if not received or first is None or last is None or last <= first:
        fault = "it received too little to compute a rate"
        return Transfer(server=server, offered_mbit_s=offered_mbit_s, fault=fault)
    return Transfer(
        server=server,
        offered_mbit_s=offered_mbit_s,
        mbit_s=received * 8 / 1e6 / (last - first),
        seconds=last - first,
        body_bytes=received,
        client_cpu_s=answer.get("transfer_cpu_s"),
        server_cpu_s=server_cpu_s,
        socket_drops=answer.get("socket_drops"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCeiling:
    """The ceiling of one client on this host."""

    client: str
    transport: str
    """One of `core.domain.Transport`."""
    versions: Mapping[str, str | None]
    """Packages of the client -> version."""
    transfers: Sequence[Transfer] = ()
    """Transfers in the order of measurement: one per server without a limit, then at rising rates."""
    fault: str | None = None
    """Why the client could not be tested."""

    @property
    def fastest(self) -> Transfer | None:
        """The transfer with the highest rate, None without a rate."""
        return max((t for t in self.transfers if t.mbit_s is not None), key=lambda t: t.mbit_s or 0.0, default=None)

    @property
    def limit(self) -> Limit | None:
        """Which end limited the fastest transfer; None without one, or if the CPU time is unknown."""
        best = self.fastest
        if best is None or best.client_core_share is None or best.server_core_share is None:
            return None
        if max(best.client_core_share, best.server_core_share) < BUSY_SHARE:
            return Limit.NEITHER
        return Limit.CLIENT if best.client_core_share >= best.server_core_share else Limit.SERVER

    @property
    def first_drops_mbit_s(self) -> float | None:
        """Lowest rate at which the client's socket dropped datagrams, None if it did not.

        The offered rate, of which less arrived. Without a limit only the achieved rate is known.
        """
        rates = (t.offered_mbit_s or t.mbit_s for t in self.transfers if t.socket_drops)
        return min((rate for rate in rates if rate is not None), default=None)

    def document(self) -> dict[str, Any]:
        """The stored form (schema 1 of `ceilings.json`)."""
        best = self.fastest
        return {
            "transport": self.transport,
            "versions": dict(self.versions),
            "fault": self._fault(),
            "ceiling_mbit_s": None if best is None else best.mbit_s,
            "server": None if best is None else best.server,
            "client_cpu_s_per_gb": None if best is None else _ratio(best.client_cpu_s, best.body_bytes / 1e9),
            "client_core_share": None if best is None else best.client_core_share,
            "server_core_share": None if best is None else best.server_core_share,
            "limit": self.limit,
            "first_drops_mbit_s": self.first_drops_mbit_s,
            "transfers": [asdict(transfer) for transfer in self.transfers],
        }

    def _fault(self) -> str | None:
        if self.fault is not None or self.fastest is not None:
            return self.fault
        return next((t.fault for t in self.transfers if t.fault is not None), "no transfer was made")


def rate_text(mbit_s: float) -> str:
    """A rate as text: `1.53 Gbit/s`, `197 Mbit/s`, `4.2 Mbit/s`."""
    if mbit_s >= 1000:
        return f"{mbit_s / 1000:.2f} Gbit/s"
    return f"{mbit_s:.0f} Mbit/s" if mbit_s >= 10 else f"{mbit_s:.1f} Mbit/s"


SCHEMA = 1
FILE_NAME = "ceilings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the ceilings of all clients depend on."""

    host: str
    kernel: str
    cpu: str
    """Model and usable count."""
    python: str
    upshift: str


def circumstances() -> Circumstances:
    """The current values of this host."""
    cpu = environment.cpu()
    return Circumstances(
        host=platform.node(),
        kernel=platform.release(),
        cpu=f"{cpu['count']} x {cpu['model']}",
        python=platform.python_version(),
        upshift=core.__version__,
    )


def calibration_file() -> Path:
    """The folder with this host's calibration."""
    if given := os.environ.get("UPSHIFT_STATE_DIR"):
        return Path(given).absolute() / FILE_NAME
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "upshift" / FILE_NAME


def check_writable(path: Path) -> None:
    """Raises UsageError if the calibration cannot be stored there, before a minute of measuring is lost."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path.parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise UsageError(
            "the calibration cannot be stored in this folder",
            where=str(path.parent),
            remedy="set UPSHIFT_STATE_DIR to a folder that you own",
        )


def save(
    ceilings: Sequence[MeasuredCeiling],
    *,
    path: Path,
    now: Circumstances,
    measured_at: str,
    seconds: float,
    busy_share: float,
) -> None:
    """Writes `ceilings.json` atomically.

    Args:
        measured_at: date and time (ISO 8601).
        seconds: the longest duration of a transfer.
        busy_share: share of this host's CPU time that other programs used before, 0 to 1.
    """
    document = {
        "schema": SCHEMA,
        "measured_at": measured_at,
        "seconds": seconds,
        "busy_share": busy_share,
        "too_low": busy_share > BUSY_LIMIT,
        "circumstances": asdict(now),
        "clients": {ceiling.client: ceiling.document() for ceiling in ceilings},
    }
    write_json(path, document)


def present(clients: Iterable[Program], *, path: Path, now: Circumstances) -> dict[str, Any] | None:
    """The stored calibration, with `stale` for each client: why its ceiling is no longer valid (empty: it is).

    None if nothing is stored, or nothing that this version can read.
    """
    if not path.exists():
        return None
    try:
        document = dict(read_json(path))
    except UsageError:
        return None
    if document.get("schema") != SCHEMA:
        return None
    shared = changes(document.get("circumstances", {}), asdict(now))
    versions = {client.name: client.versions() for client in clients}
    document["clients"] = {
        name: {**entry, "stale": [*shared, *changes(entry.get("versions", {}), versions.get(name, {}))]}
        for name, entry in document.get("clients", {}).items()
    }
    return document


def changes(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """The differences, one clause each: `kernel 6.1.0 -> 6.12.1`."""
    names = dict.fromkeys((*then, *now))
    return [
        f"{name} {then.get(name) or 'missing'} -> {now.get(name) or 'missing'}"
        for name in names
        if then.get(name) != now.get(name)
    ]


def unknown(document: Mapping[str, Any] | None, clients: Iterable[str]) -> dict[str, str | None]:
    """Client -> why its ceiling is unknown, as a clause; None if it is known."""
    entries = {} if document is None else document["clients"]
    return {name: _unknown(entries.get(name)) for name in clients}


def _unknown(entry: Mapping[str, Any] | None) -> str | None:
    if entry is None:
        return "not calibrated"
    if entry["fault"] is not None:
        return str(entry["fault"])
    return f"stale: {', '.join(entry['stale'])}" if entry["stale"] else None


def summary(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The calibration as stored with data: without its transfers."""
    if document is None:
        return None
    clients = {
        name: {key: value for key, value in entry.items() if key != "transfers"}
        for name, entry in document["clients"].items()
    }
    return {**document, "clients": clients}
