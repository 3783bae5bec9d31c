"""Connections of a capture and its downloads -> rows. Pure: the same input gives the same rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import upshift_native

import core
from analysis.captures.connection import Connection
from analysis.captures.kpis import ALL as KPIS
from analysis.captures.kpis import Value
from analysis.captures.scan import kpi_values
from analysis.evidence import proof
from analysis.evidence.identity import with_identity
from analysis.evidence.matching import clock_offset_s, match
from core.domain import Download, Proven, Transport
from core.files import schemas

if TYPE_CHECKING:
    import pyarrow as pa


def _digest(*folders: str) -> str:
    """A short name for the code in some folders beside `core`: SHA-256 of its Python files."""
    root = Path(core.__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for file in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


# The factors' proof is passed in, so their folder is named here and not imported.
_FOLDERS = ("analysis/captures", "analysis/evidence", "core/domain", "downloader/factors")

ENGINE = (
    f"upshift {core.__version__}+{_digest(*_FOLDERS)}, "
    f"upshift-native {upshift_native.__version__}+{upshift_native.SOURCE}"
)
"""The programs that make these rows, by version and code; stored in each row."""


def refuse_taken(kpis: Iterable[str]) -> None:
    """Raises LookupError if a KPI has the name of a column of downloads, whose values it would replace."""
    for name in sorted({entry.name for entry in fields(Download)}.intersection(kpis)):
        raise LookupError(f"KPI {name}: downloads have a column of that name; give it another one")


refuse_taken(KPIS)  # here, before a campaign measures anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The rows of one download."""

    download: Download
    """The download with its treatment, and any disturbance by the host."""
    kpis: Mapping[str, Value] | None
    """KPI -> value; None if no connection is known to belong to this download."""

    def columns(self, run: int) -> dict[str, Value]:
        """The row of `downloads.parquet`.

        Args:
            run: number of its measurement run in the file.
        """
        own = {name: getattr(self.download, name) for name in schemas.row_schema("downloads").names}
        return own | {"run": run} | {name: None if self.kpis is None else self.kpis[name] for name in KPIS}


def inspect_run(
    downloads: Sequence[Download],
    connections: Sequence[Connection],
    factors: Mapping[str, Proven],
    *,
    lost: str | None = None,
) -> tuple[Inspected, ...]:
    """The rows of the downloads of a measurement run, in their order.

    Args:
        connections: those in its capture.
        factors: name -> factor, of all that the downloads' levels name.
        lost: why the capture is incomplete, if it is.
    """
    downloads = with_identity(downloads)
    matched = match(downloads, connections)
    clock_s, rtts_s = clock_offset_s(downloads, matched), proof.smallest_rtts_s(downloads, matched)
    rows = []
    for download, connection, rtt_s in zip(downloads, matched, rtts_s, strict=True):
        treatment = proof.judge_treatment(download, connection, factors, lost=lost, clock_s=clock_s)
        opened_ns = None if connection is None else connection.opened_ns
        began_s = 0.0 if opened_ns is None else max(proof.by_client_s(download, opened_ns, clock_s), 0.0)
        judged = replace(
            download,
            treatment_ok=treatment.ok,
            treatment_reason=treatment.reason,
            treatment_detail=treatment.detail,
            slow_handshake=proof.slow_handshake(download, rtt_s, began_s=began_s),
            engine=ENGINE,
            kpi_engine=None if connection is None else ENGINE,
        )
        if disturbed := proof.disturbance(download, connection, clock_s=clock_s):
            judged = replace(judged, host_disturbance=disturbed[0].value, host_disturbance_detail=disturbed[1])
        kpis = None if connection is None else kpi_values(with_account(connection, download, clock_s=clock_s))
        rows.append(Inspected(download=judged, kpis=kpis))
    return tuple(rows)


def with_account(connection: Connection, download: Download, *, clock_s: float = 0.0) -> Connection:
    """A connection with data that only the client has: when it began; the body, which is encrypted; of QUIC its lost
    packets, and how often the server reported that it was blocked by flow control; and how much CPU time the client
    had. Without the times of the answer, if what the capture has of it cannot be the download's (see `has_answer`)."""
    if not proof.has_answer(download, connection, clock_s=clock_s):
        connection = replace(connection, response_request_ns=None, response_first_ns=None, response_last_ns=None)
    connection = replace(
        connection,
        body_bytes=download.body_bytes,
        client_start_ns=round((download.started_at + clock_s) * 1e9),
        client_cpu_share=download.cpu_share,
        client_run_delay_share=download.run_delay_share,
        client_late_share=download.share_of_time(_late_s(connection, download)),
    )
    if download.transport != Transport.QUIC:
        return connection
    detail: Mapping[str, Any] = json.loads(download.transport_detail) if download.transport_detail else {}
    blocked = [detail[name] for name in ("data_blocked_received", "stream_data_blocked_received") if name in detail]
    own = (detail.get("transport_parameters") or {}).get("local") or {}
    windows = [detail["window_bytes"]] if "window_bytes" in detail else []
    windows += [own[name] for name in ("initial_max_data", "initial_max_stream_data_bidi_local") if name in own]
    return replace(
        connection,
        quic_client_lost=detail.get("packets_lost"),
        quic_data_blocked=sum(blocked) if blocked else None,
        quic_loss_episodes=detail.get("loss_episodes"),
        quic_window=min(windows, default=None),
        socket_drops=download.socket_drops,
    )


def _late_s(connection: Connection, download: Download) -> float | None:
    """The time from the capture's last data packet to the client's last byte, both counted from the first packet."""
    if download.last_byte_s is None or connection.response_last_ns is None:
        return None
    return max(download.last_byte_s - (connection.response_last_ns - connection.first_ns) / 1e9, 0.0)


def downloads_schema() -> pa.Schema:
    """Columns of `downloads.parquet`: those of `core.domain.Download`, then one per KPI with its unit as metadata."""
    import pyarrow as pa

    kpis = [schemas.column(name, kpi.kind, kpi.unit) for name, kpi in KPIS.items()]
    return pa.schema([*schemas.row_schema("downloads"), *kpis])
