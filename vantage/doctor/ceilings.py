"""The ceilings of clients on this host, from their transfers at rising rates: kept, and judged stale.

`ceilings.json` is in a folder that survives a restart: `$UPSHIFT_STATE_DIR`, else `$XDG_STATE_HOME/upshift`, else
`~/.local/state/upshift` (XDG Base Directory Specification). A ceiling is stale if the host, its kernel, its processor,
Upshift or a package of the client has changed since it was measured.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import core
from core.errors import UsageError
from core.files.config import build, read_json
from core.files.disk import write_json
from core.files.fixed_rates import PacketForm, Transfer, fastest, first_drops
from core.system.place import Program
from vantage.doctor.checks import BUSY_LIMIT
from vantage.linux import environment


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None else part / whole


def read_answer(answer: Mapping[str, Any], known: Transfer, *, server_cpu_s: float | None = None) -> Transfer:
    """A transfer from a client's JSON document. It is valid if the file was complete or the time budget ended it.

    Args:
        known: the same without results.
    """
    if answer.get("outcome") != "ok" and answer.get("failure") != "time_budget":
        return replace(known, fault=f"{answer.get('failure')}: {answer.get('failure_detail')}")
    received, first, last = answer.get("body_bytes"), answer.get("first_byte_s"), answer.get("last_byte_s")
    if not received or first is None or last is None or last <= first:
        return replace(known, fault="it received too little to compute a rate")
    client_cpu_s = answer.get("transfer_cpu_s")
    return replace(
        known,
        mbit_s=received * 8 / 1e6 / (last - first),
        seconds=last - first,
        client_cpu_s_per_gb=_ratio(client_cpu_s, received / 1e9),
        client_core_share=_ratio(client_cpu_s, last - first),
        server_core_share=_ratio(server_cpu_s, last - first),
        socket_drops=answer.get("socket_drops"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCeiling:
    """What was measured of one client on this host."""

    client: Program
    transfers: Sequence[Transfer] = ()
    """For each kind of packets: one per server without a limit, then at rising rates."""
    fault: str | None = None
    """Why the client could not be tested."""

    def document(self) -> dict[str, Any]:
        """The stored form (schema 2 of `ceilings.json`). The ceiling is the highest rate of single packets."""
        single = [transfer for transfer in self.transfers if transfer.packets is PacketForm.SINGLE]
        best, fault = fastest(single), self.fault
        if fault is None and best is None:
            fault = next((t.fault for t in self.transfers if t.fault is not None), "no transfer was made")
        return {
            "transport": self.client.transport,
            "http": self.client.http,
            "family": self.client.family,
            "versions": dict(self.client.versions()),
            "fault": fault,
            "ceiling_mbit_s": None if best is None else best.mbit_s,
            "limit": None if best is None else best.limit,
            "first_drops_mbit_s": first_drops(single),
            "transfers": [asdict(transfer) for transfer in self.transfers],
        }


SCHEMA = 2
FILE_NAME = "ceilings.json"


def circumstances() -> dict[str, str]:
    """What the ceilings of all clients depend on, as it is on this host."""
    cpu = environment.cpu()
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "cpu": f"{cpu['count']} x {cpu['model']}" + (f", limited to {cpu['limit']:g}" if "limit" in cpu else ""),
        "python": platform.python_version(),
        "upshift": core.__version__,
    }


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
    now: Mapping[str, str],
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
        "circumstances": now,
        "clients": {ceiling.client.name: ceiling.document() for ceiling in ceilings},
    }
    write_json(path, document)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptClient:
    versions: Mapping[str, str | None]
    fault: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What the doctor reads of `ceilings.json`, in which somebody may have written."""

    circumstances: Mapping[str, str | None]
    clients: Mapping[str, _KeptClient]
    busy_share: float


def present(clients: Iterable[Program], *, path: Path, now: Mapping[str, str]) -> dict[str, Any] | None:
    """The stored calibration, with `stale` for each client: why its ceiling is no longer valid (empty: it is).

    None if nothing is stored. A file that cannot be used has no clients, and the reason as `fault`.
    """
    if not path.exists():
        return None
    try:
        document = dict(read_json(path))
        if (schema := document.get("schema")) != SCHEMA:
            fault = f"{FILE_NAME} is of another version of Upshift (schema {schema}, not {SCHEMA})"
            return {"clients": {}, "fault": fault}
        kept = build(document, _Kept, where=FILE_NAME)
    except UsageError as error:
        return {"clients": {}, "fault": f"{FILE_NAME} cannot be used: {error.what}"}
    shared = changes(kept.circumstances, now)
    versions = {client.name: client.versions() for client in clients}
    document["busy_share"] = kept.busy_share
    document["clients"] = {
        name: {**document["clients"][name], "stale": [*shared, *changes(entry.versions, versions.get(name, {}))]}
        for name, entry in kept.clients.items()
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
    known: Mapping[str, Any] = document or {"clients": {}}
    return {name: _unknown(known["clients"].get(name), known.get("fault")) for name in clients}


def _unknown(entry: Mapping[str, Any] | None, fault: str | None) -> str | None:
    if entry is None:
        return fault or "not calibrated"
    if entry["fault"] is not None:
        return str(entry["fault"])
    return f"stale: {', '.join(entry['stale'])}" if entry["stale"] else None
