"""Kinds of web sites. Each is a table, path -> answer, that a real server serves.

These are shipped; a topology adds its own as `[site_kind.NAME]`. In texts, links and locations, `{domain}` is replaced
by the site's name, `{away}` by the URL in its `leads_to`. A path that is not in the table is answered with 404,
including robots.txt (no rules).
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from core.files.config import Strict
from vantage.server_kind import SiteAnswer

MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteKind(Strict):
    """One kind of site."""

    pages: Mapping[str, SiteAnswer] = field(default_factory=dict)
    """Path -> answer, at the site's domain."""
    www: Mapping[str, SiteAnswer] = field(default_factory=dict)
    """The same at `www.DOMAIN`, served by the same server."""
    files: Mapping[str, SiteAnswer] = field(default_factory=dict)
    """The same at `files.DOMAIN`, served by the site's `other_server`."""
    inside: bool = False
    """Whether `inside.DOMAIN` exists and has a private address."""
    private: bool = False
    """Whether the domain itself has a private address."""
    certificate: bool = True
    """False: the server's certificate is for another name."""
    finds: str | None = None
    """URL of the file that a crawl should find, with `{domain}`; None if it should find none."""

    @property
    def answers(self) -> Iterator[SiteAnswer]:
        for table in (self.pages, self.www, self.files):
            yield from table.values()

    @property
    def needs_site_server(self) -> bool:
        """Whether it needs our own server program."""
        return any(answer.needs_site_server for answer in self.answers)

    @property
    def leads_away(self) -> bool:
        """Whether it needs a URL on another domain."""
        return any("{away}" in f"{answer.text}{answer.location}{answer.links}" for answer in self.answers)


def page(links: Sequence[str]) -> str:
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


def _page(*links: str) -> SiteAnswer:
    return SiteAnswer(links=links)


def _file(size: int) -> SiteAnswer:
    return SiteAnswer(size=size)


def _to(location: str, status: int = 302) -> SiteAnswer:
    return SiteAnswer(status=status, location=location)


KINDS: Mapping[str, SiteKind] = {
    "plain": SiteKind(
        pages={
            "/": _page("/about.html", "/news.html", "/img/logo.png", "https://www.nowhere.example/big.iso"),
            "/about.html": _page("/", "/news.html"),
            "/news.html": _page("/docs/report.pdf", "/img/photo.jpg", "/docs/old.pdf"),
            "/img/logo.png": _file(20_000),
            "/img/photo.jpg": _file(300_000),
            "/docs/report.pdf": _file(1_500_000),
            "/docs/old.pdf": _file(1_200_000),
        },
        finds="https://{domain}/docs/report.pdf",
    ),
    "media": SiteKind(
        pages={
            "/": _page("/app.js", "/banner.jpg", "/trailer.mp4"),
            "/app.js": _file(90_000),
            "/banner.jpg": _file(1_100_000),
            "/trailer.mp4": _file(2_500_000),
        },
        finds="https://{domain}/trailer.mp4",
    ),
    "no_file": SiteKind(pages={"/": _page("/about.html", "/gone.zip"), "/about.html": _page("/")}),
    "too_small": SiteKind(
        pages={"/": _page("/file.zip", "/logo.png"), "/file.zip": _file(MB - 1), "/logo.png": _file(20_000)}
    ),
    "disallowed": SiteKind(
        pages={
            "/robots.txt": SiteAnswer(text="User-agent: *\nDisallow: /\n"),
            "/": _page("/file.iso"),
            "/file.iso": _file(2 * MB),
        }
    ),
    "leaves_domain": SiteKind(pages={"/": _to("{away}", 301)}),
    "other_address": SiteKind(
        pages={
            "/": _page("https://files.{domain}/file.iso", "/hop.iso"),
            "/hop.iso": _to("https://files.{domain}/file.iso"),
        },
        files={"/file.iso": _file(2 * MB)},
    ),
    "private_redirect": SiteKind(
        pages={
            "/": _page("/1.iso", "/2.iso", "/3.iso", "https://inside.{domain}/file.iso"),
            "/1.iso": _to("https://10.0.0.1/file.iso"),
            "/2.iso": _to("https://127.0.0.1/file.iso"),
            "/3.iso": _to("https://inside.{domain}/file.iso"),
        },
        inside=True,
    ),
    "error": SiteKind(pages={"/": SiteAnswer(status=500, text="Something is broken.\n")}),
    "unresolvable": SiteKind(),
}
"""Name -> kind; docs/design/lab.md says what each is."""
