"""What the client alone does to the time of a download, beside what the transport does. Pure.

A QUIC client's own share is its time over the median of all QUIC clients of its measurement run; the transport's is
that of one family of clients, which share program and libraries: QUIC over TCP. All are ratios of times, so above 1 is
slower, with the intervals of Table 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.measures.columns import Floats
from analysis.measures.folders import Design
from analysis.measures.pairs import Pairs, Samples, cost_bounds, pair, ratios
from analysis.measures.rows import Median
from analysis.measures.speedup import summary_of
from analysis.measures.statistics.intervals import renumbered
from analysis.measures.verdicts import STARVED_SHARE
from core.domain import Comparison, Role, Transport
from core.files.campaign_json import DescribedConfiguration


class Effect(StrEnum):
    """What differs between the two times of a row. The vocabulary is closed."""

    CLIENT = "client"
    """One QUIC client over the median of the run's QUIC clients."""
    RANGE = "range"
    """The slowest QUIC client over the fastest one."""
    TRANSPORT = "transport"
    """QUIC over TCP by the same program and libraries."""
    NOISE_FLOOR = "noise_floor"
    """Nothing: two equal configurations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEffectRow:
    """One row: a ratio of times within measurement runs."""

    what: Effect
    """One of `Effect`."""
    name: str
    """The configuration."""
    over: str
    """What its time is divided by: another configuration, or `median`."""
    n: int
    """Measurement runs with all downloads that the row needs, ok or censored, as requested."""
    domains: int
    """Domains of these runs."""
    median: Median
    """Median ratio of the domains."""
    starved: int
    """Runs of two different clients of which one waited for a CPU for more than 25 % of the transfer; of QUIC clients
    and their median, of which any did."""

    @property
    def is_busy(self) -> bool:
        """Whether the host may be what differs, as for `Verdict.HOST_BUSY`."""
        return self.starved > STARVED_SHARE * self.n


def client_effects(design: Design, samples: Samples) -> list[ClientEffectRow]:
    """The rows of all QUIC clients, their range, each family's transport and the noise floors.

    None if there are neither two QUIC clients nor a family that downloads over both transports.
    """
    quic = _quic_clients(design)
    rows = []
    if len(quic) > 1:
        rows += [_row(Effect.CLIENT, name, "median", pairs) for name, pairs in _over_median(samples, quic).items()]
        if ends := _ends(rows):
            rows.append(_row(Effect.RANGE, *ends, _times(samples, *ends)))
    for name in quic:
        if (tcp := _tcp_of_family(design, name)) is not None:
            rows.append(_row(Effect.TRANSPORT, name, tcp, _times(samples, name, tcp)))
    if not rows:
        return []
    floors = [one for one in design.comparisons if one.role is Role.NOISE_FLOOR]
    return rows + [_row(Effect.NOISE_FLOOR, c.config, c.vs, _times(samples, c.config, c.vs)) for c in floors]


def _ends(rows: Sequence[ClientEffectRow]) -> tuple[str, str] | None:
    """The slowest and the fastest client; None where the bounds of censored medians leave open which they are."""
    known = [(row.name, row.median.least, row.median.most) for row in rows]
    bounds = {name: (least, most) for name, least, most in known if least is not None and most is not None}
    if len(bounds) < 2:
        return None
    slowest = max(bounds, key=lambda name: bounds[name][0])
    fastest = min(bounds.keys() - {slowest}, key=lambda name: (bounds[name][1], name))
    is_slowest = all(bounds[slowest][0] >= most for name, (_, most) in bounds.items() if name != slowest)
    is_fastest = all(bounds[fastest][1] <= least for name, (least, _) in bounds.items() if name != fastest)
    return (slowest, fastest) if is_slowest and is_fastest else None


def against_tcp(design: Design) -> list[Comparison]:
    """Each QUIC client against one configuration over TCP: that of the highest HTTP version, the last of these."""
    tcp = [one for one in _measured(design) if one.transport is Transport.TCP]
    reference = max(reversed(tcp), key=lambda one: one.http or "", default=None)
    return [] if reference is None else [Comparison.of(name, reference.name) for name in _quic_clients(design)]


def _measured(design: Design) -> list[DescribedConfiguration]:
    """The configurations without warm-ups, which are only in comparisons of the role cache."""
    caches = [one for one in design.comparisons if one.role is Role.CACHE]
    named = {name for one in design.comparisons if one.role is not Role.CACHE for name in (one.config, one.vs)}
    warmups = {name for one in caches for name in (one.config, one.vs)} - named
    return [one for one in design.configurations if one.name not in warmups and one.name in named]


def _quic_clients(design: Design) -> list[str]:
    """One configuration of each QUIC client: the first."""
    first: dict[str, str] = {}
    for one in _measured(design):
        if one.transport is Transport.QUIC:
            first.setdefault(one.client, one.name)
    return list(first.values())


def _tcp_of_family(design: Design, name: str) -> str | None:
    named = {one.name: one for one in _measured(design)}
    family = named[name].family
    same = [one for one in named.values() if one.transport is Transport.TCP and family and one.family == family]
    return max(same, key=lambda one: one.http or "").name if same else None


def _times(samples: Samples, name: str, over: str) -> Pairs:
    """Time of one configuration over that of another: the speed-up of the second one over the first."""
    return pair(samples, over, name)


def _over_median(samples: Samples, names: Sequence[str]) -> Mapping[str, Pairs]:
    """Each configuration's time over the median of all, in the runs that have a time of each."""
    rows = np.stack([samples.rows_of(name) for name in names])
    runs = np.flatnonzero(((rows >= 0) & (samples.excluded.codes[rows] < 0)).all(axis=0))
    times = cost_bounds(samples, *rows[:, runs])
    middle = [_middle(np.stack(ends)) for ends in zip(*times, strict=True)]
    domain, domains = renumbered(samples.domain.codes[runs])
    waited = 0 if samples.starved is None else int(samples.starved[samples.download[rows[:, runs]]].any(axis=0).sum())
    over_all = {}
    for name, time in zip(names, times, strict=True):
        ratio = ratios((middle[0], middle[1]), time)
        over_all[name] = Pairs(low=ratio[0], high=ratio[1], domain=domain, domains=domains, starved=waited)
    return over_all


def _middle(costs: Floats) -> Floats:
    """The median of each column, of an even number the middle on a log scale."""
    ordered = np.sort(costs, axis=0)
    upper, lower = ordered[len(costs) // 2], ordered[(len(costs) - 1) // 2]
    middle: Floats = upper if len(costs) % 2 else np.sqrt(upper) * np.sqrt(lower)
    return middle


def _row(what: Effect, name: str, over: str, pairs: Pairs) -> ClientEffectRow:
    of = summary_of(pairs, Comparison.of(name, over))
    return ClientEffectRow(
        what=what, name=name, over=over, n=of.n, domains=of.domains, median=of.median, starved=pairs.starved
    )
