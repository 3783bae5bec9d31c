"""Keyed hashes in place of domains, addresses, prefixes and URLs, in a campaign folder that is packed.

Journals and what describes targets and paths are removed, and what servers said is emptied. AS numbers, providers and
all numbers stay, so tables are the same.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.evidence.campaign import ENVIRONMENT, SUPERSEDED
from analysis.evidence.sources import DOWNLOADS
from core.errors import UsageError
from core.files import campaign_json, disk, store
from core.files.config import read_json

if TYPE_CHECKING:
    import pyarrow as pa

_REMOVED = ("vantage", "targets", "lab.json")

_NAMES = ("domain", "url", "server_ip", "local_ip", "prefix")
"""Columns whose values are replaced."""

_EMPTIED = (
    *("failure_detail", "void_detail", "host_disturbance_detail", "treatment_detail", "identity_detail", "detail"),
    *("content_type", "response_headers", "cnames", "etag", "age_s", "edge", "transport_detail", "server_end"),
    *("body_sha256", "capture"),
)
"""Columns that are emptied: free text, and what a server can be recognized by."""

_HOST = "host"
"""The key of a host's name, of which its ceilings are (`vantage.doctor.ceilings.circumstances`)."""

_HOST_CHANGED = re.compile(r"^host (\S+) -> (\S+)$")
"""Why its ceilings do not hold any more (`vantage.doctor.ceilings.changes`)."""

_ADDRESSES = (
    re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:/[0-9]{1,3})?"),
    re.compile(r"(?<![0-9])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?:/[0-9]{1,3})?(?![0-9])"),
)
"""What may hold an IPv6 address, with a port or the end of a sentence, too, or a MAC address; then what may be an IPv4
address."""
_MAC = re.compile(r"(?:[0-9A-Fa-f]{1,2}:){5}[0-9A-Fa-f]{1,2}")
"""Without leading zeros (ether_ntoa(3)) in what `ip` says of bridges, after a priority: 8000.52:54:0:ab:cd:ef."""
_NAMED_BY_MAC = re.compile(r"(?<=\b(?:enx|wlx|wwx))[0-9a-f]{12}\b")
"""The MAC address in an interface's name (systemd.net-naming-scheme(7))."""


def pseudonym(value: str, key: bytes) -> str:
    """A name for a name: HMAC-SHA-256 (RFC 2104), the first 16 hexadecimal digits."""
    return hmac.new(key, value.encode(), hashlib.sha256).hexdigest()[:16]


def replace_names(folder: Path, key: bytes) -> set[str]:
    """Replaces the names in a folder's tables and documents, and removes what is made of them; returns the names."""
    for name in _REMOVED:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    # A target without HTTP/3 has no row where all configurations use QUIC, or where its runs were not made.
    apart = read_json(folder / campaign_json.FILE_NAME).get("without_http3", ())
    names = {domain: _form("domain")(pseudonym(domain, key)) for domain in apart}
    for file, kind in ((SUPERSEDED, "superseded"), (DOWNLOADS, "downloads")):
        table = store.read_table(folder / file, kind)
        for column in _NAMES:
            if column in table.column_names:
                names |= {value: _form(column)(pseudonym(value, key)) for value in _values(table, column)}
        store.write_table(folder / file, kind, _replaced(table, names))
    for file in (ENVIRONMENT, campaign_json.FILE_NAME):
        disk.write_json(folder / file, _in_document(read_json(folder / file), names, key))
    return set(names)


def refuse_names(payload: Path, names: Collection[str]) -> None:
    """Raises UsageError if a JSON document still has one of these names, e.g. as that of a campaign's folder."""
    for path in sorted(payload.rglob("*.json")):
        if left := name_in(path, names):
            what = f"{path.relative_to(payload)} would have the name {left}"
            raise UsageError(what, where="--names hash", remedy="rename the campaign's folder if it has that name")


def name_in(path: Path, names: Collection[str]) -> str | None:
    """One of these names that a text file has."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return next((name for name in names if name in text), None)


def _form(column: str) -> Callable[[str], str]:
    """A pseudonym as a value of a column: of a domain that cannot exist (RFC 2606)."""
    return {"domain": "{}.invalid".format, "url": "https://{}.invalid/".format}.get(column, str)


def _values(table: pa.Table, column: str) -> Iterable[str]:
    return (value for value in table.column(column).unique().to_pylist() if value)


def _replaced(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    for index, field in enumerate(table.schema):
        if field.name in _NAMES:
            column = [names.get(value) for value in table.column(field.name).to_pylist()]
            table = table.set_column(index, field, pa.array(column, type=field.type))
        elif field.name in _EMPTIED:
            table = table.set_column(index, field, pa.nulls(table.num_rows, field.type))
    return table


def _in_document(value: Any, names: Mapping[str, str], key: bytes) -> Any:
    """A JSON document with every known name, the host's and every address in it replaced."""
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    known = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def replace(text: str) -> str:
        text = _HOST_CHANGED.sub(lambda match: f"host {pseudonym(match[1], key)} -> {pseudonym(match[2], key)}", text)
        text = known.sub(lambda match: names[match[0]], text)
        for pattern in _ADDRESSES:
            text = pattern.sub(lambda match: _without_address(match[0], key), text)
        return _NAMED_BY_MAC.sub(lambda match: pseudonym(":".join(re.findall("..", match[0])), key), text)

    def walk(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                replace(name): pseudonym(entry, key) if name == _HOST and isinstance(entry, str) else walk(entry)
                for name, entry in part.items()
            }
        if isinstance(part, list):
            return [walk(entry) for entry in part]
        return replace(part) if isinstance(part, str) else part

    return walk(value)


def _without_address(text: str, key: bytes) -> str:
    plain = text.strip(".")
    parts = (text, plain, plain.removesuffix(":"), plain.removeprefix(":"), plain.strip(":"))
    for part in (*parts, parts[-1].rpartition(":")[0], text.rpartition(".")[2]):
        if _is_address(part):
            return text.replace(part, pseudonym(part, key))
    return text


def _is_address(text: str) -> bool:
    if _MAC.fullmatch(text):
        return True
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
