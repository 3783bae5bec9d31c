"""A copy of the packages that a test adds files to, its command line, and a campaign in a lab of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from core.domain import Download
from core.files import store
from tests.command import Answer
from tests.lab.noise import skip_if_void, too_many_void

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("upshift", "core", "downloader", "analysis", "vantage", "crawler", "cdn_mapping", "survey")


def copy_packages(folder: Path, added: Mapping[str, str], *, only: Sequence[str] = PACKAGES) -> None:
    """Copies the packages into a folder, with their bytecode, and adds new files to them."""
    being_written = shutil.ignore_patterns("*.pyc.*")
    for package in only:
        shutil.copytree(REPOSITORY / package, folder / package, ignore=being_written)
    for name, text in added.items():
        assert not (folder / name).exists()
        (folder / name).write_text(text)


def upshift(
    folder: Path, *arguments: str, state: str = "/nonexistent", before: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command line of the copy; `before` is a line of Python that goes first."""
    return python(folder, f"{before}\nupshift.cli.main()", *arguments, state=state)


def several(folder: Path, *commands: Sequence[str]) -> list[Answer]:
    """Several command lines of the copy in one process, as most of what each would take is the import of modules.

    None of them may change the process (as surveys do, which confine themselves) or leave anything in it that the next
    one reads.
    """
    code = f"sys.path.append({str(REPOSITORY)!r}); import json; from tests.command import upshift as answer\n"
    code += "for line in json.loads(sys.argv[1]): done = answer(*line); print(json.dumps("
    code += "[done.returncode, done.stdout, done.stderr]))"
    done = python(folder, code, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    return [Answer(*json.loads(line)) for line in done.stdout.splitlines()]


def python(folder: Path, code: str, *arguments: str, state: str = "/nonexistent") -> subprocess.CompletedProcess[str]:
    """A Python that has the copy's packages instead of ours."""
    first = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import upshift.cli, downloader.factors as f\n"
        f"assert f.__file__.startswith({str(folder)!r}), f.__file__\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder), "UPSHIFT_STATE_DIR": state, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", first + code, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
        check=False,
    )


@contextmanager
def lab_state(folder: Path) -> Iterator[str]:
    """A state folder for labs of the copy, which are taken down at the end."""
    state = tempfile.mkdtemp(prefix="uc-", dir="/tmp")  # socket paths must stay short
    try:
        yield state
    finally:
        upshift(folder, "lab", "down", state=state)
        shutil.rmtree(state)


def run_campaign(folder: Path, out: str = "out", *, may_be_void: bool = False) -> None:
    """Runs `c.toml` of the copy; the test fails, with the command's sentence, where no lab can be built.

    Where the host disturbed too many runs it is skipped, or with `may_be_void` the caller looks at the rows.
    """
    with lab_state(folder) as state:
        done = upshift(folder, "run", "c.toml", "--out", out, "--json", state=state)
    if not (may_be_void and too_many_void(done.returncode, done.stderr)):
        skip_if_void(done.returncode, done.stderr)
        assert done.returncode == 0, done.stderr


def downloads_by_configuration(folder: Path, out: str = "out") -> dict[str, Download]:
    """The downloads of a campaign with one target and one iteration."""
    rows = store.read_rows(folder / out / "downloads.parquet", "downloads", Download)
    found = {row.configuration: row for row in rows}
    assert len(found) == len(rows)
    return found


def report_pages(folder: Path, out: str = "out") -> str:
    """All pages of the campaign's report."""
    made = upshift(folder, "report", out)
    assert made.returncode == 0, made.stderr
    return "".join(path.read_text(encoding="utf-8") for path in (folder / out / "report").rglob("*.html"))
