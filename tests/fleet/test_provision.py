"""Provisioning and teardown beside other people: a look without a change, a damaged bundle, two control machines, a
password for sudo, keys by an agent, packages that others need.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.system import process
from tests.fleet.cloud import Cloud
from tests.fleet.fleet import REPOSITORY, Fleet
from tests.fleet.host import Host, differences

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(2400)]

LOCK = "/run/upshift-provision"
PASSWORD = "correct horse"

FOREIGN = """
mkdir -p /root/foreign/DEBIAN
printf 'Package: foreign\\nVersion: 1\\nArchitecture: all\\nMaintainer: T <t@t.test>\\n' > /root/foreign/DEBIAN/control
echo 'Depends: tcpdump, rsync' >> /root/foreign/DEBIAN/control
echo 'Description: needs what provisioning installed' >> /root/foreign/DEBIAN/control
dpkg-deb --build /root/foreign /root/foreign.deb
dpkg -i /root/foreign.deb
apt-mark manual nftables
"""


@pytest.fixture(scope="module", params=[{"MUC": "bookworm"}, {"SGP": "trixie"}], ids=lambda hosts: str(*hosts.values()))
def cloud(request: pytest.FixtureRequest, cloud_machine: None) -> Iterator[Cloud]:
    from tests.fleet.cloud import open_cloud

    with open_cloud(request.param) as opened:
        opened.start()
        yield opened


@pytest.fixture
def fleet(cloud: Cloud, built: Path, tmp_path: Path) -> Fleet:
    return Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], iterations=1000, slot_s=0)


@pytest.fixture
def host(cloud: Cloud) -> Host:
    return next(iter(cloud.hosts.values()))


def test_a_look_at_a_fresh_host_changes_nothing(fleet: Fleet, host: Host) -> None:
    before = host.fingerprint()
    argv = ["ansible-playbook", "-i", str(fleet.inventory), "playbooks/provision.yml", "--check", "--diff"]
    done = process.run([*fleet.cloud.prefix, *argv], timeout_s=600, cwd=REPOSITORY / "ansible")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "apt install" in done.stdout and "upshift-campaign@.service" in done.stdout
    assert differences(before, host.fingerprint()) == {}
    assert host.ssh(f"test -e {LOCK}").returncode == 1


def test_a_damaged_bundle_is_told_before_anything_is_installed(fleet: Fleet, host: Host, built: Path) -> None:
    before = host.fingerprint()
    for whole in built.glob("*.tar"):
        short = fleet.folder / whole.name
        short.write_bytes(whole.read_bytes()[:20_000_000])
    text = fleet.inventory.read_text().replace(f'"{built}"', f'"{fleet.folder}"')
    fleet.inventory.write_text(text)
    done = fleet.try_("provision", "--json")
    [verdict] = json.loads(done.stdout.splitlines()[-1])["hosts"].values()
    assert done.returncode == 1 and "is damaged: its files have other hashes" in verdict["fault"], verdict
    assert differences(before, host.fingerprint()) == {}


def test_two_control_machines_do_not_provision_at_once(fleet: Fleet, host: Host) -> None:
    host.sh(f"echo 'alice@laptop (process 1, machine 00000000)' > {LOCK}")
    done = fleet.try_("provision", "--json")
    [verdict] = json.loads(done.stdout.splitlines()[-1])["hosts"].values()
    assert "is being provisioned or torn down by alice@laptop (process 1" in verdict["fault"], verdict
    assert host.sh(f"cat {LOCK}").startswith("alice@laptop"), "the other's lock stays"
    host.sh(f"touch -d '31 minutes ago' {LOCK}")

    with fleet.start("provision") as first:
        deadline = time.monotonic() + 300
        while f"(process {first.pid}," not in (held := host.ssh(f"cat {LOCK}").stdout):
            assert time.monotonic() < deadline and first.poll() is None, (held, first.poll())
            time.sleep(0.5)
        done = fleet.try_("teardown", "--json")
        [verdict] = json.loads(done.stdout.splitlines()[-1])["hosts"].values()
        assert f"(process {first.pid}," in verdict["fault"], verdict
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    fleet.do("provision")  # the process has ended
    assert host.ssh(f"test -e {LOCK}").returncode == 1
    assert next(iter(fleet.do("provision").values()))["changed"] == 0


def test_sudo_with_a_password_and_keys_by_an_agent(fleet: Fleet, host: Host, tmp_path: Path) -> None:
    rule = "/etc/sudoers.d/debian"
    agent = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    variables = dict(re.findall(r"(SSH_\w+)=([^;]+);", agent))
    own = {**os.environ, **variables}
    subprocess.run(["ssh-add", "-q", str(fleet.cloud.login.key)], env=own, check=True)
    words = re.sub(r"-i \S+ ", "", fleet.inventory.read_text()).replace("-o IdentitiesOnly=yes ", "")
    fleet.inventory.write_text(words)

    def do(command: str, *more: str, password: str = PASSWORD) -> subprocess.CompletedProcess[str]:
        argv = fleet.argv(command, *more, "-K", "--json")
        return subprocess.run(
            argv, input=f"{password}\n", env=own, capture_output=True, text=True, check=False, timeout=900
        )

    host.sh(f"echo 'debian:{PASSWORD}' | chpasswd")
    # The last that root does here without a password.
    host.sh(f"echo 'debian ALL=(ALL) ALL' > {rule}; rm -rf /run/sudo/ts")
    assert host.ssh("sudo -n true").returncode == 1
    try:
        without = subprocess.run(
            fleet.argv("provision", "--json"), env=own, capture_output=True, text=True, check=False
        )
        assert "-K" in without.stdout and without.returncode == 1, without
        wrong = do("provision", password="no")
        assert wrong.returncode == 1 and "password" in wrong.stdout, wrong
        for command in ("provision", "doctor", "run", "status", "pause", "resume", "optout", "stop", "collect"):
            more = {"run": ["--force"], "optout": ["www.example.org"]}.get(command, [])
            done = do(command, *more)
            assert done.returncode == (1 if command == "doctor" else 0), (command, done.stdout[-2000:], done.stderr)
            assert PASSWORD not in done.stdout + done.stderr
        assert list(fleet.collected.rglob("journal.sqlite"))
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    finally:
        (host.root / rule[1:]).write_text("debian ALL=(ALL) NOPASSWD: ALL\n")
        os.kill(int(variables["SSH_AGENT_PID"]), signal.SIGTERM)


def test_teardown_leaves_packages_that_others_need_and_says_so(fleet: Fleet, host: Host) -> None:
    fleet.do("teardown")
    host.sh("rm -rf /var/lib/upshift")
    before = host.fingerprint()
    fleet.do("provision")
    host.sh(FOREIGN)
    [verdict] = fleet.do("teardown").values()
    for name in ("tcpdump", "rsync", "nftables", "libpcap"):
        assert name in verdict["note"], verdict
    assert "nginx" not in verdict["note"] and "foreign" not in verdict["note"], verdict
    host.sh('tcpdump --version; rsync --version; dpkg --audit; test -z "$(dpkg --audit)"')
    host.sh("dpkg -P foreign; apt-mark auto nftables; rm -r /root/foreign*; apt-get -y autoremove --purge")
    assert differences(before, host.fingerprint()) == {}
