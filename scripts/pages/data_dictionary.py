"""docs/data-dictionary.md: every file and column, from the schemas, the dataclasses' docstrings and the KPIs.

A column's meaning is the text below the field of its dataclass. If missing, it is that of the field of the
same name in `Download` or `Target`: these words mean the same everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.captures import packet_table
from analysis.captures import scan as captures
from analysis.captures.kpis import ALL as KPIS
from analysis.measures import tables
from analysis.measures.speedup import BIN_NAMES
from analysis.report import render
from scripts.pages.attributes import attributes
from scripts.pages.markdown import table
from survey import surveys
from upshift.compose.inspect.rows import kpi_schema
from upshift.domain import (
    Comparison,
    Dose,
    Download,
    Failure,
    HostDisturbance,
    Outcome,
    Superseded,
    Target,
    TreatmentReason,
    VoidReason,
)
from upshift.files import store
from upshift.files.description import DescribedConfiguration, Description

if TYPE_CHECKING:
    from enum import StrEnum

    import pyarrow as pa

HEAD = """# Data dictionary

Made by `scripts/docs` from the schemas and the code that fills them. Sizes are bytes, rates Mbit/s (10^6 bit/s), times
seconds unless a name says `_ms` or `_ns`. Each Parquet file carries its kind (`upshift.kind`) and schema version in its
metadata, and the unit of a column in the column's. An older version is converted as it is read, a newer one is refused.

