"""An archive of campaigns that anybody can check without us, and that rebuilds its own tables, figures and report.

    NAME/bagit.txt, bag-info.txt, manifest-sha256.txt ...   a BagIt bag (`core.files.bag`)
    NAME/data/archive.json                                  what is in it, and by which code it was made
    NAME/data/README.md, CITATION.cff, LICENCE.txt          for readers
    NAME/data/CAMPAIGN/                                     journals, tables' sources, tables/, figures/, report/
    NAME/data/software/                                     the code that made it

Logs, locks and ledgers stay out, as do captures unless they are asked for: what was found in them is in the journals.

With pseudonyms (`archive_names`), domains, addresses, prefixes and URLs are keyed hashes.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import upshift
from analysis import api
from analysis.evidence import inspect_campaign
from analysis.evidence.campaign import ENVIRONMENT, SUPERSEDED
from analysis.evidence.rows import ENGINE
from analysis.evidence.sources import DOWNLOADS
from core.errors import PlaceError, UsageError, not_found
from core.files import bag, campaign_json, disk
from core.files.config import build, read_json
from core.files.journal import FILE_NAME as JOURNAL
from core.files.journal import open_journals
from core.system import process
from core.terminal import Progress
from core.untrusted import last_line
from downloader.execution.journal import Journal
from downloader.factors import ALL as FACTORS
from upshift import archive_names, archive_pages
from upshift.archive_pages import CapturesOf, Identities

DOCUMENT = "archive.json"
MADE = ("tables", "figures", "report")
"""Folders of results, below a campaign's (of several, `combined/` of the first)."""

_CODE = (
    *("analysis", "cdn_mapping", "core", "crawler", "downloader", "rust", "survey", "upshift", "vantage"),
    *("Cargo.lock", "Cargo.toml", "pyproject.toml", "uv.lock"),
)
"""What of a checkout may be part of what ran, so that it is packed as it is now (CONTRIBUTING adds a KPI there)."""

_BUILD = (
    *(".cargo", ".gitignore", "LICENSE", "Makefile", "README.md", "scripts"),
    *(f"ansible/{name}" for name in (".ansible-lint", ".yamllint", "ansible.cfg", "playbooks", "roles")),
)
"""What it is set up with, and what its wheel holds."""

