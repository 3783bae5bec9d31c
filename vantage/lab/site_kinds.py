"""Kinds of web sites: a closed vocabulary. Each kind is a table, path -> answer, that a real server serves.

In texts and locations, `{domain}` is replaced by the site's name, `{away}` by the URL in its `leads_to`.
A path that is not in the table is answered with 404, including robots.txt (no rules).
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vantage.server_kind import Answer

MB = 1_000_000
HUGE = 40 * MB
"""Size of files that should not be downloaded in full: the access logs show how far a GET got."""

SLOW_S = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of site.

    Attributes:
        pages: path -> answer, at the site's domain.
        www: the same at `www.DOMAIN`, served by the same server.
        files: the same at `files.DOMAIN`, served by the site's `other_server`.
        inside: `inside.DOMAIN` exists and has a private address.
        private: the domain itself has a private address.
        certificate: False: the server's certificate is for another name.
        finds: host (`www` or nothing) and path of the file that a crawl should find, None if it should find none.
    """

    pages: Mapping[str, Answer] = field(default_factory=dict)
    www: Mapping[str, Answer] = field(default_factory=dict)
    files: Mapping[str, Answer] = field(default_factory=dict)
    inside: bool = False
    private: bool = False
    certificate: bool = True
    finds: tuple[str, str] | None = None

    @property
    def answers(self) -> Iterator[Answer]:
        for table in (self.pages, self.www, self.files):
            yield from table.values()

    @property
    def needs_site_server(self) -> bool:
        """Whether it needs our own server program."""
        return any(answer.needs_site_server for answer in self.answers)

    @property
    def leads_away(self) -> bool:
        """Whether it needs a URL on another domain."""
        return any("{away}" in f"{answer.text}{answer.location}" for answer in self.answers)


def page(*links: str) -> str:
    """A page: images, videos and scripts are embedded, everything else is linked."""
    lines = []
    for link in links:
        url, ending = html.escape(link), link.rpartition(".")[2]
        if ending in ("png", "jpg"):
            lines.append(f'<p><img src="{url}" alt="a picture"></p>')
        elif ending == "mp4":
            lines.append(f'<p><video src="{url}" controls></video></p>')
        elif ending == "js":
            lines.append(f'<script src="{url}" async></script>')
        else:
            lines.append(f'<p><a href="{url}">{url}</a></p>')
    body = "\n".join(lines)
    return f'<!doctype html>\n<html lang="en"><title>{{domain}}</title>\n<h1>{{domain}}</h1>\n{body}\n</html>\n'


def _page(*links: str) -> Answer:
    return Answer(text=page(*links))


def _file(size: int) -> Answer:
    return Answer(size=size)


def _to(location: str, status: int = 302) -> Answer:
    return Answer(status=status, location=location)


def _robots(*lines: str) -> Answer:
    return Answer(text="\n".join([*lines, ""]))


class SiteKind(StrEnum):
    """Names of the kinds, as a topology writes them; docs/design/lab.md says what each is."""

    PLAIN = "plain"
    DEEP = "deep"
    TOO_DEEP = "too_deep"
    MEDIA = "media"
    WWW = "www"
    NO_HEAD = "no_head"
    UNSIZED = "unsized"
    SLOW = "slow"
    PART_DISALLOWED = "part_disallowed"
    CRAWL_DELAY = "crawl_delay"
    DISALLOWED = "disallowed"
    ROBOTS_ERROR = "robots_error"
    NO_FILE = "no_file"
    TOO_SMALL = "too_small"
    TOO_LARGE = "too_large"
    LEAVES_DOMAIN = "leaves_domain"
    OTHER_DOMAIN = "other_domain"
    LEAVES_ADDRESS = "leaves_address"
    OTHER_ADDRESS = "other_address"
    PRIVATE_REDIRECT = "private_redirect"
    LOOP = "loop"
    ERROR = "error"
    RESET = "reset"
    NONSENSE = "nonsense"
    HANG = "hang"
    WRONG_CERTIFICATE = "wrong_certificate"
    PRIVATE_ADDRESS = "private_address"
    UNRESOLVABLE = "unresolvable"


_FAR_FILE = {"/file.iso": _file(2 * MB)}

