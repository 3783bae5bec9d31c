"""Pages served instead of the file: bot checks and blocks of a CDN. Pure; reads untrusted header fields.

Only documented behaviour of a vendor counts, and only if the CDN itself must have answered: an origin's own 403 stays
`http_status`. Sources: Cloudflare's "Detect a Challenge Page response", "Error page types" (blocks are 403, rate limits
429) and "Cloudflare cache responses" (a blocked request never reaches the cache, so it has no cache status); Amazon's
"CAPTCHA and Challenge action behavior" and "How do I troubleshoot 403 errors from CloudFront?" (`Server: CloudFront`);
Akamai's "Why is Akamai blocking me?" (its own pages come from `AkamaiGHost`; an origin's response keeps its Server).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from core.domain import Failure
from core.untrusted import FILE_ENDINGS, ending

_CHALLENGES: Mapping[str, frozenset[str]] = {
    "cf-mitigated": frozenset({"challenge"}),
    "x-amzn-waf-action": frozenset({"challenge", "captcha"}),
}
"""Field -> values that mark a bot check, regardless of the status."""

_BLOCKING = frozenset({403, 429})
"""Without 503: it may come from an edge whose origin is down."""

_EDGES = frozenset({"akamaighost", "cloudfront"})
"""Values of Server in responses that the edge itself made."""

_FILES = frozenset(chain.from_iterable(FILE_ENDINGS))
_HTML = frozenset({"text/html", "application/xhtml+xml"})


def page_of_edge(status: int | None, headers: Mapping[str, str]) -> tuple[Failure, str] | None:
    """The kind of a CDN's page, and the reason; None for any other response.

    Args:
        headers: names in lower case.
    """
    for name, values in _CHALLENGES.items():
        if headers.get(name, "").strip().lower() in values:
            return Failure.CHALLENGE_PAGE, f"{name}: {headers[name]}"
    if status not in _BLOCKING:
        return None
    server = headers.get("server", "").strip().lower()
    by_cloudflare = server == "cloudflare" and "cf-cache-status" not in headers
    if by_cloudflare or server in _EDGES:
        return Failure.BLOCK_PAGE, f"status {status} by the edge itself (server: {headers['server']})"
    return None


def html_in_place_of(
    url: str, *, size_bytes: int | None, size_is_lower_bound: bool, content_type: str | None, body_bytes: int
) -> str | None:
    """Why a response with status 200 is an HTML page and not the requested file; None if it may be the file.

    Two conditions: the URL's extension is that of a file, and the length is not that of the file. A server that
    labels a video as HTML has the right length, and a file without an extension could be a page.

    Args:
        size_bytes: the file's size, from the crawl.
        body_bytes: of a complete body.
    """
    given = (content_type or "").partition(";")[0].strip().lower()
    if given not in _HTML or size_bytes is None:
        return None
    extension = ending(url)
    if extension not in _FILES:
        return None
    if body_bytes == size_bytes or (size_is_lower_bound and body_bytes > size_bytes):
        return None
    least = "at least " if size_is_lower_bound else ""
    return f"{body_bytes} bytes of {given} instead of {least}{size_bytes} bytes of a .{extension} file"
