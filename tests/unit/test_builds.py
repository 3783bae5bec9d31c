"""Debug builds of our programs are refused, wherever one would be measured with."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import LabError, PlaceError
from core.system.process import refuse_debug_build
from downloader.clients.quiche import QUICHE
from vantage.linux.cpu import find_pathem


def program(path: Path, version: str) -> Path:
    """A program that tells its version as ours do."""
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


def test_a_client_that_is_a_debug_build_cannot_run(tmp_path: Path) -> None:
    debug = program(tmp_path / "h3get", "h3get 0.1.0 (quiche 0.30.0), debug build")
    client = replace(QUICHE, program=str(debug), packages=())
    fault = client.missing()
    assert fault is not None and fault.endswith(
        f"is a debug build, too slow to measure with ({debug}); run: make setup"
    )
    with pytest.raises(PlaceError, match="is a debug build"):
        client.command()
    program(debug, "h3get 0.1.0 (quiche 0.30.0)")  # built anew: asked again
    os.utime(debug, ns=(0, 0))  # builds are further apart than a tick of the kernel's clock
    assert client.missing() is None


def test_a_path_emulator_that_is_a_debug_build_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_PATHEM", str(program(tmp_path / "pathem", "pathem 0.1.0, debug build")))
    with pytest.raises(LabError, match=r"the path emulator pathem is a debug build.*; run: make setup"):
        find_pathem()
    monkeypatch.setenv("UPSHIFT_PATHEM", str(program(tmp_path / "release", "pathem 0.1.0")))
    assert find_pathem() == str(tmp_path / "release")


def test_a_program_that_does_not_answer_is_no_debug_build(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("not a program")
    for path in (broken, tmp_path / "missing"):
        assert refuse_debug_build("it", str(path)) is None
