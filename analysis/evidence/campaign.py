"""Journals and captures of a campaign folder -> its tables; can be repeated, with few rows in memory at a time.

The folders of hosts that shared a campaign become one folder first, with links to their vantage points.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import zstandard

from analysis.captures.scan import in_order
from analysis.evidence.rows import Inspected, downloads_schema
from analysis.evidence.sources import DOWNLOADS, CampaignCaptures, Earlier, Evidence, OnDisk, Run, evidence_of
from core.domain import Download, Proven, Superseded
from core.errors import UsageError
from core.files import disk, schemas, store
from core.files.campaign_json import BESIDE, FILE_NAME
from core.files.config import read_json
from core.files.disk import folder_lock
from core.files.journal import JournalReader, environment, open_journals
from core.files.schemas import build
from core.terminal import Progress
from core.untrusted import scrub

if TYPE_CHECKING:
    from analysis.evidence.cluster import Cluster

SUPERSEDED, ENVIRONMENT = "superseded.parquet", "environment.json"

_COPIED = (FILE_NAME, *BESIDE)
"""What tables and reports read besides journals and captures; the same in all folders."""

_NO_ROWS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, zstandard.ZstdError)
"""What comes of records with other fields and values than ours."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEvidence:
    """Missing evidence of one measurement run (or vantage point)."""

    path: str
    """Relative to the campaign's folder."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of an inspection."""

    folder: str
    downloads: int
    proven: int
    refuted: int
    """Downloads whose packets did not have the requested options."""
    unproven: int
    void: int
    """Downloads of measurement runs that stayed void; they are included in the three numbers above."""
    kpis: int
    """Downloads with KPIs."""
    kept: int
    """Downloads that keep the rows of an earlier inspection because they cannot be made again."""
    recorded: int
    """Downloads whose capture is missing, and whose rows are what was found in it right after the run."""
    newer_kpis: tuple[str, ...]
    """KPIs that are empty for some downloads, as their captures were dropped by an Upshift that did not know them."""
    lost: tuple[LostEvidence, ...]

    def sentence(self) -> str:
        """The summary in one line."""
        stay = f"; {self.kept} of them stay as an earlier inspection made them" if self.kept else ""
        newer = ", ".join(self.newer_kpis)
        empty = f"; empty where captures were dropped before it was known: {newer}" if newer else ""
        return (
            f"{self.folder}: {self.downloads} downloads: treatment of {self.proven} proven, {self.refuted} not as "
            f"asked, {self.unproven} unproven; KPIs of {self.kpis}{stay}{empty}"
        )


def inspect_campaign(
    folder: Path,
    *,
    factors: Mapping[str, Proven],
    progress: Progress,
    jobs: int | None = None,
    again: bool = False,
    captures: CampaignCaptures | None = None,
    cluster: Cluster | None = None,
) -> Inspection:
    """Makes `downloads`, `superseded` and `environment.json` of a folder from its journals and captures.

    If a capture or a journal is missing or damaged, rows that need it are kept from an earlier inspection; so are those
    that it made from a capture that was dropped since, where the journal has only what other code found. All files are
    complete before the first is replaced, and `downloads.parquet` is replaced last: a kill before that leaves the
    earlier one, or none.

    Args:
        factors: name -> factor, of all that configurations may set.
        jobs: captures read at once; None for one per core.
        again: read all captures that were not dropped, also where the journal has what this code found in them.
        captures: where they lie; None for the folder.
        cluster: reads them instead of threads.

    Raises:
        PlaceError: that place cannot be read, or the cluster cannot go on.
        UsageError: the folder holds no campaign, or parts of several, is in use, or its tables are not what an
            inspection wrote.
    """
    with open_journals(folder) as journals, folder_lock(folder, remedy="inspect a copy"):
        if len({journal.meta("plan_hash") for journal in journals.values()}) > 1:
            remedy = "keep one campaign per folder"
            raise UsageError("its vantage points have different plans", where=str(folder), remedy=remedy)
        lie = captures or OnDisk(folder.absolute())
        lie.require()
        work = functools.partial(evidence_of, captures=lie, factors=factors, again=again)
        read = functools.partial(in_order, jobs=jobs) if cluster is None else cluster.in_order
        return _Tables(folder, journals, functools.partial(read, work), progress).write()


