"""The input files for a crawl and a mapping of the lab; writing them needs neither the lab nor root."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from core.files import atomic
from vantage.lab.network import routing
from vantage.lab.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class LabFiles:
    """Paths of the files that `write_files` wrote."""

    top_list: Path
    """Domains of the lab, in Tranco's format."""
    rib: Path
    """Routing table (MRT, gzip)."""
    as_organisations: Path
    """Holders of AS numbers, in the format of CAIDA's as-org2info."""


def top_list(topology: Topology) -> list[str]:
    """Domains in a seeded order, including those where a crawl finds nothing.

    The order is by a hash of each name, so a new domain does not change the order of the others. Servers with a fault
    are left out, as in `Lab.targets`: their sizes look right, so a crawl would find them.
    """
    names = [domain for server in topology.server if server.fault is None for domain in server.domains]
    names += [domain for site in topology.site for domain in site.domains]
    return sorted(names, key=lambda name: hashlib.sha256(f"{topology.seed}/{name}".encode()).digest())


def write_files(topology: Topology, folder: Path) -> LabFiles:
    """Writes `list.csv`, `rib.mrt.gz` and `as-org2info.txt`; the same bytes for the same topology."""
    files = LabFiles(
        top_list=folder / "list.csv", rib=folder / "rib.mrt.gz", as_organisations=folder / "as-org2info.txt"
    )
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{rank},{name}\r\n" for rank, name in enumerate(top_list(topology), 1))
    for path, data in (
        (files.top_list, rows.encode()),
        (files.rib, routing.rib(topology)),
        (files.as_organisations, routing.as_organisations(topology).encode()),
    ):
        with atomic.whole_file(path) as part:
            part.write_bytes(data)
    return files
