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
