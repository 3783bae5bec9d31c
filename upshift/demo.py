"""The demo, all of it in the lab: top list, target set, campaign, tables and report."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.evidence import Inspection
from core.errors import UsageError
from core.files import atomic
from core.progress import show
from downloader.execution.run import RunSummary
from upshift import pipeline
from upshift.campaign import run_file
from vantage.lab.lab import open_lab

if TYPE_CHECKING:
    from analysis.api import Made

MARK = "demo.toml"
"""The demo's campaign file, copied into its folder: it marks the folder as a demo's, and can be run by hand."""


def campaign_text(topology: str) -> str:
    """The demo's campaign file for a topology."""
    text = resources.files("upshift").joinpath(MARK).read_text(encoding="utf-8")
    return text.replace("@TOPOLOGY@", topology)


TARGETS = "targets"
"""Folder of the list, the crawl and so on, inside the demo's own."""

PER_PROVIDER, OTHER = 2, 6


def run_demo(
    out: Path, *, topology: str, say: Callable[[str], None], as_json: bool = False, let_cpus_sleep: bool = False
) -> tuple[RunSummary, Inspection | None]:
    """Finds the targets and runs the demo's campaign into a folder, or resumes it.

    Args:
        say: gets a line for each step.
        as_json: results of the steps and progress are JSON.
        let_cpus_sleep: a lab that is started for the demo does not keep the host's CPUs awake.

    Raises:
        UsageError: the folder holds something else, or the demo of another topology.
        UpshiftError: a step failed.
    """
    mark = out / MARK
    wanted = campaign_text(topology)
    if mark.exists() and mark.read_text(encoding="utf-8") != wanted:
        raise UsageError(
            "this folder holds a demo of another topology or version",
            where=str(out),
            remedy="add --fresh, or use another --out",
        )
    if not mark.exists() and out.exists() and any(out.iterdir()):
        raise UsageError("this folder is not empty and holds no demo", where=str(out), remedy="use another --out")
    atomic.write_text(mark, wanted)
    with open_lab(topology, let_cpus_sleep=let_cpus_sleep) as lab:
        vantage = lab.vantage_points[0]
        steps = pipeline.steps(topology, vantage, out / TARGETS, per_provider=PER_PROVIDER, other=OTHER)
        pipeline.run(list(steps), lab.name, say=say, as_json=as_json)
        say(f"== campaign: upshift run {mark} --out {out}")
        # Only now: each step shows its own progress.
        with show(as_json=as_json) as progress:
            return run_file(mark, out, progress=progress)


def present(out: Path) -> Made:
    """Tables, figures and report of a demo's folder."""
    from analysis.api import make_all

    return make_all([out])
