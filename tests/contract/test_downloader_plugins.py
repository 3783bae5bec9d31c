"""A file of a plug-in that holds none, or one whose name is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.contract._package_copy import copy_packages
from tests.contract.test_one_file_each import FACTOR


def test_a_fault_in_a_plug_in_names_the_module(tmp_path: Path) -> None:
    copy_packages(tmp_path, {}, only=("upshift", "downloader"))
    for text, said in (("", "rack holds no Factor"), (FACTOR.replace('"rack"', '"sack"'), "two Factors named 'sack'")):
        (tmp_path / "downloader/factors/rack.py").write_text(text)
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom downloader import factors\nlist(factors.ALL)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1 and said in done.stderr