class _Tables:
    def __init__(
        self,
        folder: Path,
        journals: Mapping[str, JournalReader],
        read: Callable[[Iterable[Run]], Iterator[Evidence]],
        progress: Progress,
    ) -> None:
        self._folder, self._journals, self._read, self._progress = folder, journals, read, progress
        self._earlier = Earlier(folder)
        self._total = sum(journal.recorded_runs() for journal in journals.values())
        self._lost: list[LostEvidence] = []
        self._newer: set[str] = set()
        self._treatments: dict[bool | None, int] = {True: 0, False: 0, None: 0}
        self._runs = self._void = self._kpis = self._kept = self._recorded = 0
        self._at = ""
        """The vantage point whose journal is being read."""

    def write(self) -> Inspection:
        """Writes all tables. Raises UsageError that names a journal whose rows cannot be used: a host may send any."""
        try:
            return self._write()
        except _NO_ROWS as error:
            if not self._at:
                raise
            raise UsageError(
                f"this journal's rows make no sense ({type(error).__name__}: {scrub(str(error))})",
                where=str(self._journals[self._at].path),
                remedy=f"move vantage/{self._at} away, and the others' tables are made",
            ) from error

    def _write(self) -> Inspection:
        # They are replaced in this order.
        paths = [self._folder / name for name in (ENVIRONMENT, SUPERSEDED, DOWNLOADS)]
        with disk.whole_files(*paths) as (environment_part, superseded_part, downloads_part):
            environment_part.write_text(disk.json_text(self._environment()), encoding="utf-8")
            with store.RowWriter(superseded_part, "superseded", schemas.row_schema("superseded")) as superseded:
                for attempt in self._superseded():
                    superseded.add(attempt)
            with store.RowWriter(downloads_part, "downloads", downloads_schema()) as downloads:
                for run, rows in enumerate(measurement_runs(self._rows(), lambda row: row.download)):
                    for row in rows:
                        self._count(row)
                        downloads.add(row.columns(run))
        return Inspection(
            folder=str(self._folder),
            downloads=sum(self._treatments.values()),
            proven=self._treatments[True],
            refuted=self._treatments[False],
            unproven=self._treatments[None],
            void=self._void,
            kpis=self._kpis,
            kept=self._kept,
            recorded=self._recorded,
            newer_kpis=tuple(sorted(self._newer)),
            lost=tuple(self._lost),
        )

    def _count(self, row: Inspected) -> None:
        self._treatments[row.download.treatment_ok] += 1
        self._void += row.download.void_reason is not None
        self._kpis += row.kpis is not None

    def _rows(self) -> Iterator[Inspected]:
        """The rows of all downloads, vantage point by vantage point in the order of the plan."""
        for name, journal in self._journals.items():
            yield from self._without_journal()
            self._at = name
            # Two readers of one stream: `in_order` holds as many runs as it has captures in progress.
            given, named = itertools.tee(_with_findings(journal))
            for (run, _), evidence in zip(named, self._read(given), strict=True):
                yield from self._run(name, run, evidence)
            self._at = ""
        yield from self._without_journal()
        self._earlier.end()

    def _run(self, name: str, run: Sequence[Download], evidence: Evidence) -> Iterator[Inspected]:
        if run[0].vantage != name:
            raise UsageError(
                f"this journal is of the vantage point {run[0].vantage}",
                where=str(self._journals[name].path),
                remedy=f"name its folder {run[0].vantage} again",
            )
        if evidence.lost is not None:
            self._lost.append(LostEvidence(path=run[0].capture or "", why=evidence.lost))
        for download, new in zip(run, evidence.rows, strict=True):
            stays = self._earlier.kept(new, self._earlier.of(download), lost=evidence.lost is not None)
            if stays is None:
                self._newer |= evidence.newer
            self._kept += stays is not None
            self._recorded += stays is None and evidence.is_recorded and evidence.lost is not None
            yield stays or new
        self._runs += 1
        self._progress.update("captures", done=self._runs, total=self._total, failed=len(self._lost))

    def _without_journal(self) -> Iterator[Inspected]:
        """The next earlier rows that belong to vantage points whose journals are missing."""
        gone: set[str] = set()
        for row in self._earlier.without_journal(self._journals.__contains__):
            gone.add(row.download.vantage)
            self._kept += 1
            yield row
        self._lost += [LostEvidence(path=f"vantage/{name}", why="the journal is missing") for name in sorted(gone)]

    def _superseded(self) -> Iterator[Superseded]:
        for name, journal in self._journals.items():
            self._at = name
            yield from journal.superseded()
        self._at = ""
        path = self._folder / SUPERSEDED
        for row in store.each_row(path, "superseded") if path.exists() else ():
            if row["vantage"] not in self._journals:
                yield build(Superseded, row)

    def _environment(self) -> Mapping[str, Any]:
        """The environment of every vantage point, and how it stopped early; if its journal is missing, as an earlier
        inspection wrote it."""
        document = environment(self._journals)
        path = self._folder / ENVIRONMENT
        earlier = read_json(path) if path.exists() else {}
        for part in ("vantage_points", "stopping"):
            known, own = earlier.get(part), document.get(part, {})
            both = {**known, **own} if isinstance(known, dict) else own
            if kept := {name: one for name, one in both.items() if name in own or name not in self._journals}:
                document[part] = kept
        return document


