"""Runs of Ansible by ansible-runner.

Three of its habits are dealt with here. An event handler that does not return True loses events and final counts. Its
own signal handler stays after it has returned (ansible-runner#1075), so it gets a cancel callback, with which it
installs none. A handler that is slow while hosts are unreachable makes it time out (#1343), so ours only stores.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from core.errors import PlaceError, not_installed
from core.system import signals
from core.terminal import Progress
from vantage.doctor.ceilings import calibration_file
from vantage.fleet.verdicts import HostVerdict, verdicts

KEPT = 5
"""Runs whose artefacts are kept."""

MOST_FORKS = 50
"""Hosts that are worked on at a time."""

_FORGOTTEN_S = 86_400.0
"""Age of a run without an end that counts as killed [s]."""

_POLL_S = 0.5
"""How often Ctrl-C is looked for."""


_TIED = ("setpriv", "--pdeathsig", "TERM", "--")
"""Prefix that ends Ansible when we are killed, as pexpect makes it ignore the end of its terminal. Not by SIGKILL as
elsewhere: Ansible hands SIGTERM on to its workers, which are in sessions of their own.
"""

_QUICK = {
    "ANSIBLE_TIMEOUT": "8",
    "ANSIBLE_SSH_ARGS": "-o ForwardAgent=no -o ForwardX11=no -o ControlMaster=no -o ControlPath=none "
    "-o ConnectTimeout=8 -o ServerAliveInterval=4 -o ServerAliveCountMax=2",
}
"""Environment of tasks that only look: without shared connections, as one to a host that is gone hangs for 30 s."""


def files() -> Path:
    """The folder with playbooks and roles: in an installed wheel beside this module, else in the checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "ansible", here.parents[1] / "ansible"):
        if (folder / "ansible.cfg").is_file():
            return folder
    raise PlaceError("the playbooks are missing", where=str(here / "ansible"), remedy="install Upshift again")


def control() -> str:
    """Who gives this command, for the lock on hosts: user, machine and process; the mark tells machines of one name
    apart."""
    ident = Path("/etc/machine-id")
    mark = hashlib.sha256(f"{platform.node()} {ident.read_text() if ident.exists() else ''}".encode()).hexdigest()[:8]
    return f"{getpass.getuser()}@{platform.node()} (process {os.getpid()}, machine {mark})"


@contextmanager
def become_password(password: str, folder: Path) -> Iterator[dict[str, str]]:
    """Variables by which Ansible finds a password for sudo: in memory only, in no command line and no environment.

    Ansible resolves the path that it is given, which a file in memory has not: it runs a program that reads it.
    """
    if not password:
        yield {}
        return
    program = folder / f"become-{os.getpid()}"
    with os.fdopen(os.memfd_create("become"), "wb", buffering=0) as handle:
        handle.write(password.encode())
        program.write_text(f"#!/bin/sh\nexec cat /proc/{os.getpid()}/fd/{handle.fileno()}\n", encoding="ascii")
        program.chmod(0o700)
        try:
            yield {"ANSIBLE_BECOME_PASSWORD_FILE": str(program)}
        finally:
            program.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What Ansible is to do."""

    playbook: str | None = None
    """Name of one of ours, without `.yml`."""
    module: str | None = None
    """Or a module, on all hosts of the group `vantage`."""
    arguments: str = ""
    """Arguments of the module."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Extra variables, which outrank those of the inventory."""
    quick: bool = False
    """It only looks: a host that is slow to answer counts as unreachable."""
    password: str = field(default="", repr=False)
    """For sudo on hosts; empty: none is needed."""

    @property
    def name(self) -> str:
        return self.playbook or self.module or ""


