"""Files made to break a command: one sentence, exit code 2, and memory within bounds, all through `upshift` itself."""

from __future__ import annotations

import bz2
import gzip
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import zstandard

from cdn_mapping import table
from cdn_mapping.inflate import Inflated
from cdn_mapping.rib import RibEntry
from cdn_mapping.votes import Ballot
from core.files import store
from tests.cells import cells
from tests.unit.analysis_factory import make_download, write_campaign

NESTED = "[" * 100_000
TOPOLOGY = 'name = "deep"\nservers = '
CAMPAIGN = 'name = "c"\nlab = "small"\ntargets = "lab"\n'

MOST_KB = 500_000
"""Resident memory of a command at its peak; numpy, pyarrow and their like take 150 MB of it."""

SAFETY_BYTES = 4 << 30
"""Address space, so that a fault ends the test and not the machine."""


def upshift(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command, and asserts that it stayed within `MOST_KB`."""
    argv = [sys.executable, "-c", WRAPPER, str(SAFETY_BYTES), *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    *lines, peak_kb = done.stderr.splitlines(keepends=True)
    assert int(peak_kb) < MOST_KB
    return subprocess.CompletedProcess(argv, done.returncode, done.stdout, "".join(lines))


WRAPPER = """
import resource, subprocess, sys
limit = int(sys.argv[1])
done = subprocess.run(
    [sys.executable, "-m", "upshift", *sys.argv[2:]],
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""
"""Its only child is the command, so that the peak of its children is the command's."""


def assert_sentence(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not PROGRESS.fullmatch(line)]
    assert len(lines) == 1 and lines[0].startswith("upshift: ") and said in lines[0], done.stderr


PROGRESS = re.compile(r".*: \d+/\d+, .*/s.*")


@pytest.mark.parametrize("command", ["run", "lab up"])
@cells("text", every=["a = " + NESTED, "a = " + "{b = " * 100_000], quick=["a = " + NESTED], ids=lambda text: text[4:7])
def test_nested_toml(tmp_path: Path, command: str, text: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    out = ("--out", tmp_path / "out") if command == "run" else ()
    assert_sentence(upshift(*command.split(), path, *out), "deep.toml: its arrays or tables are nested too deeply")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "lab up"])
def test_toml_without_end(tmp_path: Path, command: str) -> None:
    out = ("--out", tmp_path / "out") if command == "run" else ()
    path = tmp_path / "zero.toml"
    path.symlink_to("/dev/zero")
    assert_sentence(upshift(*command.split(), path, *out), "zero.toml: the file is larger than 4 MiB, the limit")
    path.unlink()
    with path.open("wb") as handle:
        handle.truncate(100 << 20)
    assert_sentence(upshift(*command.split(), path, *out), "zero.toml: the file is larger than 4 MiB, the limit")


def test_a_plan_without_end(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(CAMPAIGN + "iterations = 1000000000\n")
    done = upshift("run", path, "--out", tmp_path / "out")
    assert_sentence(done, "field iterations: 1000000000 is above 100000, the limit")
    assert not (tmp_path / "out").exists()


@cells(
    "name",
    every=["campaign.json", "lab.json", "targets/composition.json", "targets/windows.json"],
    quick=["campaign.json", "targets/windows.json"],
)
def test_nested_json_of_a_campaign(tmp_path: Path, name: str) -> None:
    folder = write_campaign(tmp_path / "c", [make_download()])
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(NESTED)
    assert_sentence(upshift("tables", folder), f"{name}: its lists or objects are nested too deeply")
    assert not (folder / "tables").exists()


@pytest.mark.parametrize("text", ["fast", NESTED], ids=["a word", "brackets"])
def test_text_in_the_columns_of_a_campaign(tmp_path: Path, text: str) -> None:
    folder = write_campaign(tmp_path / "c", [make_download()])
    path = folder / "downloads.parquet"
    good = store.read_table(path, "downloads")
    for name, said in (
        ("last_byte_s", "downloads.parquet: the column last_byte_s holds string, not double"),
        ("run", "downloads.parquet: the column run holds string, not int"),
    ):
        store.write_table(path, "downloads", good.set_column(good.schema.get_field_index(name), name, [[text]]))
        assert_sentence(upshift("tables", folder), said)


ZEROS_BYTES = 608 << 20
"""More than a command may keep, and little when it is packed."""


def gz_of_zeros() -> bytes:
    return gzip.compress(bytes(32 << 20), 1) * (ZEROS_BYTES >> 25)


def bz2_of_zeros() -> bytes:
    return bz2.compress(bytes(32 << 20)) * 3


def zst_of_zeros() -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return b"".join([compressor.compress(bytes(1 << 20)) for _ in range(ZEROS_BYTES >> 20)]) + compressor.flush()


ZEROS = {"gz": (gz_of_zeros, ZEROS_BYTES), "bz2": (bz2_of_zeros, 3 << 25), "zst": (zst_of_zeros, ZEROS_BYTES)}
"""gz and bz2 have several members in one file. Of bz2, which is slow, fewer."""


def map_targets(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    targets, out = folder / "targets.csv", folder / "mapped.parquet"
    targets.write_text("domain,server_ip\nwww.a.example,198.18.0.1\n")
    done = upshift("map", "targets", targets, "-o", out, *options)
    assert not out.exists()
    return done


@pytest.mark.parametrize("packing", ZEROS)
def test_zeros_come_in_pieces(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "zeros"
    pack, count = ZEROS[packing]
    path.write_bytes(pack())
    sizes = list(map(len, Inflated(path)))
    assert sum(sizes) == count and max(sizes) <= 16 << 20


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", "line 1 is neither a comment, a JSON object nor a JSON list"),
        (b"#", "line 1 is longer than 64 KiB"),
        (b"[", "the list has more than 8 MiB, inflated"),
    ],
)
def test_organisations_that_inflate_without_end(tmp_path: Path, head: bytes, said: str) -> None:
    ballot = Ballot()
    ballot.add_entries([RibEntry("198.18.0.0/16", 680, "680", 680, "198.18.0.2", None)])
    table.build({version: ballot.rows(version) for version in (4, 6)}, {}).save(tmp_path / "t.npz")
    path = tmp_path / "as2org"
    path.write_bytes(gzip.compress(head) * bool(head) + gz_of_zeros())
    assert_sentence(map_targets(tmp_path, "--rib", tmp_path / "t.npz", "--as2org", path), f"as2org: {said}")


def test_a_rib_that_inflates_without_end(tmp_path: Path) -> None:
    path = tmp_path / "rib"
    path.write_bytes(gz_of_zeros())
    assert_sentence(map_targets(tmp_path, "--rib", path), "rib: none of the first 1,000,000 records belongs to a RIB")


@pytest.mark.parametrize("name", ["list.gz", "list.zip"])
def test_a_top_list_that_inflates_without_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("gz"):
        path.write_bytes(gz_of_zeros())
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("list.csv", bytes(64 << 20))
    assert_sentence(walk("crawl", path, tmp_path), f"{name}: line 1 is longer than 1 MiB")


def walk(command: str, path: Path, folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    done = upshift(*command.split(), path, "-o", folder / "out.parquet", "--contact", "a@b.example", *options)
    assert not (folder / "out.parquet").exists()
    return done


def test_an_encrypted_zip_is_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "list.zip", "w") as archive:
        archive.writestr("list.csv", "1,a.example\n")
    data = bytearray((tmp_path / "list.zip").read_bytes())
    data[6] |= 1  # the flag in the local header and in the directory (APPNOTE.TXT, section 4.4.4)
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "list.zip").write_bytes(data)
    assert_sentence(walk("crawl", tmp_path / "list.zip", tmp_path), "the zip file cannot be unpacked")


def test_devices(tmp_path: Path) -> None:
    """/dev/zero in the place of every file that a command reads."""
    zero = Path("/dev/zero")
    (tmp_path / "list.csv").write_text("1,a.example\n")
    (tmp_path / "c.toml").write_text('name = "c"\nlab = "small"\ntargets = "/dev/zero"\n')
    assert_sentence(walk("survey quic", zero, tmp_path), "/dev/zero: ")
    done = walk("survey quic", tmp_path / "list.csv", tmp_path, "--ca", zero)
    assert_sentence(done, "/dev/zero: the file is larger than 16 MiB, the limit")
    done = walk("crawl", tmp_path / "list.csv", tmp_path, "--block-list", zero)
    assert_sentence(done, "/dev/zero: the file is larger than 64 MiB, the limit")
    assert_sentence(map_targets(tmp_path, "--rib", zero), "/dev/zero: this is a device")
    assert_sentence(upshift("kpis", zero), "/dev/zero: this file is neither")
    assert_sentence(upshift("run", tmp_path / "c.toml", "--out", tmp_path / "out"), "/dev/zero' is neither a .csv nor")
