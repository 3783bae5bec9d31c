"""Documents have the sentences that Upshift prints, the keys of its files and documents, and each command's module."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from downloader.campaign.campaign import load
from downloader.programs.common import _KEYS
from scripts.pages import commands
from vantage.lab import truth
from vantage.lab.planner import address_plan
from vantage.lab.topology_file import load_topology

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("analysis", "cdn_mapping", "core", "crawler", "downloader", "survey", "upshift", "vantage")
HOUSE = (REPOSITORY / "docs/design/house.md").read_text(encoding="utf-8")

COMPOSED = {"the path emulator pathem is not installed": ("the path emulator pathem", " is not installed")}
"""Sentences that are put together from parts: their parts."""


@cache
def texts() -> str:
    """All texts in the sources."""
    files = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return "\n".join(n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))


def sentences() -> list[str]:
    page = (REPOSITORY / "docs/use/troubleshooting.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]*) \|", page.partition("## A sentence")[2].partition("\n## ")[0], re.M)
    return [sentence for cell in cells for sentence in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("sentence", sentences())
def test_a_sentence_that_has_a_remedy_is_printed_so(sentence: str) -> None:
    parts = COMPOSED.get(sentence) or [part.strip() for part in sentence.split("...")]
    assert all(part in texts() for part in parts)


def test_the_clients_document_has_the_keys_that_are_described() -> None:
    described = HOUSE.partition("Keys (schema 1):")[2].partition("Times count")[0]
    assert set(_KEYS) <= set(re.findall(r"\w+", described))


def example(beginning: str) -> Any:
    """A JSON document in the page."""
    return json.loads((beginning + HOUSE.partition(beginning)[2]).partition("\n\n")[0])


def test_the_description_of_a_campaign_is_as_in_the_example() -> None:
    made = json.loads(json.dumps(asdict(load(REPOSITORY / "examples/anrw.toml").for_analysis())))
    shown = example('{"schema": 1, "campaign"')
    assert set(shown) == {"schema", *made}
    [configuration] = shown["configurations"]
    assert configuration in made["configurations"] and shown["doses"].items() <= made["doses"].items()


def test_every_path_of_a_lab_is_as_in_the_example() -> None:
    topology = load_topology("anrw")
    made = truth.document(topology, address_plan(topology), timing={}, versions={"quiche": "1"})
    shown = example('{"schema": 1, "topology"')
    assert set(shown) == set(made)
    assert set(shown["paths"][0]) == set(made["paths"][0])


def test_a_command_is_in_the_module_that_the_reference_names() -> None:
    rows = list(commands.map_of_modules(list(commands.all_commands())))
    modules = {name: file for names, file, _ in rows for name in re.findall(r"`([^`]+)`", names)}
    assert modules["upshift run"] == modules["upshift demo"] == "`upshift/commands/run.py`"
    assert modules["upshift fleet status"] == "`upshift/commands/fleet.py`"
    assert not any("core/" in file for file in modules.values())
