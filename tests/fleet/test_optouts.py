"""Opt-outs that could get lost: misspelt, two at once, by a host without power, by a second campaign on one host.

One Debian whose campaigns are stopped after each test. Packets to who opted out are looked for outside of the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from core.domain import Target
from core.files.journal import JournalReader
from core.outreach import opt_out
from core.system import process
from tests.cells import Repeats
from tests.fleet.cloud import Cloud
from tests.fleet.fleet import Fleet, verdicts
from tests.fleet.host import Host

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.parametrize("cloud", [{"MUC": "bookworm"}], ids=["bookworm"], indirect=True),
]

OBEYED_S = 60.0
"""Time after which nothing may be sent to an owner who opted out."""

LIST = "/var/lib/upshift/opt-out.txt"


@pytest.fixture
def make(cloud: Cloud, built: Path, tmp_path: Path) -> Iterator[Callable[[str], Fleet]]:
    """Makes a fleet of the host with a long campaign of this name. All of them are stopped afterwards."""
    made: list[Fleet] = []

    def of(name: str) -> Fleet:
        folder = tmp_path / name
        folder.mkdir()
        targets = cloud.lab.targets()[:3]
        made.append(Fleet(cloud, folder, built, targets=targets, name=name, iterations=500, slot_s=0))
        if len(made) == 1:
            made[0].do("provision")
        return made[-1]

    yield of
    for fleet in made:
        fleet.try_("stop")
    for host in cloud.hosts.values():
        host.sh("rm -rf /var/lib/upshift/week /var/lib/upshift/month /var/lib/upshift/opt-out.*")


class Witness:
    """Packets to targets' servers, as they pass the host's uplink; the host cannot know."""

    def __init__(self, cloud: Cloud, targets: Sequence[Target], folder: Path) -> None:
        self._file = folder / f"witness-{len(targets)}.pcap"
        (host,) = cloud.hosts.values()
        servers = " or ".join(f"dst host {target.server_ip}" for target in targets)
        argv = ["tcpdump", "-U", "-n", "-i", "tun0", "-w", str(self._file), servers]
        log = self._file.with_suffix(".log")
        self._tcpdump = process.start(argv, prefix=["nsenter", f"--net={host.netns}"], stderr=log)
        deadline = time.monotonic() + 20
        while "listening on" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def times(self) -> list[float]:
        """Unix times of the packets that have passed, by the kernel's clock."""
        read = process.run(["tcpdump", "-tt", "-nn", "-r", str(self._file)])
        return [float(line.split()[0]) for line in read.stdout.splitlines()]

    def close(self) -> None:
        self._tcpdump.stop()


def test_what_is_misspelt_or_missing_is_refused(make: Callable[[str], Fleet]) -> None:
    fleet = make("week")
    text = fleet.inventory.read_text()
    listed = fleet.folder / "opt-out.txt"
    wrong = {
        text.replace("campaign_opt_out", "campaign_optout"): "campaign_optout, set for MUC, is not known; did you mean",
        text.replace('"campaign_opt_out"', '"other"'): "campaign_opt_out is not set",
        text.replace("opt-out.txt", "optout.txt"): "file of opt-outs not found",
    }
    listed.write_text("www.edge.example\nnot a domain!\n")
    wrong[text] = "line 2: 'not a domain!' is neither a domain nor a prefix"
    for inventory, sentence in wrong.items():
        fleet.inventory.write_text(inventory)
        done = fleet.try_("run", "--force")
        assert done.returncode == 2 and sentence in done.stderr, done
    assert fleet.cloud.hosts["MUC"].ssh("ls /var/lib/upshift").stdout.split() == []


def test_two_commands_at_once_lose_nothing(make: Callable[[str], Fleet], repeats: Repeats) -> None:
    fleet = make("week")
    wanted: set[str] = set()
    for number in range(repeats(quick=3, soak=100)):
        names = {f"a{number}.example", f"b{number}.example"}
        wanted |= names
        with contextlib.ExitStack() as stack:
            both = [stack.enter_context(fleet.start("optout", name)) for name in sorted(names)]
            outputs = [child.communicate(timeout=300) for child in both]
        assert [child.returncode for child in both] == [0, 0], outputs
        on_host = fleet.cloud.hosts["MUC"].sh(f"cat {LIST}").split()
        assert wanted == set(on_host) == set(opt_out.listed(fleet.folder / "opt-out.txt")), number
        assert len(on_host) == len(wanted)


