"""Votes, longest-prefix match, and the table on disk."""

from __future__ import annotations

import gzip
import ipaddress
import json
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdn_mapping import sources, table
from cdn_mapping.rib import RibEntry
from cdn_mapping.votes import Ballot
from core import terminal
from core.errors import UsageError
from tests.cells import Repeats, examples


def entry(prefix: str, path: str) -> RibEntry:
    return RibEntry(prefix, None, path, 1, "192.0.2.1", None)


def table_of(*entries: tuple[str, str]) -> table.PrefixTable:
    ballot = Ballot()
    ballot.add_entries([entry(*e) for e in entries])
    return table.build({v: ballot.rows(v) for v in (4, 6)}, {"dropped": dict(ballot.dropped)})


prefixes_v4 = st.tuples(st.integers(0, 2**32 - 1), st.integers(8, 32)).map(
    lambda p: ipaddress.IPv4Network((p[0], p[1]), strict=False)
)
# Few bits apart, so that prefixes nest, touch, and share their upper half.
prefixes_v6 = st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(16, 128)).map(
    lambda p: ipaddress.IPv6Network((p[0] << 124 | p[1] << 60 | p[1], p[2]), strict=False)
)


def brute_force(networks: list[ipaddress.IPv4Network], address: int) -> int | None:
    best = None
    for index, network in enumerate(networks):
        inside = int(network.network_address) <= address <= int(network.broadcast_address)
        if inside and (best is None or network.prefixlen > networks[best].prefixlen):
            best = index
    return best


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "bits"), [(prefixes_v4, 32), (prefixes_v6, 128)])
def test_longest_match_equals_brute_force(kind, bits: int) -> None:  # type: ignore[no-untyped-def]
    @given(st.lists(kind, max_size=25, unique=True), st.lists(st.integers(0, 2**bits - 1), max_size=20))
    @settings(max_examples=examples(60), deadline=None)
    def check(networks, addresses) -> None:  # type: ignore[no-untyped-def]
        found = table_of(*((str(network), str(index + 1)) for index, network in enumerate(networks)))
        edges = [int(n[i]) + d for n in networks for i in (0, -1) for d in (-1, 0, 1)]
        asked = [a for a in (*addresses, *edges) if 0 <= a < 2**bits]
        want = [None if (i := brute_force(networks, a)) is None else i + 1 for a in asked]
        make = ipaddress.IPv4Address if bits == 32 else ipaddress.IPv6Address
        got = [None if (o := found.find(make(a))) is None else o.asn for a in asked if not mapped(make(a))]
        assert got == [w for a, w in zip(asked, want, strict=True) if not mapped(make(a))]
        texts = [str(make(a)) for a in asked if not mapped(make(a))]
        assert [o and o.asn for o in found.find_all(texts)] == got
        assert {o.prefix for o in found.find_all(texts) if o} <= {str(network) for network in networks}

    check()


def mapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return getattr(address, "ipv4_mapped", None) is not None


def test_most_votes_win_and_the_others_stay_visible() -> None:
    found = table_of(
        ("192.0.2.0/24", "1 20"),
        ("192.0.2.0/24", "2 30"),
        ("192.0.2.0/24", "3 30"),
        ("192.0.2.0/24", "4 {30,40}"),
        ("198.51.100.0/24", "1 50"),
        ("198.51.100.0/24", "1 40"),
        ("203.0.113.0/24", "1 {5,6}"),
    )
    first = found.find("192.0.2.77")
    assert first is not None
    assert (first.asn, dict(first.votes), first.as_set_votes, first.moas) == (30, {30: 2, 20: 1}, 1, True)
    assert list(first.votes) == [30, 20]
    assert first.dissent == pytest.approx(0.5)
    tie = found.find("198.51.100.1")
    assert tie is not None
    assert tie.asn == 40  # the lower number, so that a table is the same every time
    unknown = found.find("203.0.113.1")
    assert unknown is not None
    assert (unknown.asn, unknown.as_set_votes, unknown.dissent) == (None, 1, 1.0)
    assert found.v4.moas.tolist() == [True, True, False]


def test_what_is_dropped_and_counted() -> None:
    found = table_of(
        ("0.0.0.0/0", "1 16637"),
        ("::/0", "1 2"),
        ("128.0.0.0/2", "1 2"),
        ("2000::/3", "1 2"),
        ("192.0.2.0/24", "701 64512 64513"),
        ("198.51.100.0/24", "64512"),
        ("203.0.113.0/24", ""),
        ("10.0.0.0/8", "701 4200000000 65535"),
        ("11.0.0.0/8", "701 131072 64496 65552 131071"),  # nobody has 65552 to 131071 (IANA)
    )
    assert found.about["dropped"] == {"default route": 2, "prefix too short": 2, "path without a public AS": 2}
    assert found.find("8.8.8.8") is None
    assert found.find("192.0.2.1").asn == 701  # type: ignore[union-attr]  # the private tail is the provider's customer
    assert found.find("10.1.1.1").asn == 701  # type: ignore[union-attr]
    assert found.find("11.1.1.1").asn == 131072  # type: ignore[union-attr]
    assert found.find("::ffff:10.1.1.1").asn == 701  # type: ignore[union-attr]


