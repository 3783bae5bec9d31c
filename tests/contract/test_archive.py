"""An archive is checked without us, makes its own results again, and with hashed names holds none of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from core.errors import UsageError
from core.files import bag, schemas, store
from tests.cells import Repeats
from tests.inspected import captures, described_campaign
from upshift import archive as archive_module
from upshift.archive_pages import CapturesOf, Identities
from upshift.cli import app

REPOSITORY = Path(__file__).resolve().parents[2]
CREDITS = ("--licence", "CC-BY-4.0", "--author", "Carberry, Josiah <0000-0002-1825-0097>")
RESULTS = 20
"""Files that are rebuilt: 3 of the inspection, 13 tables, 3 figures twice, 1 report (see `reproduced`)."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def archived(folder: Path, out: Path, *options: str) -> Path:
    done = run("archive", folder, "-o", out, *CREDITS, *options)
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = described_campaign(tmp_path_factory.mktemp("archived") / "first", runs=4)
    document = json.loads((made / "campaign.json").read_text())
    (made / "campaign.json").write_text(json.dumps({**document, "without_http3": ["d3.example"]}))
    return made


@pytest.fixture(scope="module")
def archive(campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived(campaign, tmp_path_factory.mktemp("archives") / "kept")


def hashes(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_others_can_check_it(archive: Path) -> None:
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "manifest-sha256.txt"], cwd=archive, check=False)
    assert sums.returncode == 0
    judged = subprocess.run([sys.executable, "-m", "bagit", "--validate", str(archive)], capture_output=True, text=True)
    assert judged.returncode == 0, judged.stderr
    hidden = [name for name in hashes(archive) if "/." in name or name.endswith(("-wal", "-shm", "status.json"))]
    assert not hidden and not list(archive.parent.glob(".kept*"))


def test_citations_are_valid(archive: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "CITATION.cff"
    wrong.write_text((REPOSITORY / "CITATION.cff").read_text().replace("given-names", "first-names"))
    for path, code in ((REPOSITORY / "CITATION.cff", 0), (archive / "data" / "CITATION.cff", 0), (wrong, 1)):
        argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format", str(path)]
        judged = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert judged.returncode == code, judged.stdout


def test_it_makes_its_results_again_elsewhere(archive: Path, campaign: Path, tmp_path: Path) -> None:
    before = hashes(archive)
    copy = tmp_path / "another place" / "renamed"
    shutil.copytree(archive, copy)
    done = run("reproduce", copy)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if line.startswith("same bytes")]
    assert len(lines) >= RESULTS and f"{len(lines)} of {len(lines)} rebuilt files have the same bytes" in done.stdout
    assert hashes(copy) == before, "it changes nothing"
    # The results of the campaign's own folder, where its captures are, are the same.
    for name in ("downloads.parquet", "superseded.parquet"):
        assert (archive / "data/first" / name).read_bytes() == (campaign / name).read_bytes()


def checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with files of ours and of somebody, as this Upshift's."""
    for name in (
        *("uv.lock", "analysis/captures/kpis/times.py", "analysis/captures/kpis/gone.py", "docs/note.md"),
        *("examples/internet.toml", "examples/targets.csv", "ansible/inventories/mine/hosts.yml", "week/hosts.yml"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("of d1.example, as in the commit\n")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=main"]
    commit = ["commit", "-q", "-m", "all", "--date=@1700000000"]
    for command in (["init", "-q"], ["add", "-A"], commit):
        subprocess.run([*git, *command], check=True, env={**os.environ, "GIT_COMMITTER_DATE": "@1700000000 +0000"})
    monkeypatch.setattr("upshift.__file__", str(root / "upshift" / "__init__.py"))
    return root


def unpacked(software: Path) -> dict[str, bytes]:
    with tarfile.open(software / "upshift.tar.gz") as packed:
        for one in packed:
            whose = (one.uid, one.gid, one.uname, one.gname, one.mtime)
            assert whose == (0, 0, "", "", 1_700_000_000), "who packed it and when it was written is nobody's business"
        return {one.name: packed.extractfile(one).read() for one in packed}  # type: ignore[union-attr]


def test_files_that_were_added_to_the_code_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CONTRIBUTING adds a KPI: `git archive` left it out, and the archive's software could not make its results."""
    root = checkout(tmp_path / "checkout", monkeypatch)
    kpis = root / "analysis" / "captures" / "kpis"
    assert "packed as they are" not in archive_module._software(tmp_path / "as committed", ())
    (kpis / "times.py").write_text("changed\n")
    (kpis / "gone.py").unlink()
    (kpis / "m\u00edne.py").write_text("added\n")
    for stray in (root / "demo.pcap", kpis / "targets.csv", root / "examples" / "internet.toml"):
        stray.write_text("no code\n")
    assert archive_module._software(tmp_path / "software", ()).endswith("packed as they are: 3.")
    committed = b"of d1.example, as in the commit\n"
    # Of examples and inventories those of a release, whatever somebody has written into them.
    assert unpacked(tmp_path / "software") == {
        "uv.lock": committed,
        "docs/note.md": committed,
        "examples/internet.toml": committed,
        "analysis/captures/kpis/times.py": b"changed\n",
        "analysis/captures/kpis/m\u00edne.py": b"added\n",
    }


def test_with_hashed_names_only_code_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes and targets that somebody had committed told the names that the tables hide."""
    root = checkout(tmp_path / "checkout", monkeypatch)
    sentence = archive_module._software(tmp_path / "software", {"d1.example"})
    assert "the code of the checkout's commit" in sentence
    assert {name.split("/")[0] for name in unpacked(tmp_path / "software")} == {"analysis", "uv.lock"}
    mine = root / "survey" / "mine.py"
    mine.parent.mkdir()
    mine.write_text('TARGETS = ("d1.example",)\n')
    for number in range(2):
        with pytest.raises(UsageError, match=r"survey/mine\.py: it has the name d1\.example"):
            archive_module._software(tmp_path / f"refused{number}", {"d1.example"})
        assert not list((tmp_path / f"refused{number}").iterdir())
        subprocess.run(["git", "-C", str(root), "add", "survey/mine.py"], check=True)


def test_all_that_a_checkout_has_is_packed() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("no checkout: this is an unpacked archive")
    argv = ["git", "-C", str(REPOSITORY), "-c", f"safe.directory={REPOSITORY}", "ls-tree", "-rz", "--name-only", "HEAD"]
    names = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.rstrip("\0").split("\0")
    packed = tuple(archive_module._CHECKOUT)
    assert not [name for name in names if not name.startswith((".ci/", *(f"{one}/" for one in packed), *packed))]
    assert not [one for one in packed if not any(name == one or name.startswith(f"{one}/") for name in names)]


def test_what_is_no_file_is_a_fault_of_the_archive(tmp_path: Path) -> None:
    """A clone without its content was a traceback, a FIFO waited for ever, and names moved the cursor."""
    folder = tmp_path / "kept"
    (folder / "data").mkdir(parents=True)
    for name in ("good", "link", "pipe", "\x1b[2Kgone"):
        (folder / "data" / name).write_text(name)
    bag.write(folder, {})
    for name in ("link", "pipe", "\x1b[2Kgone"):
        (folder / "data" / name).unlink()
    (folder / "data/link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "data/pipe")
    done = run("reproduce", folder, "--check")
    assert done.exit_code == 1 and "\x1b" not in done.output
    assert {tuple(line.split()[-2:]) for line in done.stdout.splitlines()} == {
        ("missing", "data/\N{REPLACEMENT CHARACTER}[2Kgone"),
        ("missing", "data/link"),
        ("file", "data/pipe"),
    }


def test_a_campaign_may_be_in_a_hidden_folder(tmp_path: Path) -> None:
    """What our own writing leaves was looked for among folders, too, and the archive failed after all its work."""
    (tmp_path / ".first").mkdir()
    kept, left = tmp_path / ".first" / "journal.sqlite", tmp_path / ".first" / "journal.sqlite-wal"
    for path in (kept, left, tmp_path / ".lock"):
        path.touch()
    archive_module._tidy(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]


def test_another_code_is_said_and_tried(archive: Path, tmp_path: Path) -> None:
    copy = tmp_path / "kept"
    shutil.copytree(archive, copy)
    document = json.loads((copy / "data/archive.json").read_text())
    (copy / "data/archive.json").write_text(json.dumps({**document, "engine": "upshift 0.0"}))
    table = copy / "data/first/tables/table2.csv"
    table.write_text(table.read_text().replace("ALL vs BL", "ALL vs ??"))
    bag.write(copy, {})
    done = run("reproduce", copy)
    assert done.exit_code == 1 and "made by upshift 0.0; this is upshift" in done.stderr
    assert "other bytes       data/first/tables/table2.csv" in done.stdout and "1 of " in str(done.exception)


def test_an_archive_may_be_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy had the rights of its folders, so that only root could make anything anew in it."""
    inner = tmp_path / "kept" / "data" / "first" / "vantage"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        folder.chmod(0o555)
    writable: list[int] = []

    def inspect(copy: Path, progress: object) -> None:
        writable.extend(folder.stat().st_mode & 0o200 for folder in (copy, copy / "vantage"))

    monkeypatch.setattr(archive_module, "_inspect", inspect)
    monkeypatch.setattr(archive_module, "make_results", lambda *_: None)
    parts = {"folders": ("first",), "captures": CapturesOf.NONE, "names": Identities.KEEP}
    contents = archive_module.Contents(upshift="1", engine="e", kept=0, **parts)  # type: ignore[arg-type]
    list(archive_module.reproduce(tmp_path / "kept", contents, mock.Mock()))
    assert all(writable) and len(writable) == 2


def changed(archive: Path, number: random.Random, *, bytes_: int, files: int) -> Iterator[str]:
    """One change at a time, undone after its check: bytes, then files that are gone."""
    names = sorted(name for name, content in hashes(archive).items() if content)
    for count in range(bytes_ + files):
        path = archive / (name := number.choice(names))
        content = path.read_bytes()
        at = number.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ number.randrange(1, 256)]) + content[at + 1 :])
        if count >= bytes_:
            path.unlink()
        yield name
        path.write_bytes(content)


