"""Inspection: joins downloads with the connections of their captures, for KPIs and the proof of treatment.

    campaign.py  a campaign folder -> `downloads.parquet`, `kpis.parquet`
    matching.py  which connection of a capture is a download's      (pure)
    proof.py     did the wire carry what was asked, and do client and capture tell one story?  (pure)
    rows.py      rows of `kpis`                                      (pure, save for the writer)

It stands in `compose` because it needs `downloader` (each factor reads its own proof) and `analysis` (connections).
"""

from upshift.compose.inspect.campaign import inspect_campaign

__all__ = ["inspect_campaign"]
