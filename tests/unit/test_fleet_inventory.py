"""Typing errors in an inventory are told with their line, before any host is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import UsageError
from vantage.fleet import runs
from vantage.fleet.inventory import open_fleet, typing_error

GOOD = (runs.files() / "inventories" / "example" / "hosts.yml").read_text()


@pytest.mark.parametrize(
    ("right", "wrong", "line", "said"),
    [
        ("      ansible_host: 192.0.2.20", "      ansible_host 192.0.2.20", "ansible_host 192.0.2.20", "NAME: VALUE"),
        ("\n  vars:", "\n  vars", "ansible_user:", "could not find expected ':', in what began in line"),
        ("    SFO:", "     SFO:", "     SFO:", "expected <block end>"),
        ("    SFO:", "    SFO", "ansible_host: 192.0.2.20", "could not find expected ':'"),
        ("\nvantage:", "\n\tvantage:", "\tvantage:", "found character"),
        ("    MUC:\n", "    - MUC:\n", "    SFO:", "expected <block end>"),
        ("  hosts:\n", "  hosts: \a\n", "  hosts:", "special characters are not allowed"),
    ],
)
def test_the_line_of_a_typing_error(tmp_path: Path, right: str, wrong: str, line: str, said: str) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(GOOD.replace(right, wrong, 1))
    number = next(n for n, text in enumerate(path.read_text().splitlines(), start=1) if line in text)
    fault = typing_error(path)
    assert fault is not None and (fault.path, fault.line) == (path, number) and said in fault.what


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("vantage:\n  hosts: MUC\n", 2, "'MUC' is here, where NAME: VALUE belongs"),
        ("vantage:\n  hosts:\n    - MUC\n", 3, "a list is here"),
        ("vantage:\n  children:\n    eu:\n      hosts:\n        MUC: 192.0.2.1\n", 5, "'192.0.2.1' is here"),
        ("vantage\n", 1, "'vantage' is here"),
        ("vantage:\n  hosts:\n    MUC:\n    SFO:\n    MUC:\n", 5, "'MUC' is here a second time"),
        ("vantage:\n  vars:\n    campaign_block_lists: [a]\n    campaign_block_lists: [b]\n", 4, "a second time"),
    ],
)
def test_values_where_names_belong(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(text)
    fault = typing_error(path)
    assert fault is not None and fault.line == line and said in fault.what


def test_what_is_no_typing_error(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    common = "vantage:\n  hosts:\n    MUC: &all {port: 22}\n    SFO:\n      <<: *all\n      port: 23\n"
    others = ("plugin: aws_ec2\nregions: [a]\n", "$ANSIBLE_VAULT;1.1;AES256\n6162\n6364\n", common)
    vault = "vantage:\n  vars:\n    key: !vault |\n      abc\n"
    for text in (GOOD, "", "vantage:\n  hosts:\n    MUC:\n", vault, *others):
        path.write_text(text)
        assert typing_error(path) is None, text
    (tmp_path / "hosts.ini").write_text("[vantage]\nMUC\n")
    assert typing_error(tmp_path / "hosts.ini") is None
    (tmp_path / "more.yaml").write_text("a: [\n")
    assert typing_error(tmp_path) == typing_error(tmp_path / "more.yaml") is not None


@pytest.mark.thorough
def test_the_error_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("vantage:\n  hosts:\n    MUC:\n      ansible_host 192.0.2.1\n")
    with pytest.raises(UsageError, match=r"hosts\.yml, line 4: 'ansible_host 192\.0\.2\.1' is here"):
        open_fleet(path, None)
    path.write_text("vantage:\n  hosts:\n    MUC: {ansible_host: 192.0.2.1}\n    MUC: {ansible_host: 192.0.2.2}\n")
    with pytest.raises(UsageError, match=r"hosts\.yml, line 4: 'MUC' is here a second time"):
        open_fleet(path, None)
