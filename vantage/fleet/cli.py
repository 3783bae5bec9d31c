"""`upshift fleet`: the group; what needs a campaign, too, is added in `upshift.compose.fleet`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Vantage points on many hosts, by Ansible."
)


@app.callback()
def _group() -> None:
    """Vantage points on many hosts, by Ansible (extra fleet). Hosts are those of the inventory's group vantage."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make; it must not exist, or be empty.")],
) -> None:
    """Write an inventory to fill in: hosts.yml, with every variable and its default."""
    from vantage.fleet.start import write_inventory

    made = write_inventory(folder)
    typer.echo(f"{made}: name your hosts and files there; next: upshift fleet bundle")
