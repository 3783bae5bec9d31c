"""The path emulator: its configuration, and its control socket."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.errors import LabError
from vantage.lab.addresses import Addresses, populations, prober_addresses, window_addresses
from vantage.lab.topology import DNS_NODE, PathSpec, Rewrite, Topology
from vantage.linux.cpu import CpusAwake, parse_cpus_awake

DEVICE = "tun0"
DNS_DELAY_US = 1000
UPLINK_QUEUE_BYTES = 2_000_000
"""Requests and acknowledgements never fill it."""

COMPENSATION_US = 40
"""The emulator's own delay per packet, each way (median of a quiet host): subtracted from every delay."""
TXQUEUELEN = 20_000
LET_CPUS_SLEEP = "--let-cpus-sleep"
"""The emulator's option not to keep the host's CPUs awake."""


def configuration(topology: Topology, addresses: Mapping[str, Addresses], *, ipv6: bool) -> dict[str, Any]:
    """pathem's configuration file (docs/design/pathem.md)."""
    probers, windows, prefixes = prober_addresses(topology), window_addresses(topology), populations(topology)
    held = {
        name: [own, *([probers[name]] if name in probers else []), *windows.get(name, {}).values()]
        for name, own in addresses.items()
    }
    nodes = [
        {
            "name": name,
            "netns": f"/run/netns/{name}",
            "device": DEVICE,
            "addresses": [address for each in held[name] for address in (each.ipv4, each.ipv6)[: 1 + ipv6]],
            **({"prefixes": own} if (own := [part.prefix for part in prefixes if part.server == name]) else {}),
        }
        for name in addresses
    ]
    pairs: list[dict[str, Any]] = []
    for vantage in topology.vantage:
        pairs += _both(vantage.name, DNS_NODE, {"delay_us": DNS_DELAY_US}, {"delay_us": DNS_DELAY_US})
        for server in topology.server:
            path = server.paths[vantage.name]
            down = _towards_client(path, topology.seed_of("loss", server.name, vantage.name))
            pairs += _both(vantage.name, server.name, _towards_server(path, vantage.uplink_mbit), down)
    for server in topology.server:
        if server.edge:
            path = server.edge.path
            pairs += _both(
                server.name, server.origin_name, _towards_server(path, path.rate_mbit), _towards_client(path, 0)
            )
    return {
        "schema": 1,
        "nodes": nodes,
        "pairs": pairs,
        "delay_compensation_us": COMPENSATION_US,
        "txqueuelen": TXQUEUELEN,
    }


def _both(one: str, other: str, there: dict[str, Any], back: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"from": one, "to": other, **there}, {"from": other, "to": one, **back}]


def _towards_server(path: PathSpec, rate_mbit: float) -> dict[str, Any]:
    return {
        "delay_us": round(path.rtt_ms * 500),
        "rate_bps": _bits(rate_mbit),
        "queue_bytes": UPLINK_QUEUE_BYTES,
        **_rules(path, 0),
    }


def _bits(rate_mbit: float) -> int | None:
    """The emulator's rate; None: unlimited."""
    return None if math.isinf(rate_mbit) else round(rate_mbit * 1e6)


