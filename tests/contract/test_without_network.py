"""A host without a network: one sentence and exit code 75, in an empty network namespace."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.reach import ENVIRONMENT_VARIABLE

ALONE = ("unshare", "--user", "--map-root-user", "--net", "--")


@pytest.mark.parametrize(
    "command",
    [
        ("crawl", "list.csv", "-o", "o.parquet", "--contact", "me@uni.edu", "--nameserver", "198.18.0.53"),
        ("survey", "quic", "t.csv", "-o", "o.parquet", "--contact", "me@uni.edu", "--nameserver", "198.18.0.53"),
        ("survey", "options", "t.csv", "-o", "o.parquet", "--isolation", "here", "--nameserver", "198.18.0.53"),
        ("map", "fetch", "-o", "maps"),
    ],
    ids=" ".join,
)
def test_no_network_is_one_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    if subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("this host allows no user namespaces")
    (tmp_path / "list.csv").write_text("1,www.uni.edu\n2,a.uni.edu\n")
    (tmp_path / "t.csv").write_text("domain,server_ip,url\nwww.uni.edu,198.18.0.1,https://www.uni.edu/x\n")
    unlimited = f"import os; os.environ.pop({ENVIRONMENT_VARIABLE!r}); from upshift.__main__ import main; main()"
    argv = [*ALONE, sys.executable, "-c", unlimited, *command]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 75, done.stderr
    assert re.fullmatch(r"upshift: [^\n]*(no network|cannot be resolved)[^\n]*; check the network[^\n]*\n", done.stderr)
    assert not (tmp_path / "o.parquet").exists()
