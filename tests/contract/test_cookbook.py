"""Every snippet of the cookbook runs, on a folder made by the project's own journal, captures and inspection."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import upshift
from analysis import api
from analysis.measures import dataset, pair_table, tables
from analysis.measures.rows import BIN_NAMES
from core.domain import Comparison
from core.errors import UsageError
from core.files import store
from tests import inspected
from tests.unit.analysis_factory import make_download, make_kpis, realistic, write_campaign

REPOSITORY = Path(__file__).resolve().parents[2]
SNIPPETS = re.findall(
    r"```python\n(.*?)```", (REPOSITORY / "docs/use/cookbook.md").read_text(encoding="utf-8"), flags=re.S
)
PAIRED = ("ALL", "BL")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder if `UPSHIFT_DEMO_FOLDER` names one, else one with hand-made captures."""
    if demo := os.environ.get("UPSHIFT_DEMO_FOLDER"):
        return Path(demo)
    made = inspected.described_campaign(tmp_path_factory.mktemp("cookbook") / "c", runs=12)
    api.make_tables(dataset.load([made])).write(made / "tables")
    return made


@pytest.mark.filterwarnings("ignore:divide by zero")  # the logarithm of a lower bound of 0
def test_table_2_is_made_from_its_pairs_in_ten_lines_to_the_last_digit(tmp_path: Path) -> None:
    """The first snippet, where downloads failed, were mismatched or censored: only bounds of these are known."""
    pytest.importorskip("pandas")
    downloads, _ = realistic(domains=12, iterations=2)
    for at, changes in (
        (0, {"outcome": "failed", "failure": "connect_timeout"}),
        (31, {"treatment_ok": False}),
        (60, {"outcome": "censored", "failure": "time_budget", "last_byte_s": 9.0}),
        (97, {"outcome": "censored", "failure": "time_budget", "last_byte_s": 1.0, "budget_s": 1.0}),
    ):
        row = next(row for row in downloads[at:] if row.position > 0)
        downloads[downloads.index(row)] = dataclasses.replace(row, **changes)
    folder = write_campaign(tmp_path / "c", downloads)
    made = api.make_tables(dataset.load([folder]))
    made.write(folder / "tables")
    code = [line for line in SNIPPETS[0].splitlines() if line and not line.startswith(("import", "print"))]
    assert len(code) <= 10
    variables: dict[str, Any] = {"folder": folder}
    exec(SNIPPETS[0], variables)
    found = variables["table2"]
    with (folder / "tables/table2.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == len(found) == 12 and sum(int(row["bounds"]) for row in rows) > 2
    for row in rows:
        ours = found.loc[row["comparison"]]
        names = ["n", "faster", "slower", *BIN_NAMES, "gain", "lose", *(["median"] if row["median"] else [])]
        assert {name: f"{ours[name]:.6g}" for name in names} == {name: f"{float(row[name]):.6g}" for name in names}
    pairs = store.read_table(folder / "tables/pairs.parquet", "pairs")
    reasons = Counter(pairs["excluded"].to_pylist())
    assert reasons["failed"] and reasons["treatment not accepted"]
    assert sum(reasons.values()) == sum(int(row["n"]) + int(row["excluded"]) for row in rows)
    assert pairs.column_names == list(pair_table.COLUMNS)
    units = store.columns(folder / "tables/pairs.parquet", "pairs")
    assert units["config_handshake_s"] == units["vs_last_byte_s"] == "s" and not units["speedup"]


RUN_ALL = """
import contextlib, io, json, os, sys, traceback
folder, snippets, own = sys.argv[1], json.loads(sys.argv[2]), os.getcwd()
for number, snippet in enumerate(snippets):
    os.makedirs(f"{own}/{number}")
    os.chdir(f"{own}/{number}")
    printed, fault = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(snippet, {"__name__": "__main__", "folder": folder})
        except BaseException:
            fault = traceback.format_exc()
    print(json.dumps([printed.getvalue(), fault]), flush=True)
"""
"""Each snippet with variables and a folder of its own; prints its output and what it raised."""


@pytest.fixture(scope="module")
def snippets_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """The folder with a folder of each snippet's files, and output and fault of each.

    All in one interpreter, as most of what each would take is the import of pandas and matplotlib.
    """
    where = tmp_path_factory.mktemp("snippets")
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", RUN_ALL, str(folder.absolute()), json.dumps(SNIPPETS)]
    done = subprocess.run(argv, cwd=where, env=environment, capture_output=True, text=True)
    found = [(str(printed), str(fault)) for printed, fault in map(json.loads, done.stdout.splitlines())]
    assert done.returncode == 0 and len(found) == len(SNIPPETS), (len(found), done.stderr)
    return where, found


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs(snippets_run: tuple[Path, list[tuple[str, str]]], number: int) -> None:
    for name in ("duckdb", "matplotlib", "pandas"):
        if f"import {name}" in SNIPPETS[number] or name == "pandas":
            pytest.importorskip(name)
    where, found = snippets_run
    printed, fault = found[number]
    assert not fault, fault
    drawn = re.findall(r'savefig\("(.*?)"\)', SNIPPETS[number])
    assert printed or drawn
    assert all((where / f"{number}" / name).stat().st_size > 1_000 for name in drawn)


def test_throughput_by_rtt_is_of_undisturbed_downloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Proven treatment alone does not tell: void runs, and those with a late client, have it as well."""
    pytest.importorskip("duckdb")
    changes: list[dict[str, Any]] = [{}, {"void_reason": "emulator_late"}, {"host_disturbance": "client_late"}]
    downloads = [make_download(domain=f"d{number}", **change) for number, change in enumerate(changes)]
    folder = write_campaign(tmp_path / "c", downloads, kpis=lambda d: make_kpis(d, rtt_min=12.0, mean_throughput=5.0))
    exec(next(snippet for snippet in SNIPPETS if "duckdb" in snippet), {"folder": folder})
    assert capsys.readouterr().out.split() == ["BL", "10", "ms", "1", "downloads", "5.00", "Mbit/s"]


def test_packets_of_an_answer_are_all_drawn_and_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one comes alone, before a pause, and what was lost before it comes again later; a row has no answer."""
    for name in ("matplotlib", "pandas"):
        pytest.importorskip(name)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    row: dict[str, Any] = {"outcome": "ok", "transport": "tcp", "position": 1, "domain": "a", "configuration": "BL"}
    for started_ns in range(1_764_000_000_000_000_000, 1_764_000_000_000_010_000, 503):
        packets = pa.table(
            {
                "time_ns": [started_ns + 1_000_000 * ms for ms in (0, 20, 320, 321)],
                "direction": ["c2s", "s2c", "s2c", "s2c"],
                "seq": pa.array([0, 1449, 2897, 1], pa.uint32()),
                "len": [0, 1448, 1448, 1448],
                "true_class": ["", "new", "new", "retransmission"],
            }
        )
        rows = [
            {**row, "started_at": started_ns / 1e9, "time_to_answer": at, "time_to_first_byte": at}
            for at in (0.02, None)
        ]
        monkeypatch.setattr(upshift, "read", lambda _, rows=rows: pa.Table.from_pylist(rows))
        monkeypatch.setattr(upshift, "packets", lambda *_, packets=packets: packets)
        exec(SNIPPETS[-1], {"folder": tmp_path})
        assert capsys.readouterr().out == "a BL: no packet for 300.0 ms from 0.020 s\n"
    variables: dict[str, Any] = {"folder": tmp_path}
    exec(SNIPPETS[-2], variables)
    assert sorted(y for line in variables["axes"].lines for y in line.get_ydata()) == pytest.approx([-1.448, 0, 1.448])


def test_there_is_a_snippet_of_each_kind() -> None:
    page = "".join(SNIPPETS)
    assert len(SNIPPETS) == 6 and {"duckdb", "matplotlib.pyplot"} <= set(re.findall(r"import ([\w.]+)", page))


def test_pairs_are_those_of_table_2(folder: Path) -> None:
    pairs = upshift.pairs(folder, *PAIRED)
    (row,) = [row for row in tables.table2(dataset.load([folder])) if row.comparison == Comparison.of(*PAIRED)]
    logs: dict[str, list[float]] = {}
    for one in pairs.to_pylist():
        assert one["speedup_low"] <= one["speedup_high"]
        logs.setdefault(one["domain"], []).append(np.log(one["speedup_low"]))
    assert (len(pairs), len(logs), pairs["speedup"].null_count) == (row.n, row.domains, row.bounds)
    if not row.bounds:
        assert np.exp(np.median([np.median(values) for values in logs.values()])) == pytest.approx(row.median.value)
    downloads = upshift.read(folder)
    for side, name in zip(("config_row", "vs_row"), PAIRED, strict=True):
        taken = downloads.take(pairs[side])
        assert set(taken["configuration"].to_pylist()) == {name}
        assert taken["run"].to_pylist() == pairs["run"].to_pylist()
        assert taken["domain"].to_pylist() == pairs["domain"].to_pylist()


def test_packets_are_those_of_one_download(folder: Path) -> None:
    row = next(r for r in upshift.read(folder).to_pylist() if r["configuration"] == "BL" and r["kpi_engine"])
    packets = upshift.packets(folder, row)
    sent = [direction == "s2c" for direction in packets["direction"].to_pylist()]
    assert sum(sent) == row["packets_from_server"] and len(sent) - sum(sent) == row["packets_from_client"]
    with pytest.raises(UsageError, match="this download has no capture"):
        upshift.packets(folder, {**row, "capture": None})
    with pytest.raises(UsageError, match="capture not found"):
        upshift.packets(folder, {**row, "capture": f"vantage/{row['vantage']}/none.pcap"})
    with pytest.raises(UsageError, match="its capture is not in the vantage point's folder"):
        upshift.packets(folder, {**row, "capture": "../victim.pcap"})
    with pytest.raises(UsageError, match="no connection in the capture"):
        upshift.packets(folder, {**row, "local_port": 1})


def test_wrong_arguments_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown configuration 'AL'"):
        upshift.pairs(folder, "AL", "BL")
    with pytest.raises(UsageError, match="BL is compared with itself"):
        upshift.pairs(folder, "BL", "BL")
    with pytest.raises(UsageError, match="unknown metric 'speed'"):
        upshift.pairs(folder, *PAIRED, metric="speed")
    with pytest.raises(UsageError, match="file not found"):
        upshift.read(tmp_path)


def test_importing_upshift_imports_no_library() -> None:
    code = "import sys, upshift; print(*{'numpy', 'pyarrow', 'analysis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
