"""Finds and fetches the newest RouteViews RIB and CAIDA AS2Org file. Runs only at a user's request.

Sources: https://archive.routeviews.org/bgpdata/YYYY.MM/RIBS/rib.YYYYMMDD.HHMM.bz2 (every two hours; collectors other
than route-views2 have their own folders), https://publicdata.caida.org/datasets/as-organizations/ (monthly).

Addresses are resolved once, checked by `core.reach`, and pinned: only checked addresses are connected to. A redirect
leads neither from the Internet to an address that is not public, nor from https to http.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import core
from core.errors import IncompleteError, PlaceError, ReachError, UsageError
from core.files.config import read_json
from core.files.disk import take_lock, write_json
from core.reach import check_address, check_host, check_public
from core.untrusted import host_and_port, plain, url_fault

ROUTEVIEWS = "https://archive.routeviews.org/"
CAIDA = "https://publicdata.caida.org/datasets/as-organizations/"
TIMEOUT_S = 30.0
MAX_REDIRECTS = 5
MAX_INDEX_BYTES = 4_000_000

_RIB = re.compile(r'href="(rib\.(\d{8}\.\d{4})\.(?:bz2|gz))"')
_AS2ORG = re.compile(r'href="((\d{8})\.as-org2info\.(jsonl|txt)\.gz)"')


class _Pinned(http.client.HTTPConnection):
    """A connection to the address that was checked; the name is not resolved again."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._address = address
        self._context = context

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), timeout=TIMEOUT_S)
        self.sock = self._context.wrap_socket(plain, server_hostname=self.host) if self._context else plain


def checked_address(host: str, port: int) -> str:
    """The first address of a host. Raises ReachError if it may not be contacted, or looked up (`check_host`)."""
    host = host.strip("[]")
    check_host(host)
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # no such name, or one that DNS cannot have
        raise PlaceError(f"{host} cannot be resolved ({error})", remedy="check the network, or the name") from None
    address = str(entries[0][4][0])
    check_address(address)
    return address


def _is_public(address: str) -> bool:
    try:
        check_public(address)
    except ReachError:
        return False
    return True


def _redirect_fault(before: tuple[str, str], scheme: str, address: str) -> str | None:
    """Why a redirect from this scheme and address to the others is not followed."""
    if before[0] == "https" != scheme:
        return "it is not encrypted"
    return f"{address} is not a public address" if _is_public(before[1]) and not _is_public(address) else None


