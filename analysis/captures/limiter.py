"""What limited a download: one taxonomy for TCP and QUIC, first match. Pure.

Each round of the server's answer (`Connection.round_bytes` and those beside it) gets one cause; the causes' shares of
the time make the verdict, after what the client says about itself. Rules and thresholds:
docs/method/limits-of-a-download.md. After T-RAT (Zhang et al., SIGCOMM 2002) and root cause analysis (Siekkinen et
al., Computer Networks 52, 2008), which both read flights from gaps; here TSecr tells what was in flight, and rounds
begin with the answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from analysis.captures.connection import Connection
from analysis.captures.kpis import nanoseconds_between


class Limiter(StrEnum):
    """What limited a download, for TCP and QUIC alike: the first that applies. The vocabulary is closed."""

    CLIENT_CPU = "client_cpu"
    """The client hardly ever waited for the network: it ran, or waited for a CPU, and the bottleneck was not busy."""
    CLIENT_SOCKET = "client_socket"
    """The client's socket had no room, so that the kernel dropped packets."""
    RECEIVE_WINDOW = "receive_window"
    """The client's flow-control window, on a path without a queue."""
    CONGESTION = "congestion"
    """Losses, or marks by an AQM, after which the server sends less."""
    SENDER = "sender"
    """The server or its application: it was idle, or sent less than the path and the client would have taken."""
    PATH_RATE = "path_rate"
    """The rate of the bottleneck, which was busy for at least 40 % of the time."""
    SLOW_START = "slow_start"
    """The file ended before slow start did."""
    UNKNOWN = "unknown"


CPU_LIMIT = 0.7
"""Share of a core above which a client counts as CPU-bound."""

NEVER_SLEEPS = 0.85
"""Share of the time in which a client runs or waits for a CPU above which it hardly ever waits for the network."""
LATE_SHARE = 0.1
"""Share of the download time between the arrival of the last byte and the client's reading it."""
WINDOW_SHARE = 0.4
"""Share of a round's packets near the client's window above which the window limits the round."""
WINDOW_PER_RTT = 0.8
"""Share of the client's largest window that arrives per round trip where the window limits, for TCP without
timestamps."""
INFLATION = 1.25
"""A round trip this many times the smallest one, and by `INFLATION_LEAST_NS` longer, waited in a queue."""
INFLATION_LEAST_NS = 1_500_000
BUSY = 0.85
"""Share of a round in which the bottleneck sends: above it, it is the bottleneck that limits."""
QUEUE_BUSY = 0.6
"""Below it, a longer round trip is not that of a queue."""
CREDIT_SHARE = 0.45
"""Share of a QUIC client's window that arrives per round trip where the window limits: clients renew credit when half
of it is used."""
CREDIT_MOST = 3.0
"""Where more of it arrives per round trip, and the server was seldom blocked, the client had made it larger."""
GROWTH = 1.25
"""Slow start goes on while a round's rate exceeds all before it by this factor."""
SHARES: Mapping[Limiter, float] = {
    Limiter.RECEIVE_WINDOW: 0.4,
    Limiter.CONGESTION: 0.2,
    Limiter.SENDER: 0.4,
    Limiter.PATH_RATE: 0.4,
    Limiter.SLOW_START: 0.5,
}
"""The first whose share of the time is at least this is the limiter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterVerdict:
    """What limited a download."""

    limiter: Limiter
    evidence: str
    """The figures that decided, as a sentence fragment."""
    shares: Mapping[Limiter, float]
    """Cause -> share of the answer's time; together 1, empty without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """One round, with what the rules look at."""

    duration_ns: int
    bytes: int
    near_window: float
    """Share of its packets; 1 where the window was closed."""
    inflation: float | None
    """Its mean round-trip time over the smallest; None without a sample."""
    queued: bool
    busy: float | None
    """Share of the time in which the bottleneck sends; None if its rate is unknown."""
    silent: bool
    losses: int

    @property
    def rate(self) -> float:
        """Bytes per ns."""
        return self.bytes / max(self.duration_ns, 1)


