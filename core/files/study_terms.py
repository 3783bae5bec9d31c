"""The closed lists of sender studies: knobs of a cell, and metrics of a repetition, each with its unit and its meaning.

The fields of `Knobs` are the names that a study file may set, `METRICS` those that it may draw, claim and expect.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from core.files.config import Strict
from core.files.disk import parse_size

PACKET_BYTES = 1500
WINDOWS = (1, 2, 3, 4, 6, 8, 10, 16, 20, 32, 50, 64, 100, 128, 300, 2000)
"""Initial windows that the servers of the lab have an address for [segments]."""
RECEIVE_WINDOW, MOST_GROWN, MSS = 310, 500, 1448
"""The kernel client's initial receive window and the largest window of `grow` [segments], and the payload of a full
segment with timestamps [bytes]."""
PROBE_WINDOW = 524_216
"""iwprobe's receive window, which is never larger [bytes]."""
ANSWER_BYTES = (64, 50_000_000)
"""Smallest and largest answer of the lab's senders, with its head."""
MOST_MBIT = 300.0
"""Fastest path that the emulator keeps to."""
LONGEST_MS = 10_000.0
MOST_ACK_EVERY = 1000
"""iwprobe acknowledges at least so often [segments]."""
LONGEST_IDLE_MS = 60_000.0
"""iwprobe waits no longer for a connection's second request (`ProbeRequest`)."""

Client = Literal["kernel", "iw", "fetch", "again"]
Beside = Annotated[str, Field(pattern=r"^(nothing|elephant|voice|rival [1-9][0-9]*)$")]

_OF_CLIENT: Mapping[str, Client] = {
    **dict.fromkeys(("html", "connections", "pipelined", "beside", "receive_window"), "kernel"),
    "ack_every": "fetch",
    "idle_ms": "again",
}
"""Knobs that only one client has."""
SEND_BOUNDS = {"pace": (0.01, 100), "first": (1, 10_000_000), "think": (0, 60_000)}
"""Bounds of the numbers of `send`, here and in files of a topology: round trips, bytes and ms."""
_SEND_WORDS = {"pace": "on", "first": "rfc3390"}
_QUEUE = re.compile(r"(?P<products>bdp x [0-9]{1,18}(?:\.[0-9]+)?)|(?P<packets>[0-9]+) packets?")


def _several(value: Any) -> Any:
    """A number as a list of one, so that lists of numbers can be written as one number."""
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


Number = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[int, Field(strict=True, ge=1)]
Rate = Annotated[float, Field(gt=0)]
Numbers = Annotated[tuple[Number, ...], BeforeValidator(_several)]


