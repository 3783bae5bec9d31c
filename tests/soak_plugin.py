"""The pytest plugin of `make check` and `make soak`: the first runs less of each test, the second runs all cells of all
sweeps, remembers verdicts, and resumes.

    pytest --brief                       leaves out thorough tests (tests/cells.py)
    pytest --soak                        all cells (without it: the quick ones, see tests/cells.py)
    pytest --soak --soak-results FILE    and writes each verdict to FILE as one JSON line, skips what passed before with
                                         the same sources, and prints a table of verdicts and times at the end

A verdict counts for the sources with which it was found: the hash of git's tree of all files of the checkout, those
that are not committed included. Lines are written as tests end, so a kill loses only the tests in progress.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.cells import SOAK, THOROUGH, Repeats

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SWEEP = "soak sweep"
"""Property of a test that travels with its reports, from worker processes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one test ended: one line of the results file."""

    tree: str
    """The sources, see `source_tree`."""
    test: str
    """pytest's node id."""
    verdict: str
    seconds: float
    """Set-up and tear-down included."""
    sweep: bool
    """The test has cells or repetitions of its own for `make soak`."""
    ended: str
    """ISO 8601, UTC."""
    detail: str = ""
    """Why the test did not pass, in one line."""


def source_tree(root: Path) -> str:
    """Hash of the files in a checkout as git would commit them now; ignored files do not count.

    Raises:
        pytest.UsageError: no git, or this is not a git checkout.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "GIT_INDEX_FILE": str(Path(folder) / "index")}
        try:
            subprocess.run(["git", "add", "--all"], cwd=root, env=env, check=True, capture_output=True)
            done = subprocess.run(["git", "write-tree"], cwd=root, env=env, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise pytest.UsageError(f"--soak-results: {root} is not a git checkout ({error})") from error
    return done.stdout.strip()


def read_results(path: Path, tree: str) -> dict[str, Result]:
    """Test -> its latest result with these sources. A line that a kill cut short is passed over."""
    found: dict[str, Result] = {}
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            result = Result(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if result.tree == tree:
            found[result.test] = result
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    group.addoption("--brief", action="store_true", help="Leave out thorough tests.")
    group.addoption("--soak", action="store_true", help="Run all cells of all sweeps, with many repetitions.")
    group.addoption(
        "--soak-results",
        type=Path,
        metavar="FILE",
        help="With --soak: write verdicts to FILE, and skip tests that passed before with the same sources.",
    )


def pytest_configure(config: pytest.Config) -> None:
    brief, soak = config.getoption("--brief"), config.getoption("--soak")
    if brief and soak:
        raise pytest.UsageError("--brief and --soak contradict each other")
    # Other runs use the same examples each time; a soak looks for new ones, and for more where a test names no number.
    # A busy machine is slow at any example: no deadline, and slow generation is not a fault of the test.
    slow = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile("quick", max_examples=20, derandomize=True, **slow)
    hypothesis.settings.register_profile(SOAK, max_examples=400, **slow)
    hypothesis.settings.load_profile(SOAK if soak else "quick")
    path = config.getoption("--soak-results")
    if path is None or hasattr(config, "workerinput"):
        return
    if not soak:
        raise pytest.UsageError("--soak-results needs --soak")
    config.pluginmanager.register(Recorder(config.rootpath / path, source_tree(config.rootpath)), "soak-recorder")


@pytest.fixture(scope="session")
def repeats(request: pytest.FixtureRequest) -> Repeats:
    """How often a test does what it repeats."""
    long = request.config.getoption("--soak")
    return lambda *, quick, soak: soak if long else quick


@pytest.fixture(scope="session")
def soak_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keeps what one test makes in hours, for a soak with the same sources; without --soak-results a temporary one."""
    path, root = request.config.getoption("--soak-results"), request.config.rootpath
    return root / path.parent / source_tree(root)[:12] if path else tmp_path_factory.mktemp("soak")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    not_now = {item.nodeid for item in items if item.get_closest_marker(SOAK)}
    sweeps = {base(name) for name in not_now}
    for item in items:
        sweep = base(item.nodeid) in sweeps or "repeats" in getattr(item, "fixturenames", ())
        item.user_properties.append((SWEEP, sweep))
    if config.getoption("--brief"):
        not_now |= {item.nodeid for item in items if item.get_closest_marker(THOROUGH)}
    if not config.getoption("--soak"):
        leave_out(config, items, not_now)
    elif passed := passed_before(config):
        leave_out(config, items, passed)


