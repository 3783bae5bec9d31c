"""`paper`: the configurations and rows of Table 2 of the ANRW'23 paper. What a campaign file has by default."""

from __future__ import annotations

from core import paper
from downloader.preset import Preset

PAPER = Preset(
    name="paper",
    help="The ANRW'23 paper: ECN, SACK and window scaling against a baseline, and two QUIC clients.",
    configurations=paper.CONFIGURATIONS,
    comparisons=paper.COMPARISONS,
)
