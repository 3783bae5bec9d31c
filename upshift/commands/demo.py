"""`upshift demo`: the whole pipeline in the lab, then the report."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UsageError
from upshift.commands.inspect import require_evidence
from upshift.commands.run import LetCpusSleep, complete


def demo(
    out: Annotated[Path, typer.Option(help="Folder for all results.")] = Path("demo"),
    topology: Annotated[str, typer.Option(help="Lab: anrw (three vantage points, minutes) or small.")] = "anrw",
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the folder of an earlier demo first.")] = False,
    let_cpus_sleep: LetCpusSleep = False,
    json: Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines, no tables.")] = False,
) -> None:
    """Everything in the lab: list, crawl, map, survey, compose, campaign, report.

    An interrupted demo is resumed; of a finished one, tables and report are made again.
    """
    from upshift.demo import MARK, present, run_demo

    if fresh and out.exists():
        if any(out.iterdir()) and not (out / MARK).exists():
            raise UsageError(
                "this folder was not made by a demo, so --fresh does not remove it",
                where=str(out),
                remedy="use another --out",
            )
        shutil.rmtree(out)

    def say(line: str) -> None:
        typer.echo(line, err=json)

    summary, inspection = run_demo(out, topology=topology, say=say, as_json=json, let_cpus_sleep=let_cpus_sleep)
    inspection = complete(summary, inspection, out)
    made = present(out)
    if json:
        typer.echo(dumps({**summary.document(), "inspection": asdict(inspection)}))
        typer.echo(dumps({"report": str(made.report)}))
    else:
        made.tables.show(sys.stdout)
        made.summary.show(sys.stdout)
        typer.echo(summary.sentence(out))
        typer.echo(inspection.sentence())
        typer.echo(f"report: {made.report}")
    require_evidence([inspection])
