"""Progress without a terminal: lines for people and for programs."""

from __future__ import annotations

import io
import json
import re

import pytest

from core import terminal


def test_json_lines_tell_each_end() -> None:
    stream = io.StringIO()
    with terminal.show_progress(as_json=True, stream=stream) as display:
        for done in range(11):
            display.update("MUC", done=done, total=10, failed=1, note="x")
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert records[-1] | {"rate_per_s": 0} == {
        "task": "MUC",
        "done": 10,
        "total": 10,
        "failed": 1,
        "rate_per_s": 0,
        "eta_s": records[-1]["eta_s"],
        "note": "x",
    }
    assert len(records) == 2  # the first and the last: in between less than the interval passed


def test_a_resumed_task_has_an_honest_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 110.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(now))
    stream = io.StringIO()
    with terminal.show_progress(as_json=True, stream=stream) as display:
        display.update("MUC", done=90, total=100)
        display.update("MUC", done=95, total=100)
    last = json.loads(stream.getvalue().splitlines()[-1])
    assert (last["rate_per_s"], last["eta_s"]) == (0.5, 10.0)


def test_plain_lines() -> None:
    stream = io.StringIO()
    with terminal.show_progress(stream=stream) as display:
        display.update("captures", done=3, total=3, failed=2)
    assert stream.getvalue().startswith("captures: 3/3, 2 failed")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_of_all_commands_have_one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    places = set()
    for task, total, note in (
        ("MUC", 120, ""),
        ("captures", 7, "x"),
        ("reading rib.20260101.0000.bz2 [kB]", 123_456, "www.a-very-long-name.example ALL, and more of it"),
        ("a [bold]name[/bold] of rich's", 1_000_000, ""),
    ):
        stream = Terminal()
        with terminal.show_progress(stream=stream) as display:
            display.update(task, done=1, total=total, failed=3, note=note)
        shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
        line = [text for text in re.split(r"[\r\n]+", shown) if "failed" in text][-1]
        assert len(line) <= 80
        assert line.startswith(task[:3])
        places.add((line.index("━"), line.rindex("━"), line.index("failed")))
    assert len(places) == 1
