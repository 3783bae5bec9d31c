"""The command line as a whole."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from core.errors import file_error
from core.files.disk import folder_lock
from tests.command import upshift
from upshift import cli, demo
from vantage.lab.control import NODE_VARIABLE

STAGES = ("crawler", "cdn_mapping", "survey", "downloader", "analysis", "vantage")
REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = ("prometheus_client", "numpy", "pyarrow", "matplotlib", "scrapy", "aioquic", "requests", "jinja2", "pydantic")


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "upshift", *arguments]
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
    assert f"Usage: upshift {name}" in done.stdout


@pytest.mark.parametrize("words", [[], ["kpis"], ["map"], ["map", "table"], ["survey", "quic"], ["lab", "up"]])
def test_h_is_help(words: list[str]) -> None:
    short, long = upshift(*words, "-h"), upshift(*words, "--help")
    assert short.returncode == 0 and short.stdout == long.stdout and "-h, --help" in short.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ru"], "No such command 'ru'. Did you mean 'run'?"),
        (["map", "tabel"], "No such command 'tabel'. Did you mean 'table'?"),
        (["run", "--uot", "x"], "--out"),
        (["plan", "x", "--noise", "nan"], "--noise: nan is not a number that can be used; give a finite number"),
        (["plan", "x", "--price-gb", "inf"], "--price-gb: inf is not a number that can be used"),
        (["lab", "up", "smal"], "unknown topology 'smal'; did you mean small? use one of: anrw, cdn-iw, small"),
    ],
)
def test_what_was_meant_is_named(words: list[str], said: str) -> None:
    done = upshift(*words)
    assert done.returncode == 2
    assert said in done.stderr


def completed(typed: str) -> subprocess.CompletedProcess[str]:
    """What bash asks when Tab is pressed behind this."""
    words = f"upshift {typed}"
    environment = {"_UPSHIFT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    argv = [sys.executable, "-m", "upshift"]
    return subprocess.run(argv, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ma", "map"),
        ("kpis --js", "--json"),
        ("map ta", "table"),
        ("survey q", "quic"),
        ("lab calibrate --j", "--json"),
    ],
)
def test_the_shell_completes(typed: str, offered: str) -> None:
    done = completed(typed)
    assert offered in done.stdout.split(), done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("typed", ["surveyx i", "tables '' --f"])
def test_completing_after_a_mistake_complains_not(typed: str) -> None:
    """A traceback, or a sentence, stood in the prompt: the shell does not redirect what completion prints."""
    done = completed(typed)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_demo_that_runs_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: pytest.fail("it has begun"))
    out = tmp_path / "the demo"
    (out / "vantage/MUC").mkdir(parents=True)
    (out / demo.MARK).touch()
    with folder_lock(out):
        done = upshift("demo", "--fresh", "--out", out)
    said = f"{out}: a demo is running in this folder; stop it: upshift stop '{out}'"
    assert (done.returncode, done.stderr.strip()) == (75, f"upshift: {said}")
    assert (out / "vantage/MUC").is_dir()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "my campaign.toml", "--out", "x"], "upshift run 'my campaign.toml' --out x"),
        (["demo", "--fresh", "--out", "d"], "upshift demo --out d"),
        (["run", "c.toml", "--until", "2027-01-05T06:00Z", "--out", "x"], "upshift run c.toml --out x"),
        (["run", "c.toml", "--until=2027-01-05T06:00Z", "--out", "x"], "upshift run c.toml --out x"),
        (["survey", "quic", "list"], "upshift survey quic list"),
        (["kpis", "x.pcap"], None),
        (["map", "table", "x"], None),
        ([], None),
    ],
)
def test_the_command_that_goes_on(monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str | None) -> None:
    monkeypatch.setattr(cli.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert cli.resuming("/usr/bin/upshift", arguments) == said
    monkeypatch.setattr(cli.shutil, "which", lambda name: None)
    here = None if said is None else said.replace("upshift", ".venv/bin/upshift", 1)
    assert cli.resuming(".venv/bin/upshift", arguments) == here
    module = None if said is None else said.replace("upshift", f"{shlex.quote(sys.executable)} -m upshift", 1)
    assert cli.resuming("/x/upshift/__main__.py", arguments) == module
    monkeypatch.setenv(NODE_VARIABLE, "MUC")  # outside the lab these words would contact others
    assert cli.resuming("/usr/bin/upshift", arguments) is None


@pytest.mark.thorough
def test_ctrl_c_while_modules_are_imported_is_quiet(tmp_path: Path) -> None:
    """A module that waits stands in for slow imports, so that the signal comes while one is imported."""
    # In short steps: a signal just before a sleep is looked at after it.
    wait = "import pathlib, time\npathlib.Path('begun').touch()\nfor _ in range(600): time.sleep(0.05)\n"
    (tmp_path / "typer.py").write_text(wait)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-m", "upshift", "--help"]
    with subprocess.Popen(argv, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as popen:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        popen.send_signal(signal.SIGINT)
        _, said = popen.communicate(timeout=30)
    assert (popen.returncode, said) == (130, "")
    project = tomllib.loads((Path(cli.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["upshift"] == "upshift.__main__:main", "the installed program begins there, too"


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_exists(name: str) -> None:
    module, _, attribute = cli.COMMANDS[name][0].partition(":")
    assert hasattr(importlib.import_module(f"upshift.commands.{module}"), attribute)


def test_wrong_use_is_exit_code_2() -> None:
    assert upshift("no-such-command").returncode == 2
    done = process("tables", "/no/such/folder")
    assert done.returncode == 2
    assert done.stderr.startswith("upshift: ") and done.stderr.count("\n") == 1
    within = upshift("tables", "/no/such/folder")
    assert (within.returncode, within.stdout, within.stderr) == (2, done.stdout, done.stderr)


@pytest.mark.parametrize("words", [("--out", ""), ("--out=",)])
def test_an_empty_path_is_not_this_folder(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--out "$RESULTS"` of a variable that is not set."""
    monkeypatch.chdir(tmp_path)
    done = upshift("inspect", "none", *words)
    assert (done.returncode, done.stderr) == (
        2,
        "upshift: --out: an argument is empty; give a value; if it is a variable of the shell, that is not set\n",
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        ("UsageError('x')", 2),
        ("PlaceError('x')", 75),
        ("LabError('x')", 75),
        ("ReachError('x')", 2),
        ("BlockedError('x')", 2),
        ("IncompleteError('x')", 1),
        ("UnusableError('x')", 1),
        ("AskedToStopError('x')", 130),
        ("NoisyHostError('x')", 3),
        ("OSError(errno.ENOSPC, 'y')", 75),
        ("OSError(errno.EACCES, 'y')", 2),
    ],
)
def test_exit_codes(raised: str, code: int) -> None:
    """Wrong input is never retried (2); what a repaired host would do is (75)."""
    program = (
        "import errno, sys\nfrom upshift import cli\nfrom core.errors import *\n"
        f"def app(**_): raise {raised}\ncli.app = app\nsys.argv = ['upshift', 'run', 'c.toml']\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    # Of an error of the kernel's in its own words: pyarrow's are a paragraph.
    assert re.match("upshift: (x|no space left on device|permission denied)[;\n]", done.stderr)
    assert " there" not in done.stderr, "where is not known"
    assert ("to resume: " in done.stderr) is (code in (1, 130) and not raised.startswith("UnusableError"))


@pytest.mark.parametrize(
    ("number", "file", "code"),
    [
        *((number, "/f", 75) for number in (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN)),
        *((number, None, 75) for number in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)),
        (errno.EFBIG, "/f", 2),
        (errno.EROFS, "/f", 2),
        (errno.ENOTCONN, None, os.EX_SOFTWARE),
        (errno.ECONNREFUSED, None, os.EX_SOFTWARE),
        (errno.EBADF, None, os.EX_SOFTWARE),
    ],
)
def test_faults_of_the_host_are_no_bugs(number: int, file: str | None, code: int) -> None:
    """A disk that fails, a remote one that is gone, a limit on files or processes; not what a socket says."""
    fault = file_error(OSError(number, "x", file))
    assert (os.EX_SOFTWARE if fault is None else fault.exit_code) == code
    if fault is not None:
        assert fault.what == os.strerror(number).lower() and fault.where == file
        assert (str(fault.remedy or "").startswith("look at this host")) is (code == 75)


