"""A repetition of a study: what is asked of emulator and client, and when; and which flows may be in one folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import core
from core.errors import UsageError
from core.files.config import build
from core.files.study import Cell, Ending
from core.files.study_terms import LONGEST_IDLE_MS, MOST_ACK_EVERY, Knobs
from downloader.programs import load
from survey.iw.wire import Arrival, Note, ProbeRequest, ProbeVerdict
from upshift.study import lane as lanes
from upshift.study import run
from upshift.study.clients import EndedError
from upshift.study.lane import CENSORED_S, CLIENT, DRAIN_S, Lane, RepetitionEnd
from upshift.study.run import LaneWorker, StudyProgress
from vantage.lab.lab import Lab
from vantage.lab.pathem import Emulator
from vantage.lab.topology import PathSpec
from vantage.lab.topology_file import find_topology, load_topology
from vantage.linux import namespace as linux

SERVER, OLD_PORT, PORT = "sender-1", 40_000, 40_001
UPSHIFT = f"Upshift {core.__version__}"


class Clock:
    """Time that passes as others say."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class World:
    """A lane without a lab: what it asks is in `log`.

    Args:
        idle: the answers whether the path is empty; then it is.
        tails: packets that the elephants' queues dropped, by port.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        idle: Iterable[bool] = (),
        tails: Mapping[int, int] | None = None,
        stopped: bool = False,
    ) -> None:
        self.log: list[str] = []
        self.requests: list[Mapping[str, Any]] = []
        self.stalls: list[Mapping[str, int]] = []
        self.clock, self.began = Clock(), 100.0
        self._idle, self._tails = iter(idle), tails or {}
        monkeypatch.setattr(lanes, "time", self.clock)
        self.lane: Any = object.__new__(Lane)
        programs: Any = SimpleNamespace(ask=self._ask)
        self.lane._emulator = self.lane.client = programs
        lab: Any = SimpleNamespace(set_path=lambda *_, **__: self.log.append("set_path"))
        self.lane.lab = lab
        self.lane.server, self.lane._seed, self.lane._stopped = SERVER, 1, lambda: stopped
        self.lane._main, self.lane._here = "198.19.0.16", "198.18.1.2"
        self.lane._pairs = [[CLIENT, SERVER], [SERVER, CLIENT]]
        self.lane._windows, self.lane._before, self.lane._present = {10: "198.19.0.23"}, {}, {}

    def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        self.log.append(op)
        self.requests.append({"op": op, **arguments})
        if op == "idle":
            empty = next(self._idle, True)
            assert arguments["timeout_ms"] < 30_000, "the emulator has to answer before its socket's time is over"
            self.clock.now += 0 if empty else arguments["timeout_ms"] / 1000
            return {"idle": empty}
        pair: dict[str, Any] = {"from": SERVER, "to": CLIENT, "overflow": 0, "write_errors": 0}
        pair["delivered_bytes"] = (self.clock.now - self.began) * 125_000
        answers: dict[str, dict[str, Any]] = {
            "elephant": {"port": PORT},
            "flows": {"flows": [{"sport": 80, "dport": port, "tail": tail} for port, tail in self._tails.items()]},
            "snapshot": {
                "monotonic_ns": self.clock.monotonic_ns(),
                "lateness_edges_us": [],
                "global": {
                    kind: {"recent": self.stalls, "worst": [], "histogram": {"buckets": []}}
                    for kind in ("wakeup", "iteration")
                },
                "pairs": [pair],
                "nodes": [],
            },
        }
        return answers.get(op, {})


def knobs(**given: Any) -> Knobs:
    return build({"rtt_ms": 100, "rate_mbit": 1, "objects": [73_848]} | given, Knobs, where="")


def test_an_elephant_is_not_judged_by_the_drops_of_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, tails={OLD_PORT: 17, PORT: 0})
    broken = world.lane.prepare(knobs(beside="elephant"))
    assert broken == "the elephant has 100.0% of the link and no drop after 60 s"
    assert World(monkeypatch, tails={OLD_PORT: 0, PORT: 1}).lane.prepare(knobs(beside="elephant")) is None


@pytest.mark.parametrize("beside", ["nothing", "elephant", "voice", "rival 3"])
def test_a_block_begins_on_an_empty_path(monkeypatch: pytest.MonkeyPatch, beside: str) -> None:
    """What is in flight keeps its queue when the path changes, and delays the first packets of the next block."""
    world = World(monkeypatch, idle=[False, False], tails={PORT: 1})
    world.lane.prepare(knobs(beside=beside))
    assert world.log[:5] == ["alone", "idle", "idle", "idle", "set_path"]


def test_an_elephant_has_no_settings_of_the_flow_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have no SACK, say, in those blocks before which such a flow came last."""
    world = World(monkeypatch, tails={PORT: 1})
    name = "net.ipv4.tcp_sack"
    world.lane._before, world.lane._present, world.lane._node = {name: "1"}, {name: "0"}, SimpleNamespace(run=None)

    def write(_: object, values: Mapping[str, str], **__: object) -> None:
        world.log.append(f"{name} = {values[name]}")

    monkeypatch.setattr(linux, "write_sysctls", write)
    world.lane.prepare(knobs(beside="elephant"))
    assert [word for word in world.log if word in ("elephant", f"{name} = 1")] == [f"{name} = 1", "elephant"]