@dataclass(frozen=True, slots=True)
class About:
    """What a name of a study file means."""

    unit: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPackets(Strict):
    """Packets of the connection that are lost, by number and direction: 0 down is the SYN-ACK, 0 up the SYN."""

    down: Numbers = ()
    up: Numbers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs(Strict):
    """What a cell of a study sets: path, sender and client. `KNOBS` has the unit and the meaning of each."""

    rtt_ms: Annotated[float, Field(gt=0, le=LONGEST_MS), About("ms", "Round-trip time of the idle path.")] = 0.0
    rate_mbit: Annotated[Rate | None, About("Mbit/s", "Rate of IP packets towards the client; not set: no limit.")] = (
        None
    )
    queue: Annotated[
        Number | str | None,
        About(
            "", "Queue of the bottleneck: bytes, a size, `bdp x N`, `N packets` of 1500 bytes; not set: as paths do."
        ),
    ] = None
    loss_percent: Annotated[float, Field(ge=0, lt=100), About("%", "Random loss towards the client.")] = 0.0
    drop: Annotated[
        Numbers, About("", "Payload segments of each connection that are lost towards the client; 0 is the first.")
    ] = ()
    uplink_mbit: Annotated[
        Rate | None, About("Mbit/s", "Rate towards the server; not set: that towards the client.")
    ] = None
    lost: Annotated[
        LostPackets,
        About("", "Packets of each connection that are lost: `down` (0 is the SYN-ACK), `up` (0 is the SYN)."),
    ] = LostPackets()
    iw: Annotated[Positive, About("segments", "Initial congestion window of the sender.")] = 10
    send: Annotated[
        dict[Literal["pace", "cc", "first", "think"], str | int | float],
        About("", "How the sender sends: `pace`, `cc`, `first`, `think`, as files of a topology have it."),
    ] = field(default_factory=dict)
    sysctls: Annotated[dict[str, str | int], About("", "Kernel settings of the server's node.")] = field(
        default_factory=dict
    )
    html: Annotated[Number, About("B", "Answer that is fetched before the objects; 0: none.")] = 0
    objects: Annotated[Numbers, About("B", "Answers, each including its header; a number is a list of one.")] = ()
    connections: Annotated[Positive, About("", "Connections over which objects are fetched, one for each at most.")] = 1
    pipelined: Annotated[bool, Field(strict=True), About("", "All objects of a connection are requested at once.")] = (
        False
    )
    beside: Annotated[
        Beside, About("", "Competing traffic: `nothing`, `elephant`, `voice`, or `rival N` with that window.")
    ] = "nothing"
    watch_s: Annotated[
        float,
        Field(ge=0, le=60),
        About(
            "s",
            "Averaging interval of an elephant's rate; 0: four times the flow's time alone and 5 round trips of the "
            "idle path.",
        ),
    ] = 0.0
    client: Annotated[Client, About("", "Who fetches: `kernel`, or iwprobe as `iw`, `fetch` or `again`.")] = "kernel"
    receive_window: Annotated[
        Literal["grows", "fixed"],
        About("", "The client's: it `grows`, and the kernel acknowledges each segment for longer, or is `fixed`."),
    ] = "grows"
    ack_every: Annotated[
        Positive, Field(le=MOST_ACK_EVERY), About("segments", "After how many segments iwprobe acknowledges.")
    ] = 1
    idle_ms: Annotated[
        float,
        Field(ge=0, le=LONGEST_IDLE_MS),
        About("ms", "Pause between the first answer and the second request of `again`."),
    ] = 0.0
    grow: Annotated[
        Literal["kernel", "acks", "two"],
        About("", "How the window grows: by the `kernel` (bytes), by 1 per ACK (`acks`), by up to 2 per ACK (`two`)."),
    ] = "kernel"

    @property
    def queue_bytes(self) -> int | None:
        """The queue; None if it is not set. Raises ValueError if it is none, or is in products of an unknown rate."""
        if not isinstance(self.queue, str):
            return self.queue
        if (match := _QUEUE.fullmatch(self.queue)) is None:
            return parse_size(self.queue)
        if match["packets"]:
            return int(match["packets"]) * PACKET_BYTES
        if self.rate_mbit is None:
            raise ValueError(f"{self.queue!r} needs a rate_mbit")
        return round(float(self.queue.removeprefix("bdp x ")) * self.rate_mbit * 125 * self.rtt_ms)

    def fault(self) -> str | None:
        """Why these cannot be together, as a clause that names the knob; None if they can."""
        sends_self, default, first = self.grow != "kernel", Knobs(), self.send.get("first")
        window = min(self.iw, RECEIVE_WINDOW) if self.client == "kernel" else self.iw
        checks = (
            (not self.rtt_ms, "rtt_ms is not set"),
            *(
                ((rate or 0) > MOST_MBIT, f"{name} is above {MOST_MBIT:g}, which the emulator does not reach")
                for name, rate in (("rate_mbit", self.rate_mbit), ("uplink_mbit", self.uplink_mbit))
            ),
            *(
                (
                    value != word and not (isinstance(value, int | float) and least <= value <= most),
                    f"send.{name} {value!r} is not {least:g} to {most:g}" + (f" or {word!r}" if word else ""),
                )
                for name, (least, most) in SEND_BOUNDS.items()
                if (value := self.send.get(name)) is not None  # type: ignore[call-overload]
                for word in [_SEND_WORDS.get(name)]
            ),
            (self.iw not in WINDOWS and not sends_self, f"iw {self.iw} has no address in the lab"),
            (
                window < self.iw and first is None,
                f"iw {self.iw} is above {window}, the client's first receive window",
            ),
            (sends_self and window > MOST_GROWN, f"iw {window} is above {MOST_GROWN}, the largest window of grow"),
            (sends_self and first is not None, "grow has a window of its own, so send.first is ignored"),
            (isinstance(first, float), f"send.first {first} is not a whole number (TOML takes 1e5 for a fraction)"),
            (
                isinstance(first, int) and first > window * MSS,
                f"send.first {first} is more than {window} segments hold: the most that iw and the client allow",
            ),
            (sends_self and self._loses, "grow counts in loss-free flows only, and this path loses packets"),
            (sends_self and self.beside.startswith("rival"), "grow is for one window, and a rival has another"),
            (
                sum(map(bool, (self.loss_percent, self.drop, self.lost.down))) > 1,
                "loss_percent, drop and lost.down: the emulator has one of them on a path",
            ),
            (
                any(not name.startswith(("net.ipv4.", "net.ipv6.")) for name in self.sysctls),
                "sysctls have a name that is not in net.ipv4 or net.ipv6, so it may be the whole host's",
            ),
            (self.beside == "elephant" and self.rate_mbit is None, "an elephant has no link to fill without rate_mbit"),
            (not self.objects and not self.html, "neither html nor objects is set"),
            (
                any(not ANSWER_BYTES[0] <= size <= ANSWER_BYTES[1] for size in (self.html or 1000, *self.objects)),
                "an answer has {} to {} bytes, its head too".format(*ANSWER_BYTES),
            ),
            (self.client != "kernel" and len(self.objects) != 1, "iwprobe fetches one object"),
            *(
                (
                    client != self.client and getattr(self, knob) != getattr(default, knob),
                    f"{knob} is for the client {client} only",
                )
                for knob, client in _OF_CLIENT.items()
            ),
        )
        for wrong, clause in checks:
            if wrong:
                return clause
        if self.beside.startswith("rival") and int(self.beside.split()[1]) not in WINDOWS:
            return f"beside {self.beside!r}: this window has no address in the lab"
        try:
            queue = self.queue_bytes
        except ValueError as error:
            return f"queue: {error}"
        if self.client == "fetch" and (most := self._under_way(queue)) > PROBE_WINDOW:
            return f"iwprobe's receive window of {PROBE_WINDOW} bytes may limit it: up to {most:.0f} may be under way"
        return None if queue is None or queue >= PACKET_BYTES else f"queue has {queue} bytes, less than a packet"

    def _under_way(self, queue: int | None) -> float:
        """Most bytes of the answer that are in flight at once: slow start doubles them, and the path holds so many."""
        (size,), product = self.objects, (self.rate_mbit or math.inf) * 125 * self.rtt_ms
        held = product + (max(4 * product, 256_000) if queue is None else queue)  # as `PathSpec.queue_bytes`
        return min(size, (size + self.iw * MSS) / 2, held)

    @property
    def _loses(self) -> bool:
        return bool(self.loss_percent or self.drop or self.lost.down or self.lost.up)