def _request(url: str, headers: dict[str, str]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A GET, redirects followed (each one checked)."""
    asked, before = url, None
    for _ in range(MAX_REDIRECTS):
        if (fault := url_fault(url)) is None:
            parts = urlsplit(url)
            host, port = host_and_port(url, schemes=("https", "http"))
            address = checked_address(host, port)
            fault = None if before is None else _redirect_fault(before, parts.scheme, address)
            before = parts.scheme, address
        if fault is not None:
            if before is None:
                raise UsageError(fault, where=url, remedy="check the option that gives it")
            raise IncompleteError(
                f"it redirects to {plain(url)[:200]!r}: {fault}", where=asked, remedy="try another mirror"
            )
        context = ssl.create_default_context() if parts.scheme == "https" else None
        connection = _Pinned(host, port, address, context)
        agent = {"User-Agent": f"upshift/{core.__version__}", "Accept-Encoding": "identity"}
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers=agent | headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise IncompleteError(f"the server does not answer ({error})", where=url, remedy="try again") from None
        location = response.headers.get("Location")
        if response.status not in (301, 302, 303, 307, 308) or not location:
            return connection, response
        connection.close()
        try:
            url = urljoin(url, location)
        except ValueError:  # it has no form that can be joined, and the next turn says why
            url = location
    raise IncompleteError(f"more than {MAX_REDIRECTS} redirects", where=url, remedy="check the address")


def read_index(url: str) -> str | None:
    """The text of an index page, None if it is missing (404)."""
    connection, response = _request(url, {})
    try:
        if response.status == 404:
            return None
        if response.status != 200:
            raise IncompleteError(f"the server answered {response.status}", where=url, remedy="try again later")
        return response.read(MAX_INDEX_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise IncompleteError(
            f"the index was not received completely ({error})", where=url, remedy="try again"
        ) from None
    finally:
        connection.close()


def newest_rib(base: str = ROUTEVIEWS, *, collector: str = "", now: datetime | None = None) -> str:
    """URL of a collector's newest RIB; in last month's folder if this month's is still empty.

    Args:
        collector: folder of the collector, e.g. `route-views.sg`; empty for route-views2.
    """
    now = now or datetime.now(UTC)
    for month in (now, now.replace(day=1) - timedelta(days=1)):
        folder = f"{base.rstrip('/')}/{collector + '/' if collector else ''}bgpdata/{month:%Y.%m}/RIBS/"
        names = _RIB.findall(read_index(folder) or "")
        if names:
            name: str = max(names, key=lambda match: match[1])[0]
            return urljoin(folder, name)
    raise IncompleteError(
        f"no RIB of {now:%B %Y} or the month before is listed", where=base, remedy="check the collector's name"
    )


def newest_as2org(base: str = CAIDA) -> str:
    """URL of CAIDA's newest as-org2info file; jsonl if both forms exist."""
    base = f"{base.rstrip('/')}/"  # else its last name would be replaced by what is in it
    names = _AS2ORG.findall(read_index(base) or "")
    if not names:
        raise IncompleteError("no as-org2info file is listed", where=base, remedy="check the address")
    name: str = max(names, key=lambda match: (match[1], match[2] == "jsonl"))[0]
    return urljoin(base, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """A fetched file."""

    path: Path
    size_bytes: int
    resumed_at: int
    """Bytes that an earlier attempt received."""


def download(url: str, folder: Path, *, on_read: Callable[[int, int], None] | None = None) -> FetchedFile:
    """Fetches a file into a folder. An interrupted fetch resumes where it stopped; the file appears only when complete.

    The rest of a file is requested with If-Range and the first attempt's ETag, so that two versions are never mixed.
    """
    name = urlsplit(url).path.rpartition("/")[2]
    if name in ("", ".", ".."):
        raise UsageError("the URL names no file", where=url, remedy="give that of a file")
    folder.mkdir(parents=True, exist_ok=True)
    with _only_one(folder / name):
        return _fetched(url, folder / name, on_read)


@contextlib.contextmanager
def _only_one(target: Path) -> Iterator[None]:
    """A lock of the file: two fetches would write into one `.part`, and call half of it complete."""
    path = target.with_name(f".{target.name}.lock")
    with path.open("a") as handle:
        # Without a name: one that has just ended removed the file after we opened it.
        if not take_lock(handle.fileno()) or os.fstat(handle.fileno()).st_nlink == 0:
            raise PlaceError("another upshift map fetch is fetching this file", where=str(target), remedy="wait for it")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _fetched(url: str, target: Path, on_read: Callable[[int, int], None] | None) -> FetchedFile:
    part, note = target.with_name(f".{target.name}.part"), target.with_name(f".{target.name}.part.json")
    start, validator = _earlier(part, note, url)
    headers = {"Range": f"bytes={start}-", "If-Range": validator} if start and validator else {}
    connection, response = _request(url, headers)
    if response.status == 416 and start:  # the earlier attempt had received all of it, or the file has changed
        connection.close()
        start = 0
        connection, response = _request(url, {})
    try:
        start, total = _placed(response, start, url)
        if not start:
            part.unlink(missing_ok=True)  # before the note says that it is of this version
        write_json(note, {"url": url, "validator": _validator(response)})
        done = start
        with part.open("r+b" if start else "wb") as handle:
            handle.seek(start)
            handle.truncate()
            for chunk in _body(response, url):
                handle.write(chunk)
                done += len(chunk)
                if on_read is not None:
                    on_read(done, total or done)
            handle.flush()
            os.fsync(handle.fileno())
    finally:
        connection.close()
    if total is not None and done != total:
        raise IncompleteError(
            f"{done} of {total} bytes received", where=url, remedy="run the same command again to resume"
        )
    part.replace(target)
    note.unlink(missing_ok=True)
    return FetchedFile(path=target, size_bytes=done, resumed_at=start)


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What If-Range may have of this version: no weak ETag (RFC 9110, section 13.1.5)."""
    etag = response.headers.get("ETag", "")
    return (None if etag.startswith("W/") else etag) or response.headers.get("Last-Modified")


def _body(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """The body of an answer. Raises IncompleteError if the connection breaks; a full disk is the caller's error."""
    try:
        while chunk := response.read(1 << 16):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise IncompleteError(
            f"the connection broke ({error})", where=url, remedy="run the same command again to resume"
        ) from None


def _earlier(part: Path, note: Path, url: str) -> tuple[int, str | None]:
    """How much an earlier attempt received of this file, and how to request the same version."""
    try:
        known = read_json(note)
        if known["url"] == url and known["validator"]:
            return part.stat().st_size, str(known["validator"])
    except (UsageError, OSError, KeyError):
        pass
    return 0, None


def _placed(response: http.client.HTTPResponse, start: int, url: str) -> tuple[int, int | None]:
    """Where the body of this response begins in the file, and the file's length (None if unknown)."""
    length = response.headers.get("Content-Length")
    if response.status == 206:
        content_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if content_range is None or int(content_range[1]) != start:
            raise IncompleteError(
                "the server sent a different byte range than requested", where=url, remedy="remove the .part file"
            )
        return start, int(content_range[2])
    if response.status == 200:
        return 0, int(length) if length and length.isdigit() else None
    raise IncompleteError(
        f"the server answered {response.status}", where=url, remedy="try again later, or remove the .part file"
    )