def path_pairs(
    vantage: str,
    server: str,
    path: PathSpec,
    *,
    uplink_mbit: float,
    seed: int = 0,
    lost: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> list[dict[str, Any]]:
    """The two directions of a path as the emulator's `set_pair` takes them.

    Args:
        path: its rate may be infinite; then it needs a queue.
        uplink_mbit: rate towards the server; may be infinite.
        seed: of its random losses.
        lost: the packets of each connection that are lost, towards the vantage point and towards the server; 0 is the
            SYN-ACK, or the SYN.
    """
    there, back = _towards_server(path, uplink_mbit), _towards_client(path, seed)
    for direction, packets in ((back, lost[0]), (there, lost[1])):
        if packets:
            direction["loss"] = {"pattern": list(packets), "count": "packets"}
    return _both(vantage, server, there, back)


def _towards_client(path: PathSpec, seed: int) -> dict[str, Any]:
    loss: dict[str, Any] | None = None
    if path.loss_percent:
        loss = {"probability": path.loss_percent / 100, "seed": seed}
    elif path.drop:
        loss = {"pattern": path.drop, "count": "payload"}
    policer: dict[str, Any] = {}
    if path.packets_per_rtt:
        policer = {"policer": {"packets": path.packets_per_rtt, "every_us": round(path.rtt_ms * 1000)}}
    return {
        "delay_us": round(path.rtt_ms * 1000) - round(path.rtt_ms * 500),
        "rate_bps": _bits(path.rate_mbit),
        "queue_bytes": path.queue_bytes,
        "loss": loss,
        **policer,
        "ecn_threshold_bytes": path.ecn_threshold_bytes,
        **_rules(path, 1),
    }


_RULES: Mapping[Rewrite, tuple[Sequence[str], Sequence[str]]] = {
    "bleach": (["bleach_ect"], ["bleach_ect"]),
    "clear_ce": ([], ["ce_to_ect0"]),
    "clear_ce_and_ect": ([], ["ce_to_not_ect"]),
    "drop_ecn_syn": (["drop_ecn_syn"], []),
    "strip_ecn": (["strip_ecn"], ["strip_ecn"]),
    "strip_sack": (["strip_sack"], ["strip_sack"]),
    "strip_window_scale": (["strip_window_scale"], ["strip_window_scale"]),
    "strip_timestamps": (["strip_timestamps"], ["strip_timestamps"]),
    "rewrite_ecn": (["strip_ecn"], ["forge_ecn", "mark_ect0"]),
    "rewrite_sack": (["strip_sack"], ["forge_sack"]),
    "rewrite_window_scale": (["lower_window_scale"], ["lower_window_scale"]),
}
"""The emulator's rules towards the server, and towards the client."""


def _rules(path: PathSpec, direction: int) -> dict[str, list[str]]:
    rules = [rule for rewrite in path.rewrites for rule in _RULES[rewrite][direction]]
    return {"rewrite": rules} if rules else {}


_REMEDY = "run the same command again; if upshift lab status shows the lab, bring it down before"


class Emulator:
    """A client of the running emulator. One connection, shared by threads.

    Raises:
        LabError: the emulator does not answer, or refuses.
    """

    def __init__(self, path: Path, *, timeout_s: float = 30.0) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise self._gone(error) from None
        self._reader = self._socket.makefile("rb")

    def _gone(self, error: OSError) -> LabError:
        reason = error.strerror or type(error).__name__
        return LabError(f"the path emulator does not answer ({reason})", where=str(self._path), remedy=_REMEDY)

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        """The answer to one request."""
        request = json.dumps({"op": op, **arguments}) + "\n"
        with self._lock:
            try:
                self._socket.sendall(request.encode())
                line = self._reader.readline()
            except OSError as error:
                raise self._gone(error) from None
        if not line.endswith(b"\n"):  # perhaps in the middle of its answer
            raise LabError("the path emulator has ended", where=str(self._path), remedy=_REMEDY)
        answer = json.loads(line)
        if not isinstance(answer, dict) or "error" in answer:
            reason = answer.get("error") if isinstance(answer, dict) else "the answer is not an object"
            raise LabError(f"the path emulator refused {op!r}: {reason}", where=str(self._path))
        return answer

    def timing(self, state: Mapping[str, Any]) -> dict[str, object]:
        """What the lab's timing depends on: what keeps the CPUs awake, and priorities.

        Args:
            state: the lab's `state.json`, which has what its other programs were granted.
        """
        scheduling = self.ask("snapshot", pairs=[])["global"]["scheduling"]
        return {
            "cpus_awake": asdict(self.cpus_awake()),
            "emulator_fifo_priority": scheduling["fifo_priority"],
            "emulator_nice": scheduling["nice"],
            "nice": int(state.get("nice", 0)),
            "servers_fifo_priority": int(state.get("fifo_priority", 0)),
        }

    def cpus_awake(self) -> CpusAwake:
        """What keeps the host's CPUs awake."""
        return parse_cpus_awake(self.ask("snapshot", pairs=[])["global"]["cpus_awake"])

    def close(self) -> None:
        self._reader.close()
        self._socket.close()
