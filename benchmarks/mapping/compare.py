"""RIB reading and longest-prefix match beside other tools, in one run on one machine; CPU seconds, and their ratios.

    python benchmarks/mapping/compare.py PREFIXES.zip --peers 4 --other-python ~/.cache/upshift/venv-mapping/bin/python

PREFIXES.zip: see make_rib.py, which makes the RIB (kept in --work). bgpdump is measured where it is installed; pyasn
and pybgpstream where the other Python has them (`uv venv DIR && uv pip install --python DIR/bin/python pyasn numpy`).
Rounds alternate between the tools, so that a disturbance of the machine meets all of them; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.mapping.make_rib import read_prefixes, write_rib  # noqa: E402

OURS = """
import sys
from pathlib import Path
from cdn_mapping import sources
from core.terminal import show_progress
with show_progress() as shown:
    sources.build_table([Path(sys.argv[1])], shown).save(Path(sys.argv[2]))
"""
OURS_ENTRIES = """
import sys
from pathlib import Path
from cdn_mapping.rib import RibReader
print(sum(1 for _ in RibReader(Path(sys.argv[1]))))
"""
BGPSTREAM_ENTRIES = """
import sys, pybgpstream
stream = pybgpstream.BGPStream(data_interface="singlefile")
stream.set_data_interface_option("singlefile", "rib-file", sys.argv[1])
count = 0
for record in stream.records():
    for element in record:
        fields = element.fields  # built at each call
        fields["prefix"], fields["as-path"]
        count += 1
print(count)
"""
BGPSTREAM_TABLE = """
import sys, pybgpstream
from cdn_mapping import table
from cdn_mapping.sources import to_entry
from cdn_mapping.votes import Ballot
from pathlib import Path
stream = pybgpstream.BGPStream(data_interface="singlefile")
stream.set_data_interface_option("singlefile", "rib-file", sys.argv[1])
ballot = Ballot()
ballot.add_entries(to_entry(element) for record in stream.records() for element in record)
table.build({v: ballot.rows(v) for v in (4, 6)}, {}).save(Path(sys.argv[2]))
"""
SAME_TABLE = """
import sys
import numpy as np
from pathlib import Path
from cdn_mapping import table
ours, theirs = (table.load(Path(name)).v4 for name in sys.argv[1:])
names = ("low", "length", "origin", "moas")
same = all(np.array_equal(getattr(ours, n), getattr(theirs, n)) for n in names)
said = "the same" if same else "NOT the same"
print(f"{len(ours.low):,} prefixes of ours, {len(theirs.low):,} by pybgpstream, {said}")
"""
LOOK_UPS = """
import ipaddress, json, sys, time
import numpy as np
from pathlib import Path
from cdn_mapping import table
start = time.process_time()
found = table.load(Path(sys.argv[1]))
load = time.process_time() - start
asked = [str(ipaddress.IPv4Address(int(a))) for a in np.load(sys.argv[2])]
start = time.process_time()
origins = found.find_all(asked)
rate = len(asked) / (time.process_time() - start)
np.save(sys.argv[3], np.array([origin.asn or 0 if origin else 0 for origin in origins], np.uint32))
print(json.dumps({"load_s": load, "prefixes": len(found.v4.low), "random": rate}))
"""
PYASN = """
import ipaddress, json, sys, time
import numpy as np, pyasn
start = time.process_time()
found = pyasn.pyasn(sys.argv[1])
load = time.process_time() - start
asked = [str(ipaddress.IPv4Address(int(a))) for a in np.load(sys.argv[2])]
start = time.process_time()
origins = [found.lookup(a)[0] or 0 for a in asked]
rate = len(asked) / (time.process_time() - start)
np.save(sys.argv[3], np.array(origins, np.uint32))
print(json.dumps({"load_s": load, "random": rate}))
"""


def cpu_seconds(argv: Sequence[str]) -> tuple[float, str]:
    """User and system time of a program, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def has(python: Path | None, module: str) -> bool:
    return (
        python is not None
        and subprocess.run([python, "-c", f"import {module}"], check=False, capture_output=True).returncode == 0
    )


