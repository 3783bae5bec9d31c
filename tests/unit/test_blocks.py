"""Block lists, and addresses that no public server has."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import BlockedError, ReachError, UsageError
from core.files import config
from core.outreach import opt_out
from core.outreach.blocks import Blocked, BlockLists, read_blocked
from core.reach import check_public, is_allowed
from tests.cells import examples


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.2.1", "224.0.0.1", "::1", "fe80::1",
                "fd00::1", "::ffff:10.0.0.1", "0.0.0.0", "255.255.255.255", "127.0.0.1",
                "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8", "2002:a00:1::1", "2002:808:808::1", "fec0::1", "::8.8.8.8",
                "::ffff:0:8.8.8.8", "3fff::1", "2001:db8::1", "2001::1", "5f00::1", "4000::1"],
)  # fmt: skip
def test_addresses_that_no_public_server_has_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPSHIFT_ALLOWED_PREFIXES")
    with pytest.raises(ReachError, match=address):
        check_public(address)
    for public in ("8.8.8.8", "2001:4860:4860::8888", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"):
        check_public(public)
    monkeypatch.setenv("UPSHIFT_ALLOWED_PREFIXES", "198.18.0.0/15")
    check_public("198.18.0.1")
    for outside in ("8.8.8.8", "64:ff9b::198.18.0.1", "2002:c612:1::1"):  # these leave a lab before they come back
        with pytest.raises(ReachError):
            check_public(outside)


def test_block_lists(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_text("*.Example.org # words\n192.0.2.0/24\n2001:db8::/32\n\n")
    blocked = read_blocked(path)
    assert blocked.domain("www.example.org")
    assert not blocked.domain("myexample.org")
    assert blocked.address("192.0.2.7")
    assert blocked.address("2001:db8::1")
    lists = BlockLists([path])
    with pytest.raises(BlockedError, match=r"a\.example\.org is in b"):
        lists.check("a.example.org", None)
    path.write_text("a b\n")
    with pytest.raises(UsageError, match="line 1: 'a b' is neither a domain nor a prefix"):
        read_blocked(path)
    lists._looked = -100.0
    with pytest.raises(BlockedError):  # the last readable state goes on being honoured
        lists.check("a.example.org", None)
    assert len(lists.complaints) == 1


@pytest.mark.parametrize("entry", ["192.0.2.0-192.0.2.255", "192.0.2.1-9", "192.0.2", "192.0.2.", "192.0.2.256"])
def test_addresses_in_no_form_of_ours_are_no_domain(tmp_path: Path, entry: str) -> None:
    """Such an opt-out was taken for a name: all hosts said that it was left alone, and each address was contacted."""
    (tmp_path / "b").write_text(f"ok.example\n{entry}\n")
    with pytest.raises(UsageError, match=r"line 2: .* is neither a domain nor a prefix"):
        read_blocked(tmp_path / "b")
    with pytest.raises(UsageError, match="neither a domain nor a prefix"):
        opt_out.checked([entry])


@pytest.mark.parametrize("prefix", ["203.0.113.0/24", "::ffff:203.0.113.0/120", "203.0.113.7/24"])
def test_a_blocked_prefix_is_blocked_in_all_its_forms(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "b").write_text(f"{prefix}\n")
    blocked = read_blocked(tmp_path / "b")
    for address in ("203.0.113.5", "::ffff:203.0.113.5", "64:ff9b::203.0.113.5", "2002:cb00:7105::1"):
        assert blocked.address(address)
    for other in ("203.0.114.5", "64:ff9b::203.0.114.5", "2002:cb00:7205::1", "2001:db8::203.0.113.5"):
        assert not blocked.address(other)


addresses = st.one_of(st.ip_addresses(v=4, network="203.0.113.0/24"), st.ip_addresses(v=6, network="2001:db8::/124"))
networks = st.tuples(addresses, st.integers(24, 32) | st.integers(0, 128)).filter(
    lambda pair: pair[1] <= pair[0].max_prefixlen
)


@given(st.lists(networks, max_size=8), addresses)
@settings(max_examples=examples(200))
def test_a_blocked_address_is_in_a_prefix(pairs: list[tuple[Any, int]], address: Any) -> None:
    prefixes = [ipaddress.ip_network(pair, strict=False) for pair in pairs]
    assert Blocked(prefixes=frozenset(prefixes)).address(str(address)) == is_allowed(address, prefixes)


def test_a_wrong_line_undoes_no_opt_out_and_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "opt-out.txt"
    path.write_text("old.example\n192.0.2.0/24\n")
    lists = BlockLists([path])

    def is_blocked(host: str, address: str | None = None) -> bool:
        lists._looked = -100.0
        try:
            lists.check(host, address)
        except BlockedError:
            return True
        return False

    path.write_bytes(b"192.0.2.0/24\nnew.example\na b\nb\xfccher.example\n.dot.example\n198.51.100.0/24\n")
    assert all(map(is_blocked, ("old.example", "www.new.example", "dot.example", "www.dot.example", "NEW.example.")))
    assert is_blocked("x.example", "192.0.2.1") and is_blocked("x.example", "198.51.100.1")
    assert not is_blocked("other.example", "203.0.113.1")
    told = (
        "opt-out.txt: line 3: 'a b' is neither a domain nor a prefix (the first of 2 such lines); write www.example.org"
    )
    assert len(lists.complaints) == 1 and told in lists.complaints[0]
    assert capsys.readouterr().err == f"upshift: {lists.complaints[0]}\n"
    path.write_text("new.example\n")
    assert is_blocked("new.example") and not is_blocked("old.example"), "a list that is right says all"
    path.unlink()
    assert is_blocked("new.example") and "file not found" in capsys.readouterr().err


def test_a_list_that_could_not_be_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor under umask 077 leaves it unreadable for a moment; its opt-outs were ignored from then on."""
    path, fails = tmp_path / "opt-out.txt", [True, True]

    def read_bytes(*arguments: Any, **more: Any) -> bytes:
        if fails and fails.pop():
            raise UsageError("permission denied", where=str(path), remedy="check the path")
        return config.read_bytes(*arguments, **more)

    path.write_text("old.example\n")
    lists = BlockLists([path])
    monkeypatch.setattr("core.outreach.blocks.read_bytes", read_bytes)
    path.write_text("old.example\nnew.example\n")
    for _ in range(2):
        lists._looked = -100.0
        lists.check("new.example", None)
    assert len(lists.complaints) == 1 and "permission denied" in lists.complaints[0], "said once, not at each look"
    lists._looked = -100.0
    with pytest.raises(BlockedError):
        lists.check("new.example", None)
    fails.append(True)
    path.touch()
    lists._looked = -100.0
    with pytest.raises(BlockedError):
        lists.check("new.example", None)
    assert len(lists.complaints) == 2, "it was right meanwhile, so that is news"


def test_a_change_that_leaves_time_and_size_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "opt-out.txt"
    path.write_text("old.example\n")
    lists, before = BlockLists([path]), path.stat()
    other = tmp_path / "other.txt"  # another file: a ctime may be as coarse as 4 ms
    other.write_text("new.example\n")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    lists._looked = -100.0
    with pytest.raises(BlockedError):
        lists.check("new.example", None)
