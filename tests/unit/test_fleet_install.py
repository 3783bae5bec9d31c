"""The installer of a bundle: refusals, releases, kills."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.cells import Repeats
from tests.small_bundle import command, run, unpacked
from vantage.fleet import install

MANIFEST = install.MANIFEST


def releases(root: Path) -> set[str]:
    return {path.name for path in (root / "releases").iterdir()}


def half(root: Path) -> set[str]:
    """Releases that are being made, or of which the making was killed."""
    return {name for name in releases(root) if not (root / "releases" / name / MANIFEST).exists()}


def version(root: Path) -> str:
    return run([str(root / "current" / "bin" / "small-version")]).stdout.strip()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": "3.99"}, "this bundle is for Python 3.99, and this is 3."),
        ({"cpu": "aarch64"}, "this bundle is for aarch64, and this CPU is "),
        ({"glibc": [9, 9]}, "this bundle needs glibc 9.9, and this system has "),
    ],
)
def test_another_host_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    done = run(command(unpacked(tmp_path, "1", **changes), tmp_path / "root"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"install.py: {said}") and done.stderr.count("\n") == 1
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("damage", ["flip", "missing", "manifest"])
def test_a_damaged_bundle_is_refused(tmp_path: Path, damage: str) -> None:
    bundle = unpacked(tmp_path, "1")
    (wheel,) = (bundle / "wheels").iterdir()
    if damage == "flip":
        content = bytearray(wheel.read_bytes())
        content[len(content) // 2] ^= 1
        wheel.write_bytes(content)
    elif damage == "missing":
        wheel.unlink()
    else:
        (bundle / MANIFEST).write_text("{")
    done = run(command(bundle, tmp_path / "root"))
    assert done.returncode == 2
    assert (MANIFEST if damage == "manifest" else wheel.name) in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "root").exists()


@pytest.mark.thorough
def test_two_releases_stay_and_the_link_always_leads_to_a_whole_one(tmp_path: Path) -> None:
    bundles, root = [unpacked(tmp_path, number) for number in "123"], tmp_path / "root"
    first = run(command(bundles[0], root))
    assert first.returncode == 0, first.stderr
    assert version(root) == "1"
    (one,) = releases(root)
    assert first.stdout == f"installed: {one}\n"
    assert run(command(bundles[0], root)).stdout == f"unchanged: {one}\n"

    broken: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            try:
                (root / "current" / MANIFEST).read_bytes()
            except OSError as error:
                broken.append(str(error))
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert run(command(bundles[1], root)).returncode == 0
        assert version(root) == "2" and len(releases(root)) == 2
        assert run(command(bundles[0], root)).stdout == f"switched: {one}\n"
        assert version(root) == "1" and len(releases(root)) == 2
        assert run(command(bundles[1], root)).stdout.startswith("switched: ")
        assert run(command(bundles[2], root)).returncode == 0
    finally:
        done.set()
        watcher.join()
    assert broken == []
    assert version(root) == "3" and len(releases(root)) == 2
    assert one not in releases(root)


@pytest.mark.thorough
def test_a_release_from_which_a_script_runs_stays(tmp_path: Path) -> None:
    """A campaign imports modules and starts programs after its release was followed by two others."""
    bundles, root = [unpacked(tmp_path, number) for number in "123"], tmp_path / "root"
    assert run(command(bundles[0], root)).returncode == 0
    (one,) = releases(root)
    argv = [root / "current" / "bin" / "small-late"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == "runs\n"
        for bundle in bundles[1:]:
            assert run(command(bundle, root)).returncode == 0
        assert version(root) == "3" and one in releases(root) and len(releases(root)) == 3
        assert child.communicate("\n", timeout=30)[0] == "1\n"
    assert run(command(bundles[2], root)).returncode == 0
    assert one not in releases(root) and len(releases(root)) == 2


def test_a_program_runs_from_its_release_whatever_its_name(tmp_path: Path) -> None:
    program = shutil.copy(shutil.which("cat") or "", tmp_path)
    other = tmp_path.with_name(f"{tmp_path.name}0")
    with subprocess.Popen(["cat"], executable=program, stdin=subprocess.PIPE) as child:
        assert install.runs_from(tmp_path) and not install.runs_from(other)
        child.communicate()
    assert not install.runs_from(tmp_path)


@pytest.mark.thorough
def test_killed_at_any_moment(tmp_path: Path, repeats: Repeats) -> None:
    """Nothing half-installed is ever in use, and the same command completes it."""
    old, new, root = unpacked(tmp_path, "1"), unpacked(tmp_path, "2"), tmp_path / "root"
    began = time.monotonic()
    assert run(command(old, root)).returncode == 0
    took = time.monotonic() - began
    kills, halves = repeats(quick=4, soak=30), 0
    for number in range(kills):
        sent = signal.SIGTERM if number % 2 else signal.SIGKILL
        for name in half(root):  # by another name, so that it is not taken for what the next one makes
            (root / "releases" / name).rename(root / "releases" / f"killed-{number}")
        remains = half(root)
        with subprocess.Popen(command(new, root), stdout=subprocess.DEVNULL) as child:
            while child.poll() is None and half(root) <= remains:
                time.sleep(0.001)
            time.sleep(took * 0.8 * number / kills)
            child.send_signal(sent)
        assert version(root) in {"1", "2"}
        left = half(root)
        assert sent == signal.SIGKILL or not left, "a signal that can be caught leaves nothing"
        halves += len(left)
    assert halves > 0, "no kill came in the middle"
    done = run(command(new, root))
    assert done.returncode == 0, done.stderr
    assert version(root) == "2"
    assert len(releases(root)) == 2


@pytest.mark.thorough
def test_one_installation_at_a_time(tmp_path: Path) -> None:
    import fcntl

    bundle, root = unpacked(tmp_path, "1"), tmp_path / "root"
    root.mkdir()
    with (root / ".lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        done = run(command(bundle, root))
    assert done.returncode == 75
    assert "another installation runs" in done.stderr and done.stderr.count("\n") == 1
    assert releases(root) == set()