KNOBS: Mapping[str, About] = {
    name: next(about for about in reversed(hint.__metadata__) if isinstance(about, About))
    for name, hint in typing.get_type_hints(Knobs, include_extras=True).items()
}
"""Name -> its unit and meaning."""


@dataclass(frozen=True, slots=True)
class StudyMetric:
    """A number of each repetition."""

    name: str
    unit: str
    help: str
    clients: tuple[Client, ...] = ("kernel",)
    """The clients that have it."""
    beside: str = ""
    """The knob `beside` has one of these as its first word, or the metric has no value."""

    def fault(self, knobs: Knobs) -> str | None:
        """Why a cell has no such metric, as a clause; None if it has one."""
        if knobs.client not in self.clients:
            return f"the client {knobs.client} has no metric {self.name}"
        if self.beside and knobs.beside.split()[0] not in self.beside.split():
            return f"{self.name} needs beside one of: {self.beside.replace(' ', ', ')}"
        return None


_BOTH: tuple[Client, ...] = ("kernel", "fetch")
_PROBES: tuple[Client, ...] = ("iw", "again")
METRICS: Mapping[str, StudyMetric] = {
    metric.name: metric
    for metric in (
        StudyMetric("time_ms", "ms", "From before connecting to the last byte.", _BOTH),
        StudyMetric("flights", "", "Gaps between arrivals above half a round trip, plus one.", _BOTH),
        StudyMetric("rounds", "round trips", "Time without that of all packets at the rate, in round trips.", _BOTH),
        StudyMetric("drops", "packets", "Packets that the emulator dropped.", (*_BOTH, *_PROBES)),
        StudyMetric("retransmissions", "packets", "Segments that the sender sent again (TCP_INFO)."),
        StudyMetric("timeouts", "", "Retransmission timeouts of the sender (TCP_INFO)."),
        StudyMetric("window", "segments", "The sender's congestion window at the end (TCP_INFO)."),
        StudyMetric("segments", "segments", "Segments before the first ACK, as iwprobe counts.", _PROBES),
        StudyMetric("neighbour_mbit", "Mbit/s", "Rate of the competing flow.", beside="elephant rival"),
        StudyMetric("voice_p50_ms", "ms", "Median delay of the voice packets.", beside="voice"),
        StudyMetric("voice_p99_ms", "ms", "99th percentile of the delay of the voice packets.", beside="voice"),
        StudyMetric("voice_lost", "packets", "Voice packets that were lost.", beside="voice"),
    )
}


def text(value: Any) -> str:
    """A value of a column as tables have it: `26`, `1.2`, `true`, `bdp x 1`; numbers of a list joined by `;`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, list | tuple):
        return ";".join(map(text, value))
    return "" if value is None else str(value)


def same_text(cell: str) -> str:
    """The text of a table's cell in the same form: `26.0` is `26`."""
    try:
        return text(float(cell)) if cell.strip() == cell else cell
    except (ValueError, OverflowError):
        return cell
