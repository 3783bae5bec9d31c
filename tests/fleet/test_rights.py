"""User upshift does not become root: with a unit's rights, every way to root or to other users' files is refused
(tests/fleet/attacks.py). The unit alone, on a bare host: on Debian 12 in tests/fleet/test_cloud.py, where a host is up
already. In `make soak`: on the other systems, and on provisioned hosts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from tests.fleet.cloud import Cloud
from tests.fleet.fleet import NAME, REPOSITORY, Fleet
from tests.fleet.host import Host
from vantage.host import syscall_filter

pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(1200)]

ROLE = REPOSITORY / "ansible/roles/vantage"
UNIT = f"upshift-campaign@{NAME}.service"
DROP_IN = f"/run/systemd/system/{UNIT}.d"
SYSTEMS = [{"MUC": suite} for suite in ("trixie", "jammy", "noble")]

BARE = """
useradd --system --home /var/lib/upshift --no-create-home --shell /usr/sbin/nologin upshift
mkdir -p /etc/upshift/campaigns /var/lib/upshift/week /opt/upshift/current/bin
install -d -o upshift -g upshift /var/lib/upshift/.state /var/lib/upshift/week/results
touch /etc/upshift/vantage.env /etc/upshift/provisioned.json /var/lib/upshift/week/campaign.toml
install -m 755 /bin/true /opt/upshift/current/bin/upshift
minor=$(awk '$2 == "cpu_dma_latency" {print $1}' /proc/misc)
if [ -n "$minor" ]; then mknod -m 660 /dev/cpu_dma_latency c 10 "$minor"; chgrp upshift /dev/cpu_dma_latency; fi
"""
"""What the role leaves, without the release."""

NEEDS = {
    "write results",
    "change a setting of the network",
    "make a network namespace",
    "capture",
    "change a link",
    "keep CPUs awake",
    "see one's own processes",
}
"""What the walls must leave: those of `attacks.NEEDS`."""

OPEN = (
    "list homes",
    "trace root's process",
    "root of process 1",
    "mount over etc",
    "processes of others",
    "device event",
)
"""Some that succeed with the rights of the first release, and without walls."""


def unit() -> str:
    """The unit as the role writes it."""
    known = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    known["vantage_sandbox"] = [jinja2.Template(line).render(known) for line in known["vantage_sandbox"]]
    made = jinja2.Environment(trim_blocks=True, autoescape=False)
    return made.from_string((ROLE / "templates/upshift-campaign@.service.j2").read_text()).render(known)


def started(host: Host, name: str, command: str) -> str:
    """The process of a transient unit."""
    host.sh(f"systemctl is-active --quiet {name} || systemd-run --quiet --unit={name} {command}")
    return host.sh(f"systemctl show --property MainPID --value {name}").strip()


def prepared(host: Host) -> str:
    """The command line of the attacks on this host."""
    host.root.joinpath("opt/attacks.py").write_text(Path(__file__).with_name("attacks.py").read_text())
    known = yaml.safe_load((REPOSITORY / "ansible/roles/campaign/vars/main.yml").read_text())
    outside = started(host, "outside", f"{known['campaign_as']} sleep 1200")
    return f"/usr/bin/python3 /opt/attacks.py {outside} {started(host, 'roots', 'sleep 1200')}"


def attacked(host: Host, wall: str) -> dict[str, str]:
    """Way -> what it got, with the unit's rights."""
    lines = ["[Service]", "Type=oneshot", "Restart=no", "ExecStart=", "ExecStop=", "ExecStopPost="]
    lines += [f"ExecStart={wall} {prepared(host)}", "StandardOutput=file:/run/attacks.json", ""]
    host.sh(f"rm -f /run/attacks.json; mkdir -p {DROP_IN}")
    host.root.joinpath("opt/attacks.conf").write_text("\n".join(lines))
    host.sh(f"cp /opt/attacks.conf {DROP_IN}/attacks.conf; systemctl daemon-reload; systemctl stop {UNIT}")
    done = host.ssh(f"sudo systemctl start {UNIT}", timeout_s=180)
    assert done.returncode == 0, host.sh(f"journalctl --unit {UNIT} --no-pager --lines 20; cat /run/attacks.json")
    results: dict[str, str] = json.loads(host.sh("cat /run/attacks.json"))
    host.sh(f"rm -r {DROP_IN} /run/attacks.json; systemctl daemon-reload; systemctl stop outside roots")
    return results


def got(results: dict[str, str]) -> dict[str, str]:
    """Those that were not refused."""
    return {way: result for way, result in results.items() if result.startswith("GOT")}


def check_no_way_to_root(host: Host) -> None:
    """On a bare host, which gets what the role leaves; some ways are open without the walls."""
    host.root.joinpath("opt/syscall_filter.py").write_text(Path(syscall_filter.__file__).read_text())
    host.root.joinpath("etc/systemd/system/upshift-campaign@.service").write_text(unit())
    host.sh(BARE)
    results = attacked(host, "/usr/bin/python3 /opt/syscall_filter.py")
    assert set(got(results)) == NEEDS and len(results) > 50, results

    rights = "CAP_NET_ADMIN CAP_SYS_ADMIN CAP_NET_RAW CAP_SYS_PTRACE CAP_KILL"
    command = (
        f"systemd-run --quiet --pipe --wait -p User=upshift -p PrivateMounts=yes -p 'AmbientCapabilities={rights}'"
    )
    without: dict[str, Any] = json.loads(host.sh(f"{command} {prepared(host)}", timeout_s=180))
    assert set(OPEN) <= set(got(without)), without


@pytest.mark.parametrize("cloud", SYSTEMS, ids=lambda hosts: str(*hosts.values()), indirect=True)
def test_a_unit_has_no_way_to_root(cloud: Cloud) -> None:
    check_no_way_to_root(*cloud.hosts.values())


def test_a_provisioned_host_gives_its_user_nothing_more(cloud: Cloud, built: Path, tmp_path: Path) -> None:
    fleet = Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], iterations=1000, slot_s=0)
    fleet.do("provision")
    calibrated = fleet.try_("doctor", "--calibrate")
    assert "cannot be measured" not in calibrated.stdout, calibrated
    fleet.do("run", "--force")
    fleet.wait(lambda: min(fleet.recorded().values()) > 0, seconds=300, what="no downloads")
    known = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    for host in fleet.hosts.values():
        attacks = attacked(host, known["vantage_syscall_filter"])
        assert set(got(attacks)) == NEEDS and len(attacks) > 50, attacks
        own = host.sh("find /etc/upshift /opt/upshift /var/lib/upshift -maxdepth 2 -user upshift").split()
        ceilings = "/var/lib/upshift/.state/upshift"  # of a doctor that has calibrated
        assert sorted({*own, ceilings}) == [
            "/var/lib/upshift/.state",
            "/var/lib/upshift/.state/own",
            ceilings,
            f"/var/lib/upshift/{NAME}/results",
        ], own
        # Links where root would read or write: what is behind them is not shown, and not changed.
        results = f"/var/lib/upshift/{NAME}/results"
        host.sh(f"rm -f {results}/status.json; ln -s /etc/shadow {results}/status.json; ls -l /etc/shadow")
    done = fleet.try_("run", "--force")
    assert "root:" not in done.stdout + done.stderr, done
    done = fleet.try_("collect")
    assert "root:" not in done.stdout + done.stderr, done
    assert not [path for path in fleet.collected.rglob("*") if path.is_file() and b"root:*" in path.read_bytes()]
    fleet.try_("stop")
    fleet.do("teardown")
