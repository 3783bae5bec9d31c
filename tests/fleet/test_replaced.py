"""A host is lost in mid-campaign, and another takes its place under its name.

Hosts have the packet filter of examples/cloud, and their keys are in the inventory as its main.tf writes them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from core.system import process
from tests.fleet.cloud import Cloud
from tests.fleet.fleet import Fleet
from tests.lab.test_cloud_example import rules

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cloud"
pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(1200)]


def ssh_options(cloud: Cloud) -> str:
    """The cloud's own, with host keys as examples/cloud/main.tf has them."""
    written = re.search(r'ansible_ssh_common_args = "(.*)"', (EXAMPLES / "main.tf").read_text())
    assert written
    options = cloud.login.options()
    pairs = [f"{flag} {value}" for flag, value in zip(options[::2], options[1::2], strict=True)]
    own = [pair for pair in pairs if "KnownHostsFile" not in pair]
    return " ".join([written[1].replace('\\"', '"'), *own, f"-o ControlPath={cloud.folder}/%C"])


def keys(cloud: Cloud) -> str:
    """The variable `host_key`, for all hosts."""
    folder = cloud.folder / "hosts"
    found = {name: " ".join((folder / f"{name}_key.pub").read_text().split()[:2]) for name in cloud.hosts}
    return f"{{{{ {found!r}[inventory_hostname] }}}}"


@pytest.mark.parametrize("cloud", [{"MUC": "bookworm", "SFO": "bookworm"}], ids=["debian"], indirect=True)
def test_the_new_host_goes_on_from_what_was_collected(cloud: Cloud, built: Path, tmp_path: Path) -> None:
    for host in cloud.hosts.values():
        host.node("nft", "-f", "-", stdin=rules())
    more = {"ansible_ssh_common_args": ssh_options(cloud), "host_key": keys(cloud)}
    fleet = Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], iterations=12, slot_s=0, more=more)
    lost, other = cloud.hosts.values()
    swapped = json.loads(fleet.inventory.read_text())
    swapped["vantage"]["hosts"] = {
        lost.name: {"ansible_host": other.address},
        other.name: {"ansible_host": lost.address},
    }
    strangers = fleet.inventory.with_name("strangers.yml")
    strangers.write_text(json.dumps(swapped))
    refused = process.run([*fleet.argv("status")[:-1], str(strangers)], timeout_s=120)
    assert refused.returncode == 1 and refused.stdout.count("unreachable") == 2, refused
    fleet.do("provision")
    fleet.do("run", "--force")
    fleet.wait(lambda: fleet.recorded()[lost.name] >= 6, seconds=300, what="no downloads")
    fleet.do("stop", "--limit", lost.name)
    fleet.do("collect")
    kept = {(d.iteration, d.domain, d.configuration): d.started_at for d in fleet.downloads(lost.name)}
    captures = {path.name for path in (fleet.collected / "vantage" / lost.name / "captures").iterdir()}
    assert 0 < len(kept) < fleet.planned // 2 and captures

    fleet.do("teardown", "--limit", lost.name)
    lost.sh("rm -rf /var/lib/upshift")  # another machine: it has nothing of the first
    fleet.do("provision", "--limit", lost.name)
    fleet.do("run", "--force")
    fleet.wait_done(seconds=600)
    unit = "systemctl show -P Result -P NRestarts 'upshift-campaign@week'"
    assert lost.sh(unit).split() == ["success", "0"], "no capture is missing on the new host"

    fleet.do("collect")
    found = fleet.downloads(lost.name)
    assert {(d.iteration, d.domain, d.configuration): d.started_at for d in found}.items() >= kept.items()
    assert len(found) == fleet.planned // 2
    assert captures < {path.name for path in (fleet.collected / "vantage" / lost.name / "captures").iterdir()}
    done = process.run([sys.executable, "-m", "upshift", "inspect", str(fleet.collected)], timeout_s=300)
    assert done.returncode == 0, done.stderr
