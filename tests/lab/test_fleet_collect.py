"""Collect: by a local connection and over SSH, killed, with a byte flipped on the way, with captures removed there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analysis.evidence import inspect_campaign
from core.files.journal import JournalReader
from downloader.execution import snapshot
from downloader.execution.journal import Journal
from downloader.factors import ALL as FACTORS
from tests.campaigns import Silent
from tests.cells import cells
from tests.collecting import ANSIBLE, Fleet, ssh_server
from tests.inspected import captures, make_campaign
from tests.unit.test_downloader_journal import runs
from tests.unit.test_snapshot import PLAN, capture_of, rows, work

pytestmark = pytest.mark.lab


def campaign(folder: Path, name: str, *, plan_hash: str = PLAN, done: int = 2) -> Path:
    """Results of a host, of which two of three runs are recorded."""
    plan = runs(3)
    with closing(Journal.open(folder / "vantage" / "A", plan, plan_hash=plan_hash)) as journal:
        for run in plan[:done]:
            work(folder, journal, run)
        rows(folder, plan[2])
    (folder / "vantage" / "A").rename(folder / "vantage" / name)
    with closing(Journal(folder / "vantage" / name / "journal.sqlite")) as journal:
        for table in ("downloads", "captures"):
            column = "record" if table == "downloads" else "path"
            journal._db.execute(f"UPDATE {table} SET {column} = replace({column}, 'vantage/A/', 'vantage/{name}/')")
    (folder / "campaign.json").write_text('{"campaign": "week"}')
    (folder / "status.json").write_text(f'{{"of": "{name}"}}')
    return folder


def there(name: str, number: int) -> str:
    return capture_of(runs()[number]).replace("/A/", f"/{name}/")


@pytest.fixture
def fleet(reached: str, tmp_path: Path) -> Iterator[Fleet]:
    """Two hosts over SSH, one by a local connection."""
    made = Fleet(tmp_path)
    with contextlib.ExitStack() as stack:
        variables: dict[str, Any] = {}
        if reached == "ssh":
            if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") is None or os.geteuid() != 0:
                pytest.skip(
                    "needs root and sshd (apt-get install openssh-server); the tier fleet collects over SSH, too"
                )
            variables = stack.enter_context(ssh_server(tmp_path))
        for name in ("MUC", "SFO") if reached == "ssh" else ("MUC",):
            made.add(name, campaign(tmp_path / f"on {name}".replace(" ", "-"), name), **variables)
        yield made


def staged(fleet: Fleet, name: str, number: int) -> Path:
    """Where a capture is until it is verified."""
    return fleet.collected / ".collect" / name / "captures" / Path(there(name, number)).name


def results(fleet: Fleet, name: str) -> Path:
    return Path(fleet.hosts[name]["collect_results"])


def recorded(folder: Path, name: str) -> int:
    with closing(JournalReader(folder / "vantage" / name / "journal.sqlite")) as journal:
        return journal.recorded_runs()


def changed(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [int(count) for count in re.findall(r"changed=(\d+)", done.stdout)]


@cells("reached", every=["local", "ssh"], quick=["local"])
def test_one_folder_any_number_of_times(fleet: Fleet, reached: str) -> None:
    names, done = tuple(fleet.hosts), fleet.collect()
    assert done.returncode == 0, done.stdout
    for name in names:
        assert recorded(fleet.collected, name) == 2
        for number in (0, 1):
            assert (fleet.collected / there(name, number)).read_bytes() == (
                results(fleet, name) / there(name, number)
            ).read_bytes()
        assert not (fleet.collected / there(name, 2)).exists(), "it is not finished"
        assert json.loads((fleet.collected / "vantage" / name / "status.json").read_text()) == {"of": name}
    assert not (fleet.collected / "campaign.json").exists(), "the control machine has its own"
    assert changed(fleet.collect()) == [0] * len(names), "nothing is new"

    home = results(fleet, "MUC")
    with closing(Journal(home / "vantage" / "MUC" / "journal.sqlite")) as journal:
        journal.begin(2)
        journal.accept(2, rows(home, runs()[2]))
        journal._db.execute("UPDATE downloads SET record = replace(record, 'vantage/A/', 'vantage/MUC/')")
        shutil.copyfile(home / capture_of(runs()[2]), home / there("MUC", 2))
    again = fleet.collect(collect_free=True)
    assert again.returncode == 0, again.stdout
    assert [recorded(fleet.collected, name) for name in names] == [3, 2][: len(names)]
    assert (fleet.collected / there("MUC", 2)).exists()
    for name in names:
        assert not (results(fleet, name) / there(name, 0)).exists(), "removed there"
        assert (fleet.collected / there(name, 0)).exists()
        assert (results(fleet, name) / there(name, 2)).exists(), "the journal does not know it"
    if reached == "ssh":  # otherwise in tests/unit/test_fleet_collecting.py
        last = fleet.collect(collect_free=True)
        assert last.returncode == 0, last.stdout
        assert (fleet.collected / there(names[-1], 0)).exists(), "what is removed there stays here"


def test_without_captures_the_hosts_findings_make_the_same_tables(tmp_path: Path) -> None:
    fleet, host = Fleet(tmp_path, plan_sha256="h"), make_campaign(tmp_path / "on-muc", runs=20, looked_at=True)
    fleet.add("MUC", host)
    done = fleet.collect(collect_without_captures=True)
    assert done.returncode == 0, done.stdout
    assert captures(host) and not captures(fleet.collected)
    tables = []
    for folder in (host, fleet.collected):
        found = inspect_campaign(folder, factors=FACTORS, progress=Silent())
        assert (found.downloads, found.kpis, found.lost) == (100, 80, ())
        tables.append((folder / "downloads.parquet").read_bytes())
    assert tables[0] == tables[1]
    travelled = (fleet.collected / "vantage" / "MUC" / "journal.sqlite").stat().st_size
    print(f"{travelled / found.downloads:.0f} bytes of journal per download")
    refused = fleet.collect(collect_without_captures=True, collect_free=True)
    assert refused.returncode != 0 and "collect_free removes captures that have arrived" in refused.stdout
    assert len(captures(host)) == 20


FLIP = 'f={file}; if [ -e "$f" ] && {once}; then printf X | dd of="$f" bs=1 seek=40 conv=notrunc status=none; fi'
"""After rsync: a byte of a file is another one."""


@pytest.mark.soak
def test_a_flipped_byte_is_found_and_fetched_once_more(tmp_path: Path) -> None:
    """Of a capture and of a journal."""
    fleet = Fleet(tmp_path)
    fleet.add("MUC", campaign(tmp_path / "on-muc", "MUC"))
    hit = staged(fleet, "MUC", 1)
    copied = hit.parents[1] / "journal.sqlite"
    marks = [tmp_path / "flipped-capture", tmp_path / "flipped-journal"]
    flips = [
        FLIP.format(file=file, once=f"[ ! -e {mark} ] && touch {mark}")
        for file, mark in zip((hit, copied), marks, strict=True)
    ]
    done = fleet.collect(then="\n".join(flips), collect_free=True)
    assert done.returncode == 0, done.stdout
    assert all(mark.exists() for mark in marks)
    assert (fleet.collected / there("MUC", 1)).read_bytes() == b"packets of 1, 1" * 50
    assert recorded(fleet.collected, "MUC") == 2
    assert not (results(fleet, "MUC") / there("MUC", 1)).exists(), "removed there after it was verified"


def test_a_byte_that_is_flipped_always_is_told(tmp_path: Path) -> None:
    """The other host is collected; of this one nothing is put in its place, nothing is removed."""
    fleet = Fleet(tmp_path)
    for name in ("MUC", "SFO"):
        fleet.add(name, campaign(tmp_path / f"on-{name}", name))
    hit = staged(fleet, "MUC", 1)
    done = fleet.collect(then=FLIP.format(file=hit, once="true"), collect_free=True)
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert f"MUC: 1 files came twice with another hash than it says, such as captures/{hit.name};" in said
    assert not (fleet.collected / "vantage" / "MUC" / "journal.sqlite").exists()
    assert (results(fleet, "MUC") / there("MUC", 1)).exists()
    assert recorded(fleet.collected, "SFO") == 2
    assert not (results(fleet, "SFO") / there("SFO", 1)).exists()


@pytest.mark.soak
def test_another_plan_and_no_campaign_are_one_sentence_each(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.add("MUC", campaign(tmp_path / "on-muc", "MUC"))
    assert fleet.collect().returncode == 0
    fleet.add("SFO", campaign(tmp_path / "on-sfo", "SFO", plan_hash="f" * 16))
    (tmp_path / "on-sgp").mkdir()
    fleet.add("SGP", tmp_path / "on-sgp")
    done = fleet.collect()
    said = " ".join(done.stdout.split())
    assert done.returncode != 0
    assert "SFO: its results are of another plan than the campaign and the targets of this machine" in said
    assert f"{tmp_path / 'on-sgp'}: this folder holds no campaign" in said
    assert not (fleet.collected / "vantage" / "SFO" / "journal.sqlite").exists()
    assert recorded(fleet.collected, "MUC") == 2


SMALL_DISK = """
mkdir -p "$2" "$2.on-disk"; cp -a "$2/." "$2.on-disk"
mount -t tmpfs -o size="$1" small "$2"; cp -a "$2.on-disk/." "$2"
at=$2; shift 2
"""
"""A folder's own disk, which ends with the program: its size, the folder, the program and its arguments."""


