"""The prefix table for the user's input (RIB files, a prefix table, a backend), built once and cached."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cdn_mapping import bgpstream, table
from cdn_mapping.rib import Entry, RibReader
from cdn_mapping.table import PrefixTable
from cdn_mapping.votes import Ballot
from core.errors import UsageError, not_found
from core.system import signals
from core.terminal import Progress

BACKENDS = ("own", "bgpstream")
ROUTES_PER_REPORT = 50_000


def cache_folder() -> Path:
    """Cache of built tables: `$XDG_CACHE_HOME/upshift/prefix-tables` (default `~/.cache`)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "upshift" / "prefix-tables"


def _cache_path(ribs: Sequence[Path], backend: str) -> Path:
    """The name depends on the files and their state: a changed RIB gets another table."""
    parts = [f"format {table.FORMAT}, {backend}"]
    for rib in ribs:
        status = rib.stat()
        parts.append(f"{rib.resolve()} {status.st_size} {status.st_mtime_ns}")
    return cache_folder() / (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32] + ".npz")


def _is_table(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            return handle.read(2) == b"PK"
    except FileNotFoundError:
        raise not_found(path) from None
    except OSError as error:
        raise UsageError(str(error.strerror), where=str(path), remedy="give a RIB or a prefix table") from None


def open_table(ribs: Sequence[Path], progress: Progress, *, backend: str = "own", keep: bool = True) -> PrefixTable:
    """The table of one `.npz` file, or of RIB files; the latter is built when it is first asked for.

    Args:
        ribs: RIBs in MRT format (IPv4 and IPv6 may be in different files), or exactly one `.npz`.
        backend: `own` or `bgpstream`.
        keep: store a built table in `cache_folder()`, and use a stored one.
    """
    if backend not in BACKENDS:
        raise UsageError(f"{backend!r} is not a valid backend", where="--backend", remedy="choose own or bgpstream")
    tables = [rib for rib in ribs if _is_table(rib)]
    if tables:
        if len(ribs) > 1:
            raise UsageError(
                "a prefix table cannot be combined with other files",
                where=str(tables[0]),
                remedy="give one table, or RIBs only",
            )
        return table.load(tables[0])
    cached = _cache_path(ribs, backend)
    if keep and cached.exists():
        with contextlib.suppress(UsageError):  # an unreadable cache file is built again
            return table.load(cached)
    built = build_table(ribs, progress, backend=backend)
    if keep:
        built.save(cached)
    return built


def build_table(ribs: Sequence[Path], progress: Progress, *, backend: str = "own") -> PrefixTable:
    """Counts the votes of all files. Raises UsageError if no prefix is left."""
    ballot = Ballot()
    sources: list[dict[str, Any]] = []
    for rib in ribs:
        routes = ballot.routes
        about: dict[str, Any] = {"path": str(rib), "backend": backend}
        if backend == "own":
            reader = RibReader(rib, on_read=_reporter(progress, rib))
            ballot.add_rib(reader)
        else:
            reader = _add_bgpstream(ballot, rib, progress, about)
        about |= {"peers": len(reader.peers), "truncated_at": reader.truncated_at, "skipped": dict(reader.skipped)}
        about["routes"] = ballot.routes - routes
        sources.append(about)
    return _finish(ballot, sources, where=", ".join(map(str, ribs)))


def _add_bgpstream(ballot: Ballot, rib: Path, progress: Progress, about: dict[str, Any]) -> RibReader:
    """Counts the routes that BGPStream reads from a file; returns our own reader, which checked the file."""
    stream = bgpstream.read_file(rib, on_read=_reporter(progress, rib))
    assert stream.check is not None and stream.expected is not None  # noqa: S101 - a file always has both

    def counted() -> Iterator[Entry]:
        for entry in stream:
            if stream.entries % ROUTES_PER_REPORT == 0:
                progress.update(task, done=stream.entries, total=total)
            yield entry

    task, total = f"BGPStream reads {rib.name} [routes]", stream.expected
    ballot.add_entries(counted())
    progress.update(task, done=total, total=total)
    about["missed_routes"] = total - stream.entries
    return stream.check


def build_from_collector(collector: str, time: datetime) -> PrefixTable:
    """The table of a collector's RIB by BGPStream (see `bgpstream.read_collector`)."""
    ballot = Ballot()
    stream = bgpstream.read_collector(collector, time)
    # libbgpstream retries an absent broker for ever without returning to Python.
    with signals.handled_by(signal.SIG_DFL):
        ballot.add_entries(stream)
    about = {"path": f"{collector} {time.isoformat()}", "backend": "bgpstream", "routes": ballot.routes}
    about["truncated_at"] = "somewhere" if stream.truncated else None
    return _finish(ballot, [about], where=collector)


def _finish(ballot: Ballot, sources: list[dict[str, Any]], *, where: str) -> PrefixTable:
    built = table.build(
        {version: ballot.rows(version) for version in (4, 6)},
        {"sources": sources, "routes": ballot.routes, "dropped": dict(ballot.dropped)},
    )
    if not len(built.v4.low) and not len(built.v6.low):
        skipped = sum((Counter(source.get("skipped", {})) for source in sources), Counter())
        reasons = [f"{count} routes with a {reason}" for reason, count in ballot.dropped.items()]
        losses = "; ".join(reasons + [f"{count} records of {kind}" for kind, count in skipped.items()])
        cut = any(source.get("truncated_at") is not None for source in sources)
        raise UsageError(
            f"no usable prefix: {ballot.routes} routes read" + (f", dropped: {losses}" if losses else ""),
            where=where,
            remedy="the file is truncated: fetch it again" if cut else "give a RIB dump (rib.*, bview.*), not updates",
        )
    return built


def _reporter(progress: Progress, rib: Path) -> Any:
    def report(done: int, total: int) -> None:
        progress.update(f"reading {rib.name} [kB]", done=-(-done // 1000), total=-(-total // 1000))  # rounded up

    return report


def warnings(opened: PrefixTable) -> list[str]:
    """Warnings about missing data in the table, for standard error."""
    sentences = []
    for source in opened.about.get("sources", []):
        cut, missed = source.get("truncated_at"), source.get("missed_routes", 0)
        if cut is None:
            continue
        used = f"; BGPStream gave {source['routes']:,} of {source['routes'] + missed:,} routes" if missed else ""
        where = (
            "the stream is truncated"
            if cut == "somewhere"
            else f"the file is truncated at byte {cut} of the inflated data"
        )
        sentences.append(f"{source['path']}: {where}; the data before that is used{used}")
    return sentences