def test_each_change_is_named(archive: Path, tmp_path: Path, repeats: Repeats) -> None:
    copy = tmp_path / "kept"
    shutil.copytree(archive, copy)
    wanted = {"bytes_": repeats(quick=10, soak=200), "files": repeats(quick=3, soak=20)}
    for name in changed(copy, random.Random(1), **wanted):
        done = run("reproduce", "--check", copy)
        assert done.exit_code in (1, 2) and name in done.output + str(done.exception), (name, done.output)
    (archive / "data/stranger.txt").write_text("new")
    done = run("reproduce", "--check", archive)
    (archive / "data/stranger.txt").unlink()
    assert done.exit_code == 1 and "in no manifest    data/stranger.txt" in done.stdout


def text_of(path: Path) -> str:
    if path.suffix == ".parquet":
        kind = schemas.kind_in(pq.read_schema(path))
        assert kind is not None
        return json.dumps(store.read_table(path, kind).to_pylist())
    return path.read_bytes().decode("utf-8", "replace")


def test_hashed_names_are_in_no_file(campaign: Path, archive: Path, tmp_path: Path) -> None:
    out = archived(campaign, tmp_path / "hashed", "--names", "hash")
    journals = (f"file:{path}?mode=ro" for path in campaign.glob("vantage/*/journal.sqlite"))
    with closing(sqlite3.connect(next(journals), uri=True)) as journal:
        records = [json.loads(row[0]) for row in journal.execute("SELECT record FROM downloads")]
    secrets = {str(record[name]) for record in records for name in ("domain", "url", "server_ip", "local_ip")}
    # The packed code has addresses of the lab in its tests; what was measured is below data/first.
    for path in (out / "data/first").rglob("*.*"):
        assert not [secret for secret in secrets if secret in text_of(path)], path
    assert not (out / "data/first/vantage").exists()
    (named,) = json.loads((out / "data/first/campaign.json").read_text())["without_http3"]
    domains = store.read_table(out / "data/first/downloads.parquet", "downloads")["domain"].unique().to_pylist()
    assert named in domains and len(domains) == 4, "the same name in all files"
    mine, theirs = ((folder / "data/first/tables/table2.csv").read_bytes() for folder in (archive, out))
    assert mine == theirs
    assert (tmp_path / "hashed.key").stat().st_mode & 0o777 == 0o600
    done = run("reproduce", out)
    assert done.exit_code == 0, done.output


