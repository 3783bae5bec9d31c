"""The life of a lab: up, down, and every way to die; nothing may be left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from core.errors import LabError, PlaceError
from core.files import disk
from core.system.process import start_time_ticks
from tests import command
from tests.cells import cells
from tests.lab._fault_world import wait_until
from tests.topologies import MINI
from vantage.lab import control
from vantage.lab.lab import open_lab
from vantage.lab.plan import LabPlan, ProgramPlan, write_plan
from vantage.lab.state import LabFolder, lab_folder
from vantage.lab.topology import Topology

pytestmark = pytest.mark.lab


@pytest.fixture
def mini(lab_host: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A topology with a name of its own; nothing of it is left when the test ends."""
    name = f"m{abs(hash(request.node.name)) % 10**6}"
    path = tmp_path / f"{name}.toml"
    path.write_text(MINI.replace('name = "mini"', f'name = "{name}"'))
    yield path
    control.down(lab_folder(name))
    assert not remains(name), "something is left of this lab"


def remains(name: str) -> list[str]:
    """Processes that carry the lab's mark, and its files."""
    folder = lab_folder(name)
    mark = f"{control.LAB_VARIABLE}={folder.root}".encode()
    found = [str(path) for path in (folder.root, folder.lock) if path.exists()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0") and start_time_ticks(int(entry.name)):
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


def upshift(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from upshift.cli import main; main()", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, **options)  # type: ignore[call-overload]


def is_gone(folder: LabFolder, seconds: float = 60.0) -> bool:
    """Whether the lab ends. Without its holder, it takes long on a busy host (docs/design/pathem.md)."""
    return wait_until(lambda: not folder.alive(), seconds=seconds)


def test_up_exec_down_by_the_command_line(mini: Path) -> None:
    name = mini.stem
    done = upshift("lab", "up", str(mini), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "ready"
    refused = command.upshift("lab", "up", str(mini))
    assert refused.returncode == 75
    assert refused.stderr.startswith(f"upshift: a lab named {name} is already up")
    said = upshift("lab", "exec", "V", "--lab", name, "--", "sh", "-c", "curl -s https://www.mini.example; pwd; exit 7")
    assert said.returncode == 7
    assert "/a.bin" in said.stdout
    assert said.stdout.splitlines()[-1] == str(Path.cwd())
    wrong = command.upshift("lab", "exec", "W", "--lab", name, "--", "true")
    assert wrong.returncode == 2
    assert "no node 'W'" in wrong.stderr
    assert upshift("lab", "down", name).stdout == f"Removed: {name}.\n"
    again = command.upshift("lab", "down", name)  # a lab that tests share may be up
    assert again.stdout == "No lab to remove.\n" or f"no lab named {name} is up; labs that are up: " in again.stderr
    assert not remains(name)


def test_the_host_is_as_it_was(mini: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    others = tmp_path_factory.getbasetemp().parent  # of tests that run beside this one, and have disks there
    named = Path("/run/netns")  # and namespaces here

    def foreign(line: str) -> bool:
        at = Path(line.split()[4])
        return at.is_relative_to(others) or at == named or (at.parent == named and at.name.startswith("up"))

    def host() -> tuple[str, ...]:
        commands = (["ip", "-o", "link"], ["ip", "route"], ["cat", "/etc/resolv.conf"])
        shown = [subprocess.run(argv, capture_output=True, text=True, check=True).stdout for argv in commands]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return *shown, *(line for line in mounts if not foreign(line))

    before = host()
    folder = control.up(mini)
    assert host() == before
    control.down(folder)
    assert host() == before


def test_kill_9_of_the_holder_takes_everything_with_it(mini: Path) -> None:
    folder = control.up(mini)
    state = folder.read_state()
    assert state is not None
    os.kill(state["pid"], signal.SIGKILL)
    assert is_gone(folder)
    assert not [left for left in remains(mini.stem) if not left.startswith(str(folder.root))]
    control.up(mini)  # what is left are files, and they do no harm
    assert folder.alive()


def test_kill_9_of_unshare_takes_everything_with_it(mini: Path) -> None:
    folder = control.up(mini)
    state = folder.read_state()
    assert state is not None
    parent = int(Path(f"/proc/{state['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    assert is_gone(folder)


@cells("delay_s", every=[0.0, 0.3, 0.5, 0.7, 0.9, 1.1], quick=[0.9])
def test_kill_9_of_up_leaves_nothing_after_down(mini: Path, delay_s: float) -> None:
    argv = [sys.executable, "-c", "from upshift.cli import main; main()", "lab", "up", str(mini)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as popen:
        time.sleep(delay_s)
        popen.kill()
    done = upshift("lab", "down", mini.stem)
    assert done.returncode == 0 or f"no lab named {mini.stem} is up" in done.stderr, done.stderr
    assert not remains(mini.stem)


def test_an_attached_lab_dies_with_its_owner(mini: Path) -> None:
    code = (
        "import sys, time\nfrom vantage.lab.lab import open_lab\n"
        "with open_lab(sys.argv[1]):\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(mini)], stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        assert popen.stdout.readline() == "up\n"
        assert lab_folder(mini.stem).alive()
        popen.kill()
    assert is_gone(lab_folder(mini.stem), seconds=10.0)


@cells("delay_s", every=[0.4, 0.6, 0.8, 1.0, 1.2], quick=[1.0])
def test_after_kill_9_of_its_owner_the_next_one_comes_up_at_once(mini: Path, delay_s: float) -> None:
    """However far the lab was: the one that is dying is neither used nor in the way."""
    code = (
        "import sys, time\nfrom vantage.lab.lab import open_lab\n"
        "with open_lab(sys.argv[1]) as lab:\n    lab.place('V').run(['true']).check(doing='trying')\n"
        "    print('up', flush=True)\n    time.sleep(float(sys.argv[2]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(mini), "60"], stdout=subprocess.DEVNULL) as popen:
        time.sleep(delay_s)
        popen.kill()
    done = subprocess.run([sys.executable, "-c", code, str(mini), "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == "up\n", done.stderr


def test_down_ends_programs_that_joined(mini: Path) -> None:
    folder = control.up(mini)
    argv = [sys.executable, "-c", "from upshift.cli import main; main()", "lab", "exec", "V", "--lab", mini.stem]
    with subprocess.Popen([*argv, "--", "sleep", "60"]) as popen:
        assert wait_until(lambda: any(left.startswith("sleep 60") for left in remains(mini.stem)))
        control.down(folder)
        assert popen.wait(5) != 0


def test_a_server_that_dies_is_told(mini: Path) -> None:
    folder = control.up(mini)
    listed = upshift("lab", "exec", "s", "--lab", mini.stem, "--", "ss", "-Htlnp", "sport", "=", ":443").stdout
    # ss tells the number in the lab's own PID namespace or ours, whichever /proc it reads: here it is ours.
    pid = int(listed.partition("pid=")[2].partition(",")[0])
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: (folder.read_state() or {}).get("status") == "unhealthy")
    assert "s ended with code -9" in (folder.read_state() or {})["detail"]
    assert not control.usable(folder)
    with pytest.raises(LabError, match=r"is unhealthy \(s ended with code -9\); run: upshift lab down"), open_lab(mini):
        pass


def test_a_server_that_cannot_start_is_named_with_its_last_words(mini: Path) -> None:
    mini.write_text(mini.read_text().replace("files = [", 'congestion_control = "nosuch"\nfiles = ['))
    with pytest.raises(LabError, match="routes of s"):
        control.up(mini)


@pytest.mark.parametrize("fault", ["no device", "a server that cannot start"])
def test_a_failed_up_leaves_an_empty_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with TemporaryDirectory(prefix="ul-", dir="/tmp") as state:
        monkeypatch.setenv("UPSHIFT_STATE_DIR", state)
        path = tmp_path / "mini.toml"
        if fault == "no device":
            path.write_text(MINI)
            monkeypatch.setattr("vantage.lab.control.TUN", tmp_path / "tun")
        else:
            path.write_text(MINI.replace("files = [", 'congestion_control = "nosuch"\nfiles = ['))
        with pytest.raises(LabError):
            control.up(path)
        assert not list(Path(state).iterdir())


def test_a_state_folder_without_room_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_STATE_DIR", str(tmp_path / "s"))
    monkeypatch.setattr(disk, "free_bytes", lambda _folder: 5_000)
    (tmp_path / "mini.toml").write_text(MINI)
    with pytest.raises(PlaceError) as caught:
        control.up(tmp_path / "mini.toml")
    said = caught.value.sentence()
    assert "the disk is full: 5 kB are free on " in said and "the lab's files need 10 kB" in said
    assert said.endswith("there or set UPSHIFT_STATE_DIR, then run the same command again")
    assert not any((tmp_path / "s").iterdir())


def test_labs_of_several_names_live_side_by_side(mini: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(MINI.replace('name = "mini"', 'name = "other-lab"'))
    control.up(mini)
    second = control.up(other)
    try:
        with pytest.raises(LabError, match="several labs are up"):
            control.choose(None)
        assert control.choose("other-lab").name == "other-lab"
    finally:
        control.down(second)
    assert lab_folder(mini.stem).alive()


def test_a_missing_program_and_a_missing_device_are_sentences(
    mini: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = control.process.require

    def without_caddy(program: str, *, package: str) -> str:
        return real("no-such-caddy" if program == "caddy" else program, package=package)

    monkeypatch.setattr("vantage.server_kind.require", without_caddy)
    with pytest.raises(Exception, match=r"the program no-such-caddy is missing; install it .*apt-get install caddy"):
        control.up(mini)
    monkeypatch.setattr("vantage.lab.control.TUN", tmp_path / "tun")
    with pytest.raises(LabError, match=r"tun cannot be used .*modprobe tun"):
        control.up(mini)


def test_a_taken_port_is_a_sentence(mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = control.make_plan

    def crowded(topology: Topology, text: str, folder: LabFolder, **more: bool) -> LabPlan:
        plan = real(topology, text, folder, **more)
        code = "import socket, time; s = socket.socket(socket.AF_INET6); s.bind(('::', 443)); time.sleep(60)"
        taker = [sys.executable, "-I", "-S", "-c", code]
        late = ("sh", "-c", 'sleep 2; exec "$@"', "late")  # the other one is first
        programs = [
            replace(program, argv=(*late, *program.argv)) if program.name == "s" else program
            for program in plan.programs
        ]
        programs.append(ProgramPlan(name="taker", node="s", argv=tuple(taker)))
        plan = replace(plan, programs=tuple(programs))
        write_plan(plan, folder.plan)
        return plan

    monkeypatch.setattr(control, "make_plan", crowded)
    with pytest.raises(LabError, match=r"the lab's s ended with code 1; end of its log .*address already in use"):
        control.up(mini)
