"""Extracts links from a page: candidates for large files, and for further pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit, urlunsplit

import lxml.etree  # type: ignore[import-untyped]
import lxml.html  # type: ignore[import-untyped]

from core.untrusted import url_fault

MAX_LINKS = 2_000
"""Most links of one page that are considered."""

MAX_URL = 2_000

_FILE_ATTRIBUTES = {
    "img": ("src", "srcset", "data-src", "data-srcset"),
    "script": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "track": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "link": ("href",),
    "input": ("src",),
}
_PAGE_ATTRIBUTES = {"a": ("href",), "area": ("href",), "iframe": ("src",), "frame": ("src",)}

_PAGE_ENDINGS = frozenset(
    ("", "htm", "html", "xhtml", "shtml", "php", "php5", "asp", "aspx", "jsp", "jspx", "cfm", "do")
)
_LARGE_FIRST = (
    ("iso", "img", "dmg", "mp4", "webm", "mov", "mkv", "avi", "m4v", "zip", "gz", "xz", "bz2", "tgz", "7z", "rar",
     "exe", "msi", "pkg", "deb", "rpm", "apk", "tar", "zst"),
    ("pdf", "ppt", "pptx", "mp3", "ogg", "wav", "flac", "m4a", "epub", "tif", "tiff", "psd", "csv", "json", "xml"),
    ("gif", "png", "jpg", "jpeg", "webp", "avif", "bmp", "doc", "docx", "xls", "xlsx", "wasm"),
    ("js", "mjs", "svg", "css", "woff", "woff2", "ttf", "otf", "ico"),
)  # fmt: skip
_CLASS = {ending: number for number, group in enumerate(_LARGE_FIRST) for ending in group}
_UNKNOWN_CLASS = 2

_SRCSET = re.compile(r"\s*([^\s,]\S*[^\s,])(?:\s+[\d.]+[wx])?\s*(?:,|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Absolute URLs of a page, each once, without fragments."""

    files: list[str]
    """Kinds of files that tend to be large come first."""
    pages: list[str]


def ending(url: str) -> str:
    """Lower-case extension of the URL's path, empty if there is none."""
    name = urlsplit(url).path.rpartition("/")[2]
    stem, dot, suffix = name.rpartition(".")
    return suffix.lower() if dot and stem and len(suffix) <= 8 else ""


def normal(base: str, reference: str) -> str | None:
    """The absolute http(s) URL of a reference, ASCII only; None if it has no such URL."""
    reference = reference.strip()
    if not reference or len(reference) > MAX_URL:
        return None
    try:
        parts = urlsplit(urljoin(base, reference))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            return None
        port = f":{parts.port}" if parts.port is not None else ""
        host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        return None
    from w3lib.url import safe_url_string

    url = urlunsplit((parts.scheme, host + port, parts.path or "/", parts.query, ""))
    try:
        safe: str = safe_url_string(url)
    except ValueError:
        return None
    return safe if url_fault(safe) is None else None


def _references(root: lxml.html.HtmlElement) -> Iterator[tuple[str, bool]]:
    """(reference, whether its element makes it a file), in the order of the page."""
    for element in root.iter():
        tag = element.tag
        if not isinstance(tag, str):
            continue
        for is_file, table in ((True, _FILE_ATTRIBUTES), (False, _PAGE_ATTRIBUTES)):
            for attribute in table.get(tag, ()):
                value = element.get(attribute)
                if not value or (tag == "link" and ending(value.partition("?")[0]) in _PAGE_ENDINGS):
                    continue  # <link> names stylesheets and icons, but also the page itself (canonical, alternate)
                if attribute.endswith("srcset"):
                    yield from ((address, True) for address in _SRCSET.findall(value[:20_000]))
                else:
                    yield value, is_file


def extract(body: bytes, *, url: str, encoding: str | None = None) -> Links:
    """The links of an HTML page; from broken HTML, those that lxml can recover."""
    files: dict[str, None] = {}
    pages: dict[str, None] = {}
    try:
        parser = lxml.html.HTMLParser(encoding=encoding, huge_tree=False)
        root = lxml.html.document_fromstring(body, parser=parser)
        bases = root.xpath("//base/@href")
        base = normal(url, str(bases[0])) if bases else None
        for number, (reference, element_is_file) in enumerate(_references(root)):
            if number >= MAX_LINKS:
                break
            link = normal(base or url, str(reference))
            if link is None:
                continue
            if element_is_file or ending(link) not in _PAGE_ENDINGS:
                files.setdefault(link)
            else:
                pages.setdefault(link)
    except (lxml.etree.LxmlError, LookupError, ValueError):
        pass  # not HTML after all, or an unknown encoding: no links
    ranked = sorted(files, key=lambda link: _CLASS.get(ending(link), _UNKNOWN_CLASS))
    return Links(files=ranked, pages=[page for page in pages if page not in files])
