"""The prefix table for the user's input (RIB files, a prefix table, a backend), built once and cached.

BGPStream, which is optional, does not report errors. Observed with libbgpstream 2.3.0 and pybgpstream 2.0.2:

- routes with ADD-PATH are skipped, also where they are only a part of a file (libbgpstream issue #228);
- a missing file, a small truncated file, or one of another format: a line on standard error and no elements;
- a larger truncated file: one record of status `corrupted-record`, and up to a tenth fewer routes than it holds;
- a malformed path attribute: a line on standard error, and an element with an empty path;
- a prefix of 33 bits: the process dies (segmentation fault).

So our own reader reads a file first: it reports what is malformed, and counts entries; BGPStream must then return the
same number. A collector's stream has no such reference; there, the signs of a failure in BGPStream's output are errors.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cdn_mapping import as_path, table
from cdn_mapping.rib import RibEntry, RibReader
from cdn_mapping.table import PrefixTable
from cdn_mapping.votes import Ballot
from core.errors import ReachError, UsageError, unreadable
from core.reach import ENVIRONMENT_VARIABLE, environment_prefixes
from core.system import signals
from core.terminal import Progress

RIB_WINDOW = timedelta(minutes=30)
"""A dump is accepted this long after the requested time: collectors begin late, and name the minute of the start."""

_OWN_READER = "leave out --backend bgpstream: our own reader reads it"


def _module() -> Any:
    try:
        return importlib.import_module("pybgpstream")
    except ImportError as error:
        raise UsageError(
            f"pybgpstream cannot be imported ({error})",
            where="--backend bgpstream",
            remedy="leave the option out (our own reader reads the same files), or install pybgpstream",
        ) from None


class StreamReader:
    """Iterates over the RIB entries of a stream once. Raises UsageError if BGPStream fails, even silently.

    Attributes:
        entries: number returned so far.
        truncated: BGPStream met a record that it could not read, or the file is known to be truncated.
        check: our own reader, after it read the same file; None for a collector's stream.
        expected: the number of entries that it found; None for a collector's stream.
    """

    def __init__(
        self, stream: Any, *, where: str, remedy: str, check: RibReader | None = None, expected: int | None = None
    ) -> None:
        self.entries = 0
        self.check = check
        self.expected = expected
        self.truncated = check is not None and check.truncated
        self._stream = stream
        self._where = where
        self._remedy = remedy

    def __iter__(self) -> Iterator[RibEntry]:
        statuses: set[str] = set()
        hollow = 0
        try:
            for record in self._stream.records():
                statuses.add(record.status)
                if record.status.startswith("corrupted"):
                    self.truncated = True
                before = self.entries
                for element in record:
                    if element.type == "R":
                        self.entries += 1
                        yield to_entry(element)
                hollow += record.status == "valid" and self.entries == before
        except RuntimeError as error:
            raise self._fault(f"BGPStream stopped after {self.entries} routes ({error})") from None
        if self.expected is None:
            self._judge_stream(statuses, hollow)
        elif self.entries != self.expected and not (self.truncated and self.entries):
            raise self._fault(f"BGPStream gave {self.entries} of {self.expected} routes")

    def _judge_stream(self, statuses: set[str], hollow: int) -> None:
        if self.entries == 0:
            named = ", ".join(sorted(statuses)) or "no record at all"
            raise self._fault(f"BGPStream gave no RIB entry (record status: {named})")
        if hollow:
            raise self._fault(f"BGPStream silently skipped {hollow} records, as it does with ADD-PATH")

    def _fault(self, what: str) -> UsageError:
        return UsageError(what, where=self._where, remedy=self._remedy)


def to_entry(element: Any) -> RibEntry:
    """An element as our own reader's entry: BGPStream gives paths as text, in the same notation."""
    fields = element.fields  # computed again at each call
    path = fields["as-path"]
    return RibEntry(fields["prefix"], as_path.origin_of_text(path), path, element.peer_asn, element.peer_address, None)


