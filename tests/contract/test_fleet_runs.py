"""Ansible for real, on this machine by a local connection: what `upshift fleet` makes of its runs."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import PlaceError, UsageError
from core.system import signals
from downloader.control.stop_pause import pause_requested, request_pause
from tests.command import Answer, upshift
from tests.lab._fault_world import wait_until
from vantage.fleet import runs
from vantage.fleet.inventory import open_fleet

pytestmark = pytest.mark.thorough

# How often Ansible looks is as in ours, which says why.
CONFIGURATION = (
    "[defaults]\ninterpreter_python = auto_silent\ninternal_poll_interval = 0.02\n"
    "[ssh_connection]\nssh_args = -o ConnectTimeout=5\n"
)

PLAYBOOK = """
- hosts: vantage
  gather_facts: false
  serial: 1
  tasks:
    - name: Fail where it was asked for
      ansible.builtin.fail:
        msg: "{{ inventory_hostname }}: no space left"
      when: bad | default(false)
    - name: Change something
      ansible.builtin.command: sleep {{ takes_s | default(1) }}
    - name: Tell
      ansible.builtin.set_fact:
        fleet_result: {word: "{{ word }}", host: "{{ inventory_hostname }}"}
"""


CHECK = """
- hosts: vantage
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: vantage, tasks_from: check}
"""


AWAY = """
- hosts: vantage
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: vantage, tasks_from: lock}
    - ansible.builtin.import_role: {name: explain}
      vars: {explain_state: absent}
"""


LOCK = """
- hosts: vantage
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: vantage, tasks_from: lock}
"""


@pytest.fixture(autouse=True)
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of playbooks, and a state folder, instead of Upshift's own."""
    folder = tmp_path / "ansible"
    (folder / "playbooks").mkdir(parents=True)
    (folder / "ansible.cfg").write_text(CONFIGURATION)
    (folder / "playbooks" / "tell.yml").write_text(PLAYBOOK)
    (folder / "roles").symlink_to(runs.files() / "roles")
    monkeypatch.setattr(runs, "files", lambda: folder)
    monkeypatch.setenv("UPSHIFT_STATE_DIR", str(tmp_path / "state"))
    return folder


OURS = runs.files()

LOCAL: dict[str, object] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


def inventory(folder: Path, hosts: dict[str, object], **variables: object) -> Path:
    path = folder / "hosts.yml"
    path.write_text(json.dumps({"vantage": {"hosts": hosts, "vars": variables}}))
    return path


class Shown:
    """What a display of progress was told."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.failed: list[int] = []
        self.totals: set[int] = set()

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        self.done.append(done)
        self.failed.append(failed)
        self.totals.add(total)


def test_each_host_has_its_verdict_and_the_others_go_on(tmp_path: Path) -> None:
    """With `serial`, Ansible itself stops where all hosts of a batch have failed: here after the first one."""
    local = LOCAL
    unreachable = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    # Progress is shown twice a second: for long enough that d is the only one left.
    hosts = {"a": {**local, "bad": True}, "b": unreachable, "c": local, "d": {**local, "takes_s": 4}}
    path = inventory(tmp_path, hosts)
    task, shown = runs.Task(playbook="tell", variables={"word": "x y"}), Shown()
    found = runs.on_hosts(task, path, list(hosts), progress=shown)
    assert found["a"].fault == "a: no space left"
    assert found["b"].unreachable and "Connection refused" in (found["b"].fault or "")
    assert found["c"].fault is None and found["c"].changed == 1
    assert found["c"].result == {"word": "x y", "host": "c"} and found["d"].result == {"word": "x y", "host": "d"}
    assert shown.done == sorted(shown.done) and shown.failed == sorted(shown.failed), "it only goes forward"
    assert set(shown.done) >= {2, 3, 4} and shown.totals == {4}, "c is through while d is not"
    assert (shown.done[-1], shown.failed[-1]) == (4, 2)


def test_a_host_with_another_processor_is_one_sentence(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the role of `upshift fleet provision` looks at it, before it changes anything."""
    (ours / "playbooks" / "check.yml").write_text(CHECK)
    (ours / "playbooks" / "roles").symlink_to(ours / "roles")
    uname = tmp_path / "bin" / "uname"
    uname.parent.mkdir()
    uname.write_text('#!/bin/sh\n[ "$1" = -m ] && echo aarch64 || exec /usr/bin/uname "$@"\n')
    uname.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uname.parent}:{os.environ['PATH']}")
    path = inventory(tmp_path, {"a": LOCAL})
    found = runs.on_hosts(runs.Task(playbook="check"), path, ["a"], progress=None)
    assert found["a"].fault == "a has another processor, aarch64: vantage points are x86_64"