def test_a_lane_that_waits_for_its_next_block_has_nothing_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of an elephant is given away with its block, and lanes may wait for minutes."""
    world = World(monkeypatch, tails={PORT: 1})
    waiting = [SimpleNamespace(knobs=knobs(beside="elephant"), work=[("0/0", None)])]
    agenda = SimpleNamespace(
        stopped=False, begin=lambda: waiting.pop() if waiting else None, end=lambda _: world.log.append("end")
    )
    monkeypatch.setattr(Lane, "once", lambda *_: RepetitionEnd(ending=Ending.OK, metrics={}))
    monkeypatch.setattr(Lane, "close", lambda _: None)
    monkeypatch.setattr(Lane, "fifo_priority", 5)
    monkeypatch.setattr(run, "Lane", lambda *_, **__: world.lane)
    study: Any = SimpleNamespace(cells=(), seed=1)
    worker: Any = LaneWorker(SimpleNamespace(), 1, study, agenda, SimpleNamespace(put=lambda _: None))  # type: ignore[arg-type]
    worker.run()
    assert world.log[-2:] == ["alone", "end"], "before others may have the rate"


@pytest.mark.parametrize(("stall_ms", "time_ms", "is_void"), [(20, 300, True), (4, 300, False), (20, 2500, False)])
def test_a_repetition_in_which_the_emulator_stood_still_is_void(
    monkeypatch: pytest.MonkeyPatch, stall_ms: int, time_ms: float, is_void: bool
) -> None:
    world = World(monkeypatch)
    before = world.lane._snapshot()
    world.clock.sleep(time_ms / 1000)
    world.stalls.append({"at_ns": world.clock.monotonic_ns(), "duration_ns": stall_ms * 1_000_000})
    fault = world.lane._fault(before, 0.0, 0.0, time_ms)
    said = f"the path emulator stood still for {stall_ms}.0 ms (the limit is 5.0 ms)"
    assert fault == (said if is_void else "")


def test_the_next_flow_waits_for_an_empty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, idle=[False, False])
    world.lane._rest(knobs(), 0.5)
    assert world.log == ["idle"] * 3
    world.log.clear()
    world.lane._rest(knobs(beside="elephant"), 0.5)
    assert not world.log, "beside an elephant it is never empty"


def test_a_path_that_does_not_become_empty_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, idle=[False] * 10_000)
    with pytest.raises(EndedError, match="the path was not empty after 600 s"):
        world.lane.prepare(knobs())
    assert DRAIN_S <= world.clock.now - world.began < DRAIN_S + 10
    assert "set_path" not in world.log
    stopping = World(monkeypatch, idle=[False] * 10_000, stopped=True)
    stopping.lane.prepare(knobs(beside="elephant"))
    assert stopping.clock.now - stopping.began < 5, "a run that is to end does not wait for it, nor for an elephant"


def test_nothing_starts_when_the_end_comes_while_a_block_is_prepared() -> None:
    agenda, made = SimpleNamespace(stopped=False), list[str]()

    def prepare(_: Knobs) -> None:
        agenda.stopped = True

    worker: Any = SimpleNamespace(_agenda=agenda, _reports=SimpleNamespace(put=made.append))
    block: Any = SimpleNamespace(knobs=knobs(), work=[("0/0", None), ("0/1", None)])
    LaneWorker._make(worker, SimpleNamespace(prepare=prepare), block)  # type: ignore[arg-type]
    assert not made


@pytest.mark.parametrize(
    ("tries", "prepared", "made"),
    [
        (["too little", None], 2, [("", True)] * 3),
        (["too little", EndedError("gone"), None], 3, [("gone", False), *[("", True)] * 3]),
        (["too little"] * 9, 4, [("too little", True)] * 3),
    ],
)
def test_an_elephant_that_does_not_fill_its_link_is_started_again(
    tries: list[Any], prepared: int, made: list[tuple[str, bool]]
) -> None:
    """One of them is no reason to void a whole block; a path on which none does so is left after some."""
    asked, reported = iter(tries), list[Any]()
    calls = []

    def prepare(_: Knobs) -> str | None:
        calls.append(answer := next(asked))
        if isinstance(answer, EndedError):
            raise answer
        result: str | None = answer
        return result

    def once(_: Cell, __: str) -> RepetitionEnd:
        return RepetitionEnd(ending=Ending.OK, metrics={})

    lane: Any = SimpleNamespace(prepare=prepare, once=once, check=lambda: None, fifo_priority=5)
    worker: Any = SimpleNamespace(_agenda=SimpleNamespace(stopped=False), _reports=SimpleNamespace(put=reported.append))
    block: Any = SimpleNamespace(knobs=knobs(beside="elephant"), work=[(f"0/{number}", None) for number in range(3)])
    LaneWorker._make(worker, lane, block)
    assert [(outcome.reason, final) for _, outcome, final, _ in reported] == made
    assert len(calls) == prepared


@pytest.mark.parametrize("ending", [Ending.CENSORED, Ending.DISTURBED])
def test_the_path_is_made_anew_after_a_flow_that_was_cut_off(ending: Ending) -> None:
    """Beside voice nothing waits for an empty path: what it left in the queue held up the next flow."""
    log, times = list[str](), iter([CENSORED_S * 1000, 900.0, 900.0])

    def once(_: Cell, name: str) -> RepetitionEnd:
        log.append(name)
        time_ms = next(times)
        return RepetitionEnd(ending=Ending.OK if time_ms < CENSORED_S * 1000 else ending, metrics={"time_ms": time_ms})

    lane: Any = SimpleNamespace(prepare=lambda _: log.append("prepare"), once=once, fifo_priority=5)
    worker: Any = SimpleNamespace(_agenda=SimpleNamespace(stopped=False), _reports=SimpleNamespace(put=len))
    block: Any = SimpleNamespace(knobs=knobs(beside="voice"), work=[(f"0/{number}", None) for number in range(2)])
    LaneWorker._make(worker, lane, block)
    again = ["0/0"] * (ending is Ending.DISTURBED)  # a void one is repeated
    assert log == ["prepare", "0/0", "prepare", *again, "0/1"]


@pytest.mark.parametrize(
    ("waited_ms", "late_ms", "ending"),
    [(0.0, 0.0, Ending.CENSORED), (59_000.0, 0.0, Ending.DISTURBED), (0.0, 601.0, Ending.DISTURBED)],
)
def test_a_flow_of_60_s_may_be_void(
    monkeypatch: pytest.MonkeyPatch, waited_ms: float, late_ms: float, ending: Ending
) -> None:
    """What its path was programmed to lose is no reason."""
    world = World(monkeypatch)
    losses = {"loss": 900, "tail": 80, "aqm": 7, "lateness_max_ns": late_ms * 1e6}
    answers: dict[str, Any] = {"flows": {"flows": [losses]}, "snapshot": world.lane._snapshot()}
    world.lane._emulator = SimpleNamespace(ask=lambda op, **_: answers.get(op, {"idle": True}))
    metrics = {"time_ms": CENSORED_S * 1000, "spent_ms": CENSORED_S * 1000}
    world.lane._load = lambda *_, **__: (metrics, waited_ms, Ending.CENSORED)
    cell: Any = SimpleNamespace(knobs=knobs(loss_percent=30))
    made = world.lane.once(cell, "0/0")
    assert made.ending is ending and made.metrics["drops"] == 987
    assert (made.reason == "longer than 60 s") == (ending is Ending.CENSORED)


@pytest.mark.parametrize(("grow", "ending"), [("acks", Ending.DISTURBED), ("kernel", Ending.OK)])
def test_a_window_that_counts_acks_has_no_losses(monkeypatch: pytest.MonkeyPatch, grow: str, ending: Ending) -> None:
    """It counts what is sent again as acknowledged, and the kernel's window becomes the limit."""
    world = World(monkeypatch)
    dropped = {"loss": 0, "tail": 12, "aqm": 0, "lateness_max_ns": 0}
    answers: dict[str, Any] = {"flows": {"flows": [dropped]}, "snapshot": world.lane._snapshot()}
    world.lane._emulator = SimpleNamespace(ask=lambda op, **_: answers.get(op, {"idle": True}))
    world.lane._load = lambda *_, **__: ({"spent_ms": 900.0}, 0.0, Ending.OK)
    world.lane._windows[lanes.OWN_WINDOW] = "198.19.0.30"
    cell: Any = SimpleNamespace(knobs=knobs(grow=grow, iw=10, queue="4 packets"))
    made = world.lane.once(cell, "0/0")
    assert made.ending is ending
    said = "12 packets were dropped, and grow = 'acks' counts without loss only"
    assert made.reason == (said if ending is Ending.DISTURBED else "")
    assert knobs(grow=grow, beside="rival 10").fault() == (
        None if grow == "kernel" else "grow is for one window, and a rival has another"
    )


