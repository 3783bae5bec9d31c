"""`make soak` resumes: what passed with the same sources is skipped, a kill loses the test in progress only.

`make check` runs less of the unit tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.cells import cells
from tests.conftest import LONGEST
from tests.soak_plugin import Result, read_results, table

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = "soak/results.jsonl"

TESTS = """
import os, pathlib
import pytest
from tests.cells import cells
from tests.conftest import LONGEST

def note(word):
    with open("ran.txt", "a") as handle:
        handle.write(f"{word} ")

@cells("n", every=range(4), quick=[1])
@cells("letter", every="ab", quick="a")
def test_sweep(n, letter):
    note(f"{n}{letter}")

def test_many(repeats):
    note("x" * repeats(quick=2, soak=5))

def test_sometimes():
    note("s")
    assert pathlib.Path("good").exists(), "not yet"

@pytest.mark.skip(reason="no such thing here")
def test_never():
    pass
"""


@pytest.fixture
def checkout(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.Pytester]:
    """A git checkout with the sweeps above."""
    profile = hypothesis.settings.get_current_profile_name()
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.chdir(pytester.path)
    pytester.makeini("[pytest]\nmarkers =\n  soak: a cell for soak\n  thorough: not for check\n")
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / ".gitignore").write_text("*\n!/test_it.py\n")
    subprocess.run(["git", "init", "--quiet"], check=True)
    yield pytester
    hypothesis.settings.load_profile(profile)  # a run in this process has loaded another


def run(checkout: pytest.Pytester, *arguments: str) -> tuple[pytest.RunResult, list[str]]:
    """Runs pytest; also what the tests noted."""
    (checkout.path / "ran.txt").write_text("")
    done = checkout.runpytest_inprocess("-p", "tests.soak_plugin", *arguments)
    return done, sorted((checkout.path / "ran.txt").read_text().split())


def test_make_test_runs_the_quick_cells_and_soak_all(checkout: pytest.Pytester) -> None:
    done, ran = run(checkout)
    done.assert_outcomes(passed=2, failed=1, skipped=1, deselected=7)
    assert ran == ["1a", "s", "xx"]
    done, ran = run(checkout, "--soak")
    done.assert_outcomes(passed=9, failed=1, skipped=1)
    assert ran == ["0a", "0b", "1a", "1b", "2a", "2b", "3a", "3b", "s", "xxxxx"]
    assert not (checkout.path / RESULTS).exists()


def test_make_check_leaves_out_thorough_tests_and_soak_tries_more_examples(checkout: pytest.Pytester) -> None:
    checkout.makepyfile(
        test_it=TESTS
        + """
from hypothesis import given, settings, strategies as st
from tests.cells import examples

@settings(max_examples=examples(8), database=None)
@given(st.integers())
def test_number_named(n):
    note("n")

@settings(database=None)
@given(st.integers())
def test_no_number_named(n):
    note("d")

@pytest.mark.thorough
def test_long():
    note("t")