@pytest.mark.soak
def test_a_host_that_was_not_provisioned_is_left_as_it_is(ours: Path, tmp_path: Path) -> None:
    """Nor one that another control machine has, or whose record of what was there before cannot be read."""
    (ours / "playbooks" / "away.yml").write_text(AWAY)
    (ours / "playbooks" / "roles").symlink_to(ours / "roles")
    names = ("fresh", "left", "taken", "damaged")
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "left" / "lock").write_text(f"bob@desk (process {2**22 + 1}, machine abcd1234)\n")
    (tmp_path / "taken" / "lock").write_text("alice@laptop\n")
    (tmp_path / "damaged" / "record").mkdir()
    hosts: dict[str, object] = {name: {**LOCAL, "ansible_become": False} for name in names}
    variables = {
        f"vantage_{what}_file": f"{tmp_path}/{{{{ inventory_hostname }}}}/{what}" for what in ("lock", "record")
    }
    bob = f"bob@desk (process {os.getpid()}, machine abcd1234)"
    task = runs.Task(playbook="away", variables={**variables, "vantage_control": bob})
    found = runs.on_hosts(task, inventory(tmp_path, hosts), names, progress=None)
    for name in ("fresh", "left"):
        assert (found[name].fault, found[name].changed) == (None, 0)
        assert [path.read_text() for path in (tmp_path / name).iterdir()] == [f"{bob}\n"], "the lock"
    assert "is being provisioned or torn down by alice@laptop: wait" in str(found["taken"].fault)
    assert "directory" in str(found["damaged"].fault), found["damaged"]


@pytest.mark.soak
def test_a_host_that_always_has_an_ended_process_of_ours_is_asked_twice(ours: Path, tmp_path: Path) -> None:
    """It answers whatever it is asked: that the lock belongs to a process of this machine that has ended."""
    (ours / "playbooks" / "lock.yml").write_text(LOCK)
    (ours / "playbooks" / "roles").symlink_to(ours / "roles")
    here = "bob@desk (process {}, machine abcd1234)"
    answer, program = {"changed": False, "rc": 3, "stdout": here.format(2**22 + 1)}, tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho x >>{tmp_path}/asked\necho {shlex.quote(json.dumps(answer))}\n")
    program.chmod(0o755)
    host = {"ansible_connection": "local", "ansible_python_interpreter": str(program), "ansible_become": False}
    task = runs.Task(playbook="lock", variables={"vantage_control": here.format(os.getpid())})
    found = runs.on_hosts(task, inventory(tmp_path, {"a": host}), ["a"], progress=None)
    assert "is being provisioned or torn down by bob@desk" in str(found["a"].fault)
    assert (tmp_path / "asked").read_text() == "x\nx\n"


@pytest.mark.soak
@pytest.mark.parametrize("until", ["6 h", ""])
def test_a_pause_ends_as_the_last_command_says(ours: Path, tmp_path: Path, until: str) -> None:
    """Also where another one is over, or would end earlier: its file stays until somebody lets the campaign go on."""
    results = a_campaign(tmp_path / "a")
    request_pause(results, 1.0, 2.0)
    [found] = paused(ours, tmp_path, {"a": {**LOCAL, "until_when": until}}).values()
    assert (found.fault, found.changed) == (None, 1)
    pause = pause_requested(results, time.time())
    assert pause is not None and (pause.until is not None) == bool(until)


def test_a_host_that_is_slow_to_answer_holds_up_no_pause(ours: Path, tmp_path: Path) -> None:
    """Here it answers only when the other one has paused. Its own pause, for some time, follows one that is over."""
    quick, slow = (a_campaign(tmp_path / name) for name in ("quick", "slow"))
    request_pause(slow, 1.0, 2.0)
    program = tmp_path / "program"
    tried = f'[ -e "{quick}/asked/pause.json" ] && exec "{sys.executable}" "$@"'
    program.write_text(f"#!/bin/sh\nfor i in $(seq 300); do\n{tried}\nsleep 0.1\ndone\nexit 1\n")
    program.chmod(0o755)
    late = {**LOCAL, "ansible_python_interpreter": str(program), "until_when": "6 h"}
    found = paused(ours, tmp_path, {"quick": {**LOCAL, "until_when": ""}, "slow": late})
    assert [(each.fault, each.changed) for each in found.values()] == [(None, 1)] * 2
    pauses = [pause_requested(results, time.time()) for results in (quick, slow)]
    assert [pause and pause.until is not None for pause in pauses] == [False, True]