# The share of an elephant


SHARES = [(1, 8, 3.5), (1, 1, 1.5), (4, 8, 1.6), (4, 1, 0.9)]
"""Rate [Mbit/s], queue [products], time of the flow [s]."""


class FullLink:
    """A load and an elephant on one link, which is full all the time: what the flow has not, the elephant has."""

    def __init__(self, rate: float, flow_s: float, info_s: float, size: int) -> None:
        self.clock, self.began = Clock(), 100.0
        self.rate, self.flow_s, self.size = rate, flow_s, size
        self.closed, self.left, self.ended_ns = 0, 1, 0
        self.events = [(self.began + flow_s, self._end), (self.began + flow_s + info_s, self._tell)]
        self.connection: Any = SimpleNamespace(info=None, ask_info=lambda: None, sock=SimpleNamespace())
        self.connection.is_connected = True
        self.connection.sock.getsockname = lambda: ("", PORT)

    @property
    def received(self) -> int:
        """What the elephant has."""
        spent = self.clock.now - self.began
        return round(self.rate * 125_000 * spent - min(1.0, spent / self.flow_s) * self.size)

    def _end(self) -> None:
        self.left, self.ended_ns = 0, self.clock.monotonic_ns()

    def _tell(self) -> None:
        self.connection.info = {"window": 10, "retransmissions": 0, "timeouts": 0, "waited_ns": 0}

    def turn(self, until: float) -> None:
        """As `Sockets.turn`."""
        self.clock.now = until
        if self.events and self.events[0][0] <= until:
            self.clock.now, happens = self.events.pop(0)
            happens()

    def close(self, _: object) -> None:
        self.closed += 1

    def load(self, *_: object) -> Any:
        """In place of a `Load`."""
        path = self

        class Loading:
            acted, size, flights = False, path.size, 3
            connections = (path.connection,)
            left = property(lambda _: path.left)
            ended_ns = property(lambda _: path.ended_ns)

            def start(self) -> None:
                pass

        return Loading()


