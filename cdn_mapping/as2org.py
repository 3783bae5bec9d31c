"""Which organisation holds an AS number.

Reads CAIDA's as-org2info in both forms and as2org+ sibling lists, plain or compressed:

- txt: two tables separated by `|`, each announced by a header line `# format:org_id|...` or `# format:aut|...`; old
  files lack the column opaque_id.
- jsonl: one object per line of `type` `Organization` or `ASN`; the ASN is a string, `name` and `changed` may be
  missing.
- as2org+ (NU-AquaLab): a JSON list of lists of ASNs without names; each list is one organisation. Its name is
  the one that CAIDA gives to most of its members.

The name in an ASN record is that of the network, not of the organisation, so it is not used.
Source: https://publicdata.caida.org/datasets/as-organizations/README.txt
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cdn_mapping.inflate import Inflated
from core.errors import UsageError

MAX_ASN = 2**32 - 1

MOST_BYTES = 256 << 20
"""Largest file, decompressed: several times the size that CAIDA publishes."""
MOST_LINES = 1_000_000
"""Most lines: about 120,000 AS numbers exist, and fewer organisations."""
LONGEST_LINE = 64 << 10
MOST_SIBLING_BYTES = 8 << 20
"""Largest sibling list, decompressed: it is parsed as a whole."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Organisation:
    """A holder of AS numbers."""

    org_id: str
    name: str | None
    """None if the file has AS numbers of an organisation that it does not describe."""
    country: str | None = None


@dataclass(slots=True, kw_only=True)
class Organisations:
    """AS number -> organisation, and the reverse."""

    of_asn: dict[int, str] = field(default_factory=dict)
    """AS number -> organisation id."""
    by_id: dict[str, Organisation] = field(default_factory=dict)
    _members: dict[str, list[int]] = field(default_factory=dict)

    def get(self, asn: int | None) -> Organisation | None:
        """The organisation of an AS, None if it is unknown."""
        org_id = None if asn is None else self.of_asn.get(asn)
        return None if org_id is None else self.by_id.get(org_id, Organisation(org_id=org_id, name=None))

    def note(self, asn: int, org_id: str) -> None:
        """Notes who holds an AS. Without an id nobody knows: all such are not one organisation."""
        if org_id.strip():
            self.of_asn[asn] = org_id

    def members(self, org_id: str) -> list[int]:
        """All AS numbers of an organisation, sorted."""
        if not self._members and self.of_asn:
            grouped: dict[str, list[int]] = defaultdict(list)
            for asn in sorted(self.of_asn):
                grouped[self.of_asn[asn]].append(asn)
            self._members = dict(grouped)
        return self._members.get(org_id, [])

    def merge_siblings(self, groups: Iterable[Iterable[int]]) -> None:
        """Merges each group of ASNs into one organisation; overlapping groups are merged.

        Organisations are joined whole: an AS that a group does not name goes with the others of its organisation, as
        it may be newer than the group. Id and name are those of the organisation with most members (in a tie, the
        lowest id); a group without any known member is named `siblings-` and its lowest ASN.
        """
        named = [list(group) for group in groups]
        touched = {self.of_asn[asn] for asn in chain.from_iterable(named) if asn in self.of_asn}
        whole: dict[str, list[int]] = {org_id: [] for org_id in touched}
        for asn, org_id in self.of_asn.items():
            if org_id in whole:
                whole[org_id].append(asn)
        parent: dict[int, int] = {}

        def root(asn: int) -> int:
            while parent.setdefault(asn, asn) != asn:
                parent[asn] = parent[parent[asn]]
                asn = parent[asn]
            return asn

        for members in chain(named, whole.values()):
            for asn in members:
                low, high = sorted((root(members[0]), root(asn)))
                parent[high] = low
        clusters: dict[int, list[int]] = defaultdict(list)
        for asn in parent:
            clusters[root(asn)].append(asn)
        for lowest, members in clusters.items():
            votes = Counter(self.of_asn[asn] for asn in members if asn in self.of_asn)
            winner = min(votes, key=lambda o: (-votes[o], o)) if votes else f"siblings-{lowest}"
            self.by_id.setdefault(winner, Organisation(org_id=winner, name=None))
            for asn in members:
                self.of_asn[asn] = winner
        self._members = {}


def read(path: Path, *, into: Organisations | None = None) -> Organisations:
    """Reads one file of any of the three forms; a sibling list is merged into what is already known.

    Raises:
        UsageError: the file is missing, cut, malformed, or far larger than any such file; with the line.
    """
    organisations = into if into is not None else Organisations()
    chunks = _limited(path)
    first = next(chunks, b"")
    match first.removeprefix(_BYTE_ORDER_MARK)[:1]:
        case b"":
            raise UsageError("the file is empty", where=str(path), remedy="fetch it again: upshift map fetch")
        case b"[":
            organisations.merge_siblings(_read_siblings(path, chain([first], chunks)))
            return organisations
        case b"{":
            _read_jsonl(path, _lines(path, chain([first], chunks)), organisations)
        case b"#":
            _read_txt(path, _lines(path, chain([first], chunks)), organisations)
        case _:
            raise UsageError(
                "line 1 is neither a comment, a JSON object nor a JSON list",
                where=str(path),
                remedy="give CAIDA's as-org2info (txt or jsonl) or an as2org+ sibling list",
            )
    if not organisations.of_asn:
        raise UsageError(
            "the file has no AS number", where=str(path), remedy="give CAIDA's as-org2info, not another file"
        )
    organisations._members = {}
    return organisations