def a_campaign(folder: Path) -> Path:
    """The results of a campaign that `upshift pause` takes for one."""
    results = folder / "results"
    (results / "vantage" / "a").mkdir(parents=True)
    (results / "vantage" / "a" / "journal.sqlite").touch()
    (folder / "campaign.toml").touch()
    return results


def paused(ours: Path, folder: Path, hosts: dict[str, dict[str, object]]) -> dict[str, runs.HostVerdict]:
    """What the pause of each host's campaign, in the folder of its name and until its `until_when`, came to."""
    (ours / "playbooks" / "pause.yml").write_text((OURS / "playbooks" / "pause.yml").read_text())
    (ours / "playbooks" / "roles").symlink_to(ours / "roles")
    variables = {
        "campaign_name": "week",
        "campaign_folder": f"{folder}/{{{{ inventory_hostname }}}}",
        "campaign_as_upshift": f"{shlex.quote(sys.executable)} -m upshift",
        "campaign_paused": True,
        "campaign_pause_until": "{{ until_when }}",
    }
    path = inventory(folder, {name: {**host, "ansible_become": False} for name, host in hosts.items()})
    return runs.on_hosts(runs.Task(playbook="pause", variables=variables), path, list(hosts), progress=None)


def test_what_a_run_leaves_is_little_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And signals are handled as before."""
    monkeypatch.setattr(runs, "KEPT", 1)
    path = inventory(tmp_path, {"a": LOCAL})
    handled = {number: signal.getsignal(number) for number in signals.STOPPING}
    runs.on_hosts(runs.Task(playbook="tell", variables={"word": "kept-nowhere-7"}), path, ["a"], progress=None)
    folder = tmp_path / "state" / "fleet"
    running, forgotten = folder / "artifacts" / "running", folder / "artifacts" / "forgotten"
    running.mkdir()
    forgotten.mkdir()
    os.utime(forgotten, (1, 1))
    runs.look(runs.templated({"x": "1"}), path)
    assert running.exists() and not forgotten.exists()
    running.rmdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list((folder / "artifacts").iterdir())) == runs.KEPT
    assert not (folder / "env").exists()
    assert {number: signal.getsignal(number) for number in signals.STOPPING} == handled


def test_ctrl_c_ends_ansible_within_seconds(tmp_path: Path, ours: Path) -> None:
    (ours / "playbooks" / "tell.yml").write_text(
        "- hosts: vantage\n  gather_facts: false\n  tasks:\n"
        f"    - ansible.builtin.shell: echo $$ > {tmp_path}/pid; exec sleep 300\n"
    )
    path = inventory(tmp_path, {"a": LOCAL})

    def interrupt() -> None:
        while not (tmp_path / "pid").exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        runs.on_hosts(runs.Task(playbook="tell"), path, ["a"], progress=None)
    waiting.join()
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)  # a task on a host outlives Ansible, here and by SSH: the same command repeats it


KILLED = """
import sys
from pathlib import Path
from vantage.fleet import runs
runs.files = lambda: Path(sys.argv[1])
runs.on_hosts(runs.Task(playbook="tell"), Path(sys.argv[2]), ["a"], progress=None)
"""


def test_ansible_and_its_tasks_here_end_with_a_killed_control_machine(tmp_path: Path, ours: Path) -> None:
    task = {"argv": [sys.executable, "-c", "import time; time.sleep(300)", f"{tmp_path}/task"]}
    (ours / "playbooks" / "tell.yml").write_text(
        f"- hosts: vantage\n  gather_facts: false\n  tasks:\n    - ansible.builtin.command: {json.dumps(task)}\n"
    )
    path = inventory(tmp_path, {"a": LOCAL})
    with subprocess.Popen([sys.executable, "-c", KILLED, ours, path], stderr=subprocess.DEVNULL) as control:
        assert wait_until(lambda: any(f"{tmp_path}/task" in line for line in naming(tmp_path)), 60, pause_s=0.2)
        assert any("ansible-playbook" in line for line in naming(tmp_path))
        control.kill()
    assert wait_until(lambda: not naming(tmp_path), 10, pause_s=0.2)


def naming(folder: Path) -> list[str]:
    """Command lines of the other processes that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in line and int(entry.name) != os.getpid():
                found.append(line)
    return found