def on_hosts(task: Task, inventory: Path, hosts: Sequence[str], *, progress: Progress | None) -> dict[str, HostVerdict]:
    """Runs a task on some hosts of an inventory; host -> verdict.

    Ansible gives up where all hosts of a batch have failed (`serial`). The rest is then run by itself, so that one
    host's failure never stops the others.

    Raises:
        UsageError: Ansible is not installed.
        KeyboardInterrupt: the user stopped it.
    """
    through: dict[str, HostVerdict] = {}
    left = list(hosts)
    shown = _Shown(task, hosts, progress)
    while left:
        events = _events(task, inventory, left, shown)
        these = verdicts(left, events)
        through |= these
        untouched = [host for host, verdict in these.items() if verdict.untouched]
        if len(untouched) == len(left):
            if error := own_error(events):
                raise PlaceError(error, where=f"ansible, {task.name}")
            break
        left = untouched
    return through


def look(task: Task, inventory: Path) -> list[dict[str, Any]]:
    """The events of a task that contacts no host."""
    return _events(task, inventory, (), _Shown(task, (), None))


def own_error(events: Iterable[Mapping[str, Any]]) -> str | None:
    """The first error of Ansible itself, without its label; None if there is none."""
    for event in events:
        for line in str(event.get("stdout") or "").splitlines():
            if line.startswith(("[ERROR]", "ERROR")):
                return line.removeprefix("[ERROR]:").removeprefix("ERROR!").strip().rstrip(".")
    return None


def _events(task: Task, inventory: Path, hosts: Sequence[str], shown: _Shown) -> list[dict[str, Any]]:
    """The events of one run, on these hosts; without hosts it has no limit."""
    runner = _runner()
    events: list[dict[str, Any]] = []
    news: deque[Mapping[str, Any]] = deque()
    interrupts: list[int] = []

    def handle(event: dict[str, Any]) -> bool:
        events.append(event)
        news.append(event)
        return True

    def stop(number: int, _: FrameType | None) -> None:
        interrupts.append(number)

    def cancelled() -> bool:
        shown.take(news)
        return bool(interrupts)

    folder, artefacts = files(), _artefacts()
    how = {"playbook": str(folder / "playbooks" / f"{task.playbook}.yml")} if task.playbook else _module(task)
    with signals.handled_by(stop), become_password(task.password, artefacts) as become:
        run = runner.init_runner(
            private_data_dir=str(artefacts),
            **how,
            inventory=str(inventory.absolute()),
            limit=",".join(hosts) or None,
            extravars=dict(task.variables),
            forks=min(max(len(hosts), 5), MOST_FORKS),
            envvars=environment(folder, inventory) | (_QUICK if task.quick else {}) | become,
            settings={"pexpect_timeout": _POLL_S},
            event_handler=handle,
            cancel_callback=cancelled,
            suppress_env_files=True,
            fact_cache_type="memory",
            quiet=True,
        )
        run.config.command[:0] = _TIED
        run.run()
    shown.take(news, last=True)
    _tidy(artefacts / "artifacts", time.time())
    if interrupts:
        raise KeyboardInterrupt
    return events


def _module(task: Task) -> dict[str, str]:
    return {"module": task.module or "", "module_args": task.arguments, "host_pattern": "vantage"}


def environment(folder: Path, inventory: Path) -> dict[str, str]:
    """Variables of Ansible's processes: our configuration, and what a control machine's own must not change."""
    return {
        "PATH": _path(),
        "ANSIBLE_SSH_CONTROL_PATH": _control_path(inventory),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",  # ansible-runner's own default is False
        "ANSIBLE_ANY_UNPARSED_IS_FAILED": "True",
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
        "ANSIBLE_NOCOLOR": "True",
        "LC_ALL": "C.UTF-8",
    }


