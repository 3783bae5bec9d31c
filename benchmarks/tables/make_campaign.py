"""A generated campaign folder with any number of downloads, in bounded memory.

    python benchmarks/tables/make_campaign.py FOLDER --rows 10000000

Nine configurations per measurement run, 4 vantage points, 2,500 domains, as many iterations as are needed. Row groups
are as `upshift inspect` writes them: about 10,000 rows, with whole measurement runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.evidence.rows import downloads_schema
from core import paper
from core.domain import Dose, Transport
from core.files import campaign_json, disk, schemas, store
from core.files.campaign_json import DescribedConfiguration, Description

VANTAGES, DOMAINS = 4, 2_500
PROVIDERS = ("akamai", "amazon", "cloudflare", "google", "microsoft", "other")
LEVELS = ("ecn", "sack", "window_scaling")
ON = {"ECN": ("ecn",), "SACK": ("sack",), "WS": ("window_scaling",), "ALL": LEVELS}
LIMITERS = ("receive_window", "congestion", "sender", "path_rate", "slow_start")
SPEED = {"ECN": 1.02, "SACK": 1.05, "WS": 1.2, "ALL": 1.3, "aioquic": 0.9, "quiche": 1.1}
DOSES = {
    "ecn": Dose(kpi="ce_packets", above=0, words="CE seen"),
    "sack": Dose(kpi="sack_blocks", above=0, words="SACK blocks seen"),
    "window_scaling": Dose(kpi="flight_lower_max", above=65_535, words="flight above 65,535 B"),
}


def configurations() -> tuple[DescribedConfiguration, ...]:
    """The paper's configurations, the warm-up first."""
    found = []
    for one in (paper.WARMUP, *paper.CONFIGURATIONS):
        levels = {name: "on" if name in ON.get(one.name, ()) else "off" for name in LEVELS}
        quic = one.client in ("aioquic", "quiche")
        transport = Transport.QUIC if quic else Transport.TCP
        found.append(
            DescribedConfiguration(
                name=one.name, client=one.client, transport=transport, levels={} if quic else levels, options={}
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Names:
    """What the rows of each run have in common: a value per configuration, or per domain."""

    configurations: tuple[DescribedConfiguration, ...]
    domains: tuple[str, ...]
    provider: npt.NDArray[np.int32]
    rtt_s: npt.NDArray[np.float64]


def make(folder: Path, *, rows: int, seed: int = 1) -> int:
    """Writes the folder; returns the number of rows, the next multiple of the runs of one iteration."""
    rng = np.random.default_rng(seed)
    known = configurations()
    names = Names(
        configurations=known,
        domains=tuple(f"www.site{number}.example" for number in range(DOMAINS)),
        provider=rng.integers(0, len(PROVIDERS), DOMAINS).astype(np.int32),
        rtt_s=rng.lognormal(-3.5, 0.8, DOMAINS),
    )
    compared = {one.name for one in known}
    comparisons = tuple(c for c in paper.COMPARISONS if {c.config, c.vs} <= compared)
    folder.mkdir(parents=True, exist_ok=True)
    campaign_json.write(folder, Description(campaign="big", configurations=known, comparisons=comparisons, doses=DOSES))
    schema = schemas.with_metadata(downloads_schema(), "downloads")
    written = 0
    with (
        disk.whole_file(folder / "downloads.parquet") as part,
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for columns in _chunks(rows, names, rng):
            writer.write_table(_table(columns | {"run": columns["run"] + written // len(known)}, schema))
            written += len(columns["run"])
    return written


def _table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    count = len(columns["domain"])
    arrays = [
        columns[field.name].cast(field.type)
        if isinstance(columns.get(field.name), pa.Array)
        else pa.array(columns[field.name], type=field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _chunks(rows: int, names: Names, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Columns of about `store.ROWS_AT_ONCE` rows, vantage point by vantage point as journals are."""
    size = len(names.configurations)
    iterations = -(-rows // (size * VANTAGES * DOMAINS))
    runs_at_once = -(-store.ROWS_AT_ONCE // size)
    for vantage in range(VANTAGES):
        for first in range(0, iterations * DOMAINS, runs_at_once):
            runs = np.arange(first, min(first + runs_at_once, iterations * DOMAINS))
            yield _rows(f"V{vantage + 1}", runs, names, rng)


def _rows(vantage: str, runs: npt.NDArray[np.int64], names: Names, rng: np.random.Generator) -> dict[str, Any]:
    size = len(names.configurations)
    order = rng.permuted(np.tile(np.arange(1, size), (len(runs), 1)), axis=1)  # The warm-up stays first.
    configuration = np.concatenate([np.zeros((len(runs), 1), dtype=np.int64), order], axis=1).ravel()
    domain = np.repeat(runs % DOMAINS, size)
    count = len(domain)
    speed = np.array([SPEED.get(one.name, 1.0) for one in names.configurations])[configuration]
    run_noise = np.repeat(rng.lognormal(0, 0.2, len(runs)), size)
    time_s = 40 * names.rtt_s[domain] / speed * run_noise * rng.lognormal(0, 0.1, count)
    draw = rng.random(count)
    is_censored, has_failed = draw < 0.01, (draw >= 0.01) & (draw < 0.02)
    outcome = np.where(has_failed, 1, np.where(is_censored, 2, 0))
    is_tcp = np.array([one.transport is Transport.TCP for one in names.configurations])[configuration]
    body = np.where(has_failed, 0, 1_000_000)
    key = {
        "run": np.repeat(np.arange(len(runs)), size),
        "campaign": _coded(np.zeros(count, dtype=np.int32), ["big"]),
        "vantage": _coded(np.zeros(count, dtype=np.int32), [vantage]),
        "iteration": np.repeat(runs // DOMAINS + 1, size),
        "domain": _coded(domain, names.domains),
        "url": _coded(domain, [f"https://{name}/file.bin" for name in names.domains]),
        "configuration": _coded(configuration, [one.name for one in names.configurations]),
    }
    last_byte_s = pa.array(time_s, mask=has_failed)
    flags = ["[]", '["edge_differs"]']
    downloads = key | {
        "provider": _coded(names.provider[domain], PROVIDERS),
        "client": _coded(configuration, [one.client for one in names.configurations]),
        "transport": _coded(configuration, [one.transport.value for one in names.configurations]),
        "levels": _coded(configuration, [json.dumps(dict(one.levels)) for one in names.configurations]),
        "position": np.tile(np.arange(size), len(runs)),
        "attempts": np.ones(count, dtype=np.int64),
        "started_at": 1.8e9 + np.arange(count) + 1e6 * int(runs[0]),
        "outcome": _coded(outcome, ["ok", "failed", "censored"]),
        "failure": _coded(np.where(outcome == 0, -1, outcome - 1), ["connect_timeout", "time_budget"]),
        "body_bytes": body,
        "connect_s": pa.array(names.rtt_s[domain], mask=has_failed),
        "first_byte_s": pa.array(3 * names.rtt_s[domain], mask=has_failed),
        "last_byte_s": last_byte_s,
        "budget_s": np.full(count, 10.0),
        "client_cpu_s": pa.array(0.05 * time_s, mask=has_failed),
        "transfer_cpu_s": pa.array(0.04 * time_s, mask=has_failed),
        "run_delay_s": pa.array(0.02 * time_s, mask=has_failed),
        "slow_handshake": pa.array(rng.random(count) < 0.01, mask=has_failed),
        "treatment_ok": pa.array(rng.random(count) >= 0.005, mask=rng.random(count) < 0.005),
        "cache_state": _coded(np.where(has_failed, -1, (rng.random(count) < 0.01).astype(np.int64)), ["hit", "miss"]),
        "identity_flags": _coded(np.where(has_failed | (configuration == 0), -1, rng.random(count) < 0.01), flags),
    }
    kpis = {
        "kpi_engine": _coded(np.where(has_failed, -1, 0), ["generated"]),
        "mean_throughput": pa.array(body * 8.4 / time_s / 1e6, mask=has_failed),
        "ce_packets": pa.array(rng.poisson(0.2, count), mask=has_failed | ~is_tcp),
        "sack_blocks": pa.array(rng.poisson(0.5, count), mask=has_failed | ~is_tcp),
        "flight_lower_max": pa.array(rng.integers(30_000, 90_000, count), mask=has_failed | ~is_tcp),
    } | _limiters(has_failed, rng)
    return downloads | kpis


def _limiters(has_failed: npt.NDArray[np.bool_], rng: np.random.Generator) -> dict[str, pa.Array]:
    """What limited each download: two causes for half of them, else three, as in the demo. Three decimals."""
    count = len(has_failed)
    causes = rng.permutation(np.array(LIMITERS))[:3].tolist()
    shares = rng.dirichlet((4.0, 1.0, 0.3), count)
    shares[: count // 2, 2] = 0.0
    shares = np.round(shares / shares.sum(axis=1, keepdims=True), 3)
    of_each = (dict(zip(causes, parts, strict=True)) for parts in rng.permutation(shares).tolist())
    texts = [json.dumps({name: share for name, share in parts.items() if share}) for parts in of_each]
    return {
        "limiter": _coded(np.where(has_failed, -1, rng.integers(0, 3, count)), causes),
        "limiter_shares": pa.array(texts, mask=has_failed),
    }


def _coded(codes: npt.NDArray[Any], names: Any) -> pa.Array:
    """Texts by code; -1: empty."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, list(names)).cast(pa.string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    print(f"{make(options.folder, rows=options.rows):,} downloads")


if __name__ == "__main__":
    main()