def test_a_playbook_that_cannot_start_says_why(tmp_path: Path, ours: Path) -> None:
    (ours / "playbooks" / "tell.yml").write_text("- hosts: vantage\n  roles: [not-there]\n")
    path = inventory(tmp_path, {"a": LOCAL})
    with pytest.raises(PlaceError, match="not-there"):
        runs.on_hosts(runs.Task(playbook="tell"), path, ["a"], progress=None)


def test_an_inventory_is_read_with_its_templates_and_limits(tmp_path: Path) -> None:
    """Hosts behind one address have ports of their own."""
    hosts: dict[str, object] = {f"v{number}": {"ansible_host": f"198.18.7.{number}"} for number in (1, 2)}
    hosts["v3"] = {"ansible_ssh_host": "198.18.7.1", "ansible_ssh_port": 2203}
    path = inventory(
        tmp_path, {**hosts, "here": {"ansible_connection": "local"}}, campaign_file="{{ inventory_dir }}/c.toml"
    )
    found = open_fleet(path, None)
    assert list(found.hosts) == ["here", "v1", "v2", "v3"] and found.selected == tuple(found.hosts)
    assert (found.hosts["v1"].address, found.hosts["here"].address) == ("198.18.7.1", "local")
    assert (found.hosts["v3"].address, found.hosts["v3"].port) == ("198.18.7.1", 2203)
    assert found.shared("campaign_file") == str(tmp_path / "c.toml") and found.campaign() == "c"
    assert open_fleet(path, "v1,v2,v3,!v2").selected == ("v1", "v3")
    with pytest.raises(UsageError, match="'v9' leaves no host"):
        open_fleet(path, "v9")


def test_captures_that_stay_on_hosts_are_not_removed(tmp_path: Path) -> None:
    path = inventory(tmp_path, {"a": LOCAL}, collect_into="{{ inventory_dir }}/all", collect_without_captures=True)
    done = upshift("fleet", "collect", "-i", path, "--free")
    assert done.returncode == 2 and "captures that stay on the hosts must not be removed" in done.stderr


def a_process(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "upshift", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        # What Ansible itself prints would only be seen in a process.
        (a_process, "vantage: {hosts: {}}", "no hosts in the group vantage"),
        pytest.param(upshift, "others: {hosts: {a: {}}}", "no hosts in the group vantage", marks=pytest.mark.soak),
        (upshift, "vantage: {hosts: [", "hosts.yml"),
        (
            upshift,
            "vantage: {hosts: {a: {ansible_host: 198.18.7.1}, b: {ansible_ssh_host: 198.18.7.1, ansible_port: 22}}}",
            "the hosts a and b both have the address 198.18.7.1",
        ),
        (
            upshift,
            "vantage: {hosts: {a: {ansible_host: 198.18.7.1}}, vars: {campaign_optout: opt-out.txt}}",
            "campaign_optout, set for a, is not known; did you mean campaign_opt_out?",
        ),
        pytest.param(
            upshift,
            "vantage: {hosts: {a: {ansible_host: 198.18.7.1, vantage_state: present, collect_fre: true}}}",
            "collect_fre, set for a, is not known; did you mean collect_free?",
            marks=pytest.mark.soak,
        ),
        (
            upshift,
            "vantage: {hosts: {a: {ansible_connection: local}, b: {ansible_connection: local}}}",
            "the hosts a and b both are this machine",
        ),
    ],
)
def test_a_wrong_inventory_is_one_sentence(
    tmp_path: Path,
    command: Callable[..., Answer | subprocess.CompletedProcess[str]],
    text: str,
    said: str,
) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(text)
    done = command("fleet", "provision", "-i", path)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_without_the_extra_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ansible_runner", None)
    with pytest.raises(UsageError, match="uv sync --locked --inexact --extra fleet"):
        open_fleet(inventory(tmp_path, {"a": {}}), None)