def judge(connection: Connection) -> LimiterVerdict:
    """What limited the server's largest answer on this connection."""
    rounds = _rounds(connection)
    shares = _shares(connection, rounds)
    if (of_client := _client_cpu(connection, rounds)) is not None:
        share, evidence = of_client
        if shares:
            shares = {Limiter.CLIENT_CPU: share} | {name: each * (1 - share) for name, each in shares.items()}
        return LimiterVerdict(limiter=Limiter.CLIENT_CPU, evidence=evidence, shares=shares)
    if connection.socket_drops and shares.get(Limiter.CONGESTION, 0.0) >= SHARES[Limiter.CONGESTION]:
        shares = {Limiter.CLIENT_SOCKET: shares.pop(Limiter.CONGESTION)} | shares
        # With UDP GRO the kernel counts merged packets as one.
        evidence = f"at least {connection.socket_drops} packets dropped at the client's socket"
        return LimiterVerdict(limiter=Limiter.CLIENT_SOCKET, evidence=evidence, shares=shares)
    limiter = next((name for name, least in SHARES.items() if shares.get(name, 0.0) >= least), Limiter.UNKNOWN)
    return LimiterVerdict(limiter=limiter, evidence=_evidence(connection, rounds, shares), shares=shares)


def _client_cpu(connection: Connection, rounds: Sequence[_Round]) -> tuple[float, str] | None:
    """The share of the time that the client's CPU accounts for, and evidence; None if it was not the limit.

    A client that its CPU limits always has something to do: it runs, or waits for a CPU. One that sleeps waits for the
    network. And where the bottleneck never rests, a slow client costs nothing, unless it reads the end too late.
    """
    used, waited = connection.client_cpu_share or 0.0, connection.client_run_delay_share or 0.0
    if used <= CPU_LIMIT and used + waited <= NEVER_SLEEPS:
        return None
    late = connection.client_late_share or 0.0
    total_ns = sum(round_.duration_ns for round_ in rounds)
    queued_ns = sum(round_.duration_ns for round_ in rounds if _has_queue(connection, round_))
    if late < LATE_SHARE and (not total_ns or queued_ns / total_ns > 0.5):
        return None
    evidence = f"the client used a CPU for {used:.0%} of the time and waited for one for {waited:.0%}"
    return min(used + waited, 1.0), evidence


def _base_rtt_ns(connection: Connection) -> int | None:
    """The smallest round-trip time: of the handshake or, of TCP, of what came later. A QUIC handshake's is from the
    last Initial: the server answered none before, except by a Retry."""
    if connection.protocol == "quic":
        return nanoseconds_between(connection.quic_last_client_initial_ns, connection.quic_server_initial_ns)
    handshake_ns = nanoseconds_between(connection.syn_ns, connection.syn_ack_ns)
    client = connection.client
    later_ns = client.rtt_ts_min_ns if client.rtt_ts_count else client.rtt_ack_min_ns
    return min((rtt_ns for rtt_ns in (handshake_ns, later_ns) if rtt_ns is not None), default=None)


def _rounds(connection: Connection) -> list[_Round]:
    first_ns, last_ns, round_ns = connection.response_first_ns, connection.response_last_ns, connection.round_ns
    if first_ns is None or last_ns is None or round_ns is None or not _has_round_trip(connection):
        return []
    base_ns = _base_rtt_ns(connection)
    rounds: list[_Round] = []
    for number, size in enumerate(connection.round_bytes):
        duration_ns = min(round_ns, max(last_ns - first_ns - number * round_ns, 0))
        packets = connection.round_packets[number]
        rtt_ns = connection.round_rtt_ns[number] or None
        busy = None
        if connection.dispersion_ps_per_byte and duration_ns:
            busy = size * connection.dispersion_ps_per_byte / (duration_ns * 1000)
        rounds.append(
            _Round(
                duration_ns=duration_ns,
                bytes=size,
                near_window=_near_window(connection, number, duration_ns, base_ns),
                inflation=rtt_ns / base_ns if rtt_ns and base_ns else None,
                queued=bool(
                    rtt_ns and base_ns and rtt_ns > INFLATION * base_ns and rtt_ns > base_ns + INFLATION_LEAST_NS
                ),
                busy=busy,
                silent=packets == 0 or connection.round_silent_ns[number] > duration_ns / 2,
                losses=connection.round_losses[number],
            )
        )
    return _with_closed_window(rounds, connection.client.ws_zero_window)