def _path() -> str:
    """PATH with the folder of this Python, where ansible-playbook is installed."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _control_path(inventory: Path) -> str:
    """Where SSH's shared connections are: those of this inventory, from this network.

    Ansible's own name for them has address, port and user only, so that a host of another network with the same private
    address would be taken for this one for as long as a connection lasts.
    """
    network = Path("/proc/self/ns/net").readlink()
    mark = hashlib.sha256(f"{inventory.absolute()} {network}".encode()).hexdigest()[:8]
    return f"%(directory)s/{mark}-%%C"


def _artefacts() -> Path:
    """The folder for what ansible-runner writes: facts and variables, so nobody else may read it."""
    folder = calibration_file().parent / "fleet"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    # Of a run that was killed: files that would be read as its settings, and partial events.
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / "env")
    return folder


def _tidy(folder: Path, now: float) -> None:
    """Removes all but the newest runs that have ended, and those that were killed long ago.

    ansible-runner's own rotation would take the files of a long run away while shorter ones start and end beside it.
    """
    age_s: dict[Path, float] = {}
    for run in folder.iterdir():
        with suppress(FileNotFoundError):  # another command has just removed it
            age_s[run] = now - run.stat().st_mtime
    runs = sorted(age_s, key=age_s.__getitem__)
    ended = [run for run in runs if (run / "rc").exists()]
    killed = [run for run in runs if run not in ended and age_s[run] > _FORGOTTEN_S]
    for run in [*ended[KEPT:], *killed]:
        shutil.rmtree(run, ignore_errors=True)


class _Shown:
    """The progress of a task: hosts that are through, and how many have done the present step. It only goes forward.

    A host is through when it has failed, when the next batch of the play begins (`serial`), or at the end.
    """

    def __init__(self, task: Task, hosts: Sequence[str], progress: Progress | None) -> None:
        self._task, self._hosts, self._progress = task, frozenset(hosts), progress
        self._through: set[str] = set()
        self._failed: set[str] = set()
        self._play = ""
        self._batch: set[str] = set()
        self._step = ""
        self._stepped: set[str] = set()
        self._at = 0.0

    def take(self, news: deque[Mapping[str, Any]], *, last: bool = False) -> None:
        while news:
            event = news.popleft()
            self._note(str(event.get("event")), event.get("event_data") or {})
        now = time.monotonic()
        if self._progress is not None and (last or now - self._at > _POLL_S):
            self._at = now
            here = f" ({len(self._stepped)} of {len(self._hosts)})" if self._step else ""
            through, failed = len(self._through & self._hosts), len(self._failed & self._hosts)
            self._progress.update(
                self._task.name, done=through, total=len(self._hosts), failed=failed, note=f"{self._step}{here}"
            )

    def _note(self, event: str, data: Mapping[str, Any]) -> None:
        host = str(data.get("host"))
        if event == "playbook_on_play_start":
            if data.get("play") == self._play:  # ansible-runner gives each batch a number of its own
                self._through |= self._batch
            self._play, self._batch = str(data.get("play")), set()
        elif event == "playbook_on_task_start":
            self._step, self._stepped = str(data.get("task") or ""), set()
        elif event in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            self._failed.add(host)
            self._through.add(host)
        elif event in ("runner_on_ok", "runner_on_skipped"):
            self._batch.add(host)
            self._stepped.add(host)
        elif event == "playbook_on_stats":
            self._through |= set(data.get("processed") or ())
            self._step = ""


def _runner() -> Any:
    try:
        from ansible_runner import interface
    except ModuleNotFoundError as error:
        raise not_installed(error.name or "ansible_runner", "fleet", where="upshift fleet") from None
    if shutil.which("ansible-playbook", path=_path()) is None:
        raise not_installed("ansible", "fleet", where="upshift fleet")
    return interface


def templated(expressions: Mapping[str, str]) -> Task:
    """A task that tells the values of expressions for each host (`values_of`), and contacts none."""
    return Task(module="ansible.builtin.debug", arguments=json.dumps({"msg": dict(expressions)}))


def values_of(events: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Host -> values, from the events of `templated`."""
    values: dict[str, Mapping[str, Any]] = {}
    for event in events:
        data = event.get("event_data") or {}
        if event.get("event") == "runner_on_ok":
            message = (data.get("res") or {}).get("msg")
            if isinstance(message, Mapping):
                values[str(data["host"])] = message
    return values
