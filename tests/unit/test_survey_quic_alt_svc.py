"""Alt-Svc field values: those of RFC 7838, those that servers send, and garbage."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from survey.quic.candidates import Alternative, AltSvc, parse_alt_svc


def _one(text: str) -> Alternative:
    found = parse_alt_svc(text)
    assert not found.broken
    (alternative,) = found.alternatives
    return alternative


def test_examples_of_the_rfc() -> None:
    assert _one('h2=":8000"') == Alternative(protocol="h2", host="", port=8000)
    assert _one('h2="new.example.org:80"') == Alternative(protocol="h2", host="new.example.org", port=80)
    assert _one('w%3Dx%3Ay#z=":443"').protocol == "w=x:y#z"
    assert _one('h2=":443"; ma=3600').max_age_s == 3_600
    assert _one('h2=":8000"; ma=60; persist=1').max_age_s == 60
    both = parse_alt_svc('h2="alt.example.com:8000", h2=":443"')
    assert [entry.host for entry in both.alternatives] == ["alt.example.com", ""]


def test_what_large_sites_send() -> None:
    google = parse_alt_svc('h3=":443"; ma=2592000,h3-29=":443"; ma=2592000')
    assert [entry.protocol for entry in google.alternatives] == ["h3", "h3-29"]
    assert google.http3() == (Alternative(protocol="h3", host="", port=443, max_age_s=2_592_000),)
    old = parse_alt_svc('quic=":443"; ma=2592000; v="46,43", h3-Q050=":443"; ma=2592000')
    assert (len(old.alternatives), old.broken, old.http3()) == (2, 0, ())


@pytest.mark.parametrize("text", ["clear", " clear ", 'clear, h3=":443"', 'h3=":443",clear'])
def test_clear_withdraws_all(text: str) -> None:
    assert parse_alt_svc(text) == AltSvc()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ('h3="[2001:DB8::1]:8443"', "2001:db8::1", 8443),
        ('h3="192.0.2.1:443"', "192.0.2.1", 443),
        ('h3="ALT.example.:443"', "alt.example", 443),
        (r'h3="\alt.example:443"', "alt.example", 443),
        ('h3 =":443"', None, None),
        ("h3=:443", None, None),
        ('h3=""', None, None),
        ('h3=":0"', None, None),
        ('h3=":65536"', None, None),
        ('h3=":+43"', None, None),
        ('h3=":٤٤٣"', None, None),
        ('h3="[::1:443"', None, None),
        ('h3="a b:443"', None, None),
        ('h3="evil\r\nx: y:443"', None, None),
        ('h3="../..:443"', None, None),
        ('h3=":443"; ma', None, None),
        ('h3=":443"; ma=-1', None, None),
        ('h3=":443" ma=1', None, None),
        ('h3=":443', None, None),
        ("CLEAR", None, None),
    ],
)
def test_authorities(text: str, host: str | None, port: int | None) -> None:
    found = parse_alt_svc(text)
    if host is None:
        assert (found.alternatives, found.broken) == ((), 1)
    else:
        assert [(entry.host, entry.port) for entry in found.alternatives] == [(host, port)]


def test_a_broken_entry_leaves_its_neighbours() -> None:
    found = parse_alt_svc('h3=":443"; ma=1, junk, , h2="a,b:1", h3="b.example:8443"; x="1,2;\\""; ma="7"')
    assert [(entry.host, entry.port, entry.max_age_s) for entry in found.alternatives] == [
        ("", 443, 1),
        ("b.example", 8443, 7),
    ]
    assert found.broken == 2


def test_zero_age_is_no_offer() -> None:
    assert parse_alt_svc('h3=":443"; ma=0').http3() == ()
    assert parse_alt_svc('h3=":443"; ma=99999999999999999999').alternatives[0].max_age_s == 2**31


NAMES = st.binary(min_size=1, max_size=8)
HOSTS = st.sampled_from(["", "alt.example", "192.0.2.7", "2001:db8::7"])


@given(
    st.lists(
        st.tuples(NAMES, HOSTS, st.integers(1, 65_535), st.integers(0, 2**31), st.sampled_from(["", " ", "\t "])),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_written_by_the_grammar_is_read(entries: list[tuple[bytes, str, int, int, str]]) -> None:
    written = []
    for name, host, port, age, space in entries:
        shown = f"[{host}]" if ":" in host else host
        written.append(f'{quote_from_bytes(name, safe="")}="{shown}:{port}"{space};{space}ma={age}')
    found = parse_alt_svc(",".join(written))
    assert not found.broken
    assert found.alternatives == tuple(
        Alternative(protocol=name.decode("latin-1"), host=host, port=port, max_age_s=age)
        for name, host, port, age, _ in entries
    )


@given(st.text(max_size=300) | st.text(alphabet='h3=":4,; \\\tma1clear[]%', max_size=120))
def test_any_text_is_answered(text: str) -> None:
    found = parse_alt_svc(text)
    for entry in found.alternatives:
        assert 0 < entry.port <= 65_535
        assert 0 <= entry.max_age_s <= 2**31
        assert not set(entry.host) & set(' \r\n\t/"\\')
