"""docs/use/scale.md: its campaign takes what the page says, and its queries give the numbers of `upshift tables`."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from analysis import api
from analysis.measures import dataset
from core.files.disk import size_text
from tests.unit.analysis_factory import realistic, write_campaign
from upshift.cli import app

PAGE = (Path(__file__).resolve().parents[2] / "docs/use/scale.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


def test_the_campaign_takes_what_the_page_says(tmp_path: Path) -> None:
    (campaign,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "large.toml").write_text(campaign)
    rows = [f"d{n}.example,https://d{n}.example/f,other,1000000,{64_500 + n % 200}" for n in range(2_000)]
    (tmp_path / "targets.csv").write_text("\n".join(["domain,url,provider,size_bytes,asn", *rows]) + "\n")
    (command,) = re.findall(r"`upshift (plan large\.toml [^`]*)`", PAGE)
    words = command.replace("large.toml", str(tmp_path / "large.toml")).split()
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    told = json.loads(result.stdout)
    (part,) = {json.dumps({**one, "expected_s": round(one["expected_s"], -3)}) for one in told["parts"].values()}
    one, count = json.loads(part), len(told["parts"])
    downloads = one["runs"] * told["downloads_per_run"]
    days = f"{one['expected_s'] / 86_400:.1f} days"
    sizes = {name: told["disk"][name] for name in ("all", "sample", "none")}
    expected = [
        f"| measurement runs | {one['runs']:,} | {one['runs'] * count:,} |",
        f"| downloads | {downloads:,} | {downloads * count:,} |",
        f"| time | {days} | {days}: ",
        f"| IP bytes | {size_text(one['ip_bytes'])} | {size_text(told['campaign']['ip_bytes'])} |",
        *(f'| disk with `captures = "{name}"`' for name in sizes),
        *(f" | {size_text(size)} | {size_text(size * count)} |" for size in sizes.values()),
    ]
    assert [line for line in expected if line not in PAGE] == []
    assert told["binding"] is None and told["campaign"]["days"] * 86_400 < one["expected_s"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign with failures, budgets that ran out, wrong treatments, void runs and a disturbed download."""
    downloads, _ = realistic(domains=12, iterations=4)
    spoilt: list[dict[str, Any]] = [
        {"outcome": "failed", "failure": "connect_timeout", "last_byte_s": None},
        {"treatment_ok": False},
        {"treatment_ok": None},
        {"host_disturbance": "late_client"},
        {"outcome": "censored", "failure": "time_budget", "last_byte_s": 9.0},
        {"outcome": "censored", "failure": "time_budget", "last_byte_s": None},
        {"outcome": "censored", "failure": "byte_budget", "last_byte_s": 1.5},
    ]
    for at, row in enumerate(downloads):
        if at % 5 == 0:
            downloads[at] = dataclasses.replace(row, **spoilt[at // 5 % len(spoilt)])
        if row.iteration == 4 and row.domain == "www.site3.example":
            downloads[at] = dataclasses.replace(downloads[at], void_reason="emulator_late")
    made = write_campaign(tmp_path_factory.mktemp("scale") / "c", downloads)
    api.make_tables(dataset.load([made])).write(made / "tables")
    return made


def answers(number: int, name: str, folder: Path) -> list[tuple[Any, ...]]:
    pytest.importorskip("duckdb")
    variables: dict[str, Any] = {"folder": folder}
    exec(QUERIES[number], variables)
    found: list[tuple[Any, ...]] = variables[name].fetchall()
    return found


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"tables/{name}.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_pairs_and_medians_are_those_of_table_2(folder: Path) -> None:
    found = {name: rest for name, *rest in answers(0, "table2", folder)}
    rows = table(folder, "table2")
    assert len(rows) == len(found) == 12 and sum(int(row["bounds"]) for row in rows) > 100
    for row in rows:
        pairs, low, high = found[row["comparison"]]
        assert pairs == int(row["n"])
        assert (f"{low:.6g}", f"{high:.6g}") == (row["median_least"], row["median_most"])
        assert row["median"] in {"", f"{low:.6g}"}
    assert any(row["median"] for row in rows)


def test_two_folders_are_a_longer_list_of_files(folder: Path, tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, campaign="other") for row in realistic(3, domains=9)[0]]
    other = write_campaign(tmp_path / "d", rows)
    made = {row.comparison.name: row for row in api.make_tables(dataset.load([folder, other])).table2}
    (one,) = set(re.findall(r"\['\{folder\}/downloads\.parquet'\]", QUERIES[0]))
    variables: dict[str, Any] = {"folder": folder}
    pytest.importorskip("duckdb")
    exec(QUERIES[0].replace(one, f"['{folder}/downloads.parquet', '{other}/downloads.parquet']"), variables)
    found = variables["table2"].fetchall()
    assert len(found) == len(made) == 12
    assert [n for _, n, *_ in found] == [made[name].n for name, *_ in found]
    assert [low for *_, low, _ in found] == pytest.approx([made[name].median.least for name, *_ in found])


def test_shares_are_those_of_table_1(folder: Path) -> None:
    found = {
        tuple(names): numbers for *names, planned, ok in answers(1, "table1", folder) for numbers in [(planned, ok)]
    }
    rows = table(folder, "table1")
    assert found == {
        (row["vantage"], row["transport"], row["provider"]): (
            int(row["planned"]),
            pytest.approx(int(row["ok"]) / int(row["planned"])),
        )
        for row in rows
    }


def test_every_other_query_runs(folder: Path) -> None:
    assert len(QUERIES) == 3
    rows = answers(2, "hours", folder)
    assert {row[0] for row in rows} == {"BL", "BL2", "ECN", "SACK", "WS", "ALL", "aioquic", "quiche"}
    counted = [d for d in dataset.load([folder]).records if d.download.accepted and not d.is_warmup]
    assert sum(row[2] for row in rows) == sum(one.download.outcome == "ok" for one in counted) > 100
