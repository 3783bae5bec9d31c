"""The table of servers: what answered each target at each vantage point. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from analysis.measures.dataset import Dataset, Record
from analysis.report import figures
from core.domain import Transport

MAX_ROWS = 1_000
"""Most rows in the page."""

_NOT_KNOWN = "–"


def cells(dataset: Dataset) -> tuple[list[list[str]], int]:
    """Heading and rows, one per vantage point and target; and how many are left out."""
    heading = ["vantage point", "domain", "provider", "address", "HTTP", "TLS", "group"]
    heading += ["initial window", "congestion control", "handshake RTT ms", "MB"]
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in dataset.records:
        groups.setdefault((record.download.vantage, record.download.domain), []).append(record)
    paths = _paths(dataset)
    rows = [_row(key, groups[key], paths.get(key, {})) for key in sorted(groups)[:MAX_ROWS]]
    return [heading, *rows], len(groups) - len(rows)


def _row(key: tuple[str, str], records: Sequence[Record], path: dict[str, str]) -> list[str]:
    downloads = [record.download for record in records]
    rtts = [rtt for record in records if (rtt := figures.handshake_rtt(record)) is not None]
    groups = _listed(d.tls_group for d in downloads)
    # Python's TLS library does not report the group before 3.14, so that of TCP is often not known.
    if groups != _NOT_KNOWN and any(d.tls_group is None and d.transport == Transport.TCP for d in downloads):
        groups += " (QUIC)" if all(d.transport == Transport.QUIC for d in downloads if d.tls_group) else ""
    return [
        *key,
        _listed(d.provider for d in downloads),
        _listed(d.server_ip for d in downloads),
        _listed((d.http_version or "").removeprefix("HTTP/") for d in downloads),
        _listed((d.tls_version or "").removeprefix("TLSv") for d in downloads),
        groups,
        path.get("initcwnd", path.get("surveyed", _NOT_KNOWN)),
        path.get("congestion_control", _NOT_KNOWN),
        f"{min(rtts):.1f}" if rtts else _NOT_KNOWN,
        _listed(f"{d.body_bytes / 1e6:.2f}" for d in downloads if d.outcome == "ok"),
    ]


def _listed(values: Iterable[str | None]) -> str:
    """Different values, the most frequent first."""
    counts = Counter(value for value in values if value)
    return ", ".join(sorted(counts, key=lambda value: (-counts[value], value))) or _NOT_KNOWN


def _paths(dataset: Dataset) -> dict[tuple[str, str], dict[str, str]]:
    """(vantage, domain) -> what lab.json tells about the TCP server there, and a survey of initial windows."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for folder in dataset.folders:
        for path in (folder.lab or {}).get("paths", ()):
            told = {name: str(path[name]) for name in ("initcwnd", "congestion_control") if path.get(name) is not None}
            found[str(path.get("vantage")), str(path.get("domain"))] = told
        for vantage, domain in {(record.download.vantage, record.download.domain) for record in dataset.records}:
            if (window := _window((folder.windows or {}).get(domain))) is not None:
                found.setdefault((vantage, domain), {})["surveyed"] = window
    return found


def _window(found: object) -> str | None:
    """A window that `upshift survey iw` found: `32`, `64 kB`, `100, paced`; None if the file does not say."""
    if not isinstance(found, Mapping):
        return None
    segments, size = found.get("iw_segments"), found.get("iw_bytes")
    if isinstance(segments, int):
        text = str(segments)
    elif isinstance(size, int):
        text = f"{size / 1000:.4g} kB"
    else:
        return None
    return f"{text}, paced" if found.get("paced") is True else text
