"""What README, design pages and examples tell people to type is accepted, and what they name exists.

Each `upshift ...` line is parsed by the command that it names, with its real options and arguments, but not run (the
lab section is run by tests/lab/test_faults_readme.py). Verbs of make exist, file names exist, the campaign for real
servers loads with a target list of the described columns.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.captures.limiter import CPU_LIMIT, NEVER_SLEEPS
from analysis.evidence.proof import CLIENT_SLACK_S, CLIENT_SLACK_SHARE
from core import paper
from downloader.campaign.campaign import load
from downloader.campaign.targets import load_targets
from downloader.execution.capture import SNAP_BYTES
from upshift import cli
from upshift.estimate import CAPTURE_BYTES, CAPTURE_SHARE, PACKED

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/start/tutorial.md",
    "docs/design/lab.md",
    "docs/design/host.md",
    "docs/design/cdn-mapping.md",
    "docs/design/quic-studies.md",
)
UV = ("uv", "run", "--no-sync")


def code_lines(text: str) -> Iterator[str]:
    """Indented lines of a page, comment lines of a TOML file that hold a command, and `upshift ...` in the text."""
    for line in text.splitlines():
        if re.match(r"(    |#   )\S", line):
            # What follows two spaces is a remark, and [NAME] an argument that may be left out.
            yield re.sub(r"\s\[[A-Z]+\]", "", re.split(r"\s{2,}|\s# ", line.lstrip("# ").rstrip())[0])
    yield from re.findall(r"`((?:sudo )?(?:uv run --no-sync )?upshift(?: [^`\n]+)?)`", text)


def commands() -> list[tuple[str, str]]:
    """(file, command line) of every command that people are told to type."""
    found = []
    examples = sorted(path.relative_to(REPOSITORY) for path in (REPOSITORY / "examples").rglob("*.toml"))
    for name in [*PAGES, *map(str, examples)]:
        for line in code_lines((REPOSITORY / name).read_text(encoding="utf-8")):
            if re.match(r"(sudo )?(uv run --no-sync |\.venv/bin/)?upshift( |$)|make ", line):
                found.append((name, line))
    return found


def words_of(line: str) -> list[str]:
    """The words after `upshift`."""
    words = shlex.split(line)
    for prefix in (("sudo",), UV):
        if tuple(words[: len(prefix)]) == prefix:
            words = words[len(prefix) :]
    assert Path(words[0]).name == "upshift", line
    return words[1:]


def parse(words: Sequence[str]) -> None:
    """Lets the command that is named parse its arguments. Raises what the command line would refuse them with."""
    if not words or words[0].startswith("--"):
        assert list(words) in ([], ["--help"], ["--version"], ["--install-completion"]), words
        return
    assert words[0] in cli.COMMANDS, f"there is no command {words[0]}"
    command: Any = cli.load(words[0])
    rest = list(words[1:])
    if hasattr(command, "commands") and rest:
        if rest[0] not in command.commands and hasattr(command, "default"):
            rest = [command.default, *rest]
        assert rest[0] in command.commands, f"{words[0]} has no command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    if not rest or rest == ["--help"]:
        return  # a command that is only mentioned, or asked what it can do
    command.make_context(words[0], rest)


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda value: value.replace("/", "_"))
def test_every_command_is_accepted(page: str, line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.M), f"{page}: there is no verb {words[1]}"
        return
    parse(words_of(line))


def test_the_pages_were_understood() -> None:
    """Else the test above would pass by finding nothing."""
    lines = [line for page, line in commands() if page == "README.md"]
    assert {"make demo", "make test"} <= set(lines)
    typed = [words_of(line)[:2] for line in lines if not line.startswith("make")]
    for wanted in (["lab", "up"], ["lab", "exec"], ["lab", "calibrate"], ["lab", "down"], ["doctor"], ["--help"]):
        assert wanted in typed
    assert any(words[:1] == ["run"] for words in typed) and any(words[:1] == ["report"] for words in typed)
    assert {page for page, _ in commands()} >= {"examples/anrw.toml", "examples/small.toml", "docs/design/lab.md"}


@pytest.mark.parametrize(
    "words",
    [
        ["run", "x.toml"],
        ["run", "x.toml", "--out", "x", "--nosuch"],
        ["lab", "upp"],
        ["nosuch"],
        ["report", "--outt", "x"],
    ],
)
def test_a_wrong_command_would_be_found(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"Missing option|[Nn]o such option|has no command|no command|Missing"):
        parse(words)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("scripts/pages/glossary.md", f"more than {CPU_LIMIT:.0%} of a core".replace("%", " %")),
        ("scripts/pages/glossary.md", f"for one for more than {NEVER_SLEEPS:.0%} of".replace("%", " %")),
        ("docs/method/comparisons.md", f"{1e3 * CLIENT_SLACK_S:g} ms, and more than {100 * CLIENT_SLACK_SHARE:g} %"),
        ("docs/design/downloader.md", f"{100 * CAPTURE_SHARE:g} % of the IP bytes\n  and {CAPTURE_BYTES // 1000} kB"),
        ("docs/design/downloader.md", f"which packs to {100 * PACKED:g} %"),
        ("examples/cloud/mail-to-operators.txt", f"the first {SNAP_BYTES} bytes of each packet"),
        ("docs/use/scale.md", f"`{paper.BASELINE}`, `{paper.BASELINE_AGAIN}` and `{paper.FULL}`, in place"),
    ],
)
def test_a_page_says_what_the_code_does(page: str, words: str) -> None:
    assert words in (REPOSITORY / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:docs|examples|downloader|analysis|vantage|tests|upshift|scripts|rust)/[\w./-]*)`", text)
    missing = [name for name in named if not (REPOSITORY / name).exists()]
    assert not missing
    assert named or page == "docs/design/cdn-mapping.md"


def test_the_campaign_for_real_servers_is_as_described(tmp_path: Path) -> None:
    """Loaded, not run: no address of it is ever contacted by a test."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    [columns] = re.findall(r"`(domain,url,provider)`", text)
    example = (REPOSITORY / "examples/internet.toml").read_text()
    (tmp_path / "campaign.toml").write_text(example.replace("you@example.org", "net@uni.edu"))
    (tmp_path / "targets.csv").write_text(f"{columns}\na.example,https://a.example/file,other\n")
    campaign = load(tmp_path / "campaign.toml")
    assert [target.domain for target in load_targets(campaign)] == ["a.example"]
    for field in re.findall(r"`(\w+)`(?: = | \()", text):
        assert field in {"targets", "contact", "isolation", "allowed_prefixes"}
    document = tomllib.loads((REPOSITORY / "examples/internet.toml").read_text())
    for field in ("targets", "contact", "isolation", "allowed_prefixes"):
        assert field in document and f"`{field}" in text, f"README does not say what {field} is"
