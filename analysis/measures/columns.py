"""The downloads of campaign folders as columns: one array per quantity, with an element per download.

A campaign may have millions of downloads, and an object for each would take 10 kB. Text is stored as codes; what
identifies a measurement run is stored once per run. The rows may be in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.measures.arrays import Codes, Flags, Floats, Ints, Mask, Texts
from analysis.measures.ceilings import Ceiling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Measurement runs: downloads are compared only within one."""

    folder: Ints
    """Index into `Dataset.folders`: the same names in two folders are two measurement runs."""
    vantage: Texts
    """Its names are sorted."""
    iteration: Ints
    domain: Texts
    """Its names are sorted."""
    url: Texts

    def __len__(self) -> int:
        return len(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Downloads:
    """All downloads, folder by folder in the order of the files. See `core.domain.Download` for the columns."""

    runs: Runs
    run: Codes
    """Index into `runs`."""
    configuration: Texts
    client: Texts
    transport: Texts
    provider: Texts
    asn: Texts
    """Origin AS of the server's address, as text; its names are sorted."""
    is_warmup: Mask
    position: Codes
    """Within the measurement run, from 1; warm-ups have less."""
    outcome: Texts
    failure: Texts
    last_byte_s: Floats
    """NaN: not reached."""
    budget_s: Floats
    is_void: Mask
    host_disturbance: Texts
    treatment_ok: Flags
    treatment_reason: Texts
    slow_handshake: Flags
    cache_state: Texts
    identity_flags: Texts
    cpu_bound: Flags
    """See `ceilings.cpu_bound`."""
    starved: Flags
    """See `ceilings.starved`."""
    ceiling: Codes
    """Index into `ceilings`: what is known of its client's highest rate at its vantage point."""
    ceilings: tuple[Ceiling, ...]
    has_rate: Mask
    """Whether it has a delivery rate (`ceilings.delivery_rates`)."""
    has_kpis: Mask
    """Whether a connection of the capture is known to be its own."""
    near_ceiling: Flags
    """See `ceilings.near_ceiling`."""

    def __len__(self) -> int:
        return len(self.run)

    def of_run(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Per download the value of its run."""
        return values[self.run]

    def any_of_run(self, rows: Mask) -> Mask:
        """The runs in which one of these downloads is."""
        found = np.zeros(len(self.runs), dtype=np.bool_)
        found[self.run[rows]] = True
        return found
