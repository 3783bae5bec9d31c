"""Synthetic campaign folders with known answers, written through core.files.store as real ones are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from analysis.measures import dataset
from analysis.measures.dataset import Dataset, Folder, Record
from analysis.measures.folders import Design
from analysis.measures.reader import COLUMNS, Reader
from core import paper
from core.domain import Comparison, Dose, Download, Superseded, Transport, VoidReason
from core.files import campaign_json, disk, schemas, store
from core.files.campaign_json import DescribedConfiguration, Description

LEVELS: dict[str, dict[str, str]] = {
    "warmup": {"ecn": "off", "sack": "off", "window_scaling": "off"},
    "BL": {"ecn": "off", "sack": "off", "window_scaling": "off"},
    "BL2": {"ecn": "off", "sack": "off", "window_scaling": "off"},
    "ECN": {"ecn": "on", "sack": "off", "window_scaling": "off"},
    "SACK": {"ecn": "off", "sack": "on", "window_scaling": "off"},
    "WS": {"ecn": "off", "sack": "off", "window_scaling": "14"},
    "ALL": {"ecn": "on", "sack": "on", "window_scaling": "14"},
    "aioquic": {},
    "quiche": {},
}
CONFIGURATIONS = tuple(LEVELS)
QUIC = ("aioquic", "quiche")

KPI_UNITS = {
    "mean_throughput": "Mbit/s",
    "goodput": "Mbit/s",
    "rtt_mean": "ms",
    "rtt_min": "ms",
    "handshake_rtt": "ms",
    "time_to_answer": "s",
    "retransmitted_bytes": "B",
    "retransmission_rate": "",
    "ce_packets": "packets",
    "flight_lower_max": "B",
    "ip_bytes_from_server": "B",
    "ip_bytes_from_client": "B",
}


def make_download(**changes: Any) -> Download:
    """An ok download of 1 MB in one second; keyword arguments change fields."""
    configuration = changes.get("configuration", "BL")
    quic = configuration in QUIC
    domain = changes.get("domain", "www.a.example")
    values: dict[str, Any] = dict.fromkeys((f.name for f in dataclasses.fields(Download)), None)
    values |= {
        "campaign": "synthetic",
        "vantage": "MUC",
        "iteration": 1,
        "domain": domain,
        "url": f"https://{domain}/file.bin",
        "provider": "akamai",
        "configuration": configuration,
        "client": configuration if quic else "requests",
        "transport": "quic" if quic else "tcp",
        "levels": json.dumps(LEVELS.get(configuration, {})),
        "position": CONFIGURATIONS.index(configuration) if configuration in CONFIGURATIONS else 99,
        "attempts": 1,
        "started_at": 1.8e9,
        "outcome": "ok",
        "http_status": 200,
        "http_version": "3" if quic else "1.1",
        "content_length": 1_000_000,
        "body_bytes": 1_000_000,
        "body_sha256": "0" * 64,
        "server_ip": "198.18.1.1",
        "server_port": 443,
        "local_ip": "198.18.0.1",
        "local_port": 40000,
        "connect_s": 0.02,
        "tls_s": None if quic else 0.04,
        "first_byte_s": 0.06,
        "last_byte_s": 1.0,
        "budget_s": 10.0,
        "client_cpu_s": 0.06,
        "transfer_cpu_s": 0.05,
        "run_delay_s": 0.01,
        "treatment_ok": True,
    }
    values |= changes
    return Download(**values)


def make_kpis(download: Download, **changes: float | None) -> dict[str, float | None]:
    """KPIs that fit the download: throughput from its time, an RTT that is a third of its first byte's time."""
    if download.outcome == "failed" or not download.last_byte_s:
        return dict.fromkeys(KPI_UNITS)
    goodput = download.body_bytes * 8 / download.last_byte_s / 1e6
    rtt = 1e3 * (download.first_byte_s or 0.06) / 3
    quic = download.transport == "quic"
    values = {
        "mean_throughput": goodput * 1.05,
        "goodput": goodput,
        "rtt_mean": None if quic else rtt,
        "rtt_min": None if quic else rtt * 0.98,
        "handshake_rtt": rtt,
        "time_to_answer": download.first_byte_s,
        "retransmitted_bytes": None if quic else 2896.0,
        "retransmission_rate": None if quic else 0.003,
    }
    return values | changes


