"""The command line as a whole."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from upshift import cli

STAGES = ("crawler", "cdn_mapping", "survey", "downloader", "analysis", "vantage")
HEAVY = ("numpy", "pyarrow", "matplotlib", "scrapy", "aioquic", "requests", "jinja2", "pydantic")


def upshift(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from upshift.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_imports_no_stage() -> None:
    program = (
        "import sys, json\nsys.argv = ['upshift', '--help']\nfrom upshift.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not set(json.loads(done.stderr)) & {*STAGES, *HEAVY}
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_answers_help(name: str) -> None:
    done = upshift(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: upshift" in done.stdout


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_exists(name: str) -> None:
    module, _, attribute = cli.COMMANDS[name][0].partition(":")
    assert hasattr(importlib.import_module(module), attribute)


def test_wrong_use_is_exit_code_2() -> None:
    assert upshift("no-such-command").returncode == 2
    done = upshift("tables", "/no/such/folder")
    assert done.returncode == 2
    assert done.stderr.startswith("upshift: ")
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_one_sentence() -> None:
    error = cli.missing_extra(ModuleNotFoundError(name="matplotlib"), "analysis.cli")
    assert "matplotlib" in error.sentence()
    assert "upshift[analysis]" in error.sentence()
    assert error.exit_code == 2


def test_version() -> None:
    assert upshift("--version").stdout.startswith("upshift ")
