"""`upshift lab down`: which labs it removes; and what `exec` and `status` say while a lab comes up or goes down.

No lab is built: a lock that is held makes one that is up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from core.files.disk import take_lock, write_json
from core.system.process import start_time_ticks
from tests.command import upshift
from upshift.commands import lab
from vantage.lab.state import LabFolder


@pytest.fixture
def labs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all labs."""
    with TemporaryDirectory(prefix="ul-", dir="/tmp") as folder:  # socket paths must stay short
        monkeypatch.setenv("UPSHIFT_STATE_DIR", folder)
        yield Path(folder) / "lab"


def files(labs: Path, name: str) -> LabFolder:
    """The files of a lab that is not up."""
    (labs / name).mkdir(parents=True)
    return LabFolder(labs / name)


def test_a_misspelt_name_is_wrong_input_where_other_labs_are_up(labs: Path) -> None:
    assert upshift("lab", "down", "smal").stdout == "No lab to remove.\n"
    with ExitStack() as stack:
        stack.enter_context(files(labs, "small").locked())
        files(labs, "dead")
        done = upshift("lab", "down", "smal")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "upshift: no lab named smal is up; labs that are up: small\n"
        assert upshift("lab", "down", "dead").stdout == "Removed: dead.\n"


def test_a_path_is_not_the_name_of_a_lab(labs: Path) -> None:
    """Nothing outside the lab's own folder is removed, and no lab by an empty name."""
    files(labs, "small")
    kept = labs.parent / "mine"
    kept.mkdir()
    for name in (str(kept), "../mine", "..", ".", "", "small/../small", "lab.toml/"):
        done = upshift("lab", "down", name)
        assert (done.returncode, done.stdout) == (2, ""), name
        assert done.stderr == f"upshift: {name!r} is not the name of a lab; see: upshift lab status\n"
    assert kept.exists() and (labs / "small").exists()


def test_a_lab_of_a_running_command_is_only_removed_by_its_name(labs: Path) -> None:
    """Our parent stands for the campaign that made the lab."""
    pid, small = os.getppid(), files(labs, "small")
    write_json(small.owner, {"pid": pid, "started_ticks": start_time_ticks(pid), "attached": True})
    for arguments in ((), ("--all",)):
        with small.locked():
            files(labs, "dead")
            done = upshift("lab", "down", *arguments)
            assert done.returncode == 0 and small.root.exists()
            left = "Left: small, as a command still runs in it; to end it: upshift lab down small\n"
            assert done.stdout == f"Removed: dead.\n{left}"
            assert upshift("lab", "down").stdout == left
    write_json(small.owner, {"pid": 1, "started_ticks": 0, "attached": False})  # `lab up` has ended
    small.claim("MUC").touch()
    with small.locked(), small.claim("MUC").open() as claim:
        assert not small.busy() and take_lock(claim.fileno()), "a campaign begins"
        assert upshift("lab", "down").stdout == left
    write_json(small.owner, {"pid": os.getpid(), "started_ticks": start_time_ticks(os.getpid()), "attached": True})
    with small.locked():
        assert not small.busy(), "a process may end its own labs"
    assert upshift("lab", "down").stdout == "Removed: small.\n", "nothing holds it any more"


def test_one_lab_and_all_of_them_cannot_be_asked_for_at_once(labs: Path) -> None:
    files(labs, "dead")
    done = upshift("lab", "down", "dead", "--all")
    assert (done.returncode, done.stdout) == (2, "") and (labs / "dead").exists()
    assert done.stderr == "upshift: --all removes all labs, not only dead; give one of the two\n"


def test_a_lab_without_a_plan_is_still_coming_up(labs: Path) -> None:
    with files(labs, "small").locked():
        done = upshift("lab", "exec", "MUC", "--", "true")
        assert done.stderr == "upshift: the lab small is still coming up; try again in a moment\n"
        assert upshift("lab", "status").stdout == "small: starting\n"


def test_the_status_of_a_lab_that_goes_down_meanwhile_is_what_was_seen(
    labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(labs, "small")
    awake = {"method": "none", "reason": "as requested"}
    seen = {"name": "small", "status": "ready", "detail": "", "timing": {"cpus_awake": awake}}
    monkeypatch.setattr(lab, "describe", lambda _: seen)
    assert upshift("lab", "status").stdout == "small: ready\n  CPUs are not kept awake (as requested)\n"
