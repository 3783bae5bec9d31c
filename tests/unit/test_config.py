"""TOML into dataclasses: every fault is one sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from core.errors import UsageError
from core.files.config import MOST_TOML_BYTES, Strict, load_toml, read_json, read_text, read_toml


@dataclass(frozen=True, kw_only=True)
class Inner(Strict):
    rate_mbit: float


@dataclass(frozen=True, kw_only=True)
class Outer(Strict):
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
        ('name = "x"\nnmae = 1', "field nmae: unknown field"),
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
    with pytest.raises(UsageError, match="file not found"):
        load_toml(tmp_path / "none.toml", Outer)


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + NESTED, "nested too deeply"),
        ("a = " + "{b = " * 100_000, "nested too deeply"),
        ("a = " + "1" * 5_000, "not valid TOML"),
        ('a = "\udcff"', "not UTF-8 text"),
        ("#" * (MOST_TOML_BYTES + 1), "larger than 4 MiB, the limit"),
        (r'a = "x\u0000"', r"a text in it has the character \\u0000; remove it"),
    ],
)
def test_toml_that_is_made_to_break_a_reader(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=said):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NESTED, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[1]", "not a JSON object"),
        ('{"a": ' + "1" * 5_000 + "}", "not valid JSON"),
        ("", r"not valid JSON \(.*line 1"),
        ('{"a": "\udcff"}', "not UTF-8 text"),
    ],
)
def test_json_that_is_made_to_break_a_reader(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=said) as caught:
        read_json(path)
    assert str(path) in caught.value.sentence()


def test_what_is_no_file_of_text(tmp_path: Path) -> None:
    """A device that never ends is read to the limit; a folder and a missing file are sentences."""
    for path, said in ((Path("/dev/zero"), "larger than 2 MiB"), (tmp_path, "a folder"), (tmp_path / "x", "not found")):
        with pytest.raises(UsageError, match=said):
            read_text(path, most_bytes=2 << 20)


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_text("a = 1", encoding="utf-8-sig")
    assert read_toml(path) == {"a": 1}
