"""Files made to break a command: one sentence, exit code 2, and memory within bounds, all through `upshift` itself."""

from __future__ import annotations

import bz2
import gzip
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import zstandard

from cdn_mapping import table
from cdn_mapping.inflate import Inflated
from cdn_mapping.rib import RibEntry
from cdn_mapping.votes import Ballot
from core.files import store
from tests.cells import cells
from tests.command import Answer
from tests.unit.analysis_factory import make_download, write_campaign

REPOSITORY = Path(__file__).resolve().parents[2]

NESTED = "[" * 100_000
TOPOLOGY = 'name = "deep"\nservers = '
CAMPAIGN = 'name = "c"\nlab = "small"\ntargets = "lab"\n'

MOST_KB = 500_000
"""Resident memory of a command at its peak; numpy, pyarrow and their like take 150 MB of it."""

SAFETY_BYTES = 4 << 30
"""Address space, so that a fault ends the test and not the machine."""


Command = tuple[object, ...]
"""The words of a command line."""


def answers(*commands: Command) -> list[Answer]:
    """Runs command lines, one after the other in a process of their own, and asserts that it stayed within `MOST_KB`.

    A single process, as most of what each would take is the import of modules.
    """
    lines = [list(map(str, command)) for command in commands]
    argv = [sys.executable, "-c", WRAPPER, str(SAFETY_BYTES), COMMANDS, json.dumps(lines)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, cwd=REPOSITORY)
    found = [Answer(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(found) == len(lines), f"the process ended in {lines[len(found)]}: {done.returncode}, {done.stderr}"
    peak_kb = int(done.stderr.splitlines()[-1])
    assert peak_kb < MOST_KB, f"{peak_kb} kB in one of {lines}"
    return found


def answer(*arguments: object) -> Answer:
    """As `answers`, of one command line."""
    [found] = answers(arguments)
    return found


COMMANDS = """
import json, sys, traceback
from tests.command import upshift
for line in json.loads(sys.argv[1]):
    try:
        done = upshift(*line)
        found = [done.returncode, done.stdout, done.stderr]
    except Exception:
        found = [1, "", traceback.format_exc()]
    print(json.dumps(found), flush=True)
"""
"""Code, standard output and errors of each command line, as soon as it has ended."""


WRAPPER = """
import resource, subprocess, sys
limit = int(sys.argv[1])
done = subprocess.run(
    [sys.executable, "-c", *sys.argv[2:]],
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(done.returncode)
"""
"""Its only child has the commands, so that the peak of its children is theirs."""


def assert_sentence(done: Answer, said: str) -> None:
    assert done.returncode == 2, f"{said}: {done.stderr}"
    lines = [line for line in done.stderr.splitlines() if not PROGRESS.fullmatch(line)]
    assert len(lines) == 1 and lines[0].startswith("upshift: ") and said in lines[0], f"{said}: {done.stderr}"


def assert_sentences(commands: Mapping[Command, str]) -> None:
    """Each of these command lines ends with a sentence that has these words."""
    for said, done in zip(commands.values(), answers(*commands), strict=True):
        assert_sentence(done, said)


PROGRESS = re.compile(r".*: \d+/\d+, .*/s.*")


def readers(path: Path, out: Path) -> list[Command]:
    """The commands that read a TOML file."""
    return [("run", path, "--out", out), ("lab", "up", path)]


@cells("text", every=["a = " + NESTED, "a = " + "{b = " * 100_000], quick=["a = " + NESTED], ids=lambda text: text[4:7])
def test_nested_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    said = "deep.toml: its arrays or tables are nested too deeply"
    assert_sentences(dict.fromkeys(readers(path, tmp_path / "out"), said))
    assert not (tmp_path / "out").exists()


def test_toml_without_end(tmp_path: Path) -> None:
    zero, large = tmp_path / "zero.toml", tmp_path / "large.toml"
    zero.symlink_to("/dev/zero")
    with large.open("wb") as handle:
        handle.truncate(100 << 20)
    files = (zero, large)
    said = {path: f"{path.name}: the file is larger than 4 MiB, the limit" for path in files}
    assert_sentences({command: said[path] for path in files for command in readers(path, tmp_path / "out")})


def test_a_plan_without_end(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(CAMPAIGN + "iterations = 1000000000\n")
    done = answer("run", path, "--out", tmp_path / "out")
    assert_sentence(done, "field iterations: 1000000000 is above 100000, the limit")
    assert not (tmp_path / "out").exists()


def test_nested_json_of_a_campaign(tmp_path: Path) -> None:
    said: dict[Command, str] = {}
    for number, name in enumerate(("campaign.json", "lab.json", "targets/composition.json", "targets/windows.json")):
        folder = write_campaign(tmp_path / f"{number}", [make_download()])
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(NESTED)
        said["tables", folder] = f"{name}: its lists or objects are nested too deeply"
    assert_sentences(said)
    assert not list(tmp_path.glob("*/tables"))


def test_text_in_the_columns_of_a_campaign(tmp_path: Path) -> None:
    said: dict[Command, str] = {}
    for number, text in enumerate(("fast", NESTED)):
        for name, kind in (("last_byte_s", "double"), ("run", "int")):
            folder = write_campaign(tmp_path / f"{name}-{number}", [make_download()])
            path = folder / "downloads.parquet"
            good = store.read_table(path, "downloads")
            bad = good.set_column(good.schema.get_field_index(name), name, [[text]])
            store.write_table(path, "downloads", bad)
            said["tables", folder] = f"downloads.parquet: the column {name} holds string, not {kind}"
    assert_sentences(said)


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


def map_targets(folder: Path, *options: object) -> Command:
    """A command that maps one target into `mapped.parquet` of a folder."""
    targets = folder / "targets.csv"
    targets.write_text("domain,server_ip\nwww.a.example,198.18.0.1\n")
    return ("map", "targets", targets, "-o", folder / "mapped.parquet", *options)


@pytest.mark.parametrize("packing", ZEROS)
def test_zeros_come_in_pieces(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "zeros"
    pack, count = ZEROS[packing]
    path.write_bytes(pack())
    sizes = list(map(len, Inflated(path)))
    assert sum(sizes) == count and max(sizes) <= 16 << 20


def test_organisations_that_inflate_without_end(tmp_path: Path) -> None:
    ballot = Ballot()
    ballot.add_entries([RibEntry("198.18.0.0/16", 680, "680", 680, "198.18.0.2", None)])
    table.build({version: ballot.rows(version) for version in (4, 6)}, {}).save(tmp_path / "t.npz")
    zeros = gz_of_zeros()
    commands: dict[Command, str] = {}
    for number, (head, said) in enumerate(
        (
            (b"", "line 1 is neither a comment, a JSON object nor a JSON list"),
            (b"#", "line 1 is longer than 64 KiB"),
            (b"[", "the list has more than 8 MiB, inflated"),
        )
    ):
        path = tmp_path / f"{number}" / "as2org"
        path.parent.mkdir()
        path.write_bytes(gzip.compress(head) * bool(head) + zeros)
        commands[map_targets(tmp_path, "--rib", tmp_path / "t.npz", "--as2org", path)] = f"{number}/as2org: {said}"
    assert_sentences(commands)
    assert not (tmp_path / "mapped.parquet").exists()


def test_a_rib_that_inflates_without_end(tmp_path: Path) -> None:
    path = tmp_path / "rib"
    path.write_bytes(gz_of_zeros())
    done = answer(*map_targets(tmp_path, "--rib", path))
    assert_sentence(done, "rib: none of the first 1,000,000 records belongs to a RIB")
    assert not (tmp_path / "mapped.parquet").exists()


@pytest.mark.parametrize("name", ["list.gz", "list.zip"])
def test_a_top_list_that_inflates_without_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("gz"):
        path.write_bytes(gz_of_zeros())
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("list.csv", bytes(64 << 20))
    assert_sentence(answer(*walk("crawl", path, tmp_path)), f"{name}: line 1 is longer than 1 MiB")
    assert not (tmp_path / "out.parquet").exists()


def walk(command: str, path: Path, folder: Path, *options: object) -> Command:
    """A command that walks a list, into `out.parquet` of a folder. It confines its process: no other may follow it."""
    return (*command.split(), path, "-o", folder / "out.parquet", "--contact", "a@b.example", *options)


def test_an_encrypted_zip_is_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "list.zip", "w") as archive:
        archive.writestr("list.csv", "1,a.example\n")
    data = bytearray((tmp_path / "list.zip").read_bytes())
    data[6] |= 1  # the flag in the local header and in the directory (APPNOTE.TXT, section 4.4.4)
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "list.zip").write_bytes(data)
    assert_sentence(answer(*walk("crawl", tmp_path / "list.zip", tmp_path)), "the zip file cannot be unpacked")
    assert not (tmp_path / "out.parquet").exists()


def test_devices(tmp_path: Path) -> None:
    """/dev/zero in the place of every file that a command reads."""
    zero = Path("/dev/zero")
    (tmp_path / "list.csv").write_text("1,a.example\n")
    (tmp_path / "c.toml").write_text('name = "c"\nlab = "small"\ntargets = "/dev/zero"\n')
    listed = tmp_path / "list.csv"
    assert_sentences(
        {
            map_targets(tmp_path, "--rib", zero): "/dev/zero: this is a device",
            ("kpis", zero): "/dev/zero: this file is neither",
            ("run", tmp_path / "c.toml", "--out", tmp_path / "out"): "/dev/zero' is neither a .csv nor",
            walk("survey quic", zero, tmp_path): "/dev/zero: ",
        }
    )
    for command, said in (
        (walk("survey quic", listed, tmp_path, "--ca", zero), "/dev/zero is not a PEM file with certificates"),
        (walk("crawl", listed, tmp_path, "--block-list", zero), "/dev/zero: the file is larger than 64 MiB, the limit"),
    ):
        assert_sentence(answer(*command), said)
    assert not (tmp_path / "out.parquet").exists() and not (tmp_path / "mapped.parquet").exists()
