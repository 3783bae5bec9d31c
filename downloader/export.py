"""Journals -> the tables that other stages read: `downloads.parquet`, `superseded.parquet`, `environment.json`."""

from __future__ import annotations

import json
from pathlib import Path

from downloader.journal import FILE_NAME, Journal
from upshift import store
from upshift.domain import Download
from upshift.errors import UsageError


def export_downloads(out: Path) -> list[Download]:
    """Writes the tables of a campaign's folder from its journals; the rows of `downloads`.

    An unfinished campaign is exported as far as it is. The columns `treatment_*` are still empty, save for void runs.

    Raises:
        UsageError: the folder holds no journal.
    """
    paths = sorted(out.glob(f"vantage/*/{FILE_NAME}"))
    if not paths:
        raise UsageError("this folder holds no campaign", where=str(out), remedy="name the --out of an upshift run")
    downloads: list[Download] = []
    superseded: list[Download] = []
    environment: dict[str, object] = {"schema": 1, "vantage_points": {}}
    places: dict[str, object] = {}
    for path in paths:
        journal = Journal(path)
        try:
            downloads += journal.downloads()
            superseded += journal.superseded()
            places[path.parent.name] = json.loads(journal.meta("environment") or "{}")
            environment |= {"campaign": json.loads(journal.meta("campaign") or "{}")}
            environment |= {"plan_sha256": journal.meta("plan_hash"), "vantage_points": places}
        finally:
            journal.close()
    store.write_rows(out / "downloads.parquet", "downloads", downloads)
    store.write_rows(out / "superseded.parquet", "superseded", superseded)
    store.write_json(out / "environment.json", environment)
    return downloads
