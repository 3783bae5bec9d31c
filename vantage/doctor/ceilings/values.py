"""One client's ceiling from its transfers at rising rates. Pure; rates in Mbit/s (10^6 bit/s) of body bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

BUSY_SHARE = 0.7
"""Share of a core from which an end may be the limit of a transfer."""


class Limit(StrEnum):
    """Which end limited the fastest transfer."""

    CLIENT = "client"
    SERVER = "server"
    """The server: the client's ceiling is a lower bound."""
    NEITHER = "neither"
    """Neither used `BUSY_SHARE` of a core: the kernel, or other programs on these CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One download at one offered rate."""

    server: str
    """Name of the server program."""
    offered_mbit_s: float | None = None
    """Rate limit of the path (Ethernet frames); None: no limit."""
    mbit_s: float | None = None
    """Body bytes over the time from the first to the last of them."""
    seconds: float | None = None
    """This time [s]."""
    body_bytes: int = 0
    client_cpu_s: float | None = None
    """CPU time of the transfer, without hashing: the client's `transfer_cpu_s`."""
    server_cpu_s: float | None = None
    socket_drops: int | None = None
    """Datagrams that the kernel dropped because the client read its socket too late; None for TCP."""
    fault: str | None = None
    """Why there is no rate."""

    @property
    def client_core_share(self) -> float | None:
        """CPU seconds of the client per second of the transfer."""
        return _ratio(self.client_cpu_s, self.seconds)

    @property
    def server_core_share(self) -> float | None:
        """CPU seconds of the server per second of the transfer."""
        return _ratio(self.server_cpu_s, self.seconds)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def read_answer(
    answer: Mapping[str, Any], *, server: str, offered_mbit_s: float | None = None, server_cpu_s: float | None = None
) -> Transfer:
    """A transfer from a client's JSON document. It is valid if the file was complete or the time budget ended it."""
    if answer.get("outcome") != "ok" and answer.get("failure") != "time_budget":
        fault = f"{answer.get('failure')}: {answer.get('failure_detail')}"
        return Transfer(server=server, offered_mbit_s=offered_mbit_s, fault=fault)
    received, first, last = answer.get("body_bytes"), answer.get("first_byte_s"), answer.get("last_byte_s")
    if not received or first is None or last is None or last <= first:
        fault = "it received too little to compute a rate"
        return Transfer(server=server, offered_mbit_s=offered_mbit_s, fault=fault)
    return Transfer(
        server=server,
        offered_mbit_s=offered_mbit_s,
        mbit_s=received * 8 / 1e6 / (last - first),
        seconds=last - first,
        body_bytes=received,
        client_cpu_s=answer.get("transfer_cpu_s"),
        server_cpu_s=server_cpu_s,
        socket_drops=answer.get("socket_drops"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCeiling:
    """The ceiling of one client on this host."""

    client: str
    transport: str
    """One of `core.domain.Transport`."""
    versions: Mapping[str, str | None]
    """Packages of the client -> version."""
    transfers: Sequence[Transfer] = ()
    """Transfers in the order of measurement: one per server without a limit, then at rising rates."""
    fault: str | None = None
    """Why the client could not be tested."""

    @property
    def fastest(self) -> Transfer | None:
        """The transfer with the highest rate, None without a rate."""
        return max((t for t in self.transfers if t.mbit_s is not None), key=lambda t: t.mbit_s or 0.0, default=None)

    @property
    def limit(self) -> Limit | None:
        """Which end limited the fastest transfer; None without one, or if the CPU time is unknown."""
        best = self.fastest
        if best is None or best.client_core_share is None or best.server_core_share is None:
            return None
        if max(best.client_core_share, best.server_core_share) < BUSY_SHARE:
            return Limit.NEITHER
        return Limit.CLIENT if best.client_core_share >= best.server_core_share else Limit.SERVER

    @property
    def first_drops_mbit_s(self) -> float | None:
        """Lowest rate at which the client's socket dropped datagrams, None if it did not.

        The offered rate, of which less arrived. Without a limit only the achieved rate is known.
        """
        rates = (t.offered_mbit_s or t.mbit_s for t in self.transfers if t.socket_drops)
        return min((rate for rate in rates if rate is not None), default=None)

    def document(self) -> dict[str, Any]:
        """The stored form (schema 1 of `ceilings.json`)."""
        best = self.fastest
        return {
            "transport": self.transport,
            "versions": dict(self.versions),
            "fault": self._fault(),
            "ceiling_mbit_s": None if best is None else best.mbit_s,
            "server": None if best is None else best.server,
            "client_cpu_s_per_gb": None if best is None else _ratio(best.client_cpu_s, best.body_bytes / 1e9),
            "client_core_share": None if best is None else best.client_core_share,
            "server_core_share": None if best is None else best.server_core_share,
            "limit": self.limit,
            "first_drops_mbit_s": self.first_drops_mbit_s,
            "transfers": [asdict(transfer) for transfer in self.transfers],
        }

    def _fault(self) -> str | None:
        if self.fault is not None or self.fastest is not None:
            return self.fault
        return next((t.fault for t in self.transfers if t.fault is not None), "no transfer was made")


def rate_text(mbit_s: float) -> str:
    """A rate as text: `1.53 Gbit/s`, `197 Mbit/s`, `4.2 Mbit/s`."""
    if mbit_s >= 1000:
        return f"{mbit_s / 1000:.2f} Gbit/s"
    return f"{mbit_s:.0f} Mbit/s" if mbit_s >= 10 else f"{mbit_s:.1f} Mbit/s"