def read_file(path: Path, *, on_read: Callable[[int, int], None] | None = None) -> StreamReader:
    """The entries of one RIB file, without network access (`singlefile`: the default interface contacts a broker).

    Args:
        path: the file; our own reader reads it first, see above.
        on_read: called with bytes read and file size meanwhile.

    Raises:
        UsageError: pybgpstream is missing, the file is missing or malformed, or it holds routes with ADD-PATH.
    """
    module = _module()
    check = RibReader(path, on_read=on_read)
    expected = 0
    for entry in check:
        if entry.path_id is not None:
            raise UsageError(
                f"it holds routes with ADD-PATH ({entry.prefix} is the first), which BGPStream silently skips",
                where=str(path),
                remedy=_OWN_READER,
            )
        expected += 1
    stream = module.BGPStream(data_interface="singlefile")
    stream.set_data_interface_option("singlefile", "rib-file", str(path))
    return StreamReader(stream, where=str(path), remedy=_OWN_READER, check=check, expected=expected)


def read_collector(collector: str, time: datetime) -> StreamReader:
    """The RIB of a RouteViews or RIS collector at a time, by BGPStream's broker: this contacts the Internet.

    Raises:
        ReachError: the environment limits what may be contacted; libbgpstream's own connections cannot be checked.
    """
    if environment_prefixes() is not None:
        raise ReachError(
            f"BGPStream would contact its broker and archives, and {ENVIRONMENT_VARIABLE} is set",
            where="--collector",
            remedy="give a RIB file, or unset the variable outside the lab",
        )
    module = _module()
    utc = time.astimezone(UTC)
    stream = module.BGPStream(
        from_time=utc.strftime("%Y-%m-%d %H:%M:%S"),
        until_time=(utc + RIB_WINDOW).strftime("%Y-%m-%d %H:%M:%S"),
        collectors=[collector],
        record_type="ribs",
    )
    return StreamReader(
        stream,
        where=f"{collector} at {utc:%Y-%m-%d %H:%M} UTC",
        remedy="check collector and time, or fetch its RIB and name the file: upshift map fetch --collector",
    )


BACKENDS = ("own", "bgpstream")
ROUTES_PER_REPORT = 50_000


def cache_folder() -> Path:
    """Cache of built tables: `$XDG_CACHE_HOME/upshift/prefix-tables` (default `~/.cache`)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "upshift" / "prefix-tables"


def _cache_path(ribs: Sequence[Path], backend: str) -> Path:
    """The name depends on the files and their state: a changed RIB gets another table."""
    parts = [f"format {table.FORMAT}, reserved to 131071, AS_TRANS unknown, {backend}"]
    for rib in ribs:
        status = rib.stat()
        parts.append(f"{rib.resolve()} {status.st_size} {status.st_mtime_ns}")
    return cache_folder() / (hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32] + ".npz")


def _is_table(path: Path) -> bool:
    try:
        with path.open("rb") as handle:
            return handle.read(2) == b"PK"
    except OSError as error:
        raise UsageError(unreadable(error), where=str(path), remedy="give a RIB or a prefix table") from None


def open_table(ribs: Sequence[Path], progress: Progress, *, backend: str = "own") -> PrefixTable:
    """The table of one `.npz` file, or of RIB files; the latter is built once, and kept in `cache_folder()`.

    Args:
        ribs: RIBs in MRT format (IPv4 and IPv6 may be in different files), or exactly one `.npz`.
        backend: `own` or `bgpstream`.
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
    if cached.exists():
        with contextlib.suppress(UsageError):  # an unreadable cache file is built again
            return table.load(cached)
    built = build_table(ribs, progress, backend=backend)
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
    stream = read_file(rib, on_read=_reporter(progress, rib))
    assert stream.check is not None and stream.expected is not None  # noqa: S101 - a file always has both

    def counted() -> Iterator[RibEntry]:
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
    """The table of a collector's RIB by BGPStream (see `read_collector`)."""
    ballot = Ballot()
    stream = read_collector(collector, time)
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