@pytest.mark.parametrize(("rate", "products", "flow_s"), SHARES)
@pytest.mark.parametrize(("html", "watch_s"), [(0, 0), (20_000, 0), (0, 15)])
def test_the_share_of_an_elephant_is_over_its_span(
    monkeypatch: pytest.MonkeyPatch, rate: float, products: float, flow_s: float, html: int, watch_s: float
) -> None:
    """The sender's TCP_INFO comes behind the elephant's queue: often long after the span."""
    cell = knobs(rate_mbit=rate, beside="elephant", html=html, watch_s=watch_s)
    path = FullLink(rate, flow_s, 0.1 * (1 + products), 73_848 + html)
    monkeypatch.setattr(load, "time", path.clock)
    monkeypatch.setattr(load, "Load", path.load)
    client: Any = load.LoadClient()
    client.sockets, client._elephant = path, path
    world = World(monkeypatch)
    monkeypatch.setattr(lanes, "time", path.clock)
    world.lane.client = SimpleNamespace(ask=lambda **request: client.answer(request))
    metrics, _, ending = world.lane._load(cell, "198.19.0.23", rival_first=False)
    span_s = max(watch_s or 4 * (73_848 + html) * 8e-6 / rate + 0.5, flow_s)
    assert ending is Ending.OK and metrics["window"] == 10
    assert metrics["neighbour_mbit"] == pytest.approx(rate - path.size * 8e-6 / span_s, rel=1e-5)


