"""Text, names and URLs from servers, programs and lists: untrusted, so made safe or refused.

Domains, headers and error texts are shown in a terminal, in HTML and in file names, so each is truncated and stripped
on input. A target's URL, domain and numbers follow rules, so that a campaign can download it.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

MOST_CHARACTERS = 300
"""Longest text in a record [characters]."""


def scrub(text: str, *, most: int = MOST_CHARACTERS) -> str:
    """One line without control, format (bidirectional) or unassigned characters, at most `most` characters."""
    cleaned = "".join(" " if unicodedata.category(c).startswith(("C", "Zl", "Zp")) else c for c in text[: most * 2])
    return " ".join(cleaned.split())[:most]


def plain(text: object) -> str:
    """The text with a mark for each control character, so that it moves no cursor and colours no terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def no_formula(cell: Any) -> Any:
    """A cell of a CSV file: a space before a text that spreadsheets take for a formula, and run (CWE-1236)."""
    return f" {cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell


def last_line(text: str) -> str:
    """The last line that is not empty: programs usually end with the reason of a failure."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return scrub(lines[-1]) if lines else ""


def file_name(text: str) -> str:
    """A part of a file name from untrusted text: letters, digits, dots and dashes only, at most 80 characters.

    Different texts may give the same name; callers that need unique names add a number.
    """
    safe = re.sub(r"[^a-z0-9.-]+", "_", text.lower())[:80].strip("._-")
    return safe or "target"


@functools.cache
def _extract() -> Callable[[str], tuple[str, str]]:
    import tldextract  # imports requests, which most commands do not need

    # The public suffix list shipped with the package: fetching a newer one would be unrequested traffic. Private
    # suffixes count (`user.github.io` is a registered domain), as the names below them have different owners.
    extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)

    def split(host: str) -> tuple[str, str]:
        parts = extract(host)
        return parts.domain, parts.suffix

    return split


def registered_domain(host: str) -> str:
    """The registered domain of a name; for a name without a public suffix (as in the lab), its last two labels."""
    domain, suffix = _extract()(host)
    return f"{domain}.{suffix}" if domain and suffix else ".".join(host.split(".")[-2:])


def host_and_port(url: str, *, schemes: Sequence[str] = ("https",)) -> tuple[str, int]:
    """Host (without brackets) and port of a URL.

    Raises:
        ValueError: the URL has another scheme, user information, port 0, no host, or one that ends in a dot.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"the URL is not {' or '.join(schemes)}://HOST/...")
    if "@" in parts.netloc:
        raise ValueError("the URL has user information (NAME@HOST)")
    if parts.port == 0:
        raise ValueError("the URL has port 0")
    if parts.hostname.endswith("."):
        raise ValueError("the host of the URL ends in a dot")
    return parts.hostname, port_of(parts)


def port_of(parts: SplitResult) -> int:
    """The port of an http or https URL, else that of its scheme. Raises ValueError for one that is not valid."""
    return parts.port or (443 if parts.scheme == "https" else 80)


def canonical(url: str) -> str:
    """The form in which http and https URLs of one file are equal, and that rules of robots.txt mean (RFC 3986, section
    6.2): lower-case host, no port that is the scheme's own, no dot segments, user, fragment. Raises ValueError.
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port in (None, port_of(parts._replace(netloc=""))) else f":{parts.port}"
    path = re.sub("%2e", ".", parts.path, flags=re.IGNORECASE)
    # After `/.`, `//` does not begin a host. urljoin leaves dots in what is absolute already.
    return urljoin(f"{parts.scheme}://{host}{port}", urlunsplit(("", "", f"/.{path}", parts.query, "")))


_TO_ENCODE = frozenset(' "<>`')
"""ASCII characters of no URL (RFC 3986, appendix C); quinn refuses them, other clients would send them as they are."""


def url_fault(url: str, *, schemes: Sequence[str] = ("https", "http")) -> str | None:
    """Why a URL cannot be downloaded, None if it can (http too: campaigns are stricter)."""
    if not url.isascii() or not url.isprintable() or not _TO_ENCODE.isdisjoint(url):
        return "the URL has characters that must be percent-encoded"
    try:
        host_and_port(url, schemes=schemes)
    except ValueError as error:
        return str(error)
    return None


def ending(url: str) -> str:
    """Lower-case extension of the URL's path, empty if there is none, or no URL (`https://[site_url]/`)."""
    try:
        name = urlsplit(url).path.rpartition("/")[2]
    except ValueError:
        return ""
    stem, dot, suffix = name.rpartition(".")
    return suffix.lower() if dot and stem and len(suffix) <= 8 else ""


