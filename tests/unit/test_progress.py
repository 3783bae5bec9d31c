"""Progress without a terminal: lines for people and for programs."""

from __future__ import annotations

import io
import json

import pytest

from upshift import progress


def test_json_lines_tell_each_end() -> None:
    stream = io.StringIO()
    with progress.show(as_json=True, stream=stream) as display:
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
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    stream = io.StringIO()
    with progress.show(as_json=True, stream=stream) as display:
        display.update("MUC", done=90, total=100)
        display.update("MUC", done=95, total=100)
    last = json.loads(stream.getvalue().splitlines()[-1])
    assert (last["rate_per_s"], last["eta_s"]) == (0.5, 10.0)


def test_plain_lines() -> None:
    stream = io.StringIO()
    with progress.show(stream=stream) as display:
        display.update("captures", done=3, total=3, failed=2)
    assert stream.getvalue().startswith("captures: 3/3, 2 failed")
