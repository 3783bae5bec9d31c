"""An AS's daily budget over three vantage points that are killed again and again; the interface counts the bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from core.files.journal import JournalReader
from core.system import process
from downloader.control.stop_pause import DAY_S
from downloader.limits.budget import Spent
from tests.cells import Repeats
from tests.lab.test_download_run import World, all_clients, open_world

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("root")]

__all__ = ["all_clients"]

CAMPAIGN = """
name = "budget"
lab = "none"
targets = "lab"
budget = 10
iterations = 3
budgets = { as = "%d MB" }
[[configurations]]
name = "BL"
client = "requests"
[[configurations]]
name = "quiche"
client = "quiche"
"""


class Campaign:
    """A campaign of three vantage points, each on a loopback that counts every byte in both directions."""

    def __init__(self, worlds: Sequence[World], folder: Path, budget_mb: int) -> None:
        self.worlds, self.folder, self.out = worlds, folder, folder / "out"
        (folder / "c.toml").write_text(CAMPAIGN % budget_mb)
        self.noon_s = 1_800_000_000 - 1_800_000_000 % DAY_S + DAY_S / 2 - time.time()
        """What its clock is ahead of ours on the first day, so that no test meets midnight."""

    def start(self, day: int) -> subprocess.Popen[str]:
        ahead = self.noon_s + day * DAY_S
        words = [self.folder / "c.toml", self.out, ahead, *(f"{world.namespace},{world.ca}" for world in self.worlds)]
        command = [sys.executable, "-m", "tests.lab._budget_campaign", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def rest(self, day: int) -> None:
        """Until nothing fits any more, or all is recorded."""
        child = self.start(day)
        try:
            assert child.stdout is not None and child.stdout.readline() in ("resting\n", "done\n")
        finally:
            child.kill()
            child.communicate()

    def sent(self) -> int:
        """Bytes on the loopbacks so far: requests, answers, DNS, link headers."""
        found = 0
        for world in self.worlds:
            said = process.run(["nsenter", f"--net=/run/netns/{world.namespace}", "cat", "/proc/net/dev"]).stdout
            (line,) = [line for line in said.splitlines() if line.strip().startswith("lo:")]
            found += int(line.split(":")[1].split()[0])
        return found

    def journals(self) -> list[JournalReader]:
        return [JournalReader(path) for path in sorted(self.out.glob("vantage/*/journal.sqlite"))]

    def entered(self, day: int) -> int:
        """Bytes in the accounts of a day."""
        found = 0
        for journal in self.journals():
            with closing(journal):
                found += Spent(journal.db).totals(time.time() + self.noon_s + day * DAY_S).networks.get("AS64500", 0)
        return found

    def recorded(self) -> int:
        found = 0
        for journal in self.journals():
            with closing(journal):
                found += journal.counts().recorded
        return found


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[list[World]]:
    with ExitStack() as stack:
        found = []
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            found.append(stack.enter_context(open_world(tmp_path / str(number), f"upbu{os.getpid()}-{number}")))
        yield found


def test_no_as_gets_more_than_its_budget(worlds: list[World], tmp_path: Path, repeats: Repeats) -> None:
    budget_mb = repeats(quick=6, soak=20)
    generator, campaign = random.Random(20), Campaign(worlds, tmp_path, budget_mb)
    before, most = campaign.sent(), budget_mb * 1_000_000
    for kill in range(repeats(quick=1, soak=8)):
        child: Any = campaign.start(0)
        begun = time.time()
        until = time.monotonic() + 60
        while time.monotonic() < until and not _captures_since(campaign.out, begun):
            time.sleep(0.02)
        time.sleep(generator.uniform(0.0, 1.0))
        child.kill()
        child.communicate()
        time.sleep(0.3)
        sent, entered = campaign.sent() - before, campaign.entered(0)
        assert sent > 50_000, "no kill hit a download"
        print(f"kill {kill + 1}: {sent / 1e6:.2f} MB sent, {entered / 1e6:.2f} MB entered")
        assert sent <= most
    campaign.rest(0)
    sent, entered, recorded = campaign.sent() - before, campaign.entered(0), campaign.recorded()
    print(f"first day: {sent / 1e6:.2f} MB sent, {entered / 1e6:.2f} MB entered, {recorded} downloads recorded")
    assert most / 3 < sent <= most, "the budget is used, and not exceeded"
    # The interface counts look-ups and link headers, too: a hundredth, and no download is that small.
    assert 0.98 * sent <= entered <= most, "a kill gives nothing back"
    assert recorded < 3 * 4 * 3 * 4
    campaign.rest(0)
    assert campaign.sent() - before <= sent + 100_000 and campaign.recorded() == recorded, "nothing fits on this day"
    before = campaign.sent()
    campaign.rest(1)
    sent = campaign.sent() - before
    print(f"next day: {sent / 1e6:.2f} MB sent, {campaign.entered(1) / 1e6:.2f} MB entered")
    assert campaign.recorded() > recorded and sent <= most and 0.98 * sent <= campaign.entered(1) <= most


def _captures_since(out: Path, begun: float) -> bool:
    try:
        parts = [part.stat() for part in out.glob("vantage/*/captures/.*.part.pcap")]
        return any(part.st_mtime >= begun and part.st_size > 3000 for part in parts)
    except FileNotFoundError:
        return False