def on_small_disk(size: str, folder: Path, argv: Sequence[str], *, fill: bool = False) -> tuple[int, str]:
    """Exit code and output of a program that sees the folder, as it is, on a disk of its own, which may be full."""
    script = SMALL_DISK + ('cat /dev/zero > "$at/filler" 2>/dev/null || true\n' if fill else "") + 'exec "$@"'
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh", size, str(folder)]
    done = subprocess.run([*alone, *argv], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_full_disk_of_the_control_machine_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.add("MUC", campaign(tmp_path / "on-muc", "MUC"))
    (results(fleet, "MUC") / there("MUC", 1)).write_bytes(os.urandom(3_000_000))
    argv = ["env", f"ANSIBLE_CONFIG={ANSIBLE / 'ansible.cfg'}", *fleet.command()]
    code, said = on_small_disk("2m", fleet.collected, argv)
    assert code != 0 and "the disk is full: " in said, said
    assert f" are free on {fleet.collected}, and the results of MUC need " in said, said
    assert "free some space there, then run the same command again" in said


def test_a_disk_that_is_filled_meanwhile_is_told(tmp_path: Path) -> None:
    home = campaign(tmp_path / "on-muc", "MUC")
    (home / there("MUC", 1)).write_bytes(os.urandom(3_000_000))
    snapshot.take(home)
    fleet = Fleet(tmp_path)
    fleet.command()
    job = {"host": "MUC", "folder": str(fleet.collected), "source": str(home)}
    program = (
        "import sys; from vantage.fleet import collecting;"
        " collecting.check_room = lambda *a, **k: None; sys.exit(collecting.main(sys.argv[1]))"
    )
    code, said = on_small_disk("2m", fleet.collected, [sys.executable, "-c", program, json.dumps(job)])
    assert code == 75 and f"MUC: the disk of {fleet.collected} is full" in said
    assert "free some space there, then collect again" in said


def test_captures_are_removed_on_a_host_whose_disk_is_full(tmp_path: Path) -> None:
    """The journal that is to say so needs room; a new snapshot is refused with advice that helps."""
    home = campaign(tmp_path / "on-muc", "MUC")
    snapshot.take(home)
    listed = home / "snapshot" / "snapshot.json"
    digest = hashlib.sha256(listed.read_bytes()).hexdigest()
    upshift = [sys.executable, "-m", "upshift", "snapshot", str(home)]
    free = [*upshift, "--free", str(listed)]
    assert on_small_disk("4m", home, [*free, "--sha256", digest], fill=True) == (
        0,
        f"{home}: 2 captures removed, 1.5 kB",
    )
    code, said = on_small_disk("4m", home, [*free, "--sha256", "0" * 64])
    assert code == 2 and "this snapshot is another than was verified; copy it again" in said
    code, said = on_small_disk("4m", home, upshift, fill=True)
    assert code == 75 and "the disk is full: " in said and "free some space there" in said, said


SIZE = 200_000_000


@pytest.mark.soak
@pytest.mark.parametrize("reached", ["ssh"])
def test_a_killed_collect_sends_little_again(fleet: Fleet, reached: str) -> None:
    """By rsync's own count, for a kill of all its processes, of the playbook alone, and for a signal."""
    del fleet.hosts["SFO"]
    big = results(fleet, "MUC") / there("MUC", 1)
    block = os.urandom(1_000_000)
    with big.open("wb") as handle:
        for number in range(SIZE // len(block)):
            handle.write(hashlib.sha256(bytes([number])).digest() + block[32:])
    log = fleet.folder / "stats"
    for sent in (signal.SIGKILL, signal.SIGTERM):
        environment = fleet.environment(options=f"--bwlimit=40m --log-file={log}")
        with subprocess.Popen(
            fleet.command(), env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        ) as child:
            captures = staged(fleet, "MUC", 1).parent
            wanted = 60_000_000 if sent == signal.SIGKILL else 140_000_000
            deadline = time.monotonic() + 60
            while largest(captures) < wanted:
                assert time.monotonic() < deadline and child.poll() is None
                time.sleep(0.02)
            os.killpg(child.pid, sent)
        end_of_rsync(fleet)
    log.unlink()
    before = largest(captures)
    done = fleet.collect(options=f"--log-file={log}")
    assert done.returncode == 0, done.stdout
    (read,) = re.findall(r"total size is (\d+)", " ".join(re.findall(r"sent .*", log.read_text())))[-1:] or ["0"]
    received = max(int(count) for count in re.findall(r"received ([\d,]+) bytes", log.read_text().replace(",", "")))
    assert received < SIZE - before + 20_000_000, (received, before, read)
    assert (
        hashlib.sha256((fleet.collected / there("MUC", 1)).read_bytes()).digest()
        == hashlib.sha256(big.read_bytes()).digest()
    )


def largest(folder: Path) -> int:
    """Bytes of the largest file in progress."""
    sizes = [0]
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_blocks * 512 if path.is_file() else 0)
    return max(sizes)


def end_of_rsync(fleet: Fleet) -> None:
    """Ansible's modules have sessions of their own: what the kill left is killed, or has its time to end."""
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(fleet.folder) in line and "rsync" in line and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    time.sleep(1)
