"""Shared by all tests: no test may contact any address but loopback and the lab's."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.lab.noise import TOO_NOISY

pytest_plugins = ("tests.soak_plugin", "pytester")

# A second thread of numpy's matrix products waits for its turn by spinning: beside other tests a simulation of the
# studies' spreads took four times as much CPU time with it, and alone it is no faster.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ["UPSHIFT_ALLOWED_PREFIXES"] = "198.18.0.0/15,fd00:198:18::/48,127.0.0.0/8,::1/128"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background jobs (nohup, CI) with Ctrl-C ignored, and programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    # Likewise after nohup. The tests themselves go on when the terminal closes: a handler is not inherited.
    signal.signal(signal.SIGHUP, lambda *_: None)

REPOSITORY = Path(__file__).resolve().parent.parent
UNIT = REPOSITORY / "tests" / "unit"

LONGEST = (
    *("test_fleet", "test_statistics_simulation", "test_study_verdicts"),
    *("test_limiter", "test_clients_and_servers", "test_client_ceilings"),
    *("test_truth_demo", "test_cloud", "test_host_signals", "test_proof_lab", "test_disk_limits", "test_download_run"),
    *("test_fleet_collect", "test_kill_parts", "test_archive", "test_kill_run", "test_host_place", "test_fleet_runs"),
    *("test_downloader_faults", "test_survey_iw", "test_survey_iw_population", "test_lab_life", "test_lab_windows"),
    *("test_crawler_visit", "test_report_browser", "test_faults_input", "test_inspect_folder", "test_survey_options"),
    *("test_same_place", "test_downloader_clients", "test_hostile_input", "test_inspect_cluster", "test_opt_out"),
    *("test_survey_cdn_iw", "test_survey_iw_host", "test_studies_kills", "test_analysis_report", "test_quic_servers"),
    *("test_resumed_with_new_files", "test_failure_words", "test_budget_lab"),
    *("test_studies", "test_client_starved", "test_truth_clean", "test_fair_rates", "test_faults_readme"),
    *("test_kpis_lab", "test_http_versions"),
)
"""Test files that take longest: they come first, so that no worker is left alone with one."""


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The team's sample inputs, which a user's machine does not have."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"the sample inputs in {path} are not on this machine")
    return path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without drawings in their static figures: matplotlib takes most of a small report's time, and what such
    a test asserts is elsewhere on the page."""
    monkeypatch.setattr("analysis.report.figures.inline_svg", lambda figure: "<svg></svg>")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first (scripts/test makes xdist keep that order); unit tests by their folder."""
    for item in items:
        if item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.unit)
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests a busy host left without a verdict: they are neither passed nor failed."""
    skipped = terminalreporter.getreports("skipped")
    noisy = [report for report in skipped if TOO_NOISY in str(report.longrepr)]
    if noisy:
        terminalreporter.section(f"{TOO_NOISY}: {len(noisy)} tests were not judged; run them again on a quiet host")
