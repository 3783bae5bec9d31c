"""The demo: a whole campaign in the lab, from nothing to tables, figures and the report."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from downloader.run import RunSummary
from upshift import store
from upshift.compose.run import run_file
from upshift.errors import UsageError
from upshift.progress import Progress

if TYPE_CHECKING:
    from analysis.api import Made

MARK = "demo.toml"
"""The campaign of the demo, copied into its folder: it tells that the folder is a demo's, and can be run by hand."""


def campaign_text(topology: str) -> str:
    """The demo's campaign file for a topology."""
    text = resources.files("upshift.compose").joinpath(MARK).read_text(encoding="utf-8")
    return text.replace("@TOPOLOGY@", topology)


def run_demo(out: Path, *, topology: str, progress: Progress) -> RunSummary:
    """Runs the demo's campaign into a folder, or goes on with it.

    Raises:
        UsageError: the folder holds something else, or the demo of another topology.
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
        raise UsageError(
            "this folder holds something that no demo made", where=str(out), remedy="name another folder by --out"
        )
    store.write_text(mark, wanted)
    return run_file(mark, out, progress=progress)


def present(out: Path) -> Made:
    """Tables, figures and report of a demo's folder."""
    from analysis.api import make_all

    return make_all([out])
