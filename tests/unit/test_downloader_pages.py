"""Pages in place of the file: what a CDN made itself is told from what an origin said; no file is taken for a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain import Failure
from downloader.pages import html_in_place_of, page_of_edge

CHALLENGE, BLOCK = Failure.CHALLENGE_PAGE, Failure.BLOCK_PAGE


@pytest.mark.parametrize(
    ("status", "headers", "failure"),
    [
        (403, {"cf-mitigated": "challenge", "server": "cloudflare"}, CHALLENGE),
        (503, {"cf-mitigated": "challenge"}, CHALLENGE),
        (202, {"x-amzn-waf-action": "challenge"}, CHALLENGE),
        (405, {"x-amzn-waf-action": "captcha"}, CHALLENGE),
        (403, {"server": "cloudflare"}, BLOCK),
        (429, {"server": "cloudflare", "cf-ray": "1-MUC"}, BLOCK),
        (403, {"server": "AkamaiGHost"}, BLOCK),
        (403, {"server": "CloudFront", "x-cache": "Error from cloudfront"}, BLOCK),
        # What an origin said, through a CDN or not.
        (403, {"server": "cloudflare", "cf-cache-status": "DYNAMIC"}, None),
        (403, {"server": "AmazonS3", "x-cache": "Error from cloudfront"}, None),
        (403, {"server": "nginx"}, None),
        (429, {}, None),
        # An edge that cannot reach its origin, or has no such file.
        (503, {"server": "AkamaiGHost"}, None),
        (404, {"server": "cloudflare"}, None),
        # Files
        (200, {"server": "cloudflare", "cf-cache-status": "HIT"}, None),
        (200, {"server": "AkamaiGHost"}, None),
        (200, {"cf-mitigated": "no"}, None),
        (None, {}, None),
    ],
)
def test_what_the_edge_itself_answered(status: int | None, headers: dict[str, str], failure: Failure | None) -> None:
    found = page_of_edge(status, headers)
    assert (found and found[0]) == failure
    if found:
        assert any(value in found[1] for value in headers.values())


@given(
    st.integers(100, 599), st.dictionaries(st.sampled_from(["server", "cf-mitigated", "cf-cache-status"]), st.text())
)
def test_no_text_of_a_server_makes_it_fail(status: int, headers: dict[str, str]) -> None:
    found = page_of_edge(status, headers)
    assert found is None or found[0] in (CHALLENGE, BLOCK)


def page(
    url: str = "https://a.example/a.bin", kind: str | None = "text/html; charset=utf-8", **more: object
) -> str | None:
    known = {"size_bytes": 100_000, "size_is_lower_bound": False, "body_bytes": 75, **more}
    return html_in_place_of(url, content_type=kind, **known)  # type: ignore[arg-type]


def test_html_in_place_of_a_file() -> None:
    assert page() == "75 bytes of text/html instead of 100000 bytes of a .bin file"
    assert page("https://a.example/tool_1.0.deb") == "75 bytes of text/html instead of 100000 bytes of a .deb file"
    assert page("https://a.example/film.MP4?x=1", kind="application/xhtml+xml") is not None
    assert page(size_is_lower_bound=True) == ("75 bytes of text/html instead of at least 100000 bytes of a .bin file")


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "application/octet-stream"},
        {"kind": None},
        {"kind": "text/plain"},
        {"url": "https://a.example/page.html"},
        {"url": "https://a.example/download"},
        {"url": "https://a.example/get.php?file=a.bin"},
        {"size_bytes": None},
        {"body_bytes": 100_000},
        {"body_bytes": 100_001, "size_is_lower_bound": True},
    ],
)
def test_what_may_be_the_file_is_not_accused(more: dict[str, object]) -> None:
    assert page(**more) is None  # type: ignore[arg-type]