KINDS: Mapping[SiteKind, Kind] = {
    SiteKind.PLAIN: Kind(
        pages={
            "/": _page("/about.html", "/news.html", "/img/logo.png", "https://www.nowhere.example/big.iso"),
            "/about.html": _page("/", "/news.html"),
            "/news.html": _page("/docs/report.pdf", "/img/photo.jpg", "/docs/old.pdf"),
            "/img/logo.png": _file(20_000),
            "/img/photo.jpg": _file(300_000),
            "/docs/report.pdf": _file(1_500_000),
            "/docs/old.pdf": _file(1_200_000),
        },
        finds=("", "/docs/report.pdf"),
    ),
    SiteKind.DEEP: Kind(
        pages={
            "/": _page("/a.html"),
            "/a.html": _page("/b.html", "/small.zip"),
            "/b.html": _page("/archive.zip"),
            "/small.zip": _file(5_000),
            "/archive.zip": _file(3 * MB),
        },
        finds=("", "/archive.zip"),
    ),
    SiteKind.TOO_DEEP: Kind(
        pages={
            "/": _page("/a.html"),
            "/a.html": _page("/b.html"),
            "/b.html": _page("/c.html"),
            "/c.html": _page("/archive.zip"),
            "/archive.zip": _file(3 * MB),
        },
    ),
    SiteKind.MEDIA: Kind(
        pages={
            "/": _page("/app.js", "/banner.jpg", "/trailer.mp4"),
            "/app.js": _file(90_000),
            "/banner.jpg": _file(1_100_000),
            "/trailer.mp4": _file(2_500_000),
        },
        finds=("", "/trailer.mp4"),
    ),
    SiteKind.WWW: Kind(
        pages={"/": _to("https://www.{domain}/", 301)},
        www={"/": _page("/file.iso"), "/file.iso": _file(1_300_000)},
        finds=("www", "/file.iso"),
    ),
    SiteKind.NO_HEAD: Kind(
        pages={"/": _page("/image.iso"), "/image.iso": Answer(size=HUGE, head=False)},
        finds=("", "/image.iso"),
    ),
    SiteKind.UNSIZED: Kind(
        pages={
            "/": Answer(text=page("/less.iso", "/image.iso"), length=False),
            "/less.iso": Answer(size=MB - 1, length=False),
            "/image.iso": Answer(size=HUGE, length=False),
        },
        finds=("", "/image.iso"),
    ),
    SiteKind.SLOW: Kind(
        pages={
            "/": Answer(text=page("/file.iso"), delay_s=SLOW_S),
            "/file.iso": Answer(size=2 * MB, delay_s=SLOW_S),
        },
        finds=("", "/file.iso"),
    ),
    SiteKind.PART_DISALLOWED: Kind(
        pages={
            "/robots.txt": _robots("User-agent: *", "Allow: /", "", "User-agent: upshift", "Disallow: /private/"),
            "/": _page("/private/big.iso", "/hop.iso", "/open.iso"),
            "/private/big.iso": _file(5 * MB),
            "/hop.iso": _to("/private/big.iso"),
            "/open.iso": _file(1_100_000),
        },
        finds=("", "/open.iso"),
    ),
    SiteKind.CRAWL_DELAY: Kind(
        pages={
            "/robots.txt": _robots("User-agent: *", "Crawl-delay: 1"),
            "/": _page("/1.iso", "/2.iso"),
            "/1.iso": _file(MB),
            "/2.iso": _file(2 * MB),
        },
        finds=("", "/2.iso"),
    ),
    SiteKind.DISALLOWED: Kind(
        pages={"/robots.txt": _robots("User-agent: *", "Disallow: /"), "/": _page("/file.iso"), **_FAR_FILE}
    ),
    SiteKind.ROBOTS_ERROR: Kind(
        pages={"/robots.txt": Answer(status=503), "/": _page("/file.iso"), **_FAR_FILE},
    ),
    SiteKind.NO_FILE: Kind(pages={"/": _page("/about.html", "/gone.zip"), "/about.html": _page("/")}),
    SiteKind.TOO_SMALL: Kind(
        pages={"/": _page("/file.zip", "/logo.png"), "/file.zip": _file(MB - 1), "/logo.png": _file(20_000)}
    ),
    SiteKind.TOO_LARGE: Kind(pages={"/": _page("/file.iso"), "/file.iso": _file(100 * MB + 1)}),
    SiteKind.LEAVES_DOMAIN: Kind(pages={"/": _to("{away}", 301)}),
    SiteKind.OTHER_DOMAIN: Kind(pages={"/": _page("{away}", "/hop.iso"), "/hop.iso": _to("{away}")}),
    SiteKind.LEAVES_ADDRESS: Kind(
        pages={"/": _to("https://files.{domain}/", 301)}, files={"/": _page("/file.iso"), **_FAR_FILE}
    ),
    SiteKind.OTHER_ADDRESS: Kind(
        pages={
            "/": _page("https://files.{domain}/file.iso", "/hop.iso"),
            "/hop.iso": _to("https://files.{domain}/file.iso"),
        },
        files=_FAR_FILE,
    ),
    SiteKind.PRIVATE_REDIRECT: Kind(
        pages={
            "/": _page("/1.iso", "/2.iso", "/3.iso", "https://inside.{domain}/file.iso"),
            "/1.iso": _to("https://10.0.0.1/file.iso"),
            "/2.iso": _to("https://127.0.0.1/file.iso"),
            "/3.iso": _to("https://inside.{domain}/file.iso"),
        },
        inside=True,
    ),
    SiteKind.LOOP: Kind(pages={"/": _to("/a"), "/a": _to("/b"), "/b": _to("/")}),
    SiteKind.ERROR: Kind(pages={"/": Answer(status=500, text="Something is broken.\n")}),
    SiteKind.RESET: Kind(pages={"/": Answer(fault="reset")}),
    SiteKind.NONSENSE: Kind(pages={"/": Answer(fault="nonsense")}),
    SiteKind.HANG: Kind(pages={"/": Answer(fault="hang")}),
    SiteKind.WRONG_CERTIFICATE: Kind(pages={"/": _page("/file.iso"), **_FAR_FILE}, certificate=False),
    SiteKind.PRIVATE_ADDRESS: Kind(private=True),
    SiteKind.UNRESOLVABLE: Kind(),
}
