"""Header fields of caches: what vendors write, and whatever else may come."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.evidence.cache_headers import MAX_AGE_S, read_cache_headers
from core.domain import CacheState
from downloader.programs.common import KEPT_HEADERS
from tests.conftest import REPOSITORY

HIT, MISS, UNKNOWN = CacheState.HIT, CacheState.MISS, CacheState.UNKNOWN

CLOUDFRONT_TIMING = (
    'cdn-upstream-layer;desc="EDGE",cdn-upstream-dns;dur=0,cdn-upstream-fbl;dur=177,cdn-cache-miss,'
    'cdn-pop;desc="PHX50-C2",cdn-rid;desc="yNPs, Yyn=="'
)


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        # Cloudflare, "Cloudflare cache responses"
        ({"cf-cache-status": "HIT"}, HIT),
        ({"cf-cache-status": "MISS"}, MISS),
        ({"cf-cache-status": "EXPIRED"}, MISS),
        ({"cf-cache-status": "REVALIDATED"}, MISS),
        ({"cf-cache-status": "UPDATING"}, HIT),
        ({"cf-cache-status": "DYNAMIC"}, MISS),
        ({"cf-cache-status": "NONE/UNKNOWN"}, UNKNOWN),
        # Akamai, "Pragma headers"
        ({"x-cache": "TCP_MEM_HIT from a118-214-191-15 (AkamaiGHost/6.7.0.2-9183648)"}, HIT),
        ({"x-cache": "TCP_HIT from a1.deploy.akamaitechnologies.com (AkamaiGHost/9.0) (-)"}, HIT),
        ({"x-cache": "TCP_MISS from a165-254-246-9.deploy.akamaitechnologies.com"}, MISS),
        ({"x-cache": "TCP_REFRESH_HIT from a1-2-3-4 (AkamaiGHost/1)"}, MISS),
        # Fastly, "Understanding cache HIT and MISS headers with shielded services"
        ({"x-cache": "MISS, HIT"}, HIT),
        ({"x-cache": "HIT, MISS"}, MISS),
        # CloudFront
        ({"x-cache": "Hit from cloudfront"}, HIT),
        ({"x-cache": "Miss from cloudfront"}, MISS),
        ({"x-cache": "RefreshHit from cloudfront"}, MISS),
        ({"x-cache": "Error from cloudfront"}, UNKNOWN),
        ({"server-timing": CLOUDFRONT_TIMING}, MISS),
        ({"server-timing": "cdn-cache-hit,cdn-pop;desc=SEA19"}, HIT),
        # Akamai's mPulse
        ({"server-timing": "cdn-cache; desc=HIT, edge; dur=1"}, HIT),
        ({"server-timing": "edge; dur=3, cdn-cache; desc=MISS, origin; dur=20"}, MISS),
        ({"server-timing": "db;dur=53, app;dur=47.2"}, UNKNOWN),
        # nginx
        ({"x-cache-status": "HIT"}, HIT),
        ({"x-cache": "BYPASS"}, MISS),
        # RFC 9211, section 3
        ({"cache-status": "ExampleCache; hit"}, HIT),
        ({"cache-status": "ExampleCache; hit; ttl=376"}, HIT),
        ({"cache-status": "ExampleCache; hit=?0"}, UNKNOWN),
        ({"cache-status": "ExampleCache; fwd=uri-miss; stored"}, MISS),
        ({"cache-status": "ExampleCache; fwd=stale; fwd-status=304"}, MISS),
        ({"cache-status": 'OriginCache; hit; ttl=1100, "CDN Company Here"; fwd=uri-miss'}, MISS),
        ({"cache-status": "ReverseProxyCache; fwd=miss, ForwardProxyCache; hit; ttl=-412"}, HIT),
        ({"cache-status": 'Odd; key="a; fwd=miss, b"; hit'}, HIT),
        # The cache that is next to us wins over what an origin's cache said.
        ({"cf-cache-status": "MISS", "x-cache": "HIT"}, MISS),
        ({"cf-cache-status": "NONE/UNKNOWN", "x-cache": "HIT"}, HIT),
        # Age alone (RFC 9111, section 5.1)
        ({"age": "7"}, HIT),
        ({"age": "0"}, UNKNOWN),
        ({"age": "7", "x-cache": "MISS"}, MISS),
        ({}, UNKNOWN),
    ],
)
def test_the_state_that_a_cache_names(headers: dict[str, str], state: CacheState) -> None:
    assert read_cache_headers(headers).state is state
    assert set(headers) <= KEPT_HEADERS, "clients keep what is read here"


@pytest.mark.parametrize(
    ("headers", "edge"),
    [
        ({"cf-ray": "230b030023ae2822-SJC"}, "SJC"),
        ({"cf-ray": "230b030023ae2822"}, None),
        ({"x-amz-cf-pop": "MUC50-P2"}, "MUC50-P2"),
        ({"server-timing": CLOUDFRONT_TIMING}, "PHX50-C2"),
        ({"x-served-by": "cache-iad2120-IAD, cache-sjc3120-SJC"}, "SJC"),
        ({"x-served-by": "cache-lga-kteb1890020-LGA"}, "LGA"),
        ({"x-served-by": "web-17"}, None),
        ({"via": "1.0 fred, 1.1 lhr-edge (Apache/1.1)"}, "lhr-edge"),
        ({"via": "1.1"}, None),
        ({"via": "1.1 varnish", "x-served-by": "cache-sjc3120-SJC"}, "SJC"),
        ({}, None),
    ],
)
def test_the_edge_that_answered(headers: dict[str, str], edge: str | None) -> None:
    assert read_cache_headers(headers).edge == edge


ODD = [("00000000000000123", 123), ("9" * 30, MAX_AGE_S), ("٣", None), ("9" * 5000, MAX_AGE_S)]


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("0", 0),
        ("3600", 3600),
        ("12, 900", 12),
        (" 5 ", 5),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        *ODD,
    ],
)
def test_age(text: str, age: int | None) -> None:
    assert read_cache_headers({"age": text}).age_s == age


def test_etags_are_kept_as_they_are() -> None:
    assert read_cache_headers({"etag": 'W/"a"'}).etag == 'W/"a"'
    assert read_cache_headers({"etag": " "}).etag is None


NAMES = st.sampled_from(sorted(KEPT_HEADERS))
TEXTS = st.text(max_size=200) | st.text(alphabet='HITMISScdn-cache;=,"? fwd0123456789', max_size=200)


@given(st.dictionaries(NAMES, TEXTS))
@example({"cache-status": ";"})
@example({"server-timing": ',;="'})
def test_any_text_gives_words_of_the_vocabulary(headers: dict[str, str]) -> None:
    answer = read_cache_headers(headers)
    assert answer.state in tuple(CacheState)
    assert answer.age_s is None or 0 <= answer.age_s <= MAX_AGE_S
    assert answer.edge is None or answer.edge.strip()
    assert answer.etag is None or answer.etag == headers["etag"].strip()


@given(TEXTS)
def test_a_field_that_nobody_reads_tells_nothing(text: str) -> None:
    answer = read_cache_headers({"server": text})
    assert (answer.state, answer.edge, answer.age_s, answer.etag) == (UNKNOWN, None, None, None)


def test_clients_in_rust_keep_the_same_fields() -> None:
    source = (REPOSITORY / "rust/clientkit/src/response.rs").read_text(encoding="utf-8")
    listed = re.search(r"const KEPT_HEADERS: \[&str; \d+\] = \[(.*?)\];", source, re.S)
    assert listed is not None and set(re.findall(r'"([^"]+)"', listed[1])) == KEPT_HEADERS
