"""Analysis knows no configuration and no client by name: what is compared with what is data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import analysis
from core import paper
from downloader import clients

FOLDER = Path(analysis.__file__).parent

WORDS_OF_THE_FIELD = {"ECN", "SACK"}
"""Configurations that are named as the TCP option is, of which analysis has to speak."""

NAMES = {configuration.name for configuration in (paper.WARMUP, *paper.CONFIGURATIONS)} - WORDS_OF_THE_FIELD


def texts(tree: ast.AST) -> Iterator[str]:
    """String constants, those of documentation left out."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def test_no_module_names_a_configuration_or_a_client() -> None:
    modules = sorted(FOLDER.rglob("*.py"))
    assert len(modules) > 20
    found = [
        f"{module.relative_to(FOLDER)}: {text!r}"
        for module in modules
        for text in texts(ast.parse(module.read_text(encoding="utf-8")))
        if text in NAMES | set(clients.ALL) or re.search(r"\b(BL2?|warmup)\b", text)
    ]
    assert found == []


def test_no_template_names_a_configuration_or_a_client() -> None:
    names = "|".join(map(re.escape, (NAMES | set(clients.ALL)) - {"requests"}))
    for template in (FOLDER / "report" / "templates").iterdir():
        assert not re.search(rf"\b({names})\b", template.read_text(encoding="utf-8")), template
