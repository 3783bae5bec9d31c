"""Documents, comments and docstrings name files and modules that exist: those that move leave no name behind."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

PACKAGES = ("analysis", "cdn_mapping", "core", "crawler", "downloader", "survey", "upshift", "vantage")

_FILE = re.compile(r"(?<![\w/.<*{$-])((?:[\w-]+/)*[\w-]+\.(?:py|rs))\b(?![*/(])")
_DOTTED = re.compile(rf"(?<![\w/.@:-])((?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?![\w/*])")

ELSEWHERE = frozenset({"upshift.kind", "upshift.schema_version", "upshift.prom", "downloader.md"})
"""Names with dots that are not of modules: metadata of files, a metrics file, a document."""

OTHERS_FILES = ("downloading/", "pcap_analysis/", "recovery/congestion/")
"""Beginnings of the names of other projects' files."""


FOLDERS = (*PACKAGES, "ansible", "benchmarks", "docs", "examples", "rust", "scripts", "tests")


@cache
def kept_files() -> frozenset[str]:
    """The checkout's files, without what is built or installed in it."""
    paths = [*REPOSITORY.glob("*.*"), *(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.*"))]
    names = (path.relative_to(REPOSITORY).as_posix() for path in paths)
    return frozenset(name for name in names if not re.search(r"(^|/)(target|__pycache__|\.\w+)/", name))


def readable() -> list[str]:
    """Documents and Python sources; not news, whose names are those of their time, nor the published code's files."""
    others = ("CHANGELOG", "changes/", "docs/reference/commands.md")
    return [name for name in sorted(kept_files()) if name.endswith((".md", ".py")) and not name.startswith(others)]


@cache
def names_of(file: str) -> frozenset[str]:
    """What a module defines or imports at its top level."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return frozenset(names)


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name of one (of what it defines, the first part is looked up)."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        stem = "/".join(parts[:end])
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if file in kept_files():
                rest = parts[end:]
                return not rest or rest[0] in names_of(file)
        if any(name.startswith(f"{stem}/") for name in kept_files()):
            return end == len(parts)
    return False


def missing_in_tables(text: str) -> set[str]:
    """What is no module of the folder that a table's heading names (`module of `crawler/``), in its first column."""
    found = set()
    for folder, rows in re.findall(r"^\| module of `([\w/]+/)` \|.*\n\|-.*\n((?:\|.*\n)*)", text, re.MULTILINE):
        for name in re.findall(r"`([\w/]+)`", "\n".join(row.split("|")[1] for row in rows.splitlines())):
            wanted = (f"{folder}{name}",) if name.endswith("/") else (f"{folder}{name}.py", f"{folder}{name}.rs")
            if not any(kept.startswith(wanted) for kept in kept_files()):
                found.add(f"{folder}{name}")
    return found


def missing(text: str) -> list[str]:
    """The files and modules that a text names and that do not exist."""
    dotted = {name for name in _DOTTED.findall(text) if name not in ELSEWHERE and not is_there(name)}
    files = {name for name in _FILE.findall(text) if not any(f"/{kept}".endswith(f"/{name}") for kept in kept_files())}
    return sorted(dotted | missing_in_tables(text) | {name for name in files if not name.startswith(OTHERS_FILES)})


def quoted(source: str) -> str:
    """What comments and docstrings of a module have in backticks, in which they name modules."""
    return "\n".join(re.findall(r"`[^`\n]+`", source))


def test_what_is_named_exists() -> None:
    wrong = {}
    for name in readable():
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        if faults := missing(text if name.endswith(".md") else quoted(text)):
            wrong[name] = faults
    wrong.pop("tests/unit/test_named_modules.py")  # the next test has wrong ones
    assert wrong == {}


def test_a_name_that_is_left_behind_is_reported() -> None:
    text = "See `core.files.nowhere.read`, core/files/nowhere.py, `core.files.store.read_rows` and core/files/store.py."
    assert missing(text) == ["core.files.nowhere.read", "core/files/nowhere.py"]
    table = "| module of `crawler/` | task |\n|---|---|\n| `spider`, `gate` | `no` |\n| `core.files.store` | |\n\n"
    assert missing(table) == ["crawler/gate"]
    assert missing("`core.files.store.nothing`") == ["core.files.store.nothing"]
