"""Inspection: journals and captures -> `downloads`, `kpis` and the proof of treatment. Anywhere, without root or place.

    campaign.py  a campaign folder: streams the journals, scans captures on all cores, writes the tables
    evidence.py  where the rows of a measurement run come from: its capture
    earlier.py   what an earlier inspection left, for what is gone
    rows.py      downloads and the connections of their capture -> rows                        (pure)
    matching.py  which connection is a download's                                              (pure)
    clocks.py    what the clients' clock is off by                                             (pure)
    identity.py  was it the same object from the same place?                                   (pure)
    proof.py     did the wire carry what was asked, and do client and capture tell one story?  (pure)

It stands in `compose` because it needs `downloader` (each factor reads its own proof) and `analysis` (connections).
"""

from upshift.compose.inspect.campaign import Inspection, inspect_campaign

__all__ = ["Inspection", "inspect_campaign"]