@pytest.mark.parametrize(("rival_s", "rate_mbit"), [(0.5, 1.18), (2.0, 0.295), (4.0, 0.1475)])
def test_the_rate_of_a_rival_is_over_its_own_time(
    monkeypatch: pytest.MonkeyPatch, rival_s: float, rate_mbit: float
) -> None:
    """A flow that takes longer would look as if it took more of a rival that had ended before."""
    size, flow_s, clock = 73_750, 2.0, Clock()

    class Flow:
        acted, flights, connections = False, 3, ()

        def __init__(self, _: object, __: object, address: str) -> None:
            self.size, self.takes = size, rival_s if address == "rival" else flow_s

        left = property(lambda self: round(size * (1 - min(1, (clock.now - 100) / self.takes))))
        ended_ns = property(lambda self: round(1e9 * min(clock.now, 100 + self.takes)))

        def start(self) -> None:
            pass

    monkeypatch.setattr(load, "time", clock)
    monkeypatch.setattr(load, "Load", Flow)
    client: Any = load.LoadClient()
    client.sockets = SimpleNamespace(turn=lambda _: clock.sleep(0.125))
    asked = {"op": "load", "address": "mine", "rival": "rival", "rival_first": False, "limit_s": 60, "span_ms": 0}
    assert client.answer(asked)["neighbour_mbit"] == pytest.approx(rate_mbit)


def test_a_connection_that_has_told_is_closed_before_its_sender_loses_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A span may be longer than a sender waits (90 s)."""
    sock = SimpleNamespace(recv=lambda _: b'HTTP/1.1 200 OK\r\n\r\n{"window": 10}', send=len)
    closed: list[object] = []
    sockets: Any = SimpleNamespace(connect=lambda *_: sock, close=closed.append)
    loading: Any = SimpleNamespace(sockets=sockets, address="198.19.0.23", fixed_window=False)
    connection = load.LoadConnection(loading, None)  # type: ignore[arg-type]
    connection.ask_info()
    connection._read()
    assert connection.info == {"window": 10} and closed == [sock]


def test_a_load_does_without_a_connection_whose_handshake_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client ended with it, so only flows whose handshakes all came through were counted."""
    ready: list[Any] = []
    body = b"HTTP/1.1 200 OK\r\n\r\n".ljust(1000, b"x")
    answers = iter([body, body, b'HTTP/1.1 200 OK\r\n\r\n{"window": 10}'])

    class Sock:
        def __init__(self) -> None:
            self.opened = False

        def send(self, data: bytes) -> None:
            if not self.opened:
                raise BlockingIOError  # as the kernel says before the SYN-ACK

        def recv(self, _: int) -> bytes:
            return next(answers)

        def getsockname(self) -> tuple[str, int]:
            return "198.18.1.2", PORT

    class Links:
        """Only the first one comes about."""

        first: Sock | None = None

        def connect(self, _: str, connected: Any) -> Sock:
            sock = Sock()
            if self.first is None:
                self.first, sock.opened = sock, True
                ready.append(connected)
            return sock

        def watch(self, _: object, __: int, read: Any) -> None:
            ready.append(read)

        def turn(self, _: float) -> None:
            ready[0 if len(ready) == 1 else -1]()

        def close(self, _: object) -> None:
            pass

    client: Any = load.LoadClient()
    client.sockets = Links()
    asked = {"op": "load", "address": "a", "html": None, "objects": [["/", 1000]] * 2, "connections": 2, "gap_ms": 50}
    asked |= {
        "pipelined": False,
        "fixed_window": False,
        "rival": None,
        "rival_first": False,
        "limit_s": 5,
        "span_ms": 0,
    }
    answer = client.answer(asked)
    assert answer["outcome"] == "ok" and answer["connections"] == [{"window": 10}] and len(answer["ports"]) == 2


