"""The limiter of downloads whose limiter is known: `make soak` judges more than 200 that were not used for tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.captures.limiter import Limiter
from analysis.measures.dataset import Record
from analysis.measures.limiters import limiter_of
from core.domain import Outcome
from tests.cells import cells
from tests.lab._limiter_labels import CLIENTS, JUDGING, LABELS, Label, LabPath, download, topology_text
from tests.lab.noise import host_noise, measured
from vantage.lab.lab import open_lab

pytestmark = [pytest.mark.lab, pytest.mark.measures]

RIGHT = 0.95
UNKNOWN = 0.10
QUICK = JUDGING[:1]


@cells("paths", every=[QUICK, JUDGING], quick=[QUICK], ids=lambda paths: f"{len(paths)}-paths")
@pytest.mark.usefixtures("root")
@pytest.mark.soak
def test_limiters_are_right(lab_host: Path, tmp_path_factory: pytest.TempPathFactory, paths: Sequence[LabPath]) -> None:
    """By each client, three times on each path; quick: each label once, by one client."""
    is_quick = paths is QUICK
    cells_of = [(LABELS, CLIENTS, 3)]
    if is_quick:
        cells_of = [([label for label in LABELS if label.quick == client], (client,), 1) for client in CLIENTS]
    excuses: list[str | None] = []

    def judged() -> list[tuple[Label, Record]]:
        found: list[tuple[Label, Record]] = []
        folder = tmp_path_factory.mktemp("limiter")
        with host_noise() as noise:
            for number, path in enumerate(paths):
                file = folder / f"{number}.toml"
                file.write_text(topology_text(f"limiter{number}", path, seed=23 + number))
                with open_lab(file) as lab:
                    for labels, clients, times in cells_of:
                        part = folder / f"{number}-{clients[0]}"
                        found += download(lab, labels, part, iterations=times, clients=clients)
        excuses.append(noise[0].excuse)
        return found

    found = measured(judged, wrong, excuse=lambda _: excuses[-1])
    if not is_quick:
        assert len([label for label, record in found if counts(label, record)]) >= 200


def counts(label: Label, record: Record) -> bool:
    """Whether the download has the limiter that its label says."""
    return record.download.outcome == Outcome.OK and label.took(record.download)


def wrong(found: Sequence[tuple[Label, Record]]) -> list[str]:
    """What is wrong; prints each error and the confusion matrix."""
    judged = [(label, record) for label, record in found if counts(label, record)]
    confusion = Counter((label.name, limiter_of(record)) for label, record in judged)
    for label, record in judged:
        if limiter_of(record) is not label.limiter:
            told = [record.kpis.get(name) for name in ("limiter", "limiter_shares", "limiter_evidence")]
            print(f"{label.name} {record.download.configuration} {record.download.last_byte_s:.2f} s:", *told)
    print("label".ljust(14), *(name.value.rjust(14) for name in Limiter))
    for label in LABELS:
        print(label.name.ljust(14), *(str(confusion[label.name, name] or "").rjust(14) for name in Limiter))
    right = sum(limiter_of(record) is label.limiter for label, record in judged) / max(len(judged), 1)
    unknown = sum(limiter_of(record) is Limiter.UNKNOWN for _, record in judged) / max(len(judged), 1)
    print(f"{len(judged)} of {len(found)} downloads, {right:.1%} right, {unknown:.1%} unknown")
    problems = [] if right >= RIGHT else [f"only {right:.1%} are right"]
    problems += [] if unknown <= UNKNOWN else [f"{unknown:.1%} are unknown"]
    return problems + ([] if len(judged) >= 0.9 * len(found) else ["many labels were not applied"])