def test_a_lost_number_of_4_bytes_is_not_the_as_before_it() -> None:
    """The AS before AS_TRANS counted as the origin, and a provider's transit customer as the provider (RFC 6793)."""
    found = table_of(
        ("8.0.0.0/8", "1 15169"),
        ("8.8.0.0/16", "1 15169 23456"),
        ("8.8.0.0/16", "2 15169 23456 65535"),  # behind it, a number that leaked
        ("8.9.0.0/16", "1 15169 23456"),
        ("8.9.0.0/16", "2 15169 400000"),  # that peer's routers had all of it
        ("8.10.0.0/16", "1 23456 15169"),
    )
    unknown, real, before = (found.find(f"8.{n}.0.1") for n in (8, 9, 10))
    assert unknown is not None and (unknown.prefix, unknown.asn) == ("8.8.0.0/16", None)
    assert (dict(unknown.votes), unknown.as_set_votes) == ({}, 2)
    assert real is not None and (real.asn, dict(real.votes), real.moas) == (400000, {400000: 1}, False)
    assert before is not None and before.asn == 15169


def test_a_route_of_as_0_counts_as_withdrawn() -> None:
    """RFC 7607, section 2; the AS before it had the prefix."""
    found = table_of(("8.0.0.0/8", "1 15169"), ("8.8.0.0/16", "1 701 0"), ("8.8.0.0/16", "2 702 0 65535"))
    at = found.find("8.8.0.1")
    assert at is not None and (at.prefix, at.asn) == ("8.0.0.0/8", 15169)
    assert found.about["dropped"] == {"path without a public AS": 2}


def test_a_table_comes_back_from_disk(tmp_path: Path) -> None:
    made = table_of(("10.0.0.0/8", "1 2"), ("10.1.0.0/16", "1 3"), ("2001:db8::/32", "1 4"), ("2001:db8::1/128", "5"))
    path = tmp_path / "deep" / "t.npz"
    made.save(path)
    again = table.load(path)
    for address in ("10.0.0.1", "10.1.0.1", "2001:db8::1", "2001:db8::2", "11.0.0.0"):
        assert again.find(address) == made.find(address)
    assert again.about == made.about
    assert again.find_all(["10.1.0.1", "2001:db8::2", "11.0.0.0"])[2] is None


def test_an_empty_table() -> None:
    empty = table_of()
    assert empty.find("10.0.0.1") is None
    assert empty.find_all(["10.0.0.1", "2001:db8::1"]) == [None, None]
    assert empty.find_all([]) == []


@given(st.lists(st.ip_addresses(), max_size=20))
@settings(max_examples=examples(30), deadline=None)
def test_addresses_of_both_versions_are_found_together(addresses: list[ipaddress.IPv4Address]) -> None:
    entries = [("64.0.0.0/8", "7"), ("::/16", "8"), ("2001:db8:0:1::/64", "9")]
    entries += [(f"{n << 4}.0.0.0/{8 + n}", str(n + 100)) for n in range(1, 16)]
    found = table_of(*entries)
    asked = [*map(str, addresses), "64.1.2.3", "::ffff:64.1.2.3", "2001:db8:0:1::7%eth0", "::64.1.2.3", "::"]
    parsed = [ipaddress.ip_address(text) for text in asked]
    plain = [getattr(address, "ipv4_mapped", None) or address for address in parsed]
    networks = {ipaddress.ip_network(prefix): int(path) for prefix, path in entries}
    want = []
    for address in plain:
        holding = [network for network in networks if address.version == network.version and address in network]
        longest = max(holding, key=lambda network: network.prefixlen, default=None)
        want.append(None if longest is None else (str(longest), networks[longest]))
    assert [origin and (origin.prefix, origin.asn) for origin in found.find_all(asked)] == want


@pytest.mark.parametrize("text", ["", "1", "abcd", "10.0.0", "10.0.0.01", "a.example", "10.0.0.1/8", "1::2::3", "%lo"])
def test_other_text_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        table_of(("10.0.0.0/8", "1 2")).find_all(["10.0.0.1", text])


