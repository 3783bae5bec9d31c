"""Extracts links from a page: candidates for large files, and for further pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import lxml.etree  # type: ignore[import-untyped]
import lxml.html  # type: ignore[import-untyped]

from core.outreach.lists import domain_of
from core.untrusted import FILE_ENDINGS, canonical, ending, url_fault

MAX_LINKS = 2_000
"""Most links of one page, or style sheet, that are considered."""

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
_CLASS = {ending: number for number, group in enumerate(FILE_ENDINGS) for ending in group}
_UNKNOWN_CLASS = 2

LONGEST_SRCSET = 20_000

_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset", re.IGNORECASE)

_ENCODINGS = frozenset(
    (
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "gb18030", "big5hkscs", "cp932", "cp949", "euc_jp"),
        *("iso2022_jp", "koi8-r", "koi8-u", "mac-roman", "cp866", "cp874"),
        *(f"iso8859-{number}" for number in range(2, 17)),
        *(f"cp{number}" for number in range(1250, 1259)),
    )
)
"""Those of browsers (WHATWG Encoding Standard), by their names in Python. Of its others some raise whatever they read
(`undefined`), and one takes hours for a page (`punycode`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Absolute URLs of a page, each once, without fragments."""

    files: list[str]
    """Kinds of files that tend to be large come first."""
    pages: list[str]


def normal(base: str, reference: str) -> str | None:
    """The absolute http(s) URL of a reference, ASCII only and canonical; None if it has no such URL."""
    reference = reference.strip()
    if not reference or len(reference) > MAX_URL:
        return None
    from w3lib.url import safe_url_string

    try:
        parts = urlsplit(urljoin(base, reference))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            return None
        if not parts.hostname.isascii():
            parts = parts._replace(netloc=parts.netloc.lower().replace(parts.hostname, domain_of(parts.hostname)))
        url = canonical(safe_url_string(parts.geturl()))
    except ValueError:
        return None
    return url if url_fault(url) is None else None


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
                    yield from ((address, True) for address in _addresses(value))
                else:
                    yield value, is_file


def _addresses(srcset: str) -> Iterator[str]:
    """The addresses of a srcset: each up to a space, then a descriptor up to a comma (HTML, section 4.8.4.2.1)."""
    rest = srcset[:LONGEST_SRCSET]
    while rest := rest.lstrip(" ,\t\n\f\r"):
        address, *more = rest.split(None, 1)
        rest = more[0] if more else ""
        yield address.rstrip(",")
        if not address.endswith(","):
            rest = rest.partition(",")[2]


def _late_label(body: bytes) -> int:
    """Where a page's label is that comes late, behind scripts: browsers read the page again by it. 0: nowhere."""
    match = _META_CHARSET.search(body)
    return match.start() if match else 0


def _text(body: bytes, label: str | None) -> str:
    """The text of a page as browsers read it: by its byte order mark, else the label of its answer, else its own.

    libxml2 takes a label to the letter (`gb2312` without the letters of GBK), and ends where a byte does not fit.
    """
    from w3lib.encoding import html_body_declared_encoding, read_bom, resolve_encoding, to_unicode

    encoding, mark = read_bom(body)
    if encoding is None or mark is None:
        own = html_body_declared_encoding(body) or html_body_declared_encoding(body[_late_label(body) :])
        # It was read as ASCII, so UTF-16 is wrong (HTML, section 13.2.3.2).
        own = "utf-8" if own is not None and own.startswith("utf-16") else own
        labels = (resolve_encoding(label) if label else None, own)
        encoding, mark = next((one for one in labels if one in _ENCODINGS), None) or "cp1252", b""
    return to_unicode(body[len(mark) :], encoding)


def _parsed(body: bytes, url: str, encoding: str | None) -> tuple[lxml.html.HtmlElement, str]:
    """The page's root element, and what its references are relative to."""
    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=False)
    root = lxml.html.document_fromstring(_text(body, encoding).encode("utf-8", "replace"), parser=parser)
    bases = root.xpath("//base/@href")
    return root, (normal(url, str(bases[0])) if bases else None) or url


