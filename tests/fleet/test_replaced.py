"""A host is lost in mid-campaign, and another takes its place under its name.

Hosts have the packet filter of examples/cloud, and their keys are in the inventory as its main.tf writes them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from core.system import process
from tests.fleet.cloud import Cloud
from tests.fleet.fleet import NAME, Fleet
from tests.fleet.host import Host, keygen
from tests.lab.test_cloud_example import rules

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "cloud"
UPSHIFT = "/opt/upshift/current/bin/upshift"
pytestmark = [pytest.mark.fleet, pytest.mark.soak, pytest.mark.timeout(1200)]


def ssh_options(cloud: Cloud) -> str:
    """The cloud's own, with host keys as examples/cloud/main.tf has them."""
    written = re.search(r'ansible_ssh_common_args = "(.*)"', (EXAMPLES / "main.tf").read_text())
    assert written
    options = cloud.login.options()
    pairs = [f"{flag} {value}" for flag, value in zip(options[::2], options[1::2], strict=True)]
    own = [pair for pair in pairs if "KnownHostsFile" not in pair]
    return " ".join([written[1].replace('\\"', '"'), *own, f"-o ControlPath={cloud.folder}/%C"])


def key(path: Path) -> str:
    """Type and public key of a key pair, as `host_key` has them."""
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@pytest.mark.parametrize("cloud", [{"MUC": "bookworm"}], ids=["debian"], indirect=True)
def test_the_new_host_goes_on_from_what_was_collected(cloud: Cloud, built: Path, tmp_path: Path) -> None:
    [host] = cloud.hosts.values()
    host.node("nft", "-f", "-", stdin=rules())
    more = {"ansible_ssh_common_args": ssh_options(cloud), "host_key": key(cloud.folder / "hosts" / f"{host.name}_key")}
    fleet = Fleet(cloud, tmp_path, built, targets=cloud.lab.targets()[:3], iterations=500, slot_s=0, more=more)

    keygen(tmp_path / "stranger", "another host's")
    inventory = fleet.inventory.read_text()
    fleet.inventory.write_text(inventory.replace(more["host_key"], key(tmp_path / "stranger")))
    refused = fleet.try_("status")
    assert refused.returncode == 1 and "unreachable" in refused.stdout and "host key" in refused.stdout.lower(), refused
    fleet.inventory.write_text(inventory)

    fleet.do("provision")
    fleet.do("run", "--force")
    fleet.wait(lambda: fleet.recorded()[host.name] >= 6, seconds=300, what="no downloads")
    fleet.do("stop")
    fleet.do("collect")
    captures = fleet.collected / "vantage" / host.name / "captures"
    kept, files = measured(fleet, host), {path.name for path in captures.iterdir()}
    assert 0 < len(kept) < fleet.planned and files

    host.sh(f"rm -rf /var/lib/upshift/{NAME}")  # as on another machine, which is provisioned and has no results
    fleet.do("run", "--force")
    fleet.wait(lambda: fleet.recorded()[host.name] > len(kept), seconds=300, what="it does not go on")
    fleet.do("stop")
    host.sh(f"runuser -u upshift -- {UPSHIFT} inspect /var/lib/upshift/{NAME}/results")  # no capture is missing there
    fleet.do("collect")
    assert measured(fleet, host).items() > kept.items()
    assert files < {path.name for path in captures.iterdir()}
    done = process.run([sys.executable, "-m", "upshift", "inspect", str(fleet.collected)], timeout_s=300)
    assert done.returncode == 0, done.stderr


def measured(fleet: Fleet, host: Host) -> dict[tuple[int, str, str], float]:
    """Key of a download in what was collected -> its start."""
    return {(d.iteration, d.domain, d.configuration): d.started_at for d in fleet.downloads(host.name)}
