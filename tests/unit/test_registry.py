"""Discovery of plug-ins."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.errors import UsageError
from core.registry import Registry


@dataclass(frozen=True)
class Knob:
    name: str


def make_package(folder: Path, name: str, modules: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    for module, text in modules.items():
        (package / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, "knobs_for_test", sys.modules[__name__])


SOURCE = "from knobs_for_test import Knob\nKNOB = Knob({name!r})\n"


def test_every_module_is_a_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"b": SOURCE.format(name="b"), "a": SOURCE.format(name="a"), "_private": "raise RuntimeError"}
    make_package(tmp_path, "plugs_good", modules, monkeypatch)
    registry = Registry("plugs_good", Knob)
    assert list(registry) == ["a", "b"]
    assert registry["a"] == Knob("a")
    with pytest.raises(UsageError, match="use one of: a, b"):
        registry.pick("c", where="campaign.toml")


def test_an_empty_module_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, "plugs_empty", {"a": ""}, monkeypatch)
    with pytest.raises(LookupError, match="holds no Knob"):
        list(Registry("plugs_empty", Knob))


def test_two_of_one_name_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_package(tmp_path, "plugs_twice", {"a": SOURCE.format(name="x"), "b": SOURCE.format(name="x")}, monkeypatch)
    with pytest.raises(LookupError, match="two Knobs named 'x'"):
        list(Registry("plugs_twice", Knob))
