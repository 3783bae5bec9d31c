"""docs/architecture.svg: the layers of the import contract from top to bottom, and the imports that there really are.

A box is an element of the contract "layers" in pyproject.toml, with the first sentence of its docstring. An arrow is an
import, left out where a longer way says the same (transitive reduction).
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import grimp

WIDTH, MARGIN, GAP = 1280, 24, 14
BOX_HEIGHT, ROW_GAP, LINE_GAP = 78, 62, 22
PER_LINE = 6
"""Boxes side by side."""

STYLE = """
text { font-family: system-ui, sans-serif; fill: #1b1f27; }
.name { font-size: 14px; font-weight: 600; }
.said { font-size: 11px; fill: #4a5160; }
.box { fill: #f4f6fa; stroke: #8a8f98; }
.arrow { fill: none; stroke: #0072b2; stroke-width: 1.2; stroke-opacity: 0.55; }
"""


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def text(repository: Path) -> str:
    linter = linter_of(repository)
    layers = layers_of(linter)
    boxes = dict(placed(layers))
    height = max(box.y for box in boxes.values()) + BOX_HEIGHT + MARGIN + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
        "<title>Layers of Upshift and the imports between them</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#0072b2"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    imports = reduced(between(graph(repository), list(boxes)))
    arrows = [(a, b, "arrow") for a in boxes for b in sorted(imports[a])]
    parts += [arrow(boxes[a], boxes[b], style) for a, b, style in arrows]
    parts += [drawn(name, box) for name, box in boxes.items()]
    legend = "An arrow is an import (what follows from others is left out)."
    parts.append(f'<text class="said" x="{MARGIN}" y="{height - 14:.0f}">{legend}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def linter_of(repository: Path) -> dict[str, Any]:
    """The settings of import-linter."""
    settings: dict[str, Any] = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = settings["tool"]["importlinter"]
    return found


@functools.cache
def graph(repository: Path) -> Any:
    """The modules of our packages and what each imports, found once: it takes seconds."""
    return grimp.build_graph(*linter_of(repository)["root_packages"])


def layers_of(linter: Mapping[str, Any]) -> list[list[str]]:
    """The elements of each layer, the highest first: the contract of the whole house, which has no containers."""
    (layers,) = [
        contract["layers"]
        for contract in linter["contracts"]
        if contract["type"] == "layers" and "containers" not in contract
    ]
    return [[name.strip() for name in layer.replace("|", ":").split(":")] for layer in layers]


def outside(repository: Path) -> set[str]:
    """Modules that are in no layer, though nothing says what they may import."""
    linter = linter_of(repository)
    names = [name for layer in layers_of(linter) for name in layer]
    entries = set(linter["root_packages"]) | {"upshift.__main__"}
    return {module for module in graph(repository).modules if element(module, names) is None} - entries


def element(module: str, names: Sequence[str]) -> str | None:
    """The element of the contract that a module belongs to."""
    while module:
        if module in names:
            return module
        module = module.rpartition(".")[0]
    return None


def between(modules: Any, names: Sequence[str]) -> dict[str, set[str]]:
    """Element -> those that it imports, by the graph of modules."""
    imports: dict[str, set[str]] = {name: set() for name in names}
    for module in modules.modules:
        importer = element(module, names)
        for imported in modules.find_modules_directly_imported_by(module):
            other = element(imported, names)
            if importer and other and importer != other:
                imports[importer].add(other)
    return imports


def reduced(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The transitive reduction: without what a longer way says."""

    def reached(start: Iterable[str]) -> set[str]:
        seen: set[str] = set()
        waiting = list(start)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += imports[name]
        return seen

    return {name: {other for other in own if other not in reached(own - {other})} for name, own in imports.items()}


def placed(layers: Sequence[Sequence[str]]) -> Iterator[tuple[str, Box]]:
    """Where each element stands."""
    y = float(MARGIN)
    for layer in layers:
        lines = [layer[start : start + PER_LINE] for start in range(0, len(layer), PER_LINE)]
        for line in lines:
            width = (WIDTH - 2 * MARGIN - GAP * (PER_LINE - 1)) / PER_LINE
            x = (WIDTH - len(line) * width - (len(line) - 1) * GAP) / 2
            for number, name in enumerate(line):
                yield name, Box(x + number * (width + GAP), y, width)
            y += BOX_HEIGHT + LINE_GAP
        y += ROW_GAP - LINE_GAP


def arrow(start: Box, end: Box, style: str) -> str:
    """Down to a lower box; in an arc below the boxes of the same line."""
    if start.y == end.y:
        low = start.y + BOX_HEIGHT
        return path(style, f"M{start.middle:.0f} {low:.0f} C{start.middle:.0f} {low + 40:.0f}", end, low, low + 40)
    low, bend = start.y + BOX_HEIGHT, (end.y - start.y - BOX_HEIGHT) / 2
    head = f"M{start.middle:.0f} {low:.0f} C{start.middle:.0f} {low + bend:.0f}"
    return path(style, head, end, end.y, end.y - bend)


def path(style: str, head: str, end: Box, y: float, control_y: float) -> str:
    curve = f"{head} {end.middle:.0f} {control_y:.0f} {end.middle:.0f} {y:.0f}"
    return f'<path class="{style}" d="{curve}" marker-end="url(#head)"/>'


def drawn(name: str, box: Box) -> str:
    lines = textwrap.wrap(first_sentence(name), 30)
    if len(lines) > 3:
        lines = [*lines[:2], lines[2].rstrip(",;:") + " …"]
    sentence = "".join(
        f'<text class="said" x="{box.x + 8:.0f}" y="{box.y + 36 + 14 * number:.0f}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    shape = f'<rect class="box" x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{BOX_HEIGHT}" rx="6"/>'
    return f'{shape}<text class="name" x="{box.x + 8:.0f}" y="{box.y + 19:.0f}">{escape(name)}</text>{sentence}'


def first_sentence(name: str) -> str:
    """The first sentence of a module's docstring; the module is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return ""
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".").replace("`", "")
