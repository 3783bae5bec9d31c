"""The command line: mounts the commands of `upshift.commands`, each imported only when it is used.

One table says where each command lives; `upshift --help` answers from it without importing a stage.
"""

from __future__ import annotations

import gc
import importlib
import io
import itertools
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import upshift
from core.errors import (
    AskedToStopError,
    IncompleteError,
    UnusableError,
    UpshiftError,
    UsageError,
    file_error,
    nearest,
    not_installed,
)
from core.options import ListingCommand
from core.system import signals

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("run:demo", "The whole pipeline in the lab, then the report."),
    "doctor": ("doctor:doctor", "What this host can and cannot measure, and how to fix it."),
    "crawl": ("crawl:app", "Top list -> targets: one large file per domain, with its size; or objects of pages."),
    "map": ("map:app", "Addresses -> AS, organisation, provider: targets, explain, table, fetch."),
    "survey": ("survey:app", "What servers support: options, quic, iw; figures; client-windows."),
    "targets": ("targets:targets", "Compose the target set: N per provider, only those that support all options."),
    "plan": ("plan:plan", "What a campaign will take, before it is run: time, bytes, disk, days."),
    "run": ("run:run", "Run a campaign, or resume the one in a folder."),
    "status": ("status:status", "What a running campaign is doing."),
    "stop": ("status:stop", "End a campaign after its present measurement run."),
    "pause": ("status:pause", "Let a campaign start no measurement run for a while."),
    "resume": ("status:resume", "Let a paused campaign go on."),
    "optout": ("status:optout", "Leave domains and prefixes alone, by all that runs on this host."),
    "inspect": ("inspect:inspect", "Make the tables of a folder again from journals and captures."),
    "snapshot": ("inspect:snapshot", "What to copy of a campaign's folder while the campaign runs."),
    "account": ("inspect:account", "What was fetched from a domain, a prefix or an AS, and when."),
    "kpis": ("kpis:kpis", "Captures -> KPIs per connection or per packet."),
    "tables": ("tables:tables", "Tables 1 and 2: successful downloads, shares of speed-ups."),
    "figures": ("tables:figures", "Figures 1 to 3: CDFs of throughput and RTT, as SVG and PNG."),
    "report": ("tables:report", "Everything in one HTML file that needs no network."),
    "compare": ("tables:compare", "Two campaigns: what moved, what differs; exit code 1 if it got worse."),
    "sender": ("sender:app", "On a server: smaller initial windows for client prefixes that lose packets."),
    "archive": ("archive:archive", "Pack campaigns for publication, with the code that made them."),
    "reproduce": ("archive:reproduce", "Check an archive and make its results anew, byte for byte."),
    "study": ("study:app", "Experiments with senders in the lab, as data files: list, run, report."),
    "fleet": ("fleet:app", "Vantage points on many hosts, by Ansible: provision, run, status, collect."),
    "lab": ("lab:app", "The emulated Internet: up, down, exec, calibrate."),
}
"""Command -> (module of `upshift.commands`:attribute, a Typer app or a function; one line of help)."""

_OURS = {"upshift", "core", "crawler", "cdn_mapping", "survey", "downloader", "analysis", "vantage"}
"""Packages whose absence is a bug and no missing extra."""


def load(name: str) -> Any:
    """The Typer command or group of that name."""
    module_name, _, attribute = COMMANDS[name][0].partition(":")
    module = importlib.import_module(f"upshift.commands.{module_name}")
    gc.enable()  # see `upshift.__main__`
    target = getattr(module, attribute)
    if isinstance(target, typer.Typer):
        command = typer.main.get_command(target)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cls=ListingCommand)(target)
        command = typer.main.get_command(single)
    command.name = name
    return _whole_summary(command)


def _whole_summary(command: Any) -> Any:
    """The command, and those below it, listed by the whole first sentence of its help: Click cuts it to the line."""
    command.short_help = (command.help or "").partition("\n\n")[0].replace("\n", " ").partition(". ")[0]
    for below in getattr(command, "commands", {}).values():
        _whole_summary(below)
    return command