def base(test: str) -> str:
    """The test function of a cell."""
    return test.partition("[")[0]


def leave_out(config: pytest.Config, items: list[pytest.Item], names: set[str]) -> None:
    out = [item for item in items if item.nodeid in names]
    if out:
        items[:] = [item for item in items if item.nodeid not in names]
        config.hook.pytest_deselected(items=out)


def passed_before(config: pytest.Config) -> set[str]:
    """Tests that need not run again. Worker processes are told: each must collect the same."""
    told = getattr(config, "workerinput", {}).get("soak_passed")
    if told is not None:
        return set(told)
    recorder: Recorder | None = config.pluginmanager.get_plugin("soak-recorder")
    return recorder.passed if recorder else set()


class Recorder:
    """Writes a line per test that ended, and the table at the end; lives in the process that a person started."""

    def __init__(self, path: Path, tree: str) -> None:
        self.path = path
        self.tree = tree
        self.before = read_results(path, tree)
        self.passed = {name for name, result in self.before.items() if result.verdict == PASSED}
        self._reports: dict[str, list[pytest.TestReport]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            self._write("\n")  # the last line was cut short

    def pytest_report_header(self) -> str:
        return f"soak: {self.path}, sources {self.tree[:12]}; {len(self.passed)} tests passed with them before"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["soak_passed"] = sorted(self.passed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        if report.when not in ("setup", "call"):  # tear-down, or the death of a worker process
            del self._reports[report.nodeid]
            self._write(json.dumps(asdict(self._result(reports))) + "\n")

    def _result(self, reports: list[pytest.TestReport]) -> Result:
        properties = [pair for report in reports for pair in report.user_properties]
        outcomes = {report.outcome for report in reports}
        verdict = FAILED if FAILED in outcomes else SKIPPED if SKIPPED in outcomes else PASSED
        worst = next((report for report in reports if report.outcome == verdict), reports[-1])
        return Result(
            tree=self.tree,
            test=reports[-1].nodeid,
            verdict=verdict,
            seconds=round(sum(report.duration for report in reports), 3),
            sweep=(SWEEP, True) in properties,
            ended=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            detail="" if verdict == PASSED else detail(worst.longrepr),
        )

    def _write(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed:
            session.exitstatus = pytest.ExitCode.OK  # all had passed before

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("soak")
        for line in table(read_results(self.path, self.tree).values()):
            terminalreporter.write_line(line)


def detail(said: object) -> str:
    """One line of what pytest says about a test that did not pass."""
    crash = getattr(said, "reprcrash", None)
    lines = crash.message.splitlines() if crash else str(said or "").strip().splitlines()[-1:]
    return next(iter(lines), "")


def table(results: Iterable[Result]) -> Iterator[str]:
    """Verdicts and times: a line per sweep, one per folder for all other tests, then what failed."""
    rows: dict[tuple[bool, str], list[Result]] = {}
    for result in results:
        name = base(result.test) if result.sweep else str(Path(base(result.test).partition("::")[0]).parent)
        rows.setdefault((not result.sweep, name), []).append(result)
    names = {key: key[1] if not key[0] else f"other tests of {key[1]}" for key in rows}
    width = max(map(len, names.values()), default=4)
    yield f"{'test':{width}}  cells  passed  failed  skipped      time"
    for key, found in sorted(rows.items()):
        yield line_of(names[key], found, width)
    every = [result for found in rows.values() for result in found]
    yield line_of("all", every, width)
    yield from (f"FAILED {result.test}: {result.detail}" for result in every if result.verdict == FAILED)


def line_of(name: str, results: list[Result], width: int) -> str:
    passed, failed, skipped = (
        sum(result.verdict == verdict for result in results) for verdict in (PASSED, FAILED, SKIPPED)
    )
    minutes, seconds = divmod(round(sum(result.seconds for result in results)), 60)
    time = f"{minutes} min {seconds:02} s"
    return f"{name:{width}}  {len(results):5}  {passed:6}  {failed:6}  {skipped:7}  {time:>12}"
