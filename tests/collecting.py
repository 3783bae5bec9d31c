"""The playbook `collect` on hosts that are folders of this machine, locally or through an sshd of ours."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from core.files import disk
from tests.ports import free_port
from tests.unit.test_snapshot import PLAN
from vantage.fleet.offer import Needs

ANSIBLE = Path(__file__).parents[1] / "ansible"
UPSHIFT = Path(sys.executable).with_name("upshift")
NAME = "week"

RSYNC = """#!/bin/sh
# rsync as it is, then what the test does to it; said: what it transferred.
export PATH={path}
rsync --stats {options} "$@"
code=$?
{then}
exit $code
"""


@dataclass
class Fleet:
    """A control machine and its hosts."""

    folder: Path
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    plan_sha256: str = PLAN
    """Of the control machine's own copy of the plan."""

    @property
    def collected(self) -> Path:
        """The campaign folder that collect makes."""
        return self.folder / "collected" / NAME

    def add(self, name: str, results: Path, **variables: Any) -> None:
        """A host; without variables by a local connection."""
        told = variables or {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        self.hosts[name] = {"collect_results": str(results), "collect_upshift": shlex.quote(str(UPSHIFT)), **told}

    def command(self, **variables: Any) -> list[str]:
        """The command line of a collect."""
        needs = Needs(
            plan_sha256=self.plan_sha256,
            iterations=100,
            runs=1000,
            captures=3000,
            capture_bytes=10**9,
            journal_bytes=10**9,
            disk_bytes=20 * 10**9,
        )
        disk.write_json(self.collected / ".collect" / "plan.json", asdict(needs))
        inventory = self.folder / "hosts.json"
        inventory.write_text(json.dumps({"vantage": {"hosts": self.hosts}}))
        extra = {"campaign_name": NAME, "collect_into": str(self.folder / "collected"), **variables}
        playbook = str(ANSIBLE / "playbooks" / "collect.yml")
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        return [program, "-i", str(inventory), "--extra-vars", json.dumps(extra), playbook]

    def environment(self, *, options: str = "", then: str = "") -> Mapping[str, str]:
        """With a program rsync in front of the real one, where a test asks for it."""
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ANSIBLE / "ansible.cfg"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
        }
        environment["ANSIBLE_HOME"] = str(self.folder / "ansible-home")
        if options or then:
            tools = self.folder / "tools"
            tools.mkdir(exist_ok=True)
            (tools / "rsync").write_text(RSYNC.format(path=shlex.quote(os.environ["PATH"]), options=options, then=then))
            (tools / "rsync").chmod(0o755)
            environment["PATH"] = f"{tools}:{os.environ['PATH']}"
        return environment

    def collect(self, *, options: str = "", then: str = "", **variables: Any) -> subprocess.CompletedProcess[str]:
        """Collects, and waits for the end."""
        environment = self.environment(options=options, then=then)
        argv = self.command(**variables)
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[dict[str, Any]]:
    """An sshd on loopback with keys of its own; gives the connection's variables."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    assert sshd is not None
    for name in ("host_key", "user_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    port = free_port()
    (folder / "authorized").write_text((folder / "user_key.pub").read_text())
    kind, key, *_ = (folder / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    settings = {
        "AuthorizedKeysFile": folder / "authorized",
        "HostKey": folder / "host_key",
        "ListenAddress": f"127.0.0.1:{port}",
        "PasswordAuthentication": "no",
        "PidFile": "none",
        "PermitRootLogin": "prohibit-password",
        "StrictModes": "no",
        "UsePAM": "no",
    }
    (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 10
            while True:
                with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert time.monotonic() < deadline and server.poll() is None, "sshd does not start"
                time.sleep(0.05)
            yield {
                "ansible_host": "127.0.0.1",
                "ansible_port": port,
                "ansible_user": getpass.getuser(),
                "ansible_ssh_private_key_file": str(folder / "user_key"),
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={folder / 'known_hosts'}",
                "ansible_python_interpreter": sys.executable,
            }
        finally:
            server.terminate()
