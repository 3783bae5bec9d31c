"""What the libraries of clients hide, below the table of faults in docs/method/failures.md."""

from __future__ import annotations

from pathlib import Path

from downloader import clients
from scripts.pages.commands import table

PAGE = "docs/method/failures.md"
BEGIN, END = "<!-- hides -->\n", "<!-- /hides -->"


def text(repository: Path) -> str:
    """The page with the table as the clients are now. Raises ValueError if the page has no place for it."""
    before, rest = (repository / PAGE).read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    rows = [
        (f"`{client.name}`", f"`{cause}`", "- (it does not notice)" if instead is None else f"`{instead}`")
        for client in clients.ALL.values()
        for cause, instead in sorted(client.hides.items())
    ]
    return before + BEGIN + table(("client", "cause", "recorded as"), rows) + END + after