@pytest.mark.soak
def test_captures_may_come_along(campaign: Path, tmp_path: Path) -> None:
    out = archived(campaign, tmp_path / "whole", "--captures", "all")
    packed = captures(out / "data/first")
    assert [path.read_bytes() for path in packed] == [path.read_bytes() for path in captures(campaign)]
    done = run("reproduce", out)
    assert done.exit_code == 0, done.output


def test_a_wrong_request_writes_nothing(campaign: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    before = hashes(campaign)
    for options, sentence in (
        (["--licence", "CC-BY-4", *CREDITS[2:]], "unknown licence 'CC-BY-4'; did you mean CC-BY-4.0"),
        ([*CREDITS[:2], "--author", "Josiah"], "--author: 'Josiah' is not an author"),
        ([*CREDITS[:2], "--author", "C, J <0000-0002-1825-0098>"], "0000-0002-1825-0098 is not an ORCID iD"),
        ([*CREDITS, "--names", "hash", "--captures", "all"], "--names hash: captures hold addresses and names"),
    ):
        done = run("archive", campaign, "-o", tmp_path / "new", *options)
        assert done.exit_code == 2 or getattr(done.exception, "exit_code", 0) == 2
        assert sentence in str(done.exception), done.exception
    done = run("archive", campaign, "-o", tmp_path / "there", *CREDITS)
    assert "this is already there" in str(done.exception)
    for folder in (".", "/"):
        assert f"{folder}: this is already there" in str(run("archive", campaign, "-o", folder, *CREDITS).exception)
    (tmp_path / "link").symlink_to(campaign)
    for within in (campaign / "vantage" / "new", tmp_path / "link" / "new"):
        done = run("archive", campaign, "-o", within, *CREDITS)
        assert f"{within}: this is in {campaign}, where nothing is changed" in str(done.exception)
    (tmp_path / "link").unlink()
    key = tmp_path / "new.key"
    key.touch()
    done = run("archive", campaign, "-o", tmp_path / "new", *CREDITS, "--names", "hash")
    assert f"{key}: this is already there" in str(done.exception)
    key.unlink()
    done = run("reproduce", tmp_path / "there")
    assert "this is not an archive" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["there"] and hashes(campaign) == before


def test_a_folder_that_one_may_only_read_has_to_be_copied_first(tmp_path: Path) -> None:
    (tmp_path / "first" / ".lock").mkdir(parents=True)  # a lock that nobody may open: root may write everywhere
    done = run("archive", tmp_path / "first", "-o", tmp_path / "new", *CREDITS)
    assert "you may not write in this folder, which archive locks; copy it, and archive the" in str(done.exception)
    done = run("archive", tmp_path / "none", "-o", tmp_path / "new", *CREDITS)
    assert "folder not found" in str(done.exception) and not (tmp_path / "none").exists()
