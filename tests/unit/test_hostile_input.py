"""Files made to break a command: one sentence, exit code 2, and memory within bounds, all through `upshift` itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.analysis_factory import make_download, write_campaign

NESTED = "[" * 100_000
TOPOLOGY = 'name = "deep"\nservers = '
CAMPAIGN = 'name = "c"\nlab = "small"\ntargets = "lab"\n'

MOST_KB = 500_000
"""Resident memory of a command at its peak; numpy, pyarrow and their like take 150 MB of it."""

SAFETY_BYTES = 4 << 30
"""Address space, so that a fault ends the test and not the machine."""


def upshift(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command, and asserts that it stayed within `MOST_KB`."""
    argv = [sys.executable, "-c", WRAPPER, str(SAFETY_BYTES), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    *lines, peak_kb = done.stderr.splitlines(keepends=True)
    assert int(peak_kb) < MOST_KB
    return subprocess.CompletedProcess(argv, done.returncode, done.stdout, "".join(lines))


WRAPPER = """
import resource, subprocess, sys
limit = int(sys.argv[1])
done = subprocess.run(
    [sys.executable, "-m", "upshift", *sys.argv[2:]],
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""
"""Its only child is the command, so that the peak of its children is the command's."""


def assert_sentence(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("upshift: "), done.stderr


@pytest.mark.parametrize("command", ["run", "lab up"])
@pytest.mark.parametrize("text", ["a = " + NESTED, "a = " + "{b = " * 100_000])
def test_nested_toml(tmp_path: Path, command: str, text: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    out = ("--out", tmp_path / "out") if command == "run" else ()
    assert_sentence(upshift(*command.split(), path, *out), "deep.toml: its arrays or tables are nested too deeply")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "lab up"])
def test_toml_without_end(tmp_path: Path, command: str) -> None:
    out = ("--out", tmp_path / "out") if command == "run" else ()
    path = tmp_path / "zero.toml"
    path.symlink_to("/dev/zero")
    assert_sentence(upshift(*command.split(), path, *out), "zero.toml: the file is larger than 4 MiB, the limit")
    path.unlink()
    with path.open("wb") as handle:
        handle.truncate(100 << 20)
    assert_sentence(upshift(*command.split(), path, *out), "zero.toml: the file is larger than 4 MiB, the limit")


def test_a_plan_without_end(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(CAMPAIGN + "iterations = 1000000000\n")
    done = upshift("run", path, "--out", tmp_path / "out")
    assert_sentence(done, "field iterations: 1000000000 is above 100000, the limit")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["environment.json", "lab.json", "targets/composition.json"])
def test_nested_json_of_a_campaign(tmp_path: Path, name: str) -> None:
    folder = write_campaign(tmp_path / "c", [make_download()])
    (folder / name).parent.mkdir(exist_ok=True)
    for text in (NESTED, '{"a":' * 100_000):
        (folder / name).write_text(text)
        assert_sentence(upshift("tables", folder), f"{name}: its lists or objects are nested too deeply")
    assert not (folder / "tables").exists()
