"""No circles between the modules of a Rust crate: each can be read after those that it uses.

A module uses another where a path of its code (`use` or not) leads into it. A parent's `mod child;` is no use, and
code under `#[cfg(test)]` does not count: tests may use everything.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "rust"
CRATES = sorted(path.parent for path in ROOT.glob("*/src"))

_STRINGS_AND_COMMENTS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(#*)"(?s:.*?)"\1|b?"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'""", re.DOTALL
)
_OF_TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*")
_CHILD = re.compile(r"^\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.MULTILINE)
_USE = re.compile(r"\buse\s+([^;]+);")
_PATH = re.compile(r"(?<![\w:.])(\w+(?:::\w+)+)")

Name = tuple[str, ...]
"""A module: its path below the crate's root, which is ()."""


@dataclass(frozen=True)
class Module:
    name: Name
    code: str
    children: frozenset[str]


def test_no_crate_has_a_circle() -> None:
    assert [crate.name for crate in CRATES] and all(read(crate / "src") for crate in CRATES)
    circles = {crate.name: circle(uses(read(crate / "src"))) for crate in CRATES}
    assert not {name: found for name, found in circles.items() if found}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("use crate::b::B;", "use super::a::A;", True),
        ("use super::{b::{B, C}, c};", "fn f() { let x = crate::a::new(); }", True),
        ("use crate::b::B;", "// crate::a::A\nconst TEXT: &str = \"crate::a::A\";", False),
        ("use crate::b::B;", "#[cfg(test)]\nmod tests { use crate::a::A; }", False),
        ("use crate::b::B;", "use std::a::A;", False),
        ("use crate::B;", "pub struct B;", True),  # by the root, which exports it and uses `a`
    ],
)  # fmt: skip
def test_circles_are_found(tmp_path: Path, a: str, b: str, expected: bool) -> None:
    (tmp_path / "lib.rs").write_text("mod a;\nmod b;\npub use b::B;\nuse a::A;\n")
    (tmp_path / "a.rs").write_text(a)
    (tmp_path / "b.rs").write_text(b)
    assert bool(circle(uses(read(tmp_path)))) is expected


def test_circles_with_a_parent_are_found(tmp_path: Path) -> None:
    (tmp_path / "main.rs").write_text("mod parent;\n")
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent" / "mod.rs").write_text("mod child;\npub struct Whole(child::Part);\n")
    (tmp_path / "parent" / "child.rs").write_text("use super::Whole;\npub struct Part;\n")
    assert set(circle(uses(read(tmp_path)))) == {"parent", "parent::child"}


def circle(graph: dict[Name, set[Name]]) -> list[str]:
    """The modules of one circle, or none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return ["::".join(name) or "the crate's root" for name in error.args[1]]
    return []


def read(source: Path) -> dict[Name, Module]:
    """The modules of a crate, without those of tests."""
    modules: dict[Name, Module] = {}
    root = next(path for path in (source / "lib.rs", source / "main.rs") if path.is_file())
    waiting: list[tuple[Name, Path, Path]] = [((), root, source)]
    while waiting:
        name, path, folder = waiting.pop()
        code = without_tests(_STRINGS_AND_COMMENTS.sub('""', path.read_text(encoding="utf-8")))
        children = frozenset(_CHILD.findall(code))
        modules[name] = Module(name, code, children)
        for child in children:
            files = (folder / f"{child}.rs", folder / child / "mod.rs")
            waiting.append(((*name, child), next(file for file in files if file.is_file()), folder / child))
    return modules


def without_tests(code: str) -> str:
    """The code without the items under `#[cfg(test)]`."""
    while match := _OF_TESTS.search(code):
        end, depth = match.end(), 0
        while depth or code[end] not in ";}":
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
            if not depth and code[end - 1] == "}":
                break
        code = code[: match.start()] + code[end:].removeprefix(";")
    return code


def uses(modules: dict[Name, Module]) -> dict[Name, set[Name]]:
    """The other modules that each module uses."""
    graph: dict[Name, set[Name]] = {}
    for name, module in modules.items():
        used = {target for path in paths(module.code) if (target := resolved(path, module, modules)) is not None}
        graph[name] = used - {name}
    return graph


def resolved(path: list[str], module: Module, modules: dict[Name, Module]) -> Name | None:
    """The module that a path leads into; None: out of the crate."""
    first, *rest = path
    if first == "crate":
        at: Name = ()
    elif first == "super":
        at = module.name[:-1]
    elif first == "self":
        at = module.name
    elif first in module.children:
        at = (*module.name, first)
    else:
        return None
    for part in rest:
        if part == "super":
            at = at[:-1]
        elif part in modules[at].children:
            at = (*at, part)
        else:
            break
    return at


def paths(code: str) -> Iterator[list[str]]:
    """The paths of some code; those of a tree of `use` one by one."""
    for tree in _USE.findall(code):
        yield from branches(" ".join(tree.split()))
    for path in _PATH.findall(_USE.sub("", code)):
        yield path.split("::")


def branches(tree: str) -> Iterator[list[str]]:
    """The paths of a tree: `a::{b, c::{d}}` gives a::b, a::c::d."""
    stem, brace, rest = tree.strip().partition("{")
    before = [part.strip().split(" as ")[0] for part in stem.split("::") if part.strip()]
    if not brace:
        yield before
        return
    depth, start, body = 0, 0, rest.rpartition("}")[0] + ","
    for at, character in enumerate(body):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and not depth:
            if part := body[start:at].strip():
                yield from (before + branch for branch in branches(part))
            start = at + 1
