"""The figures of the paper's section 6.1, from the records of a survey: shares with 95 % intervals.

Hosts are those that shook hands; of the others only the causes are counted.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TextIO

from survey.options.record import OptionsRecord
from survey.shares import Share, cell, groups, plain, print_shares, wilson
from upshift.terminal import console, print_line

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures of a survey."""

    domains: int
    shares: dict[str, dict[str, Share]]
    """Group -> share's name -> share. Groups: `all hosts`, rank buckets, providers."""
    combinations: dict[str, Share]
    failures: dict[str, Share]
    """Of all domains, most frequent first."""
    retransmissions: dict[int, int]
    """SYNs sent again -> hosts that answered."""
    varied: int
    """Hosts that negotiated different options the second time."""
    rtt_median_s: float | None

    @property
    def hosts(self) -> int:
        """Domains whose server shook hands."""
        return sum(self.retransmissions.values())


def figures(records: Sequence[OptionsRecord]) -> Figures:
    """Counts records. A domain that is in several files counts as often as it is there."""
    hosts = [record for record in records if record.outcome == "ok"]
    failures = Counter(record.failure or "unknown" for record in records if record.outcome != "ok")
    kinds = Counter(map(combination, hosts))
    rtts = [record.rtt_s for record in hosts if record.rtt_s is not None]
    return Figures(
        domains=len(records),
        shares={name: _shares(group) for name, group in _groups(hosts)},
        combinations={name: wilson(kinds[name], len(hosts)) for name in COMBINATIONS},
        failures={cause: wilson(count, len(records)) for cause, count in failures.most_common()},
        retransmissions=dict(sorted(Counter(record.syn_retransmissions or 0 for record in hosts).items())),
        varied=sum(bool(record.varied) for record in hosts),
        rtt_median_s=statistics.median(rtts) if rtts else None,
    )


def _shares(group: Sequence[OptionsRecord]) -> dict[str, Share]:
    return {name: wilson(sum(map(counts, group)), len(group)) for name, counts in SHARES.items()}


def _groups(hosts: Sequence[OptionsRecord]) -> Iterable[tuple[str, Sequence[OptionsRecord]]]:
    yield "all hosts", hosts
    yield from groups(hosts, lambda record: record.rank, lambda record: record.provider)


def as_document(found: Figures) -> dict[str, Any]:
    """The figures as plain data; shares from 0 to 1."""
    return {
        "domains": found.domains,
        "hosts": found.hosts,
        "shares": {
            group: {name: plain(share) for name, share in shares.items()} for group, shares in found.shares.items()
        },
        "combinations": {name: plain(share) for name, share in found.combinations.items()},
        "failures": {name: plain(share) for name, share in found.failures.items()},
        "syn_retransmissions": {str(count): hosts for count, hosts in found.retransmissions.items()},
        "varied": found.varied,
        "rtt_median_s": found.rtt_median_s,
    }


CSV_HEADER = ("figure", "group", "name", "count", "n", "share", "low", "high")


def as_rows(found: Figures) -> Iterable[tuple[Any, ...]]:
    """The figures as rows of a CSV file, `CSV_HEADER` first."""
    yield CSV_HEADER
    tables = [("options", group, shares) for group, shares in found.shares.items()]
    tables += [("combination", "all hosts", found.combinations), ("failure", "all domains", found.failures)]
    for figure, group, shares in tables:
        for name, share in shares.items():
            values = plain(share)
            yield (figure, group, name, *("" if values[key] is None else values[key] for key in CSV_HEADER[3:]))
    for count, hosts in found.retransmissions.items():
        share = wilson(hosts, found.hosts)
        yield ("syn_retransmissions", "all hosts", count, hosts, share.n, share.share, share.low, share.high)


def print_figures(found: Figures, stream: TextIO) -> None:
    """Prints the figures for people, as wide as the terminal: shares in per cent, with 95 % intervals."""
    to = console(stream)
    title = f"{found.hosts:,} of {found.domains:,} domains shook hands. Shares of these hosts in %, 95 % intervals:"
    rows: list[list[str | Share]] = [
        [group, *shares.values(), f"{next(iter(shares.values())).n:,}"] for group, shares in found.shares.items()
    ]
    rows.append(["the ANRW 2023 paper", *(f"{PAPER[name]:.1f}" if name in PAPER else "-" for name in SHARES), "-"])
    print_shares(to, title, ["group", *(LABELS[name] for name in SHARES), "n"], rows)
    title = "Combinations of ECN, SACK and window scaling, in % of these hosts:"
    print_shares(to, title, ["combination", "hosts %", "n"], _counted(found.combinations))
    if found.failures:
        title = "Domains without a handshake, in % of all, by cause:"
        print_shares(to, title, ["cause", "domains %", "n"], _counted(found.failures))
    again = sum(hosts for count, hosts in found.retransmissions.items() if count)
    print_line(to, f"SYN sent again to {again:,} hosts that answered ({cell(wilson(again, found.hosts))} %).")
    if found.varied:
        print_line(to, f"{found.varied:,} hosts negotiated other options the second time.")
    if found.rtt_median_s is not None:
        print_line(to, f"Median RTT of the handshake: {found.rtt_median_s * 1000:.1f} ms.")


def _counted(shares: Mapping[str, Share]) -> Iterable[list[str | Share]]:
    return ([name, share, f"{share.count:,}"] for name, share in shares.items())
