"""On a terminal of 80 columns nothing is cut, and nothing is wider."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from core import terminal
from core.files import disk
from tests.command import upshift
from tests.terminals import command_on_terminal
from tests.unit.test_account import campaign  # noqa: F401 - a fixture
from tests.unit.test_control_status import status
from tests.unit.test_progress import Terminal


@pytest.mark.parametrize("group", [(), ("lab",), ("map",), ("fleet",), ("survey",), ("targets",)], ids=str)
@pytest.mark.parametrize("columns", [80, 120])
def test_summaries_in_help_are_whole(group: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = upshift(*group, "--help")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    if not group:
        assert command_on_terminal(["--help"], columns=columns) == (0, [line for line in lines if line])
    assert done.returncode == 0 and max(map(len, lines)) <= columns
    listed = lines[next(i for i, line in enumerate(lines) if line.startswith("Commands:")) :]
    assert len(listed) > 1 and not any(line.endswith("...") for line in listed), listed


def test_a_status_is_as_wide_as_the_terminal(tmp_path: Path) -> None:
    versions = dict.fromkeys(("upshift", "python", "kernel", "aioquic", "requests", "quiche", "dnspython"), "1.2.3.4")
    disk.write_json(tmp_path / "status.json", status(versions=versions).document())
    code, lines = command_on_terminal(["status", tmp_path])
    assert code == 0 and max(map(len, lines)) <= 80
    text = re.sub(r"\s+", " ", " ".join(lines))
    assert "dnspython 1.2.3.4" in text and "dns_error: no address" in text
    assert any(line.startswith(" " * 11) for line in lines), "rows go on below their text"


def test_an_account_is_as_wide_as_the_terminal(campaign: Path) -> None:  # noqa: F811 - the fixture
    code, lines = command_on_terminal(["account", "64500", campaign])
    assert code == 0 and max(map(len, lines)) <= 80
    text = "".join(line.replace(" ", "") for line in lines)
    assert "192.0.2.7" in text and "https://d0.example/" in text


@pytest.mark.parametrize("elapsed_s", [10.0, 36_000.0])
def test_the_time_left_is_whole(elapsed_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    clock = iter(range(10_000))
    monkeypatch.setattr("time.monotonic", lambda: next(clock) * elapsed_s)
    stream = Terminal()
    with terminal.show_progress(stream=stream) as display:
        for done in range(1, 5):
            display.update("MUC", done=done, total=30, note="www.a.example")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    last = [text for text in re.split(r"[\r\n]+", shown) if "failed" in text][-1]
    assert len(last) <= 80 and re.search(r" (\d+:)?\d+:\d\d ", last), last


def test_a_bar_that_goes_back_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    why = "www.a.example: void, again (the path emulator was 7.3 ms late; the limit is 5.0 ms)"
    outputs = []
    for stream in (Terminal(), io.StringIO()):
        with terminal.show_progress(stream=stream) as display:
            for done, note in ((0, ""), (6, "www.a.example WS"), (0, why), (1, "www.b.example BL")):
                display.update("MUC", done=done, total=30, note=note)
        outputs.append(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()))
    for output in outputs:
        assert why in re.sub(r"\s+", " ", output), output