def test_a_host_without_power_sends_nothing_after_it_is_back(make: Callable[[str], Fleet], tmp_path: Path) -> None:
    fleet = make("week")
    (host,) = fleet.hosts.values()
    targets = fleet.cloud.lab.targets()[:3]
    leaving = targets[0]
    fleet.do("run", "--force")
    with contextlib.closing(Witness(fleet.cloud, [leaving], tmp_path)) as witness:
        fleet.wait(lambda: len(witness.times()) > 0, seconds=300, what="no packets")
    host.cut_power()
    done = fleet.try_("optout", leaving.domain, "--json")
    assert done.returncode == 1 and not verdicts(done)["MUC"]["ok"] and "MUC" in done.stderr, done
    before = time.time()
    with (
        contextlib.closing(Witness(fleet.cloud, [leaving], tmp_path)) as witness,
        contextlib.closing(Witness(fleet.cloud, targets, tmp_path)) as of_all,
    ):
        boot(fleet, host)
        named = fleet.try_("status")
        assert "MUC has not confirmed the newest opt-outs" in named.stderr and "waiting for opt-outs" in named.stdout
        assert of_all.times() == []
        recorded = fleet.recorded()["MUC"]
        with fleet.start("status", "--watch", "--json") as watch:
            try:
                fleet.wait(lambda: fleet.recorded()["MUC"] >= recorded + 12, seconds=300, what="others wait, too")
            finally:
                os.killpg(watch.pid, signal.SIGINT)
            _, errors = watch.communicate(timeout=60)
        assert errors.count("MUC has not confirmed") == 1, errors
        assert "has not confirmed" not in fleet.try_("status").stderr
        assert witness.times() == []
    assert leaving.domain in host.sh(f"cat {LIST}").split()

    # Without a control machine: the host has the list from elsewhere, here its own.
    host.cut_power()
    boot(fleet, host)
    recorded = fleet.recorded()["MUC"]
    host.sh(f"/opt/upshift/current/bin/upshift optout - < {LIST}")
    fleet.wait(lambda: fleet.recorded()["MUC"] >= recorded + 3, seconds=120, what="it does not go on")
    fleet.try_("stop")
    fleet.do("collect")
    later = {(d.domain, d.failure) for d in fleet.downloads("MUC") if d.started_at > before}
    assert (leaving.domain, "opted_out") in later and {domain for domain, cause in later if cause is None}


def boot(fleet: Fleet, host: Host) -> None:
    """Switches it on; its campaign waits then."""
    host.start()
    host.wait()
    fleet.wait(lambda: fleet.states()[host.name] == "waiting for opt-outs", seconds=120, what="it does not wait")


def test_two_campaigns_on_one_host_are_known_and_obey(make: Callable[[str], Fleet], tmp_path: Path) -> None:
    week, month = make("week"), make("month")
    (host,) = week.hosts.values()
    leaving = week.cloud.lab.targets()[0]
    week.do("run", "--force")
    refused = month.try_("run", "--json")
    assert refused.returncode == 1 and "the campaign week runs there" in verdicts(refused)["MUC"]["fault"], refused
    assert host.ssh("ls -d /var/lib/upshift/month").returncode != 0
    assert "--force: MUC runs although" in month.try_("run", "--force").stderr
    month.wait(lambda: min(f.recorded()["MUC"] for f in (week, month)) >= 9, seconds=300, what="no downloads")
    assert (week.status()["MUC"]["beside"], month.status()["MUC"]["beside"]) == (["month"], ["week"])
    by_hand = host.ssh(
        "cd /var/lib/upshift/month && sudo runuser -u upshift -- /opt/upshift/current/bin/upshift run campaign.toml"
        " --here MUC --host-file host.toml --out /tmp/third"
    )
    assert by_hand.returncode == 75 and "the campaign week runs on this host" in by_hand.stderr, by_hand

    with contextlib.closing(Witness(week.cloud, [leaving], tmp_path)) as witness:
        week.wait(lambda: len(witness.times()) > 0, seconds=300, what="no packets")
        week.do("optout", leaving.domain)
        opted_at = time.time()
        recorded = [fleet.recorded()["MUC"] for fleet in (week, month)]
        time.sleep(OBEYED_S + 20)
        assert all(f.recorded()["MUC"] > was for f, was in zip((week, month), recorded, strict=True)), "others, too"
        times = witness.times()
    assert times and max(times) <= opted_at + OBEYED_S, max(times, default=0.0) - opted_at
    for fleet, other in ((week, "month"), (month, "week")):
        fleet.do("stop")
        fleet.do("collect")
        with contextlib.closing(JournalReader(fleet.collected / "vantage/MUC/journal.sqlite")) as journal:
            assert json.loads(journal.meta("environment") or "")["campaigns_beside"] == [other]
