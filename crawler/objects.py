"""The visit of one domain for the sizes of its start page and of what the page shows: images, style sheets, scripts,
fonts. The rules of `crawler.visit` hold for every URL.

Sizes are those of bodies on the wire, for a client that accepts gzip.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from core.domain import ObjectKind
from core.untrusted import ending
from crawler.exchange import CrawlOutcome, CrawlReply, CrawlRequest, RequestPurpose
from crawler.links import Embedded, embedded, of_style_sheet
from crawler.policy import RefusedError
from crawler.visit import GET_ONLY, DomainVisit

COUNTED_BYTES = 5_000_000
"""Bytes of a body without Content-Length that are counted, at most; also of a page that is read."""

_PACKED_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif")


def _head_may_err(mime_type: str, ask: CrawlRequest) -> bool:
    """Whether a GET may be compressed although the HEAD was not.

    nginx leaves a HEAD uncompressed and gives its length (ngx_http_gzip_filter_module.c: `r->header_only`).
    """
    packed = mime_type in _PACKED_IMAGES or mime_type.endswith(("woff", "woff2"))
    return not (ask.encoded or packed)


@dataclass(slots=True, kw_only=True)
class ObjectVisit(DomainVisit):
    """One domain's visit; call `run` once."""

    _rows: list[dict[str, Any]] = field(default_factory=list)
    _wanted: dict[str, bool] = field(default_factory=dict)
    """URL -> whether it is a style sheet."""
    _skipped: int = 0

    def _conclude(self) -> None:
        ended = self._result.outcome if self._result.outcome != CrawlOutcome.NO_FILE else None
        if self._rows and ended != CrawlOutcome.BLOCKED:  # nothing is kept of a domain that opted out meanwhile
            for url in list(self._wanted)[len(self._rows) - 1 :]:  # the visit ended before
                self._rows.append({"url": without_query(url), "failure": ended or CrawlOutcome.TIME_BUDGET})
            self._rows[0]["skipped"] = self._skipped
            self._result.outcome, self._result.objects = CrawlOutcome.FOUND, self._rows

    async def _crawl(self) -> None:
        await self._settle()
        url, ask, reply = await self._follow(self.start, RequestPurpose.PAGE)
        if reply.status != 200:
            raise RefusedError(CrawlOutcome.HTTP_STATUS, str(reply.status))
        if ask.html:
            self._want(await asyncio.to_thread(embedded, reply.body, url=url, encoding=reply.charset))
        self._rows.append({"is_page": True, **self._row(url, ask, reply)})
        done = 0
        while done < len(self._wanted):  # style sheets add to it
            url = list(self._wanted)[done]
            try:
                self._rows.append(await self._measure(url, is_sheet=self._wanted[url]))
            except RefusedError as error:
                if self._ends(error):
                    raise
                self._rows.append({"url": without_query(url), "failure": error.cause})
            done += 1

    def _want(self, shown: Embedded) -> None:
        """Adds objects up to the most per page, and counts the others."""
        self._skipped += shown.unusable
        for url, is_sheet in shown.urls.items():
            if url in self._wanted:
                continue
            if len(self._wanted) < self.limits.objects:
                self._wanted[url] = is_sheet
            else:
                self._skipped += 1

    async def _measure(self, url: str, *, is_sheet: bool) -> dict[str, Any]:
        """A row: from a HEAD, else from a GET that is stopped when the size is known or enough has been counted."""
        if (fault := self._fault(url)) is not None:
            raise fault
        if is_sheet or ending(url) == "css":
            final, ask, reply = await self._follow(url, RequestPurpose.WHOLE)
            if reply.status == 200:
                text = reply.body.decode("utf-8", "replace")
                self._want(await asyncio.to_thread(of_style_sheet, text, url=final))
            return self._row(url, ask, reply)
        final, ask, reply = await self._follow(url, RequestPurpose.HEAD)
        unknown = ask.length is None or _head_may_err(mime_of(reply), ask)
        if reply.status in GET_ONLY and (reply.status != 200 or unknown):
            final, ask, reply = await self._follow(final, RequestPurpose.SIZE)
        return self._row(url, ask, reply)

    def _row(self, url: str, ask: CrawlRequest, reply: CrawlReply) -> dict[str, Any]:
        row: dict[str, Any] = {"url": without_query(url), "http_status": reply.status, "server_ip": self._address}
        if reply.status not in (200, 204):
            return {**row, "failure": CrawlOutcome.HTTP_STATUS}
        size = ask.length if ask.length is not None else ask.received
        bound = ask.length is None and reply.stopped
        if bound and size < self.limits.min_size:  # the server broke off
            return {**row, "failure": CrawlOutcome.PROTOCOL_ERROR}
        return {**row, "kind": ObjectKind.of(mime_of(reply)), "size_bytes": size, "size_is_lower_bound": bound}


def without_query(url: str) -> str:
    """The URL up to its path: a query may name a visitor."""
    return urlunsplit((*urlsplit(url)[:3], "", ""))


def mime_of(reply: CrawlReply) -> str:
    """The media type of an answer, in lower case; that of HTML where it says none, as `CrawlRequest.html` assumes."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower() or "text/html"