# Random losses


class Asked(Emulator):
    """Keeps what it is asked."""

    def __init__(self, pairs: list[dict[str, Any]]) -> None:
        self._asked = pairs

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        self._asked.append(arguments)
        return {}

    def close(self) -> None:
        pass


def test_a_draw_has_the_same_losses_on_each_path() -> None:
    """So what is lost in a repetition does not depend on the lane that makes it."""
    pairs: list[dict[str, Any]] = []
    lab: Any = object.__new__(Lab)
    lab.folder = SimpleNamespace(is_own=lambda: True)
    lab.topology = load_topology(find_topology("studies"))
    lab.emulator = lambda: Asked(pairs)

    def seed(server: str, draw: int) -> int:
        pairs.clear()
        path = PathSpec(rtt_ms=100, rate_mbit=10, loss_percent=1)
        Lab.set_path(lab, CLIENT, server, path, uplink_mbit=10, draw=draw)
        [seed] = [pair["loss"]["seed"] for pair in pairs if pair.get("loss")]
        return int(seed)

    assert seed("sender-3", 7) == seed("sender-7", 7) != seed("sender-7", 8)
    assert seed("sender-3", 0) != seed("sender-7", 0), "paths that nothing is drawn for have their own"


# iwprobe


def fetched(monkeypatch: pytest.MonkeyPatch, **reply: Any) -> tuple[Mapping[str, Any], float, Ending]:
    """What a lane makes of iwprobe's reply to a download."""
    world = World(monkeypatch)
    arrivals = tuple(Arrival(50_000 * flight, segment) for flight in range(3) for segment in range(2))
    whole = SimpleNamespace(**{"notes": Note(0), "arrivals": arrivals, "flight_segments": 6} | reply)
    world.lane._prober = SimpleNamespace(ask=lambda request: (whole, 0.0))
    made: tuple[Mapping[str, Any], float, Ending] = world.lane._probe(knobs(rtt_ms=50, client="fetch"), "198.19.0.23")
    return made


@pytest.mark.parametrize("verdict", [ProbeVerdict.LOWER_BOUND, ProbeVerdict.NO_DATA])
def test_a_download_that_reaches_the_time_limit_is_censored(
    monkeypatch: pytest.MonkeyPatch, verdict: ProbeVerdict
) -> None:
    """Left out as disturbed, the mean of its cell would be that of the fast ones."""
    metrics, _, ending = fetched(monkeypatch, verdict=verdict, total_us=60_000_412)
    assert ending is Ending.CENSORED and metrics["time_ms"] == CENSORED_S * 1000
    with pytest.raises(EndedError, match="iwprobe: lower bound"):
        fetched(monkeypatch, verdict=ProbeVerdict.LOWER_BOUND, total_us=59_000_000)
    assert fetched(monkeypatch, verdict=ProbeVerdict.COMPLETE, total_us=60_000_412)[2] is Ending.OK


def test_flights_of_which_some_arrivals_are_missing_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _, _ = fetched(monkeypatch, verdict=ProbeVerdict.COMPLETE, total_us=300_000)
    cut, _, _ = fetched(monkeypatch, verdict=ProbeVerdict.COMPLETE, total_us=300_000, notes=Note.ARRIVALS_CUT)
    assert (whole["flights"], cut["flights"]) == (3, None)


