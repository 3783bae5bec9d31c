"""Calls of programs in warm interpreters, with a check that ends them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core.errors import PlaceError
from core.system import process
from downloader.execution.calls import CutError, GoneError, StoppedError, Warm
from downloader.schedule.schedule import Cut

PROGRAM = """
import os
def main(argv):
    if argv[0] == "end":
        os.kill(os.getppid(), 9)
    print(argv[0])
    return 0
"""

Called = tuple[Warm, list[Exception]]


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Called]:
    """A real interpreter, and what its next check raises."""
    (tmp_path / "warm_program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[2])]))
    errors: list[Exception] = []

    def check() -> None:
        if errors:
            raise errors.pop()

    place: Any = SimpleNamespace(start=process.start)
    warm = Warm(place, "warm_program", check)
    yield warm, errors
    warm.stop()


@pytest.mark.parametrize("error", [PlaceError("gone"), StoppedError(), CutError(Cut("late")), OSError("no")], ids=repr)
def test_what_a_check_raises_ends_the_call_and_leaves_no_answer_to_the_next(called: Called, error: Exception) -> None:
    warm, errors = called
    assert warm.ask(["first"], limit_s=20).stdout == "first\n"
    errors.append(error)
    with pytest.raises(type(error)):
        warm.ask(["second"], limit_s=20)
    assert warm.ask(["third"], limit_s=20).stdout == "third\n"


def test_an_interpreter_that_ends_is_started_again(called: Called) -> None:
    warm, _ = called
    with pytest.raises(GoneError, match="its interpreter failed"):
        warm.ask(["end"], limit_s=20)
    assert warm.ask(["next"], limit_s=20).stdout == "next\n"
