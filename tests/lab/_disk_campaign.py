"""campaign.toml namespace ca out domain...: a campaign with its inspection; prints what it waits for, and `done`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from analysis.evidence import inspect_campaign
from analysis.evidence.sources import inspect_capture
from core.files.config import read_toml
from core.terminal import show_progress
from downloader.campaign.campaign import from_document
from downloader.execution import attempt
from downloader.factors import ALL as FACTORS
from tests.campaigns import run_in
from tests.lab._loopback import LoopbackPlace, targets_of


class Pauses:
    """Progress that prints when the campaign begins to pause for its disk, and when it goes on."""

    def __init__(self) -> None:
        self._paused = False

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        paused = note.startswith("paused for disk")
        if paused != self._paused:
            print(note if paused else "goes on", flush=True)
        self._paused = paused


def main() -> None:
    attempt.reused_port = lambda downloads: None  # Linux may draw a port twice: a void run is no matter of the disk
    campaign, namespace, ca, folder, *domains = sys.argv[1:]
    path, out = Path(campaign), Path(folder)
    place = LoopbackPlace("A", namespace, Path(ca))
    document = from_document(read_toml(path), path)
    inspect = partial(inspect_capture, factors=FACTORS)
    run_in(document, targets_of(4430, domains), {"A": place}, out, progress=Pauses(), inspect=inspect)
    with show_progress() as progress:
        inspect_campaign(out, factors=FACTORS, progress=progress)
    print("done", flush=True)


if __name__ == "__main__":
    main()
