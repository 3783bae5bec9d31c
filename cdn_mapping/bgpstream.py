"""RIBs through pybgpstream, for those who have it. Our own reader is the default and needs nothing.

BGPStream keeps quiet about what goes wrong (libbgpstream 2.3): a missing file is a line on standard error and no
elements; a cut file is a record of status `corrupted-record`; an ADD-PATH RIB yields nothing at all (libbgpstream
issue #228). All three are errors or flags here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cdn_mapping.rib import Entry
from upshift.errors import UsageError
from upshift.reach import ENVIRONMENT_VARIABLE, environment_prefixes

RIB_WINDOW = timedelta(minutes=30)
"""A dump is looked for this long after the time asked for: collectors begin late, and stamp the minute of the start."""


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
    """Iterates over the RIB entries of a stream once.

    Attributes:
        truncated: BGPStream met a record that it could not read; the stream ends there.
    """

    def __init__(self, stream: Any, *, where: str) -> None:
        self._stream = stream
        self._where = where
        self.truncated = False

    def __iter__(self) -> Iterator[Entry]:
        count = 0
        seen: set[str] = set()
        for record in self._stream.records():
            seen.add(str(record.status))
            if record.status == "corrupted-record":
                self.truncated = True
            for element in record:
                if element.type != "R":
                    continue
                count += 1
                yield to_entry(
                    element.fields["prefix"], element.fields.get("as-path", ""), element.peer_asn, element.peer_address
                )
        if count == 0:
            raise UsageError(
                f"BGPStream gave no RIB entry (record status: {', '.join(sorted(seen)) or 'no record at all'})",
                where=self._where,
                remedy="if this is a RIB with ADD-PATH, which BGPStream cannot read, leave out --backend bgpstream",
            )


def to_entry(prefix: str, path: str, peer_asn: int, peer_address: str) -> Entry:
    """An entry in the words of our own reader: BGPStream gives paths as text."""
    last = path.split()[-1] if path.split() else ""
    origin = int(last) if last.isdigit() else None
    return Entry(prefix, origin, path, int(peer_asn), str(peer_address), None)


def read_file(path: Path) -> StreamReader:
    """The entries of one RIB file, without any network (`singlefile`: the default interface asks a broker)."""
    if not path.is_file():
        raise UsageError("there is no such file", where=str(path), remedy="check the path")
    stream = _module().BGPStream(data_interface="singlefile")
    stream.set_data_interface_option("singlefile", "rib-file", str(path))
    return StreamReader(stream, where=str(path))


def read_collector(collector: str, time: datetime) -> StreamReader:
    """The RIB of a RouteViews or RIS collector at a time, by BGPStream's broker: this goes out to the Internet.

    Raises:
        ReachError: the environment limits what may be contacted; libbgpstream's own connections cannot be checked.
    """
    from upshift.errors import ReachError

    if environment_prefixes() is not None:
        raise ReachError(
            f"BGPStream would contact its broker and archives, and {ENVIRONMENT_VARIABLE} is set",
            where="--collector",
            remedy="name a RIB file, or unset the variable outside the lab",
        )
    module = _module()
    utc = time.astimezone(UTC)
    stream = module.BGPStream(
        from_time=utc.strftime("%Y-%m-%d %H:%M:%S"),
        until_time=(utc + RIB_WINDOW).strftime("%Y-%m-%d %H:%M:%S"),
        collectors=[collector],
        record_type="ribs",
    )
    return StreamReader(stream, where=f"{collector} at {utc:%Y-%m-%d %H:%M} UTC")
