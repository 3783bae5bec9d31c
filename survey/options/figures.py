"""The figures of the paper's section 6.1, from the records of a survey: shares with 95 % intervals.

Hosts are those that completed a handshake; for the others only the causes are counted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from survey.figures import Breakdown, Figures
from survey.options.record import OptionsRecord
from survey.shares import cell, shares_by_group, wilson

PAPER = {"ecn": 85.8, "sack": 91.4, "window_scaling": 91.1, "all": 81.0, "none": 5.3}
"""Section 6.1 of the paper [% of hosts]."""

SHARES: Mapping[str, Callable[[OptionsRecord], bool]] = {
    "ecn": lambda r: bool(r.ecn),
    "sack": lambda r: bool(r.sack),
    "window_scaling": lambda r: bool(r.window_scaling),
    "timestamps": lambda r: bool(r.timestamps),
    "all": lambda r: bool(r.ecn and r.sack and r.window_scaling),
    "none": lambda r: not (r.ecn or r.sack or r.window_scaling),
}
"""Name -> whether a host counts. `all` and `none` are of ECN, SACK and window scaling, as in the paper."""

LABELS = {"ecn": "ECN", "sack": "SACK", "window_scaling": "WS", "timestamps": "TS", "all": "all 3", "none": "none"}


def combination(record: OptionsRecord) -> str:
    """E.g. `ECN+WS`; `none` where none of the three was negotiated."""
    return combination_name(bool(record.ecn), bool(record.sack), bool(record.window_scaling))


def combination_name(ecn: bool, sack: bool, window_scaling: bool) -> str:
    names = [name for name, on in (("ECN", ecn), ("SACK", sack), ("WS", window_scaling)) if on]
    return "+".join(names) or "none"


COMBINATIONS = tuple(combination_name(*on) for on in product((True, False), repeat=3))


def figures(records: Sequence[OptionsRecord]) -> Figures:
    """Counts records. A domain that is in several files counts as often as it is there."""
    hosts = [record for record in records if record.outcome == "ok"]
    failures = Counter(record.failure or "unknown" for record in records if record.outcome != "ok")
    kinds = Counter(map(combination, hosts))
    again = Counter(record.syn_retransmissions or 0 for record in hosts)
    varied = sum(bool(record.varied) for record in hosts)
    rtts = [record.rtt_s for record in hosts if record.rtt_s is not None]
    median_s = statistics.median(rtts) if rtts else None
    return Figures(
        title=f"{len(hosts):,} of {len(records):,} domains completed a handshake. "
        "Shares of these hosts in %, 95 % intervals:",
        counts={"domains": len(records), "hosts": len(hosts)},
        shares=shares_by_group(hosts, "all hosts", SHARES),
        labels=LABELS,
        paper=PAPER,
        breakdowns={
            "combinations": Breakdown(
                title="Combinations of ECN, SACK and window scaling, in % of these hosts:",
                heading=("combination", "hosts %"),
                group="all hosts",
                shares={name: wilson(kinds[name], len(hosts)) for name in COMBINATIONS},
            ),
            "failures": Breakdown(
                title="Domains without a handshake, in % of all, by cause:",
                heading=("cause", "domains %"),
                group="all domains",
                shares={cause: wilson(count, len(records)) for cause, count in failures.most_common()},
            ),
            "syn_retransmissions": Breakdown(
                title="SYN retransmissions:",
                heading=("SYNs", "hosts %"),
                group="all hosts",
                shares={str(count): wilson(number, len(hosts)) for count, number in sorted(again.items())},
                shown=False,
            ),
        },
        values={"varied": varied, "rtt_median_s": median_s},
        notes=_notes(len(hosts), len(hosts) - again[0], varied, median_s),
    )


def _notes(hosts: int, again: int, varied: int, median_s: float | None) -> list[str]:
    notes = [f"SYN retransmitted to {again:,} hosts that answered ({cell(wilson(again, hosts))} %)."]
    if varied:
        notes.append(f"{varied:,} hosts negotiated different options in the second handshake.")
    if median_s is not None:
        notes.append(f"Median handshake RTT: {median_s * 1000:.1f} ms.")
    return notes
