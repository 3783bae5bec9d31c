"""The topology `cdn-iw` plants what the study found: each row of its table, tailored windows, an unfit place."""

from __future__ import annotations

import csv
from pathlib import Path

import survey
from survey.iw import sources
from vantage.lab import truth
from vantage.lab.addresses import address_plan
from vantage.lab.topology_file import load_topology

TABLE = Path(survey.__file__).parent / "data" / "cdn-initial-windows.csv"
FIELDS = ("initial_window", "initial_window_unit", "pacing", "spread_rtt")
CDN_OF = {
    "akamai-16": "Akamai",
    "akamai-32": "Akamai",
    "azure": "Azure",
    "cachefly": "Cachefly",
    "cloudfront": "Cloudfront",
    "edgecast": "Edgecast",
    "fastly-100": "Fastly",
    "fastly-10": "Fastly",
    "highwinds": "Highwinds",
    "level3": "Level 3",
    "chinacache-4": "ChinaCache",
    "chinacache-20": "ChinaCache",
}


def test_every_row_of_the_table_is_a_server() -> None:
    topology = load_topology("cdn-iw")
    document = truth.document(topology, address_plan(topology), timing={})
    planted = [
        # The table leaves out what the study does not tell; such a server sends a burst.
        [CDN_OF[path["server"]], *(str(path[field] or "") for field in FIELDS)]
        for path in document["paths"]
        if path["vantage"] == "MUC"
    ]
    with TABLE.open(newline="") as handle:
        rows = [
            [row["cdn"], row["iw"], row["unit"], row["pacing"] or "burst", row["spread_rtt"]]
            for row in csv.DictReader(handle)
        ]
    assert sorted(planted) == sorted(rows) and len(rows) == 12


def test_the_names_are_those_of_the_cdns() -> None:
    names = sources.our_names()
    for server in load_topology("cdn-iw").server:
        assert names.of(server.domains[0], server.cnames) == CDN_OF[server.name]


def test_one_cdn_tailors_its_window_and_one_vantage_point_is_unfit() -> None:
    topology = load_topology("cdn-iw")
    document = truth.document(topology, address_plan(topology), timing={})
    windows = {path["vantage"]: path["initial_window"] for path in document["paths"] if path["server"] == "highwinds"}
    assert [windows[name] for name in ("MUC", "NRT", "MCT")] == [64_000, 83_000, 58_000]
    limits = {path["vantage"]: path["packets_per_rtt"] for path in document["paths"]}
    assert limits == {"MUC": None, "NRT": None, "MCT": None, "SYD": 2}
