"""Bundles: what is locked for which Python, archives with the same bytes, refusals."""

from __future__ import annotations

import os
import tarfile
import tomllib
from pathlib import Path

import pytest

import core
from core.errors import UsageError
from core.terminal import show_progress
from vantage.fleet import bundle
from vantage.fleet.bundle import Checkout, build, find_checkout, parse

EXPORTED = """\
-e .
-e ./rust/h3get
cffi==2.1.1 ; platform_python_implementation != 'PyPy' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:cc
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:dd
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:ee
"""


def test_what_a_python_needs() -> None:
    locked = parse(EXPORTED)
    assert locked.ours == (".", "./rust/h3get")
    lines = {python: [one.line() for one in locked.others if one.applies_to(python)] for python in ("3.11", "3.12")}
    cffi = "cffi==2.1.1 --hash=sha256:aa --hash=sha256:bb"
    assert lines == {
        "3.11": [cffi, "numpy==2.4.6 --hash=sha256:dd"],
        "3.12": [cffi, "numpy==2.5.5 --hash=sha256:ee"],
    }


def test_platforms_are_those_of_pep_600() -> None:
    assert bundle.platforms()[0] == bundle.PLATFORM == "manylinux_2_34_x86_64"
    assert {"manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(bundle.platforms())
    assert "manylinux_2_35_x86_64" not in bundle.platforms()


def test_cargo_and_uv_build_with_one_time() -> None:
    """Else `make setup` and `upshift fleet bundle` would build ring, and all that needs it, again after each other."""
    config = tomllib.loads((find_checkout().folder / ".cargo" / "config.toml").read_text())
    assert config["env"]["SOURCE_DATE_EPOCH"]["value"] == bundle.BUILT_AT


def files(folder: Path, text: str = "content") -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    for name in ("a.whl", "b.whl"):
        (folder / name).write_text(f"{text} of {name}")
    return {f"wheels/{name}": folder / name for name in ("b.whl", "a.whl")}


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    made = []
    for number, order in enumerate((1, -1)):
        found = dict(list(files(tmp_path / f"in{number}").items())[::order])
        os.utime(tmp_path / f"in{number}" / "a.whl", (number, number))
        (tmp_path / f"in{number}" / "a.whl").chmod(0o600 + number * 0o44)
        document = bundle.manifest(found, python="3.12", glibc=(2, 34))
        made.append(bundle.write_archive(found, document, tmp_path / f"out{number}"))
    assert made[0].name == made[1].name
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as opened:
        assert opened.getnames() == ["manifest.json", "wheels/a.whl", "wheels/b.whl"]


def test_other_files_or_another_python_are_another_release(tmp_path: Path) -> None:
    documents = [
        bundle.manifest(files(tmp_path, text), python=python, glibc=(2, 34))
        for text, python in (("content", "3.12"), ("content", "3.13"), ("contents", "3.12"))
    ]
    assert len({document["release"] for document in documents}) == 3
    assert all(len(document["release"]) == 12 for document in documents)


def test_a_bundle_is_whole_or_damaged(tmp_path: Path) -> None:
    document = bundle.manifest(files(tmp_path / "in"), python="3.12", glibc=(2, 34))
    made = bundle.write_archive(files(tmp_path / "in"), document, tmp_path / "out")
    assert bundle.is_whole(made)
    content = made.read_bytes()
    for damaged in (content[:2000], content.replace(b"content of a", b"c0ntent of a"), b""):
        made.write_bytes(damaged)
        assert not bundle.is_whole(made)
    made.write_bytes(content)
    other = made.rename(made.with_name(made.name.replace(document["release"], "0" * 12)))
    assert not bundle.is_whole(other), "another release's name"


def test_a_folder_has_one_bundle_for_a_python(tmp_path: Path) -> None:
    for text, python in (("old", "3.12"), ("old", "3.13"), ("new", "3.12")):
        found = files(tmp_path / "in", text)
        bundle.write_archive(found, bundle.manifest(found, python=python, glibc=(2, 34)), tmp_path / "out")
    pythons = sorted(path.name.split("-")[3] for path in (tmp_path / "out").iterdir())
    assert pythons == ["py3.12", "py3.13"]


def test_no_checkout_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "__file__", str(tmp_path / "core" / "__init__.py"))
    with pytest.raises(UsageError, match="built from a checkout"):
        find_checkout()


def test_an_unknown_python_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no bundle for Python 3\.9"), show_progress() as progress:
        build(Checkout(tmp_path), tmp_path / "out", ["3.9"], progress=progress)
    assert not (tmp_path / "out").exists()


def test_another_cpu_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(UsageError, match="for x86_64, and this CPU is aarch64"), show_progress() as progress:
        build(Checkout(tmp_path), tmp_path / "out", ["3.12"], progress=progress)
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_the_lock_has_what_a_vantage_point_needs_and_no_more() -> None:
    """Of this checkout's uv.lock: programs of ours that run there, no figures, no crawler, no lab."""
    locked = bundle.read_lock(find_checkout(), "--extra", bundle.EXTRA)
    assert set(locked.ours) == {".", "./rust/h3get", "./rust/h3serve", "./rust/pcapscan-py", "./rust/quinnget"}
    names = {one.requirement.name for one in locked.others if one.applies_to("3.12")}
    assert {"aioquic", "requests", "pyarrow", "trustme", "zstandard"} <= names
    assert not names & {"matplotlib", "scrapy", "scipy", "ansible-core", "colorama", "pip"}
    assert all(one.hashes for one in locked.others)
    tools = bundle.read_lock(find_checkout(), "--only-group", bundle.GROUP).others
    assert {"hatchling", "maturin", "pip"} <= {one.requirement.name for one in tools}