class LazyGroup(TyperGroup):
    """Lists its commands from `COMMANDS` and imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is Typer's
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the signature is Typer's
        return _whole_summary(TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        complains = not ctx.resilient_parsing  # completion asks what may follow, and wants no complaint
        if complains and args[0] not in COMMANDS and args[0][:1] != "-" and (meant := nearest(args[0], COMMANDS)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        name, command, rest = super().resolve_command(ctx, args)
        if complains and name != "lab":  # programs that run there may want one
            _refuse_empty(rest)
        return (name, load(name), rest) if name is not None and name in COMMANDS else (name, command, rest)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Raises UsageError for an empty argument: as a path it would be the present folder."""
    for before, word in itertools.pairwise(("", *arguments)):
        option, equals, value = word.partition("=")
        if not word or (option.startswith("--") and equals and not value):
            remedy = "give a value; if it is a variable of the shell, that is not set"
            raise UsageError("an argument is empty", where=option or before or None, remedy=remedy)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"upshift {upshift.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """How much faster do downloads get, from here, to those servers, when a transport option changes?"""


_RESUMED = (
    ("run",),
    ("demo",),
    ("crawl",),
    ("survey", "options"),
    ("survey", "quic"),
    ("survey", "iw"),
    ("map", "fetch"),
    ("study", "run"),
    ("fleet", "provision"),
    ("fleet", "run"),
    ("fleet", "optout"),
    ("fleet", "collect"),
    ("fleet", "teardown"),
)
"""Commands that resume where they stopped."""


def resuming(program: str, arguments: Sequence[str]) -> str | None:
    """The command line that resumes the command with these arguments; None if it cannot be resumed.

    None in a node of a lab, too: the same words outside it would contact hosts of the Internet.
    """
    if "UPSHIFT_LAB_NODE" in os.environ or not any(tuple(arguments[: len(words)]) == words for words in _RESUMED):
        return None
    if Path(program).name == "__main__.py":
        program_words = [sys.executable, "-m", "upshift"]
    else:
        program_words = [program if program.endswith("/upshift") and shutil.which("upshift") is None else "upshift"]
    return shlex.join([*program_words, *_lasting(arguments)])


def _lasting(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without those for the first time only: a folder to be removed, a time that has passed."""
    left = iter(arguments)
    for argument in left:
        if argument == "--until":
            next(left, None)
        elif argument != "--fresh" and not argument.startswith("--until="):
            yield argument


def _say_how_to_go_on() -> None:
    command = resuming(sys.argv[0], sys.argv[1:])
    if command is not None:
        print(f"upshift: to resume: {command}", file=sys.stderr)  # noqa: T201


def _print(error: UpshiftError) -> None:
    """The only place that prints errors. Names in them may be a stranger's: of a file, of a campaign on this host."""
    from core.untrusted import plain

    print(f"upshift: {plain(error.sentence())}", file=sys.stderr)  # noqa: T201


class _WithoutPandas:
    """No command needs pandas. Where it is installed, pyarrow would import it for the first array, in half a second."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002 - its form
        """Raises ModuleNotFoundError for pandas, finds nothing else."""
        if fullname == "pandas":
            raise ModuleNotFoundError("upshift does not use pandas", name=fullname)


def main() -> None:
    """Runs the command line; turns our errors into one sentence and an exit code.

    Exit codes: 0 done, 1 finished with failures that matter, 2 wrong use, 3 host too noisy, 70 a bug of ours, with its
    traceback, 75 a fault of the host that a retry may mend, 130 stopped by a signal or as asked.
    """
    signals.install()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without UTF-8 has no dash of an interval
        sys.stdout.reconfigure(errors="replace")
    sys.meta_path.insert(0, _WithoutPandas())
    try:
        answer()
    except Exception:
        traceback.print_exc()
        raise SystemExit(os.EX_SOFTWARE) from None  # Python's own would be 1: finished, but ...


def answer() -> None:
    """As `main`, within a process whose signals and imports are somebody else's."""
    try:
        with signals.as_interrupt():
            app(prog_name="upshift")
    except UpshiftError as error:
        _print(error)
        if isinstance(error, IncompleteError | AskedToStopError) and not isinstance(error, UnusableError):
            _say_how_to_go_on()
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if (fault := file_error(error)) is None:
            raise
        _print(fault)
        raise SystemExit(fault.exit_code) from None
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in _OURS:
            raise
        # Imported by any stage: which extra it belongs to is not known here.
        missing = not_installed(str(error.name), None, where=" ".join(["upshift", *sys.argv[1:2]]))
        _print(missing)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        _say_how_to_go_on()
        raise SystemExit(130) from None
    except SystemExit as end:
        if end.code == 130:  # Typer's exception for Ctrl-C
            _say_how_to_go_on()
        raise
