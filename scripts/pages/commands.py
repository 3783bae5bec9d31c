"""docs/commands.md: every command of `upshift` with its arguments and options, from the Typer apps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.pages.markdown import cell, table
from upshift import cli

HEAD = """# Commands

Made by `scripts/docs` from the commands themselves; `upshift COMMAND --help` says the same.

Every command ends with exit code 0 when it did what was asked, 2 when it was used wrongly (one sentence says what,
where and what to do), 130 after Ctrl-C, else 1 unless its text says otherwise.
"""


def text(_: Path) -> str:
    commands = list(all_commands())
    contents = "".join(f"- [`{name}`](#{name.replace(' ', '-')}): {cell(summary(c))}\n" for name, c in commands)
    return f"{HEAD}\n{contents}" + "".join(section(name, command) for name, command in commands)


def all_commands() -> Iterator[tuple[str, Any]]:
    """Name with `upshift` before it, and click's command; groups give their members."""
    for name in cli.COMMANDS:
        yield from members(f"upshift {name}", cli.load(name))


def members(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
    for member, inner in getattr(command, "commands", {}).items():
        yield from members(f"{name} {member}", inner)


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return " ".join((command.help or "").split("\n\n")[0].split())


def section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
    found = f"\n## {name}\n\n    {usage}\n\n{prose(command.help)}"
    for title in ("argument", "option"):
        records = [p.get_help_record(context) for p in command.params if p.param_type_name == title]
        rows = [(f"`{names}`", said) for names, said in filter(None, records) if names != "--help"]
        if rows:
            found += "\n" + table((title, "meaning"), rows)
    for title, rows in listing(command).items():
        found += f"\n{title}:\n\n" + table(("name", "meaning"), [(f"`{name}`", said) for name, said in rows])
    return found


def prose(said: str | None) -> str:
    """A help text as paragraphs."""
    paragraphs = inspect.cleandoc(said or "").replace("\b", "").split("\n\n")
    return "\n\n".join(cell(paragraph) for paragraph in paragraphs if paragraph.strip()) + "\n"


def listing(command: Any) -> dict[str, list[tuple[str, str]]]:
    """What can be plugged in, as `--help` shows it (`upshift.cli.ListingCommand`)."""
    function = inspect.unwrap(command.callback) if command.callback else None
    found = getattr(inspect.getmodule(function), f"{getattr(function, '__name__', '')}_listing", None)
    return {title: list(rows) for title, rows in (found() if found else {}).items()}