def test_an_error_moves_no_cursor(tmp_path: Path) -> None:
    said = upshift("status", tmp_path / "\x1b]0;title\x07\n")
    assert said.returncode == 2 and "title" in said.stderr
    assert said.stderr.removesuffix("\n").isprintable()


def test_a_bug_is_no_result() -> None:
    """1 means finished: of `compare`, that something got worse; and the service of a campaign does not try it again."""
    program = "import sys\nfrom upshift import cli\ndef app(**_): {}['x']\ncli.app = app\ncli.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == os.EX_SOFTWARE and done.stderr.endswith("KeyError: 'x'\n")
    role = Path(cli.__file__).parents[1] / "ansible/roles/vantage"
    unit = (role / "templates/upshift-campaign@.service.j2").read_text(encoding="utf-8")
    assert "\nRestart=on-failure\n" in unit and "\nRestartPreventExitStatus=1 2\n" in unit


def test_a_module_found_missing_after_the_command_began_is_one_sentence() -> None:
    program = (
        "import sys\nfrom upshift import cli\n"
        "def app(**_): raise ModuleNotFoundError(name='scrapy')\n"
        "cli.app = app\nsys.argv = ['upshift', 'crawl', 'list.csv']\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("upshift: upshift crawl: the Python module scrapy is not installed here; ")
    assert "in the checkout run: uv sync --locked --inexact --all-extras" in done.stderr


def test_a_terminal_without_the_dash_of_an_interval() -> None:
    code = "from upshift import cli\ncli.app = lambda **_: print('0.9\\u20131.1')\ncli.main()"
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=latin, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.9?1.1\n", "")


def test_programs_of_ours_take_no_module_of_the_folder_that_they_start_in() -> None:
    """Without -P a folder `core` or `vantage` there would come first, whoever made it, and by sudo with root's rights.

    `cli` only repeats how it was started itself.
    """
    sources = (path for stage in (*STAGES, "core", "upshift") for path in (REPOSITORY / stage).rglob("*.py"))
    assert [path.name for path in sources if 'sys.executable, "-m"' in path.read_text()] == ["cli.py"]


def test_version() -> None:
    assert upshift("--version").stdout.startswith("upshift ")


def test_pandas_is_left_alone() -> None:
    """pyarrow imports it for the first array, where it is installed, and takes half a second for that."""
    code = (
        "import sys\nfrom upshift import cli\nimport pyarrow\n"
        "cli.app = lambda **_: pyarrow.array(['a'])\ncli.main()\n"
        "print(sum(name.startswith('pandas.') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.parametrize(("name", "meant"), [("MUCC", "did you mean MUC? "), ("FOO", "")])
def test_a_vantage_point_that_the_campaign_does_not_have(tmp_path: Path, name: str, meant: str) -> None:
    """Without a lab: it is refused before anything is resolved."""
    (tmp_path / "t.csv").write_text("domain,url,provider,size_bytes\na.example,https://a.example/f,other,1000000\n")
    (tmp_path / "c.toml").write_text(
        'name = "c"\ntargets = "t.csv"\nvantage_points = ["MUC"]\nconfigurations = "paper"\n'
        'contact = "a@upshift-tests.edu"\n'
    )
    done = upshift("run", str(tmp_path / "c.toml"), "--out", str(tmp_path / "out"), "--vantage", name)
    assert done.returncode == 2, done.stderr
    said = f"upshift: --vantage: the campaign has no vantage point {name!r}; {meant}use one of: MUC\n"
    assert done.stderr == said and not (tmp_path / "out").exists()
