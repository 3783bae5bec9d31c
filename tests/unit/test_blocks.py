"""Block lists, and addresses that no public server has."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import BlockedError, ReachError, UsageError
from core.outreach.blocks import BlockLists, read_blocked
from core.reach import check_public


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.2.1", "224.0.0.1", "::1", "fe80::1",
                "fd00::1", "::ffff:10.0.0.1", "0.0.0.0", "255.255.255.255", "127.0.0.1"],
)  # fmt: skip
def test_addresses_that_no_public_server_has_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPSHIFT_ALLOWED_PREFIXES")
    with pytest.raises(ReachError, match=address):
        check_public(address)
    check_public("8.8.8.8")
    monkeypatch.setenv("UPSHIFT_ALLOWED_PREFIXES", "198.18.0.0/15")
    check_public("198.18.0.1")
    with pytest.raises(ReachError):
        check_public("8.8.8.8")


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