def test_the_prober_takes_what_a_study_may_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """And has the time for it: with the longest pause it ended with the second request, and each flow was disturbed."""
    longest = knobs(client="again", idle_ms=LONGEST_IDLE_MS)
    assert longest.fault() is None
    asked: list[ProbeRequest] = []
    world = World(monkeypatch)
    whole = SimpleNamespace(verdict=ProbeVerdict.COMPLETE, flight_segments=10, total_us=9, arrivals=(), notes=Note(0))

    def ask(request: ProbeRequest) -> tuple[SimpleNamespace, float]:
        asked.append(request)
        return whole, 0.0

    world.lane._prober = SimpleNamespace(ask=ask)
    for wanted in (longest, knobs(client="fetch", ack_every=MOST_ACK_EVERY)):
        world.lane._probe(wanted, "198.19.0.23")
    assert asked[0].idle_ms == LONGEST_IDLE_MS <= asked[0].limit_ms - 5000
    assert asked[1].limit_ms == CENSORED_S * 1000 and asked[1].ack_every == MOST_ACK_EVERY


# Folders


class HostLab:
    """A lab, as far as its environment goes."""

    def __init__(self, kernel: str, fifo: int) -> None:
        self.kernel, self.fifo = kernel, fifo

    def place(self, _: str) -> Any:
        return SimpleNamespace(environment=lambda: {"kernel": self.kernel, "load_1m": 1.0})

    def timing(self) -> dict[str, object]:
        return {"servers_fifo_priority": self.fifo}


@pytest.fixture
def resumed(tmp_path: Path) -> Iterator[Any]:
    """Begins a run on a host in a folder that has some flows already."""

    def begin(kernel: str, fifo: int, *, client_fifo: int | None = None, done: int = 3) -> None:
        ledger: Any = SimpleNamespace(counts=lambda: (10, Counter({Ending.OK.value: done})))
        quiet: Any = SimpleNamespace()
        progress = StudyProgress(
            SimpleNamespace(name="s"),  # type: ignore[arg-type]
            *(ledger, tmp_path),
            progress=quiet,
            say=lambda _: None,
        )
        progress.begin(HostLab(kernel, fifo), fifo if client_fifo is None else client_fifo)  # type: ignore[arg-type]

    yield begin


def test_a_folder_has_flows_of_one_kind_of_host(resumed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "environment.json"
    resumed("6.1.0-25", 5, done=0)
    resumed("6.1.0-25", 5)
    with pytest.raises(UsageError) as caught:
        resumed("6.18.1", 5)
    assert caught.value.sentence() == (
        f"{tmp_path}: its flows are of {UPSHIFT} on Linux 6.1.0-25 with real-time priority, and this host has {UPSHIFT}"
        " on Linux 6.18.1 with real-time priority; use another --out"
    )
    with pytest.raises(UsageError, match=r" on Linux 6\.1\.0-25 without real-time priority; "):
        resumed("6.1.0-25", 0)
    assert json.loads(file.read_text())["kernel"] == "6.1.0-25", "the record stays that of the flows"
    resumed("6.18.1", 5, done=0)  # nothing was made there yet
    assert json.loads(file.read_text())["kernel"] == "6.18.1"
    resumed("6.18.1", 5, client_fifo=0)  # its first attempt ended before the client had its priority
    monkeypatch.setattr(core, "__version__", "9.9.9")
    with pytest.raises(UsageError, match=r"this host has Upshift 9\.9\.9 on Linux 6\.18\.1"):
        resumed("6.18.1", 5)  # what a metric means may have changed
    resumed("6.18.1", 5, done=0)
    assert json.loads(file.read_text())["upshift"] == "9.9.9"
    for damaged in ("", "[]", "{}", '{"kernel": "6.1", "timing": 3}'):
        file.write_text(damaged)
        resumed("6.18.1", 5)  # what does not tell cannot be compared


@pytest.mark.parametrize(("client", "mss", "headers"), [("kernel", 1448, 52), ("fetch", 1460, 40)])
def test_rounds_are_without_the_time_of_the_client_s_own_packets(client: str, mss: int, headers: int) -> None:
    """iwprobe sends no timestamps."""
    size = 10 * 1448 * 365  # whole segments of both
    own = knobs(rtt_ms=50, rate_mbit=10, client=client, objects=(size,))
    packets_ms = (size + headers * size // mss) * 8e-3 / 10
    assert lanes.rounds(own, packets_ms + 3 * 50) == pytest.approx(3)