def extract(body: bytes, *, url: str, encoding: str | None = None) -> Links:
    """The links of an HTML page; from broken HTML, those that lxml can recover."""
    files: dict[str, None] = {}
    pages: dict[str, None] = {}
    try:
        root, base = _parsed(body, url, encoding)
        for number, (reference, element_is_file) in enumerate(_references(root)):
            if number >= MAX_LINKS:
                break
            link = normal(base, str(reference))
            if link is None:
                continue
            if element_is_file or ending(link) not in _PAGE_ENDINGS:
                files.setdefault(link)
            else:
                pages.setdefault(link)
    except (lxml.etree.LxmlError, LookupError, ValueError):
        pass  # not HTML after all: no links
    ranked = sorted(files, key=lambda link: _CLASS.get(ending(link), _UNKNOWN_CLASS))
    return Links(files=ranked, pages=[page for page in pages if page not in files])


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """What a page shows without a click: absolute URLs, each once, without fragments, in the order of the page."""

    urls: dict[str, bool]
    """URL -> whether an element of the page says that it is a style sheet."""
    unusable: int
    """Different references that no server has (data and blob URLs, broken ones), and all after `MAX_LINKS` of them."""


_SHOWN_LINKS = frozenset({"stylesheet", "icon", "modulepreload"})
_PRELOADED = frozenset({"image", "style", "script", "font"})
_CSS_URL = re.compile(r"url\(([^)]*)\)", re.IGNORECASE)


def _of_css(text: str) -> Iterator[tuple[str, bool]]:
    """What its `url(...)` name; none is a style sheet. The bracket lets each match end, so that the time is linear."""
    return ((reference.strip().strip("\"'"), False) for reference in _CSS_URL.findall(f"{text})"))


def _shown(root: lxml.html.HtmlElement) -> Iterator[tuple[str, bool]]:
    """(reference, whether it is a style sheet). Of the sizes of an image that a page offers, a browser takes one."""
    for element in root.iter("img", "input", "script", "link", "style"):
        if element.tag == "style":
            yield from _of_css(element.text or "")
        elif element.tag == "link":
            words = set(str(element.get("rel", "")).lower().split())
            if words & _SHOWN_LINKS or ("preload" in words and element.get("as", "").lower() in _PRELOADED):
                yield element.get("href", ""), "stylesheet" in words
        elif element.tag != "input" or element.get("type", "").lower() == "image":
            one_of = _addresses(element.get("srcset") or element.get("data-srcset") or "")
            yield element.get("src") or element.get("data-src") or next(one_of, ""), False


def embedded(body: bytes, *, url: str, encoding: str | None = None) -> Embedded:
    """Images, style sheets, scripts and fonts of an HTML page; from broken HTML, those that lxml can recover."""
    try:
        root, base = _parsed(body, url, encoding)
        return _usable(base, _shown(root))
    except (lxml.etree.LxmlError, LookupError, ValueError):
        return Embedded(urls={}, unusable=0)  # not HTML after all


def of_style_sheet(text: str, *, url: str) -> Embedded:
    """Fonts and images of a style sheet, used or not."""
    return _usable(url, _of_css(text))


def _usable(base: str, references: Iterator[tuple[str, bool]]) -> Embedded:
    urls: dict[str, bool] = {}
    links: dict[str, str | None] = {}
    beyond = 0
    for reference, is_sheet in references:
        if not reference.strip() or reference.startswith("#"):
            continue
        if reference not in links:
            if len(links) == MAX_LINKS:
                beyond += 1
                continue
            links[reference] = normal(base, reference)
        if (link := links[reference]) is not None:
            urls[link] = urls.get(link, False) or is_sheet
    return Embedded(urls=urls, unusable=beyond + sum(link is None for link in links.values()))