def _has_round_trip(connection: Connection) -> bool:
    """Whether rounds are as long as a round trip: without the handshake they take 1 ms, and all gaps are silences."""
    rtt_ns = _base_rtt_ns(connection) if connection.protocol == "quic" else connection.initial_rtt_ns
    return (rtt_ns or 0) > 0


def _near_window(connection: Connection, number: int, duration_ns: int, base_ns: int | None) -> float:
    """Share of a round's packets near the client's window. Without timestamps nothing tells what was in flight: all are
    where about a window came per round trip."""
    if _window_evidence(connection, base_ns) is None:
        return 0.0
    if connection.server.flight_count:
        packets = connection.round_packets[number]
        return connection.round_window_limited[number] / packets if packets else 0.0
    per_rtt = connection.round_bytes[number] * (base_ns or 0) / max(duration_ns, 1)
    return float(0 < WINDOW_PER_RTT * connection.client.largest_window <= per_rtt)


def _window_evidence(connection: Connection, base_ns: int | None) -> str | None:
    """What `near_window` is a share of, in words; None if a TCP client's window is unknown, or no round trip tells."""
    if connection.protocol == "quic" or connection.window_scale_accepted is None:
        return None
    if connection.server.flight_count:
        return "of packets near the window"
    return "of the time with a window per round trip" if base_ns else None


def _with_closed_window(rounds: list[_Round], zero_windows: int) -> list[_Round]:
    """The rounds, in which silences after a filled window are the client's if it announced a zero window for each.

    With fewer of them some silences are the server's, and nothing tells which.
    """
    held: list[_Round] = []
    silences, is_full, is_held = 0, False, False
    for round_ in rounds:
        was_held, is_held = is_held, is_full and round_.silent
        silences += is_held and not was_held
        held.append(replace(round_, near_window=1.0) if is_held else round_)
        if round_.bytes:
            is_full = round_.near_window > 0
    return held if silences <= zero_windows else rounds


def _slow_start(rounds: Sequence[_Round]) -> int:
    """Number of rounds in slow start: up to the last one whose rate grew, before any loss."""
    highest, ends = 0.0, 0
    # The last round is cut where the answer ends: its rate says little unless it lasted.
    whole = max((round_.duration_ns for round_ in rounds), default=0)
    for number, round_ in enumerate(rounds):
        if round_.losses or (number > ends + 1):
            break
        if round_.rate > GROWTH * highest and round_.duration_ns > whole / 2:
            highest, ends = round_.rate, number + 1
    if rounds and ends == len(rounds) - 1 and rounds[-1].duration_ns < whole and not rounds[-1].losses:
        ends = len(rounds)
    return ends


def _shares(connection: Connection, rounds: Sequence[_Round]) -> dict[Limiter, float]:
    """Cause -> share of the time, in the order of `Limiter`."""
    total_ns = sum(round_.duration_ns for round_ in rounds)
    if not total_ns:
        return {}
    times_ns: dict[Limiter, int] = {}
    for round_, cause in zip(rounds, _causes(connection, rounds), strict=True):
        times_ns[cause] = times_ns.get(cause, 0) + round_.duration_ns
    return {name: times_ns[name] / total_ns for name in Limiter if name in times_ns}


def _is_busy(round_: _Round) -> bool:
    return round_.busy is not None and round_.busy >= BUSY