def of_downloads(downloads: Iterable[Download]) -> Description:
    """A description with the downloads' configurations, and the paper's comparisons of those."""
    first: dict[str, Download] = {}
    for download in downloads:
        first.setdefault(download.configuration, download)
    order = [configuration.name for configuration in (paper.WARMUP, *paper.CONFIGURATIONS)]
    names = sorted(first, key=lambda name: (order.index(name) if name in order else len(order), name))
    configurations = tuple(
        DescribedConfiguration(
            name=name,
            client=first[name].client,
            transport=Transport(first[name].transport) if first[name].transport in tuple(Transport) else Transport.TCP,
            levels=json.loads(first[name].levels),
            options={},
        )
        for name in names
    )
    comparisons = tuple(c for c in paper.COMPARISONS if c.config in first and c.vs in first)
    return Description(campaign="synthetic", configurations=configurations, comparisons=comparisons)


def of_records(records: Sequence[Record], *, kpi_units: Mapping[str, str], design: Design | None = None) -> Dataset:
    """A dataset without files."""
    described = of_downloads(record.download for record in records)
    path, reader = Path("campaign"), Reader(0)
    reader.add(path, dataset._columns_of([], COLUMNS), None)
    empty = Dataset(
        folders=(Folder(path=path, environment=None, lab=None),),
        sources=(),
        downloads=reader.finish(lambda: np.empty(0)),
        kpi_units=kpi_units,
        superseded=(),
        design=design or Design(configurations=described.configurations, comparisons=described.comparisons),
        notes=(),
    )
    return empty.with_records(records)


def write_downloads(
    path: Path,
    downloads: Sequence[Download],
    kpis: Sequence[Mapping[str, Any] | None] | None = None,
    texts: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
) -> None:
    """`downloads.parquet` as inspection writes it: measurement runs have numbers, and KPIs stand beside.

    Args:
        kpis: of each download; None: no connection is known.
        texts: further KPIs, with a value per download.
    """
    import pyarrow as pa

    rows = list(kpis) if kpis is not None else [None] * len(downloads)
    numbers: dict[tuple[Any, ...], int] = {}
    own = schemas.row_schema("downloads")
    columns: dict[str, list[Any]] = {name: [getattr(d, name) for d in downloads] for name in own.names}
    keys = [tuple(getattr(d, name) for name in schemas.RUN_KEY) for d in downloads]
    columns["run"] = [numbers.setdefault(key, len(numbers)) for key in keys]
    columns["kpi_engine"] = [None if row is None else "generated" for row in rows]
    columns |= {name: [None if row is None else row.get(name) for row in rows] for name in KPI_UNITS}
    columns |= {name: list(values) for name, values in texts.items()}
    fields = [pa.field(name, pa.float64(), metadata={"unit": unit}) for name, unit in KPI_UNITS.items()]
    fields += [pa.field(name, pa.string()) for name in texts]
    store.write_table(path, "downloads", pa.table(columns, schema=pa.schema([*own, *fields])))


def make_superseded(**changes: Any) -> Superseded:
    """A download of a void attempt."""
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Superseded)}
    values |= {"campaign": "synthetic", "vantage": "MUC", "iteration": 1, "domain": "www.a.example"}
    values |= {"url": "https://www.a.example/file.bin", "provider": "akamai", "configuration": "BL"}
    values |= {"client": "requests", "position": 1, "attempt": 1, "started_at": 1.8e9, "outcome": "ok"}
    values |= {"body_bytes": 0, "reason": VoidReason.EMULATOR_LATE.value, "detail": "the lab was late"}
    return Superseded(**(values | changes))


def write_superseded(path: Path, rows: Sequence[Superseded]) -> None:
    store.write_rows(path, "superseded", rows)