def compare_reading(rib: Path, table: Path, other: Path | None, rounds: int) -> None:
    tools: dict[str, list[str]] = {
        "upshift, to a table": [sys.executable, "-c", OURS, str(rib), str(table)],
        "upshift, every entry": [sys.executable, "-c", OURS_ENTRIES, str(rib)],
    }
    if shutil.which("bgpdump"):
        tools["bgpdump -m"] = ["bgpdump", "-m", "-O", os.devnull, str(rib)]
    if has(other, "pybgpstream"):
        tools["pybgpstream, every entry"] = [str(other), "-c", BGPSTREAM_ENTRIES, str(rib)]
        tools["pybgpstream, to a table"] = [str(other), "-c", BGPSTREAM_TABLE, str(rib), str(table.with_stem("theirs"))]
    else:
        print("pybgpstream: not installed in --other-python, not measured")
    times: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(rounds):
        for name, argv in tools.items():
            times[name].append(cpu_seconds(argv)[0])
    base = statistics.median(times["upshift, to a table"])
    for name, values in times.items():
        middle = statistics.median(values)
        spread = f"{min(values):.1f}-{max(values):.1f}"
        print(f"read {rib.name:<14} {name:<24} {middle:6.1f} CPU s ({spread}), {middle / base:.2f} x our table")
    if "pybgpstream, to a table" in tools:
        both = [str(table), str(table.with_stem("theirs"))]
        print("tables:", cpu_seconds([sys.executable, "-c", SAME_TABLE, *both])[1].strip())


def compare_look_ups(prefixes: dict[tuple[int, int], int], work: Path, other: Path | None) -> None:
    import numpy as np

    from cdn_mapping import table
    from cdn_mapping.votes import Ballot

    ballot = Ballot()
    text = work / "pyasn.dat"
    with text.open("w") as handle:
        for (network, length), origin in prefixes.items():
            ballot._columns[4].add(network, length, origin, 1)
            address = ".".join(map(str, network.to_bytes(4, "big")))
            handle.write(f"{address}/{length}\t{origin}\n")
    table.build({v: ballot.rows(v) for v in (4, 6)}, {}).save(work / "same.npz")
    np.save(work / "asked.npy", np.random.default_rng(1).integers(0, 2**32, 1_000_000, dtype=np.uint32))
    asked = str(work / "asked.npy")
    ours = cpu_seconds([sys.executable, "-c", LOOK_UPS, str(work / "same.npz"), asked, str(work / "ours.npy")])[1]
    facts = json.loads(ours)
    print(f"look up  upshift: {facts['prefixes']:,} prefixes loaded in {facts['load_s']:.3f} CPU s, "
          f"{facts['random'] / 1e6:.2f} M/s random, all that is known of each")  # fmt: skip
    if not has(other, "pyasn"):
        print("pyasn: not installed in --other-python, not measured")
        return
    theirs = json.loads(cpu_seconds([str(other), "-c", PYASN, str(text), asked, str(work / "theirs.npy")])[1])
    same = int((np.load(work / "ours.npy") == np.load(work / "theirs.npy")).sum())
    print(f"look up  pyasn:   loaded in {theirs['load_s']:.3f} CPU s, {theirs['random'] / 1e6:.2f} M/s random; "
          f"{same:,} of 1,000,000 random addresses agree")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefixes", type=Path)
    parser.add_argument("--peers", type=int, default=4, help="routes per prefix")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other-python", type=Path, help="a Python that has pyasn, pybgpstream")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "upshift-mapping-benchmark")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    prefixes = read_prefixes(arguments.prefixes)
    rib = arguments.work / f"peers{arguments.peers}.mrt"
    if not rib.exists():
        write_rib(prefixes, rib, peers=arguments.peers)
    compare_reading(rib, arguments.work / "table.npz", arguments.other_python, arguments.rounds)
    compare_look_ups(prefixes, arguments.work, arguments.other_python)


if __name__ == "__main__":
    main()
