"""Study files as texts, for the tests of reading, judging and drawing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from core.files import store
from core.files.study import FLOWS_FILE, FLOWS_KIND, STUDY_FILE, Ending, Study, flow_row, flow_schema
from core.files.study_file import keep, parse
from core.files.study_terms import Knobs

COMPETING = """
schema = 1
name = "fct-competing"
source = "IW in the wild, Fig. 12 to 15"
repetitions = 30
seed = 1
lanes = "rate_mbit"
[fixed]
objects = [73848]
beside = "elephant"
[levels.sender]
burst = {}
paced = { send = { pace = "on" } }
paced-40 = { send = { pace = "on" }, sysctls = { "net.ipv4.tcp_pacing_ss_ratio" = 40 } }
bbr = { send = { cc = "bbr" } }
[[cells]]
rate_mbit = [4, 7, 26, 100]
rtt_ms = [30, 100, 250]
queue = ["bdp x 0.5", "bdp x 1", "bdp x 1.5"]
iw = [4, 10, 16, 20, 32, 50, 100]
sender = ["burst", "paced", "paced-40", "bbr"]
quick = { rtt_ms = [30], queue = ["bdp x 0.5", "bdp x 1.5"], iw = [10, 32, 100] }
[[figure]]
metric = "time_ms"
only = { sender = ["burst", "paced"] }
[figure.draw]
x = "iw"
colour = "rate_mbit"
hatch = "sender"
columns = "rtt_ms"
rows = "queue"
[[claim]]
id = "C9"
text = "pacing makes the mean smaller"
where = { rtt_ms = 30, rate_mbit = 4 }
a = { sender = "paced", iw = [10, 16, 20, 32] }
b = { sender = "burst" }
ratio = [0, 1]
[[claim]]
id = "C8"
text = "a longer queue makes all flows slower"
where = { rtt_ms = 250, sender = "burst" }
a = { queue = "bdp x 1.5" }
b = { queue = "bdp x 0.5" }
ratio = [1, inf]
[[claim]]
id = "C2"
text = "the spread grows with the window, whatever the queue"
where = { rtt_ms = 30, rate_mbit = 4, sender = "burst" }
a = { iw = 50 }
b = { iw = 10 }
of = "sd"
ratio = [1, inf]
"""
"""The example of issue 23, with a window that the quick form does not have."""

EMPTY = """
schema = 1
name = "gains"
source = "a test"
repetitions = 8
quick_repetitions = 2
gain = { iw = [3, 10] }
tables = ["numbers.csv"]
[fixed]
rtt_ms = 70
queue = "1.5 MB"
[levels.cells]
segments = {}
rate = {}
[[cells]]
cells = ["segments"]
rate_mbit = [1.2]
objects = [14480, 72400]
iw = [3, 10]
[[cells]]
cells = ["rate"]
rate_mbit = [50, 200]
objects = [70952]
iw = [3, 10]
[[figure]]
metric = "gain_ms"
only = { cells = "segments" }
draw = { x = "objects", error = "sd" }
[[figure]]
metric = "time_ms"
only = { cells = "segments" }
draw = { kind = "lines", x = "objects", colour = "iw", error = "sd", round_trips = true, log = ["x"] }
[[claim]]
id = "same"
text = "50 and 200 Mbit/s within 15 %"
metric = "gain_ms"
where = { cells = "rate" }
a = { rate_mbit = 200 }
b = { rate_mbit = 50 }
ratio = [0.85, 1.15]
[[claim]]
id = "faster"
text = "a large window is never slower"
a = { iw = 10 }
b = { iw = 3 }
ratio = [0, 1.02]
source = "10 % faster"
[[expected]]
table = "gains.csv"
only = { cells = "segments" }
iw3_ms = { least = 5 }
iw10_ms = { least = 5 }
gain_ms = { percent = 10, least = 5 }
[[expected]]
retransmissions = "drops"
drops = 0
[[expected]]
table = "flights.csv"
flights = "exact"
"""
"""Gains, two tables of cells, and every kind of expectation."""

TABLES: Mapping[str, str] = {
    "gains.csv": "cells,rate_mbit,rtt_ms,objects,iw3_ms,iw10_ms,gain_ms\n"
    "segments,1.2,70,14480,310.0,240.0,70.0\nsegments,1.2,70,72400,710.0,640.0,70.0\nrate,50,70,70952,422,285,137\n",
    "flights.csv": "objects,iw,flights\n14480,3,3\n14480,10,1\n72400,3,\n",
    "numbers.csv": "what,value\ngain of a paper,10 %\n",
}


def study(text: str, tables: Mapping[str, str] = TABLES) -> Study:
    """The study in a text."""
    files = {STUDY_FILE: text, **tables}
    return parse(tomllib.loads(text), where="study.toml", table=tables.__getitem__, files=files)


Model = Callable[[Knobs, np.random.Generator], Mapping[str, float]]


def write_flows(made: Study, folder: Path, model: Model, *, seed: int = 1) -> None:
    """The results of a study as `upshift study run` writes them, with the metrics of a model."""
    random = np.random.default_rng(seed)
    rows = [
        flow_row(made, cell, number, Ending.OK, model(cell.knobs, random))
        for cell in made.cells
        for number in range(made.repetitions)
    ]
    folder.mkdir(exist_ok=True)
    keep(made, folder)
    with store.RowWriter(folder / FLOWS_FILE, FLOWS_KIND, flow_schema(made)) as table:
        for row in rows:
            table.add(row)


def slow_start(knobs: Knobs, random: np.random.Generator) -> Mapping[str, float]:
    """The time of the objects by doubling windows and the rate, with 2 % of noise; beside an elephant with timeouts."""
    segments, window, rounds = sum(knobs.objects) / 1448, float(knobs.iw), 2
    while window < segments:
        segments -= window
        window *= 2
        rounds += 1
    time = rounds * knobs.rtt_ms + sum(knobs.objects) * 8 / ((knobs.rate_mbit or 100) * 1000)
    lost = knobs.beside == "elephant" and random.random() < 0.07
    time *= random.normal(1, 0.02 if not knobs.send else 0.01)
    drops = float(random.poisson(2)) if lost else 0.0
    return {
        "time_ms": time + 200 * lost,
        "flights": rounds - 1.0,
        "drops": drops,
        "retransmissions": drops,
        "timeouts": float(lost),
    }