def _has_queue(connection: Connection, round_: _Round) -> bool:
    """Whether packets waited at the bottleneck. Of QUIC round-trip times are unknown, so its rate has to tell; of TCP
    both, as a packet that waited for its application looks like one that waited in a queue."""
    if connection.protocol == "quic":
        return _is_busy(round_)
    return round_.queued and (round_.busy is None or round_.busy >= QUEUE_BUSY)


def _causes(connection: Connection, rounds: Sequence[_Round]) -> Iterator[Limiter]:
    is_quic = connection.protocol == "quic"
    slow_start = _slow_start(rounds)
    after_loss = [total > 0 for total in itertools.accumulate(round_.losses for round_ in rounds)]
    if is_quic and (connection.quic_loss_episodes or connection.socket_drops):
        after_loss = [number >= slow_start for number in range(len(rounds))]
    credit = _credit_per_ns(connection)
    # A server that is blocked in each round meets the same window, however long the handshake made a round trip.
    is_fixed = (connection.quic_data_blocked or 0) >= len(rounds)
    most = math.inf if credit is None or is_fixed else CREDIT_MOST * credit
    for number, round_ in enumerate(rounds):
        has_queue = _has_queue(connection, round_)
        near_credit = credit is not None and CREDIT_SHARE * credit <= round_.rate <= most
        if not has_queue and (near_credit or round_.near_window >= WINDOW_SHARE):
            yield Limiter.RECEIVE_WINDOW
        elif after_loss[number]:
            yield Limiter.CONGESTION
        elif round_.silent:
            yield Limiter.SENDER
        elif has_queue or (round_.inflation is None and _is_busy(round_)):
            yield Limiter.PATH_RATE
        elif number < slow_start:
            yield Limiter.SLOW_START
        elif round_.inflation is None and round_.busy is None:
            yield Limiter.UNKNOWN
        else:
            yield Limiter.SENDER


def _credit_per_ns(connection: Connection) -> float | None:
    """A QUIC client's window per round trip [B/ns], if the server said that it was blocked by it."""
    rtt_ns = _base_rtt_ns(connection)
    if connection.quic_window is None or not rtt_ns or connection.quic_data_blocked == 0:
        return None
    return connection.quic_window / rtt_ns


def _evidence(connection: Connection, rounds: Sequence[_Round], shares: Mapping[Limiter, float]) -> str:
    """The figures behind the shares, for a person."""
    if not shares:
        is_unknown = connection.response_bytes and not _has_round_trip(connection)
        return "the round trip of the handshake is not in the capture" if is_unknown else "no answer in the capture"
    parts = [f"{connection.quic_data_blocked} blocked frames"] if connection.quic_data_blocked is not None else []
    if (words := _window_evidence(connection, _base_rtt_ns(connection))) is not None:
        parts = [f"{_mean(rounds, lambda round_: round_.near_window):.0%} {words}"]
    if connection.client.ws_zero_window:
        parts.append(f"{connection.client.ws_zero_window} zero windows")
    inflation = [round_ for round_ in rounds if round_.inflation is not None]
    if inflation:
        parts.append(f"RTT {_mean(inflation, lambda round_: round_.inflation or 0.0):.2f} times the smallest")
    losses = sum(round_.losses for round_ in rounds) + (connection.quic_loss_episodes or 0)
    parts.append(f"{losses} losses or marks")
    if any(round_.busy is not None for round_ in rounds):
        parts.append(f"bottleneck busy {min(_mean(rounds, lambda round_: round_.busy or 0.0), 1):.0%}")
    parts.append(f"{sum(round_.silent for round_ in rounds)} of {len(rounds)} rounds silent")
    parts.append(f"{_slow_start(rounds)} in slow start")
    return ", ".join(parts)


def _mean(rounds: Sequence[_Round], value: Callable[[_Round], float]) -> float:
    """The mean of a value over the time of the rounds."""
    total = sum(round_.duration_ns for round_ in rounds)
    return sum(value(round_) * round_.duration_ns for round_ in rounds) / total if total else 0.0
