"""Wheels of a bundle, by the real uv, maturin and pip, of packages that take seconds to build."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import PlaceError
from core.terminal import show_progress
from tests.package_index import download_small, small_package
from vantage.fleet import bundle
from vantage.fleet.bundle import PYTHONS, Checkout, build, find_checkout

PYPROJECT = """\
[build-system]
requires = ["maturin>=1.9,<2"]
build-backend = "maturin"
[project]
name = "upshift-tiny"
version = "0.1.0"
[tool.maturin]
bindings = "bin"
strip = true
"""
CARGO = '[package]\nname = "tiny"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n'


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A checkout with one Rust program."""
    (tmp_path / "tiny" / "src").mkdir(parents=True)
    (tmp_path / "tiny" / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "tiny" / "Cargo.toml").write_text(CARGO)
    # Threads: in the C library itself since glibc 2.34, so the program needs that version.
    program = 'fn main() { std::thread::spawn(|| println!("tiny")).join().unwrap() }\n'
    (tmp_path / "tiny" / "src" / "main.rs").write_text(program)
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path / "target"))
    return Checkout(tmp_path)


def built(tiny: Checkout, into: str) -> list[Path]:
    tools = bundle.read_lock(find_checkout(), "--only-group", bundle.GROUP).others
    (tiny.folder / into).mkdir()
    return bundle.build_ours(tiny, ["./tiny"], tools, tiny.folder / into, step=lambda _: None)


def test_a_program_has_the_tag_that_is_true_and_the_same_bytes_again(tiny: Checkout) -> None:
    (first,), (second,) = built(tiny, "one"), built(tiny, "two")
    assert first.name == "upshift_tiny-0.1.0-py3-none-manylinux_2_34_x86_64.whl"
    assert first.read_bytes() == second.read_bytes()


def test_a_tag_that_is_not_true_is_refused(tiny: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system whose programs need more than 2.34; here, they need more than 2.17."""
    monkeypatch.setattr(bundle, "PLATFORM", "manylinux_2_17_x86_64")
    with pytest.raises(PlaceError, match=r"tiny: this system's binaries need a newer C library"):
        built(tiny, "one")
    assert not list((tiny.folder / "one").glob("*.whl"))


def test_a_program_that_cannot_be_built_is_one_sentence(tiny: Checkout) -> None:
    (tiny.folder / "tiny" / "src" / "main.rs").write_text("fn main() { nothing }\n")
    with pytest.raises(PlaceError, match="the wheel cannot be built") as caught:
        built(tiny, "one")
    assert "\n" not in caught.value.sentence()


def test_another_hash_than_in_the_lock_is_refused(tmp_path: Path) -> None:
    assert download_small(tmp_path / "good").name == "mdurl-0.1.2-py3-none-any.whl"
    small = small_package()
    wrong = type(small)(small.requirement, ("sha256:" + "0" * 64,))
    with pytest.raises(PlaceError, match="while it downloaded the wheels"):
        bundle.download(find_checkout(), "3.13", [wrong], tmp_path / "bad")


@pytest.mark.soak
def test_the_same_checkout_gives_the_same_bundles(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "two"):
        with show_progress() as progress:
            made.append(build(find_checkout(), tmp_path / folder, PYTHONS, progress=progress))
    for first, second in zip(*made, strict=True):
        assert first.name == second.name
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size < 120e6