def write_campaign(
    folder: Path,
    downloads: Iterable[Download],
    *,
    kpis: bool | Callable[[Download], Mapping[str, Any] | None] = True,
    texts: Mapping[str, Sequence[str | None]] = MappingProxyType({}),
    lab: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    superseded: Sequence[Superseded] = (),
    comparisons: Sequence[Comparison] | None = None,
    doses: Mapping[str, Dose] | None = None,
) -> Path:
    """A campaign folder; `kpis` may be a function of a download (None: no connection), `comparisons` its own (None: the
    paper's), with `doses`; see `write_downloads` for `texts`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(downloads)
    make = make_kpis if kpis is True else kpis
    write_downloads(folder / "downloads.parquet", rows, [make(d) for d in rows] if make else None, texts)
    if lab is not None:
        disk.write_json(folder / "lab.json", lab)
    if environment is not None:
        disk.write_json(folder / "environment.json", environment)
    described = dataclasses.replace(of_downloads(rows), doses=doses or {})
    if comparisons is not None:
        described = dataclasses.replace(described, comparisons=tuple(comparisons))
    campaign_json.write(folder, described)
    if superseded:
        write_superseded(folder / "superseded.parquet", superseded)
    return folder


def lab_path(**changes: Any) -> dict[str, Any]:
    """One path of lab.json: clean, 20 ms, 30 Mbit/s."""
    values: dict[str, Any] = {
        "vantage": "MUC",
        "domain": "www.a.example",
        "server": "akamai-1",
        "provider": "akamai",
        "rtt_ms": 20.0,
        "rate_mbit": 30.0,
        "queue_bytes": 150_000,
        "loss": 0.0,
        "ecn_threshold_bytes": None,
        "initcwnd": 10,
        "congestion_control": "cubic",
        "mtu": 1500,
        "edge": False,
        "clean": True,
        "quic": True,
        "note": "",
    }
    return values | changes


PROVIDERS = ("akamai", "amazon", "cloudflare", "google", "microsoft", "other")


def realistic(seed: int = 7, *, domains: int = 14, iterations: int = 1) -> tuple[list[Download], dict[str, Any]]:
    """Downloads over made-up lab paths from three vantage points, and their lab.json: what a demo looks like."""
    from analysis.measures.truth import UNSCALED_WINDOW, download_time

    rng = np.random.default_rng(seed)
    downloads: list[Download] = []
    paths: list[dict[str, Any]] = []
    for vantage in ("MUC", "SFO", "SGP"):
        for index in range(domains):
            rtt, rate = float(rng.choice([3, 10, 20, 40, 80, 150])), float(rng.choice([10, 20, 30]))
            lossy = index % 5 == 4
            provider, domain = PROVIDERS[index % 6], f"www.site{index}.example"
            changes = {"vantage": vantage, "domain": domain, "provider": provider, "rtt_ms": rtt, "rate_mbit": rate}
            changes |= {"server": f"{provider}-{index // 6 + 1}", "loss": 0.005 if lossy else 0.0}
            paths.append(lab_path(**changes, clean=not lossy, edge=index % 4 == 0))
            size = int(rng.choice([1_000_000, 1_500_000, 2_000_000]))
            for iteration in range(1, iterations + 1):
                for position, name in enumerate(CONFIGURATIONS):
                    window = UNSCALED_WINDOW if LEVELS[name].get("window_scaling") == "off" else None
                    time_s = download_time(
                        size_bytes=size, rtt_s=rtt / 1e3, rate_mbit=rate, initial_window=10, window_bytes=window
                    )
                    time_s *= rng.lognormal(0.02, 0.25 if lossy else 0.015)
                    time_s *= {"aioquic": 1.05, "quiche": 0.97}.get(name, 1.0)
                    changes = {"vantage": vantage, "domain": domain, "provider": provider, "iteration": iteration}
                    changes |= {"configuration": name, "position": position, "last_byte_s": time_s}
                    changes |= {"connect_s": rtt / 1e3, "first_byte_s": 3.05 * rtt / 1e3, "body_bytes": size}
                    changes |= {"tls_s": None if name in QUIC else 2.02 * rtt / 1e3, "content_length": size}
                    changes["started_at"] = 1.8e9 + len(downloads)
                    downloads.append(make_download(**changes))
    return downloads, {"schema": 1, "topology": "synthetic", "paths": paths}
