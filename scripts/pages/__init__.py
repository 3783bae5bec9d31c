"""Documents that are generated from the code: `scripts/docs` writes them, tests/contract/test_docs.py compares them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.pages import architecture, captures, changelog, commands, data_dictionary, failures, glossary

REPOSITORY = Path(__file__).resolve().parents[2]

PAGES: Mapping[str, Callable[[Path], str]] = {
    "CHANGELOG.md": changelog.text,
    "analysis/captures/connection.py": captures.connection_module,
    "docs/architecture.svg": architecture.text,
    "docs/design/kpi-engine.md": captures.kpi_page,
    failures.PAGE: failures.text,
    "docs/reference/commands.md": commands.text,
    "docs/reference/data-dictionary.md": data_dictionary.text,
    "docs/reference/glossary.md": glossary.text,
}
"""File -> what it should hold, given the checkout's folder."""