def test_broken_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    made = table_of(("10.0.0.0/8", "1 2"))
    made.save(path)
    whole = path.read_bytes()
    for data in (b"", b"PK", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(UsageError, match="not a valid prefix table of Upshift"):
            table.load(path)
    np.savez(path, format=np.array(99))
    with pytest.raises(UsageError, match="format 99"):
        table.load(path)
    np.savez(path, something=np.array(99))
    with pytest.raises(UsageError, match="not a valid prefix table of Upshift"):
        table.load(path)
    with pytest.raises(UsageError, match="file not found"):
        table.load(tmp_path / "none.npz")


@pytest.mark.thorough
def test_a_rib_is_read_once_and_again_when_it_changes(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rib = tmp_path / "rib"
    rib.write_bytes((shared_data / "bgp" / "bview.20020722.2337.gz").read_bytes())
    with terminal.show_progress() as shown:
        first = sources.open_table([rib], shown)
        assert len(list(sources.cache_folder().glob("*.npz"))) == 1
        rib_bytes = rib.read_bytes()
        (kept,) = sources.cache_folder().glob("*.npz")
        second = sources.open_table([rib], shown)
        kept.write_bytes(b"broken")
        assert sources.open_table([rib], shown).about == first.about
        assert kept.stat().st_size > 1_000_000
        assert second.about == first.about
        rib.write_bytes(rib_bytes + b"\0")
        sources.open_table([rib], shown)
        assert len(list(sources.cache_folder().glob("*.npz"))) == 2


@pytest.mark.thorough
def test_the_real_sample(shared_data: Path) -> None:
    with terminal.show_progress() as shown:
        found = sources.build_table([shared_data / "bgp" / "rib.20140523.0600_firstMB.bz2"], shown)
    assert len(found.v4.low) == 9_071  # 9,072 and the default route
    assert found.about["dropped"]["default route"] == 1
    assert found.find("1.0.0.7").asn == 15169  # type: ignore[union-attr]
    assert "truncated at byte 15273283" in sources.warnings(found)[0]


@pytest.mark.thorough
def test_two_full_tables_against_a_dictionary(shared_data: Path, repeats: Repeats) -> None:
    """Prefixes of a real table: first and last address, the next one, and random ones, against a dictionary."""
    pairs: dict[tuple[int, int], int] = {}
    with gzip.open(shared_data / "bgp" / "ipasn_20140513.dat.gz", "rt") as handle:
        for line in handle:
            if not line.startswith(";"):
                prefix, asn = line.split()
                network, _, length = prefix.partition("/")
                pairs[int.from_bytes(bytes(map(int, network.split("."))), "big"), int(length)] = int(asn)
    ballot = Ballot()
    for (network, length), asn in pairs.items():
        ballot._columns[4].add(network, length, asn, 1)
    found = table.build({v: ballot.rows(v) for v in (4, 6)}, {})
    generator = random.Random(1)
    asked = [generator.randrange(2**32) for _ in range(repeats(quick=20_000, soak=1_000_000))]
    for network, length in generator.sample(sorted(pairs), repeats(quick=5_000, soak=200_000)):
        asked += [network, network + 2 ** (32 - length) - 1, min(network + 2 ** (32 - length), 2**32 - 1)]
    lengths = sorted({length for _, length in pairs}, reverse=True)

    def oracle(address: int) -> int:
        for length in lengths:
            asn = pairs.get((address >> (32 - length) << (32 - length), length))
            if asn is not None:
                return asn
        return 0

    origins = found.find_all([str(ipaddress.IPv4Address(address)) for address in asked])
    assert [origin.asn if origin else 0 for origin in origins] == [oracle(a) for a in asked]


def test_the_zip_of_the_full_table_is_no_rib(shared_data: Path) -> None:
    path = shared_data / "bgp" / "asn_prefix_mapping_20220825.zip"
    assert zipfile.is_zipfile(path)
    with (
        terminal.show_progress() as shown,
        pytest.raises(UsageError, match="not a valid prefix table of Upshift") as caught,
    ):
        sources.open_table([path], shown)
    assert json.dumps(caught.value.sentence())


def test_a_file_without_a_rib(tmp_path: Path) -> None:
    path = tmp_path / "updates"
    path.write_bytes(bytes(4) + b"\x00\x10\x00\x04" + bytes(4))
    with terminal.show_progress() as shown:
        with pytest.raises(UsageError, match=r"no usable prefix.*1 records of type 16, subtype 4.*not updates"):
            sources.build_table([path], shown)
        path.write_bytes(b"")
        with pytest.raises(UsageError, match="the file is truncated: fetch it again"):
            sources.build_table([path], shown)
        with pytest.raises(UsageError, match="is not a valid backend"):
            sources.open_table([path], shown, backend="other")
