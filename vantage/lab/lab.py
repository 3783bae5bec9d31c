"""`open_lab`: a lab for the duration of a block, either one that is already up or a new one."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from core.domain import Target
from core.errors import LabError, UsageError
from core.terminal import Progress
from vantage.lab import control, truth
from vantage.lab.addresses import prober_addresses, window_addresses
from vantage.lab.pathem import LET_CPUS_SLEEP, Emulator, path_pairs
from vantage.lab.place import LabPlace
from vantage.lab.plan import LabPlan, read_plan
from vantage.lab.state import LabFolder
from vantage.lab.topology import PathSpec, Topology
from vantage.lab.topology_file import find_topology, load_topology
from vantage.linux.cpu import CpusAwake
from vantage.linux.environment import first_line


class Lab:
    """A lab that is up."""

    def __init__(self, folder: LabFolder) -> None:
        state = folder.read_state()
        if state is None or not folder.alive():
            raise LabError(f"the lab {folder.name} is not up", remedy=f"run: upshift lab up {folder.name}")
        if state["status"] != "ready":
            raise LabError(
                f"the lab {folder.name} is {state['status']} ({state['detail']})",
                remedy=f"run: upshift lab down {folder.name}, then bring it up again",
            )
        self.folder = folder
        self.topology: Topology = load_topology(folder.topology)
        self.plan: LabPlan = read_plan(folder.plan)
        self.state: Mapping[str, Any] = state

    @property
    def name(self) -> str:
        return self.topology.name

    @property
    def vantage_points(self) -> list[str]:
        """Names, in the order of the topology."""
        return [vantage.name for vantage in self.topology.vantage]

    @property
    def ca_file(self) -> Path:
        return self.folder.ca

    def place(self, name: str) -> LabPlace:
        """A node as a place. Raises UsageError listing the nodes if none has that name."""
        if name not in self.plan.addresses:
            known = ", ".join(self.plan.addresses)
            raise UsageError(f"the lab {self.name} has no node {name!r}", remedy=f"it has: {known}")
        windows = window_addresses(self.topology)
        paths = {
            address: (server.name, server.paths[name])
            for server in self.topology.server
            if name in server.paths
            for own in (self.plan.addresses[server.name], *windows[server.name].values())
            for address in (own.ipv4, own.ipv6)
        }
        prober = prober_addresses(self.topology).get(name)
        return LabPlace(self.folder, name, state=self.state, plan=self.plan, paths=paths, prober=prober)

    def timing(self) -> dict[str, object]:
        """How the lab keeps time (see `Emulator.timing`)."""
        with closing(self.emulator()) as emulator:
            return emulator.timing(self.state)

    def cpus_awake(self) -> CpusAwake:
        """What keeps the host's CPUs awake while the lab is up."""
        with closing(self.emulator()) as emulator:
            return emulator.cpus_awake()

    def emulator(self) -> Emulator:
        """A separate connection to the path emulator."""
        return Emulator(self.folder.socket)

    def set_path(
        self,
        vantage: str,
        server: str,
        path: PathSpec,
        *,
        uplink_mbit: float,
        lost: tuple[Sequence[int], Sequence[int]] = ((), ()),
        draw: int = 0,
    ) -> None:
        """Programs the path between two nodes for the packets that arrive from now on.

        Args:
            path: as in a topology; its rate may be infinite.
            uplink_mbit: rate towards the server.
            lost: packets of each connection that are lost (`pathem.path_pairs`).
            draw: other random losses for each number; connections under one number lose the same packets, between
                whichever nodes. 0: those of this path.

        Raises LabError if the emulator refuses, or if the lab belongs to another process.
        """
        if not self.folder.is_own():
            raise LabError(
                f"the lab {self.name} is up already, and its paths are not changed",
                remedy=f"run: upshift lab down {self.name}",
            )
        seed = self.topology.seed_of("loss", *((str(draw),) if draw else (server, vantage, "0")))
        with closing(self.emulator()) as emulator:
            for pair in path_pairs(vantage, server, path, uplink_mbit=uplink_mbit, seed=seed, lost=lost):
                emulator.ask("set_pair", **pair)

    def targets(self, *, faults: bool = False) -> list[Target]:
        """The first file of each domain, with its true size; of servers with a fault only with `faults`."""
        return truth.targets_of(self.topology, faults=faults)

    def sha256(self, domain: str) -> str:
        """Hash of the file that the domain's target names."""
        servers = self.topology.server
        server = next(server for server in servers if domain in (*server.domains, *server.window_names))
        file = self.folder.content / server.name / server.files[0].path.removeprefix("/")
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def truth(self) -> dict[str, Any]:
        """The document `lab.json` of docs/design/house.md: the programmed properties of every path."""
        versions = {
            name: (first_line(argv) or "").rpartition(": ")[2] or None for name, argv in self.plan.versions.items()
        }
        return truth.document(self.topology, self.plan.addresses, timing=self.timing(), versions=versions)


@contextmanager
def open_lab(topology: str | Path, *, progress: Progress | None = None, let_cpus_sleep: bool = False) -> Iterator[Lab]:
    """A lab of this topology: the one that is up, else a new one that is taken down at the end.

    A new lab ends with this process, however it ends. `let_cpus_sleep` applies to a new lab only; for a lab that is up,
    a message says that it has no effect.

    Raises:
        LabError: it could not be built, or a different lab of the same name is up.
        PlaceError: a program or permission is missing.
        UsageError: the topology is not valid.
    """
    path = find_topology(topology)
    folder = control.lab_of(path)
    control.wait_abandoned(folder)
    if control.usable(folder):
        if folder.topology.read_bytes() != path.read_bytes():
            raise LabError(
                f"the lab {folder.name} is up, but was built from another version of this topology",
                where=str(path),
                remedy=f"run: upshift lab down {folder.name}",
            )
        lab = Lab(folder)
        if let_cpus_sleep and LET_CPUS_SLEEP not in lab.plan.emulator:
            note = f"the lab {lab.name} is up already, so --let-cpus-sleep has no effect on it"
            print(f"upshift: {note}", file=sys.stderr)  # noqa: T201 - a person must read it before the run
        yield lab
        return
    state = folder.read_state()
    if folder.alive() and state is not None and state["status"] == "unhealthy":
        Lab(folder)  # raises with what is wrong, which is more than that its name is taken
    control.up(path, attached=True, let_cpus_sleep=let_cpus_sleep, progress=progress)
    try:
        yield Lab(folder)
    finally:
        control.down(folder)
