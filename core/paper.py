"""The ANRW'23 paper as data: its configurations and comparisons.

Campaign files name them as `configurations = "paper"`; folders without `campaign.json`, made by
older versions, are read with these comparisons.
"""

from __future__ import annotations

from enum import StrEnum

from core.domain import Comparison, Configuration, Role


class Paper(StrEnum):
    """Papers whose tables are known."""

    ANRW23 = "anrw23"


BASELINE, BASELINE_AGAIN = "BL", "BL2"
"""The baseline, and the same configuration again: the noise floor."""

SCALED, FULL = "WS", "ALL"
"""Window scaling alone is a reference for all options, and all options are the reference for QUIC."""

_OFF = {"ecn": "off", "sack": "off", "window_scaling": "off"}
_ON = {"ecn": "on", "sack": "on", "window_scaling": "14"}

WARMUP = Configuration(name="warmup", client="requests", levels=_OFF)
"""The first download of every measurement run: it fills caches, and is only in rows of the role *cache*."""

WARMUP_QUIC = "warmup-quic"
"""Name of the second download, in campaigns with QUIC: by their first QUIC client, as an edge may have other caches (or
other servers) for QUIC."""

WARMUPS = (WARMUP.name, WARMUP_QUIC)
"""Names that no configuration of a campaign file may have."""

CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(name=BASELINE, client="requests", levels=_OFF),
    Configuration(name=BASELINE_AGAIN, client="requests", levels=_OFF),
    Configuration(name="ECN", client="requests", levels={**_OFF, "ecn": "on"}),
    Configuration(name="SACK", client="requests", levels={**_OFF, "sack": "on"}),
    Configuration(name=SCALED, client="requests", levels={**_OFF, "window_scaling": "14"}),
    Configuration(name=FULL, client="requests", levels=_ON),
    Configuration(name="aioquic", client="aioquic"),
    Configuration(name="quiche", client="quiche"),
)
"""Those of the paper, and the baseline again."""

COMPARISONS: tuple[Comparison, ...] = (
    Comparison.of(BASELINE_AGAIN, BASELINE, Role.NOISE_FLOOR),
    Comparison.of("ECN", BASELINE),
    Comparison.of("SACK", BASELINE),
    Comparison.of(SCALED, BASELINE),
    Comparison.of(FULL, BASELINE),
    Comparison.of(FULL, SCALED),
    Comparison.of("aioquic", BASELINE),
    Comparison.of("aioquic", FULL),
    Comparison.of("quiche", BASELINE),
    Comparison.of("quiche", FULL),
    Comparison.of("quiche", "aioquic"),
    Comparison.of(WARMUP.name, BASELINE, Role.CACHE),
)
