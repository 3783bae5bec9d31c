"""Vantage points that lie: what each of them offers `upshift fleet collect`, on one host with an address for each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OTHER = "SGP"
"""The honest vantage point that they attack."""

VICTIM = "victim"
"""A folder of the control machine, beside the one that is collected into."""


@dataclass(frozen=True)
class Results:
    """The results of a vantage point on its host, after an honest snapshot."""

    folder: Path
    name: str

    @property
    def list(self) -> Path:
        return self.folder / "snapshot" / "snapshot.json"

    @property
    def journal(self) -> Path:
        return self.folder / "snapshot" / "vantage" / self.name / "journal.sqlite"

    @property
    def capture(self) -> Path:
        """One that was not collected yet."""
        return max((self.folder / "vantage" / self.name / "captures").iterdir())

    def change(self, how: Callable[[dict[str, Any]], object]) -> None:
        """Changes the list."""
        document = json.loads(self.list.read_text())
        how(document)
        self.list.write_text(json.dumps(document))

    def offer(self, path: str, size: object = 10) -> None:
        """Lists one more file."""
        entry = {"path": path, "bytes": size, "sha256": "0" * 64, "modified_ns": 1}
        self.change(lambda document: document["files"].append(entry))

    def journal_of(self, content: bytes) -> None:
        """Offers another journal, with its hash."""
        self.journal.write_bytes(content)
        entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        self.change(lambda document: document["files"][0].update(entry))

    def rsync(self, script: str) -> None:
        """What runs there in place of rsync; `$@` are its arguments."""
        path = self.folder / "rsync"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def own(self, name: str) -> str:
        return f"vantage/{self.name}/captures/{name}"


Lie = Callable[[Results], object]


def _name(path: str) -> Lie:
    return lambda at: at.offer(path.replace("HOST", at.name))


def _sized(size: object) -> Lie:
    return lambda at: at.offer(at.own("1-000-more.pcap.zst"), size)


def _instead(part: str, make: Callable[[Path], object]) -> Lie:
    def lie(at: Results) -> None:
        path: Path = getattr(at, part)
        path.unlink()
        make(path)

    return lie


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 10**12)


def _many(at: Results) -> None:
    entry = {"bytes": 1, "sha256": "0" * 64, "modified_ns": 1}
    files = [{"path": at.own(f"1-000-{number}.pcap.zst"), **entry} for number in range(10**6)]
    at.change(lambda document: document["files"].extend(files))


def _most(at: Results) -> None:
    for number in range(9):
        at.offer(at.own(f"1-000-x{number}.pcap.zst"), 300_000)


def _much(at: Results) -> None:
    for number in range(3):
        at.offer(at.own(f"1-000-x{number}.pcap.zst"), 20_000_000)


def _changing(*, first: str) -> Lie:
    """Another list at each read: an honest one and one that names the victim."""

    def lie(at: Results) -> None:
        shutil.copy(at.list, at.list.with_suffix(".good"))
        at.offer(f"../../../{VICTIM}")
        shutil.copy(at.list, at.list.with_suffix(".evil"))
        at.list.parent.chmod(0o777)  # rsync runs there as the user of SSH
        at.list.chmod(0o666)
        then = {"good": "evil", "evil": "good"}[first]
        at.rsync(
            f"cd {_there(at)}/snapshot; if [ -e .read ]; then cp snapshot.{then} snapshot.json; "
            f'else touch .read; cp snapshot.{first} snapshot.json; fi; exec /usr/bin/rsync.real "$@"'
        )

    return lie


def _there(at: Results) -> str:
    """Its folder, as the host names it."""
    return f"/srv/{at.name}"


def _forge(at: Results) -> None:
    (at.folder / "snapshot" / "campaign.json").write_text('{"schema": 1, "campaign": "forged"}')
    at.offer("snapshot/campaign.json", 100)


def _lists(at: Results) -> None:
    """The attack of which this is the test: what other programs would read names the victim."""
    for name in ("snapshot.sha256", "captures.sha256"):
        (at.folder / "snapshot" / name).write_text(f"{'0' * 64}  ../../../{VICTIM}\n")
    (at.folder / "snapshot" / "captures.list").write_text(f"../../../{VICTIM}\nvantage/{OTHER}/journal.sqlite\n")


def _foreign_folder(at: Results) -> None:
    folder = at.folder / "vantage" / at.name / "captures"
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _wrong(at: Results) -> None:
    at.capture.write_bytes(b"x" * at.capture.stat().st_size)


def _view(at: Results) -> None:
    """A table whose reading never ends."""
    with contextlib.closing(sqlite3.connect(at.journal, isolation_level=None)) as db:
        db.execute("ALTER TABLE downloads RENAME TO was")
        endless = "WITH RECURSIVE n(record) AS (SELECT '{}' UNION ALL SELECT record FROM n) SELECT record FROM n"
        db.execute(f"CREATE VIEW downloads AS {endless}")
    at.journal_of(at.journal.read_bytes())


LIES: dict[str, Lie] = {
    "parent": _name(f"../../../{VICTIM}"),
    "parent-behind": _name(f"vantage/HOST/captures/../../../../../{VICTIM}/kept"),
    "absolute": _name("/etc/passwd"),
    "other-journal": _name(f"snapshot/vantage/{OTHER}/journal.sqlite"),
    "other-capture": _name(f"vantage/{OTHER}/captures/1-000-www.edge.example.pcap.zst"),
    "other-status": _name(f"snapshot/vantage/{OTHER}/status.json"),
    "other-staging": _name(f".collect/{OTHER}/snapshot.json"),
    "plan": _name(".collect/plan.json"),
    "tables": _name("downloads.parquet"),
    "newline": _name(f"vantage/HOST/captures/1-000-a\n/../{VICTIM}.pcap"),
    "last-newline": _name("vantage/HOST/captures/1-000-a.pcap\n"),
    "nul": _name("vantage/HOST/captures/1-000-a\0.pcap"),
    "escape": _name("vantage/HOST/captures/1-000-\x1b]0;owned\x07.pcap"),
    "bidi": _name("vantage/HOST/captures/1-000-\u202egpj.pcap"),
    "other-digits": _name("vantage/HOST/captures/1-\u0660\u0660\u0660-a.pcap"),
    "option": _name("--rsh=touch /tmp/owned"),
    "shell": _name("vantage/HOST/captures/1-000-$(touch owned).pcap"),
    "template": _name("vantage/HOST/captures/1-000-{{ 7 * 7 }}.pcap"),
    "backslash": _name(f"..\\..\\{VICTIM}"),
    "empty": _name(""),
    "dot": _name("./vantage/HOST/captures/1-000-a.pcap"),
    "slashes": _name("vantage/HOST//captures/1-000-a.pcap"),
    "long": _name(f"vantage/HOST/captures/1-000-{'a' * 5000}.pcap"),
    "hidden": _name("vantage/HOST/captures/.rsync-filter"),
    "later-run": _name("vantage/HOST/captures/1-003-a.pcap"),
    "later-iteration": _name("vantage/HOST/captures/2-000-a.pcap"),
    "terabyte": _sized(10**12),
    "negative": _sized(-1),
    "digits": _sized(10**300),
    "fraction": _sized(0.5),
    "no-number": _sized(True),
    "many": _many,
    "twice": lambda at: at.change(lambda document: document["files"].append(document["files"][0])),
    "more-than-the-plan": _most,
    "more-than-the-disk": _much,
    "changing-later": _changing(first="evil"),
    "no-list": _instead("list", lambda path: None),
    "list-fifo": _instead("list", os.mkfifo),
    "list-link": _instead("list", lambda path: path.symlink_to("/etc/shadow")),
    "list-device": _instead("list", lambda path: os.mknod(path, 0o020644, os.makedev(1, 5))),
    "list-folder": _instead("list", lambda path: path.mkdir()),
    "list-terabyte": _instead("list", _sparse),
    "list-no-json": lambda at: at.list.write_bytes(b"\xff\x1b[2J" * 1000),
    "list-deep": lambda at: at.list.write_text("[" * 100_000),
    "list-other": lambda at: at.list.write_text('{"schema": 1, "plan_sha256": null, "files": {"a": 1}}'),
    "capture-link": _instead("capture", lambda path: path.symlink_to("/etc/shadow")),
    "capture-fifo": _instead("capture", os.mkfifo),
    "capture-device": _instead("capture", lambda path: os.mknod(path, 0o060644, os.makedev(7, 0))),
    "capture-terabyte": _instead("capture", _sparse),
    "capture-other": _wrong,
    "journal-link": _instead("journal", lambda path: path.symlink_to("/etc/passwd")),
    "journal-fifo": _instead("journal", os.mkfifo),
    "journal-terabyte": _instead("journal", _sparse),
    "journal-none": lambda at: at.journal_of(b"no database" * 1000),
    "journal-cut": lambda at: at.journal_of(at.journal.read_bytes()[:-5000]),
    "journal-view": _view,
    "rsync-names": lambda at: at.rsync(
        # More than was asked for: the whole folder, with names and links of its choice.
        f'mkdir -p /srv/more/{VICTIM}; echo forged > /srv/more/campaign.json; ln -sfn /etc /srv/more/snapshot.json\n'
        'exec /usr/bin/rsync.real --server --sender -rlDte.LsfxCIvu . /srv/more/'
    ),
    "rsync-noise": lambda at: at.rsync("exec head -c 10000000 /dev/urandom"),
    "rsync-says": lambda at: at.rsync("exec yes 'no space left on device' >&2"),
    "rsync-nothing": lambda at: at.rsync("exit 0"),
}  # fmt: skip
"""Name -> how its results lie. All of these are refused."""

HARMLESS: dict[str, Lie] = {
    "lists": _lists,
    "forged": _forge,
    "captures-elsewhere": _foreign_folder,
    "changing": _changing(first="good"),
}
"""These are collected, as what they say is not read, or is their own."""

QUICK = ("parent", "terabyte", "list-fifo", "capture-link", "changing")
"""A name, a size, what is no file or leads elsewhere, and what differs between two looks; `make soak` has all."""