FILE_ENDINGS = (
    ("iso", "img", "dmg", "mp4", "webm", "mov", "mkv", "avi", "m4v", "zip", "gz", "xz", "bz2", "tgz", "7z", "rar",
     "exe", "msi", "pkg", "deb", "rpm", "apk", "tar", "zst"),
    ("pdf", "ppt", "pptx", "mp3", "ogg", "wav", "flac", "m4a", "epub", "tif", "tiff", "psd", "csv", "json", "xml"),
    ("gif", "png", "jpg", "jpeg", "webp", "avif", "bmp", "doc", "docx", "xls", "xlsx", "wasm",
     "aac", "aiff", "appimage", "bin", "br", "cab", "dll", "flv", "glb", "h5", "heic", "heif", "ipa", "jar", "lz4",
     "lzma", "mid", "mobi", "mpeg", "mpg", "nc", "ods", "odt", "ogv", "opus", "pbf", "pps", "ps", "rtf", "ts", "tsv",
     "txt", "txz", "vtt", "whl", "wmv", "z"),
    ("js", "mjs", "svg", "css", "woff", "woff2", "ttf", "otf", "ico"),
)  # fmt: skip
"""Extensions of files, those that tend to be large first; the third group has all of which little is known. Python's
own table differs from version to version: .deb is in that of 3.14, and so is .php."""


_CONTACT = re.compile(r"[^\s@<>:]+@([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)|https?://([^\s/:?#>]+\.[^\s/:?#>]+)")
MOST_CONTACT = 400
"""Longest contact [characters]: a user agent around it fits into the 512 bytes that the prober takes."""

_EXAMPLE_DOMAIN = re.compile(r"(?:.*\.)?example(?:\.com|\.net|\.org)?", re.IGNORECASE)
"""Domains reserved for examples (RFC 2606): no mail can be received there."""


def contact_fault(contact: str, *, closed: bool) -> str | None:
    """Why operators of servers could not reach somebody by this contact, None if they could.

    Args:
        closed: only a lab can be contacted, where nobody has to be reached.
    """
    if not contact.strip() or not contact.isprintable():
        return f"{contact!r} is empty, or has control characters"
    if len(contact) > MOST_CONTACT:
        return f"{contact[:40]!r}... has more than {MOST_CONTACT} characters"
    if not contact.isascii():  # it is part of a header field, where clients send nothing else
        return f"{contact!r} has characters that are not ASCII"
    if closed:
        return None
    host = _CONTACT.search(contact)
    if host is None:
        return f"{contact!r} is neither a mail address nor a web address"
    is_example = _EXAMPLE_DOMAIN.fullmatch(host[1] or host[2]) is not None
    return f"{contact!r} is an example address" if is_example else None


def domain_fault(domain: str) -> str | None:
    """Why a domain cannot be used, None if it can."""
    if not domain or not domain.isprintable() or len(domain) > 253:
        return "the domain is empty, too long, or has control characters"
    return "the domain ends in a dot" if domain.endswith(".") else None


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _address_fault(text: str) -> str | None:
    return None if is_address(text) else f"server_ip {text[:60]!r} is not an IP address"


def _at_least_1(name: str) -> Callable[[int], str | None]:
    return lambda number: None if number >= 1 else f"{name} {number} is not a whole number above 0"


FAULTS: Mapping[str, Callable[[Any], str | None]] = {
    "domain": domain_fault,
    "url": url_fault,
    "server_ip": _address_fault,
    "rank": _at_least_1("rank"),
    "size_bytes": _at_least_1("size_bytes"),
}
"""Column -> why a value of it cannot be used, None if it can."""