"""
    )
    done, ran = run(checkout, "--brief")
    done.assert_outcomes(passed=4, failed=1, skipped=1, deselected=8)
    assert (ran.count("n"), ran.count("d"), ran.count("t")) == (8, 20, 0) and {"1a", "s", "xx"} < set(ran)
    done, ran = run(checkout)
    done.assert_outcomes(passed=5, failed=1, skipped=1, deselected=7)
    assert (ran.count("n"), ran.count("d"), ran.count("t")) == (8, 20, 1)
    _, ran = run(checkout, "--soak", "-k", "test_number_named")
    assert ran.count("n") == 160


def test_it_resumes_with_the_same_sources_only(checkout: pytest.Pytester) -> None:
    arguments = ("--soak", "--soak-results", RESULTS)
    done, _ = run(checkout, *arguments)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(
        [
            "test_it.py::test_many * 1 * 1 * 0 * 0 * 0 min ?? s",
            "test_it.py::test_sweep * 8 * 8 * 0 * 0 * 0 min ?? s",
            "other tests of . * 2 * 0 * 1 * 1 *",
            "all * 11 * 9 * 1 * 1 *",
            "FAILED test_it.py::test_sometimes: AssertionError: not yet",
        ]
    )
    (checkout.path / "good").touch()
    done, ran = run(checkout, *arguments)
    assert done.ret == pytest.ExitCode.OK and ran == ["s"], "what failed is run again, nothing else"
    done.stdout.fnmatch_lines(["soak: *; 9 tests passed with them before", "all * 11 * 10 * 0 * 1 *"])
    done, ran = run(checkout, *arguments, "--deselect", "test_it.py::test_never")
    assert done.ret == pytest.ExitCode.OK and ran == [], "all had passed, which is no failure"
    with (checkout.path / "test_it.py").open("a") as handle:
        handle.write("\n# another version\n")
    done, ran = run(checkout, *arguments)
    assert done.ret == pytest.ExitCode.OK and len(ran) == 10, "other sources: all again"


@pytest.mark.soak
def test_worker_processes_skip_the_same_tests(checkout: pytest.Pytester) -> None:
    arguments = ("-p", "tests.soak_plugin", "--soak", "--soak-results", RESULTS, "-n", "2", "--dist", "loadfile")
    first = checkout.runpytest_subprocess(*arguments)
    first.assert_outcomes(passed=9, failed=1, skipped=1)
    (checkout.path / "good").touch()
    again = checkout.runpytest_subprocess(*arguments)
    again.assert_outcomes(passed=1, skipped=1)
    again.stdout.fnmatch_lines(["test_it.py::test_sweep * 8 * 8 * 0 * 0 *", "all * 11 * 10 * 0 * 1 *"])


@cells("number", every=[signal.SIGKILL, signal.SIGINT], quick=[signal.SIGKILL], ids=lambda number: number.name)
def test_a_kill_loses_the_test_in_progress_only(checkout: pytest.Pytester, number: signal.Signals) -> None:
    checkout.makepyfile(
        test_it="import pathlib, time\ndef test_first(): pass\n"
        "def test_long():\n    if not pathlib.Path('good').exists():\n"
        "        pathlib.Path('ran.txt').touch()\n        for _ in range(600): time.sleep(0.1)\n"
    )
    results = checkout.path / RESULTS
    command = [sys.executable, "-m", "pytest", "-p", "tests.soak_plugin", "--soak", "--soak-results", RESULTS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        until = time.monotonic() + 300
        while not (checkout.path / "ran.txt").exists():
            assert time.monotonic() < until and child.poll() is None
            time.sleep(0.02)
        os.kill(child.pid, number)
    with results.open("a") as handle:
        handle.write('{"tree": "cut sho')
    (checkout.path / "good").touch()
    done = checkout.runpytest_subprocess(*command[3:])
    done.assert_outcomes(passed=1, deselected=1)
    lines = results.read_text().splitlines()
    assert len(lines) == 3 and json.loads(lines[-1])["test"] == "test_it.py::test_long"


def test_a_worker_that_dies_is_a_failure(checkout: pytest.Pytester) -> None:
    checkout.makepyfile(test_it="import os\ndef test_dies():\n    os.kill(os.getpid(), 9)\ndef test_lives(): pass\n")
    arguments = ("-p", "tests.soak_plugin", "--soak", "--soak-results", RESULTS, "-n", "1")
    done = checkout.runpytest_subprocess(*arguments)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    lines = [json.loads(line) for line in (checkout.path / RESULTS).read_text().splitlines()]
    assert {line["test"]: line["verdict"] for line in lines} == {
        "test_it.py::test_dies": "failed",
        "test_it.py::test_lives": "passed",
    }


def test_wrong_use_is_told(checkout: pytest.Pytester, tmp_path: Path) -> None:
    done, _ = run(checkout, "--soak-results", RESULTS)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--soak-results needs --soak*"])
    done, _ = run(checkout, "--soak", "--brief")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    for quick in ([], [9]):
        with pytest.raises(ValueError, match="quick cells of n"):
            cells("n", every=range(3), quick=quick)


def test_results_of_other_sources_and_torn_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    assert read_results(path, "t") == {}
    line = {"tree": "t", "test": "a", "verdict": "failed", "seconds": 61.0, "sweep": True, "ended": "x", "detail": "d"}
    passed = {**line, "verdict": "passed", "detail": ""}
    path.write_text("\n".join(map(json.dumps, [line, passed, {**line, "tree": "u"}, {"tree": "t"}, 7])) + '\n{"tr')
    assert read_results(path, "t") == {"a": Result(**passed)}
    assert list(table(read_results(path, "t").values()))[1].split() == ["a", "1", "1", "0", "0", "1", "min", "01", "s"]


def test_files_that_come_first_are_there() -> None:
    assert set(LONGEST) <= {path.stem for path in (REPOSITORY / "tests").glob("*/test_*.py")}