def _with_findings(journal: JournalReader) -> Iterator[Run]:
    """The measurement runs of a journal, each with what was found in its capture right after it."""
    for run in measurement_runs(journal.downloads(), lambda download: download):
        yield run, None if run[0].capture is None else journal.findings(run[0].capture)


def measurement_runs(rows: Iterable[Row], download: Callable[[Row], Download]) -> Iterator[tuple[Row, ...]]:
    """Rows in the order of their plan, one measurement run at a time."""
    for _, run in itertools.groupby(rows, key=lambda row: attrgetter(*schemas.RUN_KEY)(download(row))):
        yield tuple(run)


def link_together(folders: Sequence[Path], out: Path) -> None:
    """Makes or completes a folder with the vantage points of all folders, which stay where they are.

    The links are relative, so folders that are moved together stay together.

    Raises:
        UsageError: the folders hold different plans, or one vantage point twice; `out` holds something else.
    """
    homes: dict[str, Path] = {}
    digests: dict[str | None, Path] = {}
    if any(out.glob("vantage/*/journal.sqlite")):
        with open_journals(out) as there:
            digests = {journal.meta("plan_hash"): out for journal in there.values()}
    for folder in folders:
        with open_journals(folder) as journals:
            for name, journal in journals.items():
                if name in homes:
                    raise UsageError(
                        f"the vantage point {name} is in {homes[name]}, too",
                        where=str(folder),
                        remedy="name one of them",
                    )
                homes[name] = folder
                digests.setdefault(journal.meta("plan_hash"), folder)
    if len(digests) > 1:
        one, other, *_ = digests.values()
        raise UsageError(
            f"it holds another plan than {one}", where=str(other), remedy="name folders of one campaign (--here)"
        )
    links = {out / "vantage" / name: home / "vantage" / name for name, home in homes.items()}
    for link, home in links.items():
        if os.path.lexists(link) and link.resolve() != home.resolve():
            raise UsageError("this is already there", where=str(link), remedy="use another --out")
    (out / "vantage").mkdir(parents=True, exist_ok=True)
    for link, home in links.items():
        if not os.path.lexists(link):
            link.symlink_to(os.path.relpath(home.resolve(), link.parent.resolve()))
    for name in _COPIED:
        if (source := folders[0] / name).exists():
            with disk.whole_file(out / name) as part:
                shutil.copyfile(source, part)