| file | what it is |
| --- | --- |
"""

FILES = {
    "targets.parquet": "targets, as crawl, mapping, surveys and `targets compose` pass them along; CSV likewise",
    "survey_options": "one row per domain of `upshift survey options`",
    "survey_quic": "one row per domain of `upshift survey quic`",
    "downloads.parquet": "one row per planned download of a campaign",
    "kpis.parquet": "one row per download whose capture was inspected",
    "superseded.parquet": "downloads of measurement runs that were void or interrupted, and repeated",
    "campaign.json": "the configurations of a campaign, and what is compared with what",
    "environment.json": "the campaign, the hash of its plan, and per vantage point what explains its numbers",
    "lab.json": "a campaign in the lab: what is programmed on every path",
    "vantage/NAME/journal.sqlite": "the journal: every download as it was recorded",
    "vantage/NAME/captures/*.pcap": "the packets of one measurement run each, as tcpdump wrote them",
    "tables/*.csv": "Tables 1 and 2 and the table of configurations",
    "targets/composition.json, dropped.csv": "how `upshift targets compose` chose, and what it left out and why",
    "connections, packets": "what `upshift kpis -o` writes: one row per connection, or per packet",
    "*.ledger.sqlite": "what a crawl or survey has done; its own command resumes from it, nothing else reads it",
}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: str
    unit: str
    meaning: str


PARQUET: dict[str, type] = {
    "targets.parquet": Target,
    **{survey.kind: survey.record for survey in surveys.ALL.values()},
    "downloads.parquet": Download,
    "superseded.parquet": Superseded,
}
"""Title -> the class of a row."""

JSON: dict[str, type] = {
    "campaign.json": Description,
    "campaign.json: configurations": DescribedConfiguration,
    "campaign.json: comparisons": Comparison,
    "campaign.json: doses": Dose,
}
"""Title -> the class of an object."""

CSV: dict[str, tuple[type, Sequence[str]]] = {
    "tables/table1.csv": (tables.Table1Row, render.TABLE1_CSV),
    "tables/configurations.csv": (tables.ConfigurationRow, render.CONFIGURATIONS_CSV),
}
"""Title -> the class of a row, and the columns that the file has."""

KINDS = {"int64": "integer", "double": "number", "string": "text", "bool": "true/false"}


def text(_: Path) -> str:
    found = HEAD + "".join(f"| `{name}` | {said} |\n" for name, said in FILES.items())
    for title, said, columns in sections():
        found += f"\n## {title}\n\n{said}\n\n"
        found += table(
            ("column", "type", "unit", "meaning"), [(f"`{c.name}`", c.kind, c.unit, c.meaning) for c in columns]
        )
    return found + words()


def sections() -> Iterator[tuple[str, str, Sequence[Column]]]:
    """Title, introduction, columns."""
    yield from ((title, summary(row), of_class(row)) for title, row in PARQUET.items())
    yield "kpis.parquet", "The key of the download, then one column per KPI.", of_schema(kpi_schema(), KPI_MEANINGS)
    yield from ((title, summary(part), of_json(part)) for title, part in JSON.items())
    yield "lab.json: paths", "One entry per vantage point and domain.", [Column(*entry) for entry in LAB_PATHS]
    yield from ((title, summary(row), of_csv(names, row)) for title, (row, names) in CSV.items())
    yield "tables/table2.csv", TABLE2_HEAD, [Column(name, "", "", table2_meaning(name)) for name in render.TABLE2_CSV]
    yield "tables/dose.csv", DOSE_HEAD, [Column(name, "", "", DOSE_MEANINGS[name]) for name in DOSE_MEANINGS]
    connections = of_schema(captures.schema(), CONNECTION_MEANINGS)
    identity = [column for column in connections if column.name not in KPIS]
    yield "connections", "Written by `upshift kpis FILE... -o`: these columns, then every KPI as above.", identity
    yield "packets", "Written by `upshift kpis FILE --packets -o`.", of_schema(packet_table.SCHEMA, PACKET_MEANINGS)


def summary(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split())


def meanings_of(cls: type) -> dict[str, str]:
    shared = {name: entry.text for other in (Target, Download) for name, entry in attributes(other).items()}
    return {name: entry.text or shared.get(name, "") for name, entry in attributes(cls).items()}


def of_class(cls: type) -> list[Column]:
    return of_schema(store.schema_of(cls), meanings_of(cls))


def of_schema(schema: pa.Schema, meanings: Mapping[str, str]) -> list[Column]:
    return [
        Column(f.name, kind_of(f), (f.metadata or {}).get(b"unit", b"").decode(), meanings.get(f.name, ""))
        for f in schema
    ]


def kind_of(field: pa.Field) -> str:
    name = str(field.type)
    word = "text" if name.startswith("dictionary") else "integer" if "int" in name else KINDS[name]
    return f"{word} or null" if field.nullable else word


def of_json(cls: type) -> list[Column]:
    return [Column(name, f"`{entry.annotation}`", "", entry.text) for name, entry in attributes(cls).items()]


def of_csv(names: Sequence[str], row_type: type) -> list[Column]:
    fields = {field.name for field in dataclasses.fields(row_type)}
    meanings = {**meanings_of(row_type), **TABLE_MEANINGS}
    return [Column(n, "share" if n not in fields else "", "", meanings.get(n, "")) for n in names]


def words() -> str:
    """The closed vocabularies."""
    found = ""
    vocabularies: list[tuple[str, type[StrEnum]]] = [
        ("outcome", Outcome),
        ("failure", Failure),
        ("void_reason", VoidReason),
        ("host_disturbance", HostDisturbance),
        ("treatment_reason", TreatmentReason),
    ]
    for title, enum in vocabularies:
        said = attributes(enum)
        rows = [(f"`{member.value}`", said[member.name].text) for member in enum]
        found += f"\n## Values of `{title}`\n\n{summary(enum)}\n\n" + table(("value", "meaning"), rows)
    return found


KPI_MEANINGS = {
    **{name: f"{kpi.meaning} ({kpi.source})" for name, kpi in KPIS.items()},
    **{name: entry.text for name, entry in attributes(Download).items() if name in (*store.DOWNLOAD_KEY, "engine")},
}

CONNECTION_MEANINGS = {
    "capture": "Path of the capture as it was given.",
    "connection": "Number of the connection within the capture, from 0, in order of its first packet.",
    "protocol": "`tcp` or `quic`.",
    "client_ip": "Address of the side that sent the first SYN or Initial.",
    "client_port": "Its port.",
    "server_ip": "Address of the other side.",
    "server_port": "Its port.",
    "started_at": "Time of the first packet, by the capture's clock.",
}

PACKET_MEANINGS = {
    "frame": "Number of the packet in the capture, from 1.",
    "time_ns": "When it was captured.",
    "connection": "Number of its connection, as in the table of connections.",
    "direction": f"From client to server or back: {', '.join(f'`{name}`' for name in packet_table.DIRECTIONS)}.",
    "seq": "TCP sequence number relative to the SYN's; null for QUIC.",
    "len": "Payload of TCP or UDP.",
    "ws_class": "What Wireshark's sequence analysis calls it; empty for none. docs/design/kpi-engine.md has the rules.",
    "true_class": "What really happened to the segment: new, sent again, overtaken; empty for packets without payload.",
}

LAB_PATHS = [
    ("vantage", "text", "", "Vantage point."),
    ("domain", "text", "", "Domain of the target."),
    ("server", "text", "", "Name of the server in the topology."),
    ("provider", "text", "", "Provider of the server's organisation."),
    ("rtt_ms", "number", "ms", "Round-trip time without queueing."),
    ("rate_mbit", "number", "Mbit/s", "Rate of the bottleneck, which is towards the vantage point."),
    ("queue_bytes", "integer", "B", "Size of the drop-tail queue before the bottleneck."),
    ("loss", "number", "1", "Share of packets that are dropped at random, by seed."),
    (
        "ecn_threshold_bytes",
        "integer or null",
        "B",
        "Queue length above which packets are marked, or dropped without ECN.",
    ),
    ("rewrites", "list of texts", "", "What the path does to headers: see the lab's topology files."),
    ("initcwnd", "integer", "packets", "Initial congestion window of the server's TCP."),
    ("congestion_control", "text", "", "Congestion control of the server's TCP."),
    ("mtu", "integer", "B", "Largest IP packet on the path."),
    ("edge", "true/false", "", "A CDN's edge with a cache, so that the first download fills it."),
    (
        "clean",
        "true/false",
        "",
        "No loss, no marking, and a queue of at least one bandwidth-delay product: the model holds.",
    ),
    ("quic", "true/false", "", "The server speaks HTTP/3."),
    ("quic_server", "text", "", "Kind of the QUIC server, where there is one."),
    ("quic_congestion_control", "text", "", "Congestion control of the QUIC server."),
    ("quic_initial_window_packets", "integer", "packets", "Initial window of the QUIC server."),
    ("quic_packet_bytes", "integer", "B", "Size of the UDP payloads that the QUIC server sends."),
    ("note", "text", "", "What else the topology says of the server."),
]

TABLE_MEANINGS = {
    "planned": "Downloads that were planned, warm-ups left out.",
    "ok": "Those that got the whole file.",
    "ok_share": "ok / planned.",
    "failed": "Those that ended with a cause of failure.",
    "censored": "Those that hit their time or byte budget.",
    "void_share": "void / (planned + void).",
}

TABLE2_HEAD = (
    "One row per comparison. Shares are from 0 to 1; empty for what is unknown. `upshift tables --by` puts the "
    "column of the group first."
)

DOSE_HEAD = (
    "Three lines per comparison of an option: its measurement runs, split by whether the option took effect. These "
    "columns, then those of `table2.csv`."
)

DOSE_MEANINGS = {
    "dose": "The sign that the option took effect.",
    "acted": "yes: it did in these runs; no: it had no occasion to; unknown: a KPI is missing.",
}

TABLE2_MEANINGS = {
    "comparison": "Name of the comparison.",
    "role": "What it is for: see the glossary.",
    "config": "The configuration.",
    "vs": "The reference: a speed-up above 1 says that `config` was faster.",
    "n": "Pairs: measurement runs in which both downloads count.",
    "tie": "Share of pairs whose times are equal.",
    "undecided": "Share of pairs known by a bound only, which does not tell which was faster.",
    "bin_undecided": "Share of pairs known by a bound only, which does not tell the bin.",
    "bounds": "Pairs known by a bound only, because a download was censored.",
    "domains": "Domains that the pairs come from.",
    "median": "Median speed-up; empty where only bounds are known.",
    "median_low": "Lower end of its 95 % interval, drawn by domain.",
    "median_high": "Upper end of it.",
    "median_least": "The median is at least this, where censored downloads leave bounds only.",
    "median_most": "And at most this.",
    "faster": "Share of pairs with a speed-up above 1.",
    "slower": "Share of pairs with a speed-up below 1.",
    "excluded": "Measurement runs that gave no pair.",
}


def table2_meaning(name: str) -> str:
    base, _, end = name.rpartition("_")
    if end in ("low", "high") and base in (*BIN_NAMES, "faster", "slower"):
        return f"{'Lower' if end == 'low' else 'Upper'} end of the 95 % interval of `{base}`."
    return f"Share of pairs with a speed-up in {name}." if name in BIN_NAMES else TABLE2_MEANINGS.get(name, "")