_CHECKOUT = (
    *(*_CODE, *_BUILD, "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "benchmarks", "changes", "docs", "tests"),
    *(f"ansible/inventories/{name}/hosts.yml" for name in ("cloud", "example", "lab")),
    *(f"examples/{name}.toml" for name in ("anrw", "internet", "small", "studies/lost-segment")),
    *(f"examples/quic-servers/{name}.toml" for name in ("campaign", "lab")),
    *(f"examples/cloud/{name}" for name in ("README.md", "alerts.yml", "main.tf", "user-data.yml")),
    *(f"examples/cloud/mail-to-{name}.txt" for name in ("operators", "provider")),
)
"""What a checkout has of ours. Somebody may keep targets, hosts and opt-outs beside it in one repository."""

_TABLES = (ENVIRONMENT, SUPERSEDED, DOWNLOADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """`archive.json`."""

    schema: int = 1
    upshift: str
    """Version of the Upshift that made it."""
    engine: str
    """Its code, as the column `engine` names it."""
    folders: tuple[str, ...]
    """The campaigns' folders below `data/`, in the order in which tables and report have them."""
    captures: CapturesOf
    names: Identities
    kept: int
    """Downloads whose rows stay as they were packed, as what they were made from is not in the archive."""


def pack(
    folders: Sequence[Path],
    out: Path,
    *,
    licence: str,
    authors: Sequence[str],
    captures: CapturesOf,
    names: Identities,
    now: datetime,
    key: bytes,
    progress: Progress,
) -> Contents:
    """Makes an archive of campaign folders. A kill leaves a hidden folder beside it, and nothing that passes for one.

    Args:
        authors: "Family, Given <ORCID>", without the ORCID iD if there is none.
        key: of the pseudonyms (`Identities.HASH`); it stays beside the archive, readable by its owner alone.

    Raises:
        UsageError: a folder holds no campaign or is in use; `out` exists, or is in one of them; a licence or an author
            is not valid; with pseudonyms, a document or a file added to the code has a name.
        PlaceError: there is no room, or no code that could be packed.
    """
    credits = archive_pages.Credits(licence=archive_pages.licence(licence), authors=archive_pages.people(authors))
    if names is Identities.HASH and captures is CapturesOf.ALL:
        raise UsageError("captures hold addresses and names", where="--names hash", remedy="use --captures none")
    key_file = out.parent / f"{out.name}.key"
    for path in (out, *([key_file] if names is Identities.HASH else [])):
        if os.path.lexists(path):
            raise UsageError("this is already there", where=str(path), remedy="use another --out, or remove it")
    if inside := next((folder for folder in folders if out.resolve().is_relative_to(folder.resolve())), None):
        raise UsageError(f"this is in {inside}, where nothing is changed", where=str(out), remedy="use another --out")
    homes = _homes(folders)
    with contextlib.ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_locked(folder))
        files = {name: _sources(folder, captures) for name, folder in homes.items()}
        needed = 2 * sum((homes[name] / file).stat().st_size for name, some in files.items() for file in some)
        disk.check_room(out, needed, what="the archive's files")
        part = out.with_name(f".{out.name}.{os.getpid()}.part")
        stack.callback(shutil.rmtree, part, ignore_errors=True)
        for name, folder in homes.items():
            _copy(folder, part / bag.PAYLOAD / name, files[name], captures)
        contents = Contents(
            upshift=upshift.__version__,
            engine=ENGINE,
            folders=tuple(homes),
            captures=captures,
            names=names,
            kept=sum(_inspect(part / bag.PAYLOAD / name, progress) for name in homes),
        )
        hidden: set[str] = set()
        if names is Identities.HASH:
            for name in homes:
                hidden |= archive_names.replace_names(part / bag.PAYLOAD / name, key)
        make_results(part / bag.PAYLOAD, contents.folders)
        disk.write_json(part / bag.PAYLOAD / DOCUMENT, asdict(contents))
        archive_names.refuse_names(part / bag.PAYLOAD, hidden)
        software = _software(part / bag.PAYLOAD / "software", hidden)
        archive_pages.write(part / bag.PAYLOAD, contents.folders, asdict(contents), credits, software, now)
        bag.write(part, archive_pages.bag_info(credits, now))
        if names is Identities.HASH:
            _keep_key(key_file, key)
        part.rename(out)
    return contents


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Locks a folder that is there. Raises UsageError, PlaceError."""
    if not folder.is_dir():  # which the lock would make
        raise not_found(folder, "folder", remedy="name the --out of an upshift run")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(disk.folder_lock(folder))
        except UsageError:
            what = "you may not write in this folder, which archive locks"
            raise UsageError(what, where=str(folder), remedy="copy it, and archive the copy") from None
        yield


def read_contents(folder: Path) -> Contents:
    """`archive.json` of an archive. Raises UsageError if it is not one, or of a newer Upshift."""
    path = folder / bag.PAYLOAD / DOCUMENT
    contents = build(read_json(path, remedy="name an archive of upshift archive"), Contents, where=str(path))
    if contents.schema != 1:
        raise UsageError(f"it has schema {contents.schema}", where=str(path), remedy="update Upshift")
    for name in contents.folders:
        if Path(name).name != name or name in (".", ".."):
            raise UsageError(f"{name!r} is not the name of a folder in it", where=str(path), remedy="copy it again")
    return contents


def reproduce(folder: Path, contents: Contents, progress: Progress) -> Iterator[tuple[str, str | None]]:
    """Makes inspection, tables, figures and report anew in a temporary folder; each file against the archive's.

    Yields paths, and what differs (None: the same bytes).
    """
    payload = folder / bag.PAYLOAD
    with tempfile.TemporaryDirectory(prefix="upshift-") as temporary:
        anew = Path(temporary) / bag.PAYLOAD
        for name in contents.folders:
            shutil.copytree(payload / name, anew / name, ignore=shutil.ignore_patterns(*MADE, "combined"))
            for path in (anew / name, *(anew / name).rglob("*")):  # an archive's folders may be read-only
                path.chmod(0o755 if path.is_dir() else 0o644)
            if contents.names is Identities.KEEP:
                _inspect(anew / name, progress)
        make_results(anew, contents.folders)
        yield from _differences(payload, anew, contents)


def _differences(payload: Path, anew: Path, contents: Contents) -> Iterator[tuple[str, str | None]]:
    inspected = _TABLES if contents.names is Identities.KEEP else ()
    made = {f"{name}/{table}" for name in contents.folders for table in inspected}
    for root in (payload, anew):
        made |= {file.relative_to(root).as_posix() for part in _results(root, contents) for file in part.rglob("*.*")}
    for path in sorted(made):
        fault = None
        if not (payload / path).is_file():
            fault = "not in the archive"
        elif not (anew / path).is_file():
            fault = "not made"
        elif not filecmp.cmp(payload / path, anew / path, shallow=False):
            fault = "other bytes"
        yield path, fault


def _results(root: Path, contents: Contents) -> list[Path]:
    home = root / contents.folders[0] if len(contents.folders) == 1 else root / contents.folders[0] / "combined"
    return [home / name for name in MADE]


def make_results(payload: Path, folders: Sequence[str]) -> None:
    """Tables, figures and report of the folders in an archive, as from within it: no path of this machine gets in."""
    with contextlib.chdir(payload):
        api.make_all([Path(name) for name in folders])
    _tidy(payload)


def _homes(folders: Sequence[Path]) -> Mapping[str, Path]:
    homes: dict[str, Path] = {}
    for folder in folders:
        name = folder.resolve().name
        if name in homes:
            raise UsageError(f"{homes[name]} has the same name", where=str(folder), remedy="rename one of them")
        if name in ("software", DOCUMENT):
            raise UsageError(f"a campaign cannot be named {name} there", where=str(folder), remedy="rename it")
        homes[name] = folder
    return homes


def _sources(folder: Path, captures: CapturesOf) -> list[Path]:
    """What results are made from, without the journals' logs; from the campaign's folder."""
    with open_journals(folder) as journals:
        files = [journal.path.relative_to(folder) for journal in journals.values()]
        if captures is CapturesOf.ALL:
            paths = [Path(path) for journal in journals.values() for path in journal.capture_paths()]
            files += [path for path in paths if (folder / path).is_file()]
    targets = sorted((folder / "targets").glob("*.parquet")) + sorted((folder / "targets").glob("*.csv"))
    files += [Path(name) for name in (*_TABLES, campaign_json.FILE_NAME, *campaign_json.BESIDE)]
    files += [target.relative_to(folder) for target in targets]
    return [file for file in files if (folder / file).is_file()]


def _copy(folder: Path, to: Path, files: Sequence[Path], captures: CapturesOf) -> None:
    for file in files:
        disk.make_folder((to / file).parent)
        if file.name != JOURNAL:
            shutil.copyfile(folder / file, to / file)
    with open_journals(folder) as journals:
        for name, journal in journals.items():
            copy = to / "vantage" / name / JOURNAL
            journal.copy(copy)
            if captures is CapturesOf.NONE:
                with contextlib.closing(Journal(copy)) as packed:
                    packed.captures.drop_all()
                    packed.db.execute("PRAGMA journal_mode = DELETE")


def _inspect(folder: Path, progress: Progress) -> int:
    """Makes the tables of a packed folder; returns how many downloads keep their packed rows."""
    inspection = inspect_campaign(folder, factors=FACTORS, progress=progress)
    _tidy(folder)
    return inspection.kept


def _tidy(folder: Path) -> None:
    """Removes what our own writing leaves: locks, and SQLite's files beside a journal that was read."""
    for path in folder.rglob("*"):
        if path.is_file() and (path.name.startswith(".") or path.name.endswith(("-wal", "-shm"))):
            path.unlink()


def _software(to: Path, hidden: Collection[str]) -> str:
    """Packs the code. Returns a sentence about it for the README. Raises UsageError, PlaceError."""
    root = Path(upshift.__file__).resolve().parent.parent
    disk.make_folder(to)
    return _checkout(root, to, hidden) if (root / ".git").exists() else _installed(to)


def _checkout(root: Path, to: Path, hidden: Collection[str]) -> str:
    """Packs a checkout's commit, with its code as it is now; where names are hidden, only what the code is built from.

    Not all that is packed is searched for the names: our own files have those of many servers.
    """
    git = ["git", "-C", str(root), "-c", f"safe.directory={root}", "-c", "log.showSignature=false"]
    commit, time = _output_of([*git, "log", "-1", "--format=%H %ct"]).split()
    parts = (*_CODE, *_BUILD) if hidden else _CHECKOUT
    committed = _names_of([*git, "ls-tree", "-z", "--name-only", "HEAD", "--", *parts])
    sources = [f"{folder}/*.{suffix}" for folder in _CODE for suffix in ("py", "rs")]
    added = _names_of([*git, "ls-files", "-z", "--others", "--exclude-standard", "--", *sources])
    changed = [*git, "diff", "-z", "--name-only", "--no-renames"]
    staged = _names_of([*changed, "--diff-filter=A", "HEAD", "--", *_CODE])
    for path in (root / name for name in (*added, *staged) if (root / name).is_file()):
        if left := archive_names.name_in(path, hidden):
            raise UsageError(f"it has the name {left}", where=str(path), remedy="take it out, or move the file away")
    own = {*_names_of([*changed, "HEAD", "--", *_CODE]), *added}
    plain = to / "commit.tar"
    _output_of([*git, "archive", f"--output={plain.resolve()}", "HEAD", "--", *(committed or parts)])

    def of_nobody(file: tarfile.TarInfo) -> tarfile.TarInfo:
        file.uid, file.gid, file.uname, file.gname, file.mtime = 0, 0, "", "", int(time)
        return file

    with tarfile.open(plain) as source, tarfile.open(to / "upshift.tar.gz", "w:gz") as packed:
        for file in source:
            if not file.isdir() and file.name not in own:
                packed.addfile(of_nobody(file), source.extractfile(file) if file.isreg() else None)
        for name in sorted(own):
            if os.path.lexists(root / name):
                packed.add(root / name, name, recursive=False, filter=of_nobody)
    plain.unlink()
    what = "the code of the checkout's commit" if hidden else "the checkout's commit"
    note = f"; files changed or added since then, packed as they are: {len(own)}" if own else ""
    return f"`software/upshift.tar.gz`: {what} {commit}, with its lock files{note}."


def _names_of(command: Sequence[str]) -> list[str]:
    return [name for name in _output_of(command).split("\0") if name]


def _output_of(command: Sequence[str]) -> str:
    done = process.run(command, timeout_s=600)
    if done.returncode != 0:
        raise PlaceError(f"the code cannot be packed: {last_line(done.stderr)}", where=" ".join(command))
    return done.stdout.strip()


def _installed(to: Path) -> str:
    from importlib import metadata

    lines = sorted(f"{one.metadata['Name']}=={one.version}\n" for one in metadata.distributions())
    disk.write_text(to / "installed.txt", "".join(dict.fromkeys(lines)))
    return "`software/installed.txt`: versions of all Python packages; it was made by an installed Upshift."


def _keep_key(path: Path, key: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as handle:  # noqa: PTH123
        handle.write(key.hex() + "\n")
    disk.give_to_caller(path)
