"""TOML into dataclasses: every fault is one sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from upshift.config import STRICT, load_toml
from upshift.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Inner:
    __pydantic_config__: ClassVar = STRICT
    rate_mbit: float


@dataclass(frozen=True, kw_only=True)
class Outer:
    __pydantic_config__: ClassVar = STRICT
    name: str
    inner: list[Inner] = field(default_factory=list)


def load(tmp_path: Path, text: str) -> Outer:
    path = tmp_path / "file.toml"
    path.write_text(text)
    return load_toml(path, Outer)


def test_a_good_file(tmp_path: Path) -> None:
    assert load(tmp_path, 'name = "x"\n[[inner]]\nrate_mbit = 3') == Outer(name="x", inner=[Inner(rate_mbit=3)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"\nnmae = 1', "field nmae: there is no such field"),
        ("", "field name: it is missing"),
        ('name = "x"\n[[inner]]\nrate_mbit = "fast"', "field inner.0.rate_mbit"),
        ("name = ", "not valid TOML"),
    ],
)
def test_faults_name_file_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load(tmp_path, text)
    assert "file.toml" in caught.value.sentence()


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_toml(tmp_path / "none.toml", Outer)
