"""Transfers of clients at fixed rates, as `ceilings.json` and `environment.json` have them, and their table. Pure.

Rates are in Mbit/s (10^6 bit/s) of body bytes, offered ones in Mbit/s of Ethernet frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from core.errors import UsageError
from core.files.config import build

RATES = (100, 200, 500, 1_000, 2_000, 3_000, 5_000)
"""The rates that every client is offered, up to the first that it misses."""

MET_SHARE = 0.85
"""Share of an offered rate from which a client has not missed it: frames have 4 to 6 % of headers."""

BUSY_SHARE = 0.7
"""Share of a core from which an end may be the limit of a transfer."""


class PacketForm(StrEnum):
    """What arrives at the client."""

    SINGLE = "single"
    """Packets as on the wire, as in a campaign's own namespace. A client's ceiling is of these."""
    MERGED = "merged"
    """Packets merged by GRO, as on an ordinary host."""


class Limit(StrEnum):
    """Which end limited a transfer."""

    CLIENT = "client"
    SERVER = "server"
    """The server: the client's highest rate is a lower bound."""
    NEITHER = "neither"
    """Neither used `BUSY_SHARE` of a core: the path, the kernel, or other programs on these CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One download at one offered rate."""

    server: str
    """Name of the server program."""
    packets: PacketForm = PacketForm.SINGLE
    offered_mbit_s: float | None = None
    """Rate limit of the path; None: no limit."""
    mbit_s: float | None = None
    """Body bytes over the time from the first to the last of them."""
    seconds: float | None = None
    """This time [s]."""
    client_cpu_s_per_gb: float | None = None
    """CPU time of the transfer, without hashing (the client's `transfer_cpu_s`), per 10^9 bytes of body."""
    client_core_share: float | None = None
    """CPU seconds of the client per second of the transfer."""
    server_core_share: float | None = None
    socket_drops: int | None = None
    """Datagrams that the kernel dropped because the client read its socket too late; None for TCP. Those that came
    merged (UDP GRO: quiche, quinn) count as one."""
    fault: str | None = None
    """Why there is no rate."""

    @property
    def limit(self) -> Limit | None:
        """Which end limited it; None if the CPU time is unknown."""
        client, server = self.client_core_share, self.server_core_share
        if client is None or server is None:
            return None
        if max(client, server) < BUSY_SHARE:
            return Limit.NEITHER
        return Limit.CLIENT if client >= server else Limit.SERVER


def fastest(transfers: Iterable[Transfer]) -> Transfer | None:
    """The transfer with the highest rate, None without a rate."""
    return max((t for t in transfers if t.mbit_s is not None), key=lambda t: t.mbit_s or 0.0, default=None)


def first_drops(transfers: Iterable[Transfer]) -> float | None:
    """Lowest rate [Mbit/s] at which the client's socket dropped datagrams, None if it did not.

    The offered rate, of which less arrived. Without a limit only the achieved rate is known.
    """
    rates = (t.offered_mbit_s or t.mbit_s for t in transfers if t.socket_drops)
    return min((rate for rate in rates if rate is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    """What the table reads of a client's entry; other fields are ignored."""

    http: str | None
    family: str
    transfers: Sequence[Transfer]

    def among(self, packets: PacketForm) -> list[Transfer]:
        return [transfer for transfer in self.transfers if transfer.packets is packets]


def _client(entry: object) -> _Client | None:
    try:
        return build(entry, _Client, where="ceilings")
    except UsageError:  # of an older Upshift, or from a host that is not trusted
        return None


TITLE = "Clients at fixed rates: Mbit/s of body bytes (CPU-s/GB of the client)"
WORDS = ("client", "packets", "server", "limit")
"""The columns that are no numbers; they come first."""
LEGEND = (
    "Every client gets the same rates, up to the first that it misses by 15 %. Single packets: as in a campaign's "
    "namespace. Their highest rate is the client's ceiling (≥: the client was not the limit); downloads above 70 % of "
    "it are flagged. Merged: by GRO, as on an ordinary host. Limit: the end that used most of its core in the fastest "
    "transfer. First drops: lowest rate at which the client's socket lost datagrams. h3 over h2: ratio of CPU-s/GB. "
    "Client and server share the host's CPUs."
)
_BEFORE_RATES = (*WORDS, "highest", "first drops")


PARTS = len(_BEFORE_RATES)
"""How many columns come before those of the rates."""


def cells(clients: Mapping[str, Any]) -> list[list[str]]:
    """Heading, a row per client and kind of packets, then h3 over h2 of each family; only the heading without data.

    Args:
        clients: client -> its entry in `ceilings.json`.
    """
    known = {name: client for name, entry in clients.items() if (client := _client(entry)) is not None}
    offered = {transfer.offered_mbit_s for client in known.values() for transfer in client.transfers}
    rates = [*(rate for rate in RATES if rate in offered), None]
    rows = [[*_BEFORE_RATES, *("no limit" if rate is None else f"{rate:,}" for rate in rates)]]
    for name, client in known.items():
        for packets in PacketForm:
            mine = client.among(packets)
            if (best := fastest(mine)) is not None:
                rows.append([name, packets, *_summary(mine, best), *(_cell(_at(mine, rate)) for rate in rates)])
    pairs = [(h3, h2) for h3 in known.values() for h2 in known.values() if (h3.http, h2.http) == ("3", "2")]
    for h3, h2 in pairs:
        for packets in PacketForm:
            ratios = [_ratio(_at(h3.among(packets), rate), _at(h2.among(packets), rate)) for rate in rates]
            if h3.family == h2.family and any(ratios):
                rows.append([f"{h3.family}: h3 over h2", packets, *[""] * (PARTS - 2), *ratios])
    return rows


def _summary(transfers: Sequence[Transfer], best: Transfer) -> list[str]:
    bound = "" if best.limit in (Limit.CLIENT, None) else "≥ "
    drops = first_drops(transfers)
    lost = f"{drops:,.0f}" if drops is not None else "–" if best.socket_drops is None else "none"
    return [best.server, best.limit or "unknown", f"{bound}{best.mbit_s:,.0f}", lost]


def _at(transfers: Sequence[Transfer], rate: float | None) -> Transfer | None:
    return fastest(transfer for transfer in transfers if transfer.offered_mbit_s == rate)


def _cell(transfer: Transfer | None) -> str:
    if transfer is None:
        return ""
    cost = transfer.client_cpu_s_per_gb
    return f"{transfer.mbit_s:,.0f} ({'?' if cost is None else f'{cost:.1f}'})"


def _ratio(over: Transfer | None, under: Transfer | None) -> str:
    if over is None or under is None or over.client_cpu_s_per_gb is None or not under.client_cpu_s_per_gb:
        return ""
    return f"{over.client_cpu_s_per_gb / under.client_cpu_s_per_gb:.2f}"
