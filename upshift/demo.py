"""The demo, all of it in the lab: top list, target set, campaign, tables and report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from analysis.evidence import Inspection
from core.errors import UpshiftError, UsageError
from core.files import disk
from core.system import process
from core.terminal import show_progress
from downloader.execution.run import RunSummary
from upshift.campaign import run_file
from vantage.lab.lab import open_lab

TARGET_SET = "targets.parquet"
CONTACT = "https://upshift.example/demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command on the way from a top list to a target set, which a user can also run by hand."""

    name: str
    arguments: tuple[str, ...]
    """What follows `upshift`."""
    product: Path
    """The file that it writes atomically: if it exists, the step is done."""
    node: str | None = None
    """The vantage point that it has to be started in; None: any."""

    def command(self, lab: str, program: Sequence[str] = ("upshift",), guard: Sequence[str] = ()) -> list[str]:
        """The command line.

        Args:
            lab: name of the lab.
            program: how to start Upshift.
            guard: what stands before a program in a node.
        """
        own = [*program, *self.arguments]
        return own if self.node is None else [*program, "lab", "exec", "--lab", lab, self.node, "--", *guard, *own]


def target_steps(topology: str, vantage: str, folder: Path, *, per_provider: int, other: int) -> Iterator[Step]:
    """The steps in order; all products are written to `folder`.

    Args:
        topology: name or path of the lab's topology.
        vantage: the vantage point that crawls and surveys.
        per_provider, other: targets to choose for each provider, and without a provider.
    """

    def at(name: str) -> str:
        return str(folder / name)

    yield Step(name="list", product=folder / "list.csv", arguments=("lab", "files", topology, "--out", str(folder)))
    # The servers of a lab are our own, so the crawl may be faster than on the Internet.
    crawl = ("crawl", at("list.csv"), "--out", at("crawled.parquet"), "--contact", CONTACT, "--rate", "50")
    yield Step(name="crawl", node=vantage, product=folder / "crawled.parquet", arguments=crawl)
    sources = ("--rib", at("rib.mrt.gz"), "--as2org", at("as-org2info.txt"))
    mapped = ("map", "targets", at("crawled.parquet"), "--out", at("mapped.parquet"), *sources)
    yield Step(name="map", product=folder / "mapped.parquet", arguments=mapped)
    for kind, before, after in (("options", "mapped", "with-options"), ("quic", "with-options", "surveyed")):
        out = ["--out", at(f"survey-{kind}.parquet"), "--targets-out", at(f"{after}.parquet")]
        out += ["--contact", CONTACT] if kind == "quic" else []  # a TCP handshake cannot carry one
        yield Step(
            name=f"survey of {'TCP options' if kind == 'options' else 'QUIC'}",
            node=vantage,
            product=folder / f"{after}.parquet",
            arguments=("survey", kind, at(f"{before}.parquet"), *out),
        )
    account = ("--report", at("composition.json"), "--dropped", at("dropped.csv"))
    numbers = ("--per-provider", str(per_provider), "--other", str(other))
    chosen = ("targets", "compose", at("surveyed.parquet"), "--out", at(TARGET_SET), *numbers, *account)
    yield Step(name="compose", product=folder / TARGET_SET, arguments=chosen)


def run_steps(steps: Sequence[Step], lab: str, *, say: Callable[[str], None], as_json: bool = False) -> None:
    """Runs the first step whose product is missing, and all steps after it. They write to our standard output.

    Raises UpshiftError if a step fails; a further call resumes with that step.
    """
    program = (sys.executable, "-P", "-m", "upshift")
    started = False
    for number, step in enumerate(steps, start=1):
        shown = shlex.join(step.command(lab))
        if step.product.exists() and not started:
            say(f"== {number}/{len(steps)} {step.name}: already done")
            continue
        started = True
        say(f"== {number}/{len(steps)} {step.name}: {shown}")
        # Entering a node clears the parent-death signal, so it is set once more there.
        command = step.command(lab, program, process.PARENT_DEATH)
        code = process.follow(command + (["--json"] if as_json else []))
        if code != 0:
            raise UpshiftError(
                f"the step {step.name} ended with exit code {code}",
                where=shown,
                remedy="its messages are above; run the same command again to resume",
            )


MARK = "demo.toml"
"""The demo's campaign file, copied into its folder: it marks the folder as a demo's, and can be run by hand."""


def campaign_text(topology: str) -> str:
    """The demo's campaign file for a topology: in the file a path would be relative to the demo's folder."""
    text = resources.files("upshift").joinpath(MARK).read_text(encoding="utf-8")
    is_path = topology.endswith(".toml") or "/" in topology
    return text.replace("@TOPOLOGY@", str(Path(topology).absolute()) if is_path else topology)


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
    disk.write_text(mark, wanted)
    with open_lab(topology, let_cpus_sleep=let_cpus_sleep) as lab:
        vantage = lab.vantage_points[0]
        steps = target_steps(topology, vantage, out / TARGETS, per_provider=PER_PROVIDER, other=OTHER)
        run_steps(list(steps), lab.name, say=say, as_json=as_json)
        say(f"== campaign: upshift run {mark} --out {out}")
        # Only now: each step shows its own progress.
        with show_progress(as_json=as_json) as progress:
            return run_file(mark, out, progress=progress)
