"""What a host may send to `upshift fleet collect`: a closed list of names, and sizes that the plan bounds. Pure.

A host is trusted with its own results and nothing else. What it lists is judged here before anything else is asked of
it: names are those that `upshift snapshot` makes for this vantage point, so none of them is absolute, has a `..`, a
control character or another host's name in it. What a campaign shares (`SHARED`) may be listed, as every snapshot has
it, but is never fetched: the control machine has its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import IncompleteError
from core.files.campaign_json import BESIDE, FILE_NAME
from core.files.disk import size_text
from core.untrusted import scrub

SCHEMA = 1
"""Version of `snapshot.json`."""

JOURNAL, STATUS, CAPTURES = "journal.sqlite", "status.json", "captures"

SHARED = frozenset(f"snapshot/{name}" for name in (FILE_NAME, *BESIDE))
"""What snapshots have, but the control machine has of its own."""

ENTRIES_BESIDE = len(SHARED) + 3
"""Entries of `snapshot.json` beside captures, its own fields counted as one; each has four values."""

SMALL_BYTES = 4_000_000
"""Most bytes of a status, and of a file that is shared."""

ENTRY_BYTES = 500
"""Most bytes of a capture's entry in `snapshot.json`, whose names have at most 80 characters of a domain."""

_CAPTURE = re.compile(r"([1-9][0-9]{0,8})-([0-9]{3,9})-[a-z0-9][a-z0-9._-]{0,79}(-a[1-9][0-9]{0,5})?\.pcap(\.zst)?")
"""Iteration, number of the run, domain and attempt (`downloader.execution.engine`), packed or not."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What the results of a vantage point can need, by the control machine's own copy of the plan."""

    plan_sha256: str
    iterations: int
    runs: int
    """Measurement runs of a vantage point."""
    captures: int
    """Most captures: one for each attempt."""
    capture_bytes: int
    """Most bytes of one."""
    journal_bytes: int
    disk_bytes: int
    """The limit of its folder, which a run that is under way may exceed."""

    @property
    def all_bytes(self) -> int:
        """Most bytes of all its files at a time."""
        return self.disk_bytes + self.capture_bytes

    @property
    def list_bytes(self) -> int:
        """Most bytes of `snapshot.json`."""
        return SMALL_BYTES + self.captures * ENTRY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that is to be fetched."""

    path: str
    """Where it belongs, from `vantage/HOST`; its last part has no meaning to any program."""
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a host has, after it was judged."""

    small: tuple[File, ...]
    """The journal's copy, then the status if there is one."""
    captures: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.bytes for file in (*self.small, *self.captures))


def allowed_bytes(path: str, host: str, needs: Needs) -> int | None:
    """The most bytes of a file that a host may list under this name; None: it may not list that name."""
    home = f"vantage/{host}/"
    if path == f"snapshot/{home}{JOURNAL}":
        return needs.journal_bytes
    if path == f"snapshot/{home}{STATUS}" or path in SHARED:
        return SMALL_BYTES
    name = _CAPTURE.fullmatch(path.removeprefix(f"{home}{CAPTURES}/"))
    if name is None or not path.startswith(home):
        return None
    planned = int(name[1]) <= needs.iterations and int(name[2]) < needs.runs
    return needs.capture_bytes if planned else None


def judged(document: Mapping[str, Any], host: str, needs: Needs) -> Offer:
    """What is to be fetched from a host, from the content of its `snapshot.json`.

    Raises:
        IncompleteError: another plan, a name or a size that no vantage point of this plan has.
    """
    listed = document.get("files")
    if document.get("schema") != SCHEMA or not isinstance(listed, list):
        raise refused(host, "its snapshot.json is not one that this Upshift can read")
    if document.get("plan_sha256") != needs.plan_sha256:
        raise refused(
            host,
            "its results are of another plan than the campaign and the targets of this machine",
            "name in the inventory those that it was started with",
        )
    files: dict[str, File] = {}
    for entry in listed:
        path, file = _judged(entry, host, needs)
        if path in files:
            raise refused(host, f"it lists {scrub(path)} twice")
        files[path] = file
    small = [files.get(f"snapshot/vantage/{host}/{name}") for name in (JOURNAL, STATUS)]
    if small[0] is None:
        raise refused(host, "its snapshot has no journal")
    offer = Offer(
        small=tuple(file for file in small if file is not None),
        captures=tuple(file for path, file in files.items() if not path.startswith("snapshot/")),
    )
    if len(offer.captures) > needs.captures:
        raise refused(host, f"it lists {len(offer.captures)} captures, and the plan has {needs.captures}")
    if offer.bytes > needs.all_bytes:
        most = size_text(needs.all_bytes)
        raise refused(host, f"it offers {size_text(offer.bytes)}, and its results take at most {most}")
    return offer


def refused(
    host: str, why: str, remedy: str = "look at that host: what it sent was not taken, its files here stay"
) -> IncompleteError:
    """The error for a host from which nothing is taken."""
    return IncompleteError(why, where=host, remedy=remedy)


def _judged(entry: object, host: str, needs: Needs) -> tuple[str, File]:
    fields = entry if isinstance(entry, dict) else {}
    path, size, digest = fields.get("path"), fields.get("bytes"), fields.get("sha256")
    if type(path) is not str or type(size) is not int or type(digest) is not str or not _SHA256.fullmatch(digest):
        raise refused(host, f"it lists what is no file: {scrub(repr(entry), most=80)}")
    most = allowed_bytes(path, host, needs)
    if most is None:
        raise refused(host, f"it lists {scrub(repr(path), most=120)}, which is none of its results")
    if not 0 <= size <= most:
        raise refused(host, f"it lists {scrub(path)} with {size:,} bytes, and it has at most {most:,}"[:300])
    name = path.rpartition("/")[2]
    return path, File(path=name if path.startswith("snapshot/") else f"{CAPTURES}/{name}", bytes=size, sha256=digest)