def _limited(path: Path) -> Iterator[bytes]:
    """The decompressed file in chunks, at most `MOST_BYTES` in all."""
    source = Inflated(path)
    total = lines = 0
    for chunk in source:
        total += len(chunk)
        lines += chunk.count(b"\n")
        if total > MOST_BYTES:
            raise _too_large(path, f"the file has more than {MOST_BYTES >> 20} MiB, inflated")
        yield chunk
    if source.cut:
        raise UsageError(
            f"the compressed file is truncated after line {lines}",
            where=str(path),
            remedy="fetch it again: upshift map fetch",
        )


def _too_large(path: Path, what: str) -> UsageError:
    return UsageError(what, where=str(path), remedy="give CAIDA's as-org2info, or an as2org+ sibling list")


def _lines(path: Path, chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    number = 0
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            if number > MOST_LINES:
                raise _too_large(path, f"the file has more than {MOST_LINES:,} lines")
            yield _decode(line)
        if len(rest) > LONGEST_LINE:
            raise _too_large(path, f"line {number + 1} is longer than {LONGEST_LINE >> 10} KiB")
    if rest:
        yield _decode(rest)


def _decode(line: bytes) -> str:
    text = line.rstrip(b"\r").removeprefix(_BYTE_ORDER_MARK)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def decoded(name: str) -> str:
    """Undoes UTF-8 text that was decoded as Latin-1 (`Ã©` for `é`); other names are returned unchanged."""
    try:
        return name.encode("latin-1").decode("utf-8")
    except (UnicodeEncodeError, UnicodeDecodeError):
        return name


def _asn(text: object, path: Path, number: int, place: str = "line {}") -> int:
    if isinstance(text, int | str) and not isinstance(text, bool) and str(text).isascii() and str(text).isdigit():
        asn = int(text)
        if asn <= MAX_ASN:
            return asn
    raise UsageError(
        f"{place.format(number)}: {text!r} is not a valid AS number", where=str(path), remedy="fix or remove it"
    )


def _read_txt(path: Path, lines: Iterable[str], into: Organisations) -> None:
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            _, marker, names = line.partition("format:")
            if marker:
                columns = [name.strip() for name in names.split("|")]
            continue
        if not line.strip():
            continue
        values = line.split("|")
        if not columns or len(values) != len(columns):
            expected = f"{len(columns)} fields" if columns else "a line `# format:...` before the first record"
            raise UsageError(
                f"line {number}: {expected} expected, {len(values)} fields found",
                where=str(path),
                remedy="fix that line, or fetch the file again: upshift map fetch",
            )
        row = dict(zip(columns, values, strict=True))
        if columns[0] == "aut":
            into.note(_asn(row["aut"], path, number), row.get("org_id", ""))
        elif columns[0] == "org_id":
            into.by_id[row["org_id"]] = Organisation(
                org_id=row["org_id"], name=decoded(row.get("org_name", "")) or None, country=row.get("country") or None
            )
        else:
            raise UsageError(
                f"line {number}: unknown table {columns[0]!r}",
                where=str(path),
                remedy="give CAIDA's as-org2info (tables org_id and aut)",
            )


def _read_jsonl(path: Path, lines: Iterable[str], into: Organisations) -> None:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"line {number} is not JSON ({error})", where=str(path), remedy="fix that line, or fetch it again"
            ) from None
        kind = row.get("type") if isinstance(row, dict) else None
        org_id = row.get("organizationId") if isinstance(row, dict) else None
        if kind not in ("ASN", "Organization") or not isinstance(org_id, str):
            raise UsageError(
                f"line {number} is not a record of type ASN or Organization with an organizationId",
                where=str(path),
                remedy="give CAIDA's as-org2info.jsonl",
            )
        if kind == "ASN":
            into.note(_asn(row.get("asn"), path, number), org_id)
        else:
            into.by_id[org_id] = Organisation(org_id=org_id, name=_text(row, "name"), country=_text(row, "country"))


def _text(row: Mapping[str, Any], key: str) -> str | None:
    value = row.get(key)
    return decoded(value) or None if isinstance(value, str) else None


def _read_siblings(path: Path, chunks: Iterable[bytes]) -> list[list[int]]:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MOST_SIBLING_BYTES:
            raise _too_large(path, f"the list has more than {MOST_SIBLING_BYTES >> 20} MiB, inflated")
    try:
        groups = json.loads(_decode(bytes(data)))
    except RecursionError:
        raise UsageError("its lists are nested too deeply", where=str(path), remedy="give a list of lists") from None
    except ValueError as error:
        raise UsageError(f"this is not JSON ({error})", where=str(path), remedy="fix that line") from None
    siblings = []
    for number, group in enumerate(groups, 1):
        if not isinstance(group, list) or not group:
            raise UsageError(
                f"element {number} of the list is not a list of AS numbers",
                where=str(path),
                remedy="give an as2org+ sibling list: [[15169, 36040], ...]",
            )
        siblings.append([_asn(asn, path, number, "element {} of the list") for asn in group])
    return siblings
