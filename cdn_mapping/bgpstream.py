"""RIBs by pybgpstream, where it is installed. Our own reader is the default and needs no other program.

BGPStream does not report errors. Observed with libbgpstream 2.3.0 and pybgpstream 2.0.2:

- routes with ADD-PATH are skipped, also where they are only a part of a file (libbgpstream issue #228);
- a missing file, a small truncated file, or one of another format: a line on standard error and no elements;
- a larger truncated file: one record of status `corrupted-record`, and up to a tenth fewer routes than it holds;
- a malformed path attribute: a line on standard error, and an element with an empty path;
- a prefix of 33 bits: the process dies (segmentation fault).

So our own reader reads a file first: it reports what is malformed, and counts entries; BGPStream must then return the
same number. A collector's stream has no such reference; there, the signs of a failure in BGPStream's output are errors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cdn_mapping import as_path
from cdn_mapping.rib import Entry, RibReader
from core.errors import ReachError, UsageError
from core.reach import ENVIRONMENT_VARIABLE, environment_prefixes

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

    def __iter__(self) -> Iterator[Entry]:
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


def to_entry(element: Any) -> Entry:
    """An element as our own reader's entry: BGPStream gives paths as text, in the same notation."""
    fields = element.fields  # computed again at each call
    path = fields["as-path"]
    return Entry(fields["prefix"], as_path.origin_of_text(path), path, element.peer_asn, element.peer_address, None)


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
