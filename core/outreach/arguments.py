"""Arguments of the commands that process a list: `crawl`, `survey options`, `survey quic`."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UsageError
from core.files.disk import make_folder, nearest
from core.reach import environment_prefixes
from core.system.confine import confine_here
from core.untrusted import contact_fault

Contact = Annotated[
    str, typer.Option(help="Mail or web address in the user agent, so that operators can reach you. Required.")
]

LedgerFile = Annotated[
    Path | None, typer.Option(help="Progress of the work (SQLite). Default: --out with .ledger.sqlite.")
]

Shard = Annotated[str, typer.Option(help="Part of the list: i/n, by hash of the domain.")]

Limit = Annotated[int | None, typer.Option(min=1, help="Number of domains of the shard to process. Default: all.")]

BlockLists = Annotated[
    list[Path] | None,
    typer.Option(help="Domains and prefixes not to contact, one per line; may be repeated, read again when changed."),
]

OptOut = Annotated[Path | None, typer.Option(help="The same, for opt-outs during the run (created if missing).")]

Nameserver = Annotated[str | None, typer.Option(help="Address of the name server. Default: this host's.")]

NameserverPort = Annotated[int, typer.Option(min=1, max=65535, help="Its UDP and TCP port.")]

Certificates = Annotated[
    Path | None,
    typer.Option(help="Certificates to trust (PEM). Default: the system's, or those of SSL_CERT_FILE."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; progress as JSON lines.")]


def ledger_beside(out: Path, ledger: Path | None) -> Path:
    """The ledger's file: the given one, or the default."""
    return ledger or out.with_name(out.name + ".ledger.sqlite")


def give_up_rights(*, reads: Iterable[Path | None], lists: Iterable[Path], written: Iterable[Path | None]) -> None:
    """Confines this command, which is about to read strangers' bytes (`core.system.confine.confine_here`).

    Args:
        reads: files that it reads; None are left out.
        lists: block lists, which others may write or replace meanwhile: their folders may be read. Of a folder that
            is missing yet (this host's opt-outs) the nearest one above: no rule can name what is not there.
        written: files that it writes; it may write whatever is in their folders.
    """
    folders = {path.absolute().parent for path in written if path is not None}
    for folder in folders:
        make_folder(folder)
    known = [path for path in reads if path is not None]
    confine_here(reads=[*known, *(nearest(path.parent) for path in lists)], writes=folders)


def check_out(out: Path, source: Path) -> None:
    """Raises UsageError if the results would replace the list."""
    if out.resolve() == source.resolve():
        raise UsageError("this is the input, which it would replace", where="--out", remedy="give another file")


def check_contact(contact: str) -> str:
    """The contact without surrounding blanks. Raises UsageError if nobody could be reached by it (`contact_fault`)."""
    if (fault := contact_fault(contact, closed=environment_prefixes() is not None)) is not None:
        raise UsageError(fault, where="--contact", remedy="give your own mail or web address")
    return contact.strip()


FILES_BESIDE = 64
"""Files that a process has open beside its sockets."""


def allow_many_files(servers: int, option: str, *, each: int = 1) -> None:
    """Raises the limit of open files, which programs inherit.

    Without a socket of its own a visit would fail, and that would be the server's result.

    Args:
        servers: contacted at the same time, as `option` says.
        each: sockets for each.

    Raises:
        UsageError: the limit stays too low.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = (hard - FILES_BESIDE) // each
    if servers > most:
        what = f"this process may open only {hard} files"
        raise UsageError(what, where=option, remedy=f"lower it to {max(1, most)}")


def check_certificates(file: Path | None) -> None:
    """Raises UsageError for a file that cannot be read, or is not PEM with certificates."""
    from core.system.this_host import count_certificates  # it imports ssl, which most commands do not need

    if file is not None:
        count_certificates(file)
