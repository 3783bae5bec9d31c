"""campaign.toml out ahead_s namespace,ca namespace,ca namespace,ca: a campaign of three vantage points, to be killed.

All targets are of one AS. `ahead_s` is what its clock is ahead of the host's. It prints `resting` when all vantage
points wait for their budgets.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from core.files.config import read_toml
from downloader.campaign.campaign import from_document
from tests.campaigns import run_in
from tests.lab._loopback import LoopbackPlace, targets_of

VANTAGE_POINTS = ("A", "B", "C")


class Resting:
    """Progress that tells when nobody downloads any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[str, str] = {}

    def update(self, task: str, *, done: int, total: int, failed: int = 0, note: str = "") -> None:
        with self._lock:
            before = self._all()
            self._notes[task] = note
            if self._all() and not before:
                print("resting", flush=True)

    def _all(self) -> bool:
        return all(self._notes.get(name, "").startswith("waiting for budget") for name in VANTAGE_POINTS)


def main() -> None:
    campaign, out, ahead_s, *where = sys.argv[1:]
    path = Path(campaign)
    targets = [replace(target, asn=64500) for target in targets_of(4430, [f"{name}.example" for name in "abcd"])]
    places = {}
    for name, words in zip(VANTAGE_POINTS, where, strict=True):
        namespace, _, ca = words.partition(",")
        places[name] = LoopbackPlace(name, namespace, Path(ca))

    def clock() -> float:
        return time.time() + float(ahead_s)

    document = from_document(read_toml(path), path)
    run_in(document, targets, places, Path(out), progress=Resting(), clock=clock)
    print("done", flush=True)


if __name__ == "__main__":
    main()
