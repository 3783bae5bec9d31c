"""`upshift kpis` on the command line: output forms, exit codes, sentences."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("upshift_native")

from core.files import store
from tests import command
from tests.unit.pcap_writer import download, ipv4, pcap


def upshift(*arguments: str | Path) -> command.Answer:
    return command.upshift("kpis", *arguments)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "one.pcap"
    path.write_bytes(pcap((10**18 + s.time_ns, ipv4(s)) for s in download(lose=frozenset({5}))))
    return path


def test_one_json_document_per_connection(capture: Path) -> None:
    done = upshift("--json", "--series", capture)
    assert (done.returncode, done.stderr) == (0, "")
    (document,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert set(document) == {"capture", "connection", "kpis", "record", "series"}
    assert document["kpis"]["true_retransmissions"] == 1
    assert sum(document["series"]["server_bytes"]) == document["record"]["server"]["ip_bytes"]
    assert len(document["series"]["sequence"]) == 41


def test_packets_as_csv_and_as_parquet(capture: Path, tmp_path: Path) -> None:
    done = upshift("--packets", capture)
    assert (done.returncode, done.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert list(rows[0]) == ["frame", "time_ns", "connection", "direction", "seq", "len", "ws_class", "true_class"]
    assert [row["true_class"] for row in rows].count("retransmission") == 1
    out = tmp_path / "packets.parquet"
    assert upshift("--packets", capture, "-o", out).returncode == 0
    table = store.read_table(out, "packets").to_pylist()
    assert [{name: str(value) for name, value in row.items()} for row in table] == rows


def test_connections_as_parquet_of_a_directory(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "two.pcap").write_bytes(capture.read_bytes())
    (tmp_path / "garbage.pcap").write_bytes(b"this is no capture at all")
    out = tmp_path / "kpis.parquet"
    done = upshift(tmp_path, "-o", out, "--jobs", "2")
    assert done.returncode == 1
    assert "garbage.pcap" in done.stderr
    table = store.read_table(out, "connections")
    assert table.num_rows == 2
    assert table.schema.field("mean_throughput").metadata == {b"unit": b"Mbit/s"}


def test_who_stops_reading_stdout_loses_no_table(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "two.pcap").write_bytes(capture.read_bytes())
    out = tmp_path / "kpis.parquet"
    for options in (("-o", str(out)), ()):
        read, write = os.pipe()
        os.close(read)
        own = [sys.executable, "-m", "upshift", "kpis", str(tmp_path), "--json", *options]
        done = subprocess.run(own, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
        os.close(write)
        assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
    assert store.read_table(out, "connections").num_rows == 2


def test_a_table_has_the_name_of_one(capture: Path, tmp_path: Path) -> None:
    out = tmp_path / "kpis.csv"
    done = upshift(capture, "-o", out)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "FILE.parquet" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xd4\xc3", b"PK\x03\x04 a zip file"])
def test_what_is_no_capture_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.pcap"
    path.write_bytes(content)
    for option in ("--json", "--packets"):
        done = upshift(option, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert str(path) in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_directory_without_captures_is_refused(tmp_path: Path) -> None:
    done = upshift(tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_cut_file_gives_its_rows_and_a_warning(capture: Path) -> None:
    capture.write_bytes(capture.read_bytes()[:-7])
    for option in ("--json", "--packets"):
        done = upshift(option, capture)
        assert done.returncode == 0
        assert "the file ends inside a record" in done.stderr
        assert done.stdout
    assert json.loads(upshift("--json", capture).stdout)["kpis"]["truncated"] is True


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--packets", "--json"), "leave one of them out"),
        (("--packets", "--series"), "leave one of them out"),
        (("--series",), "give --json too"),
        (("--packets", "another.pcap"), "name one"),
    ],
)
def test_options_that_contradict_each_other_are_refused(capture: Path, options: tuple[str, ...], remedy: str) -> None:
    done = upshift(capture, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{remedy}\n") and len(done.stderr.splitlines()) == 1


def test_the_table_for_people(capture: Path) -> None:
    done = upshift(capture)
    assert done.returncode == 0
    assert "198.18.0.1:40000 -> 198.18.0.2:443" in done.stdout


def test_help_names_units() -> None:
    assert "Mbit/s" in upshift("--help").stdout


HEAVY = {
    "pydantic",
    "numpy",
    "pyarrow",
    "rich",
    "asyncio",
    "matplotlib",
    "jinja2",
    "core.domain",
    "core.files.schemas",
    "core.files.store",
}


def test_a_capture_is_read_without_heavy_modules(capture: Path) -> None:
    """Modules and not seconds, which depend on the host: these made 0.39 CPU-s of what is 0.1."""
    code = (
        "import sys; from upshift.cli import app; app(['kpis', *sys.argv[1:]], standalone_mode=False);"
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, capture], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines())
    assert "analysis.captures.scan" in loaded, "the capture was read"
    assert not loaded & HEAVY
    assert len(loaded) < 350


def test_the_table_has_the_columns_that_fit() -> None:
    from analysis.captures.export import SUMMARY_COLUMNS, table

    row = ["one.pcap", "0", "tcp", "198.18.0.1:40000 -> 198.18.0.2:443", *("1" for _ in SUMMARY_COLUMNS)]
    for columns in (60, 80, 120, 200):
        for with_file in (False, True):
            lines = table([row, row], columns=columns, with_file=with_file)
            assert len(lines) == 4
            assert max(map(len, lines)) <= columns
    assert "WS server" in lines[0] and lines[0].startswith("capture")
    hostile = table([["\x1b[31m.pcap", *row[1:]]], columns=200, with_file=True)
    assert "\x1b" not in "".join(hostile)
