"""Bundles with one small wheel, and pip's own: they are installed as large ones are."""

from __future__ import annotations

import functools
import importlib.util
import io
import marshal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from core.files import disk
from vantage.fleet import bundle, install

PYTHON = ".".join(map(str, sys.version_info[:2]))


PROGRAMS = "[console_scripts]\nsmall-version = small:main\nsmall-late = small:late\n"
SMALL = """
def main() -> None:
    from small_word import VERSION
    print(VERSION, flush=True)

def late() -> None:
    print("runs", flush=True)
    input()
    main()
"""


@functools.cache
def _pip() -> bytes:
    """pip's wheel, from its installed files (they are the wheel's, and lie in the environment of `make setup`).

    Each module is there compiled, too: Python, which keeps no bytecode for an archive, would otherwise compile all of
    pip each time, which takes most of a small bundle's installation.
    """
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as wheel:
        for file in metadata.distribution("pip").files or ():
            if str(file).startswith("..") or file.suffix == ".pyc":
                continue
            source = Path(str(file.locate()))
            wheel.write(source, str(file))
            if file.suffix == ".py":
                wheel.writestr(f"{file}c", _compiled(source))
    return written.getvalue()


def _compiled(source: Path) -> bytes:
    """What a `.pyc` has that is used whatever the time and size of its source (PEP 552: flags 0b01).

    The bytecode is that beside the installed file, behind a header of 16 bytes, where Python has written it.
    """
    content, cached = source.read_bytes(), Path(importlib.util.cache_from_source(str(source)))
    if cached.is_file():
        code = cached.read_bytes()[16:]
    else:
        code = marshal.dumps(compile(content, source.name, "exec", dont_inherit=True))
    flags = (0b01).to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(content) + code


def pip_wheel(folder: Path) -> Path:
    """pip's wheel in this folder."""
    path = folder / f"pip-{metadata.version('pip')}-py3-none-any.whl"
    path.write_bytes(_pip())
    return path


def small_wheel(folder: Path, version: str, *, padding: int = 0, modules: int = 0) -> Path:
    """A wheel with the programs `small-version`, that prints its version, and `small-late`, that first reads a line.

    The second one imports the version only then, as a campaign imports modules when it first needs them.

    Args:
        padding: bytes of a file that packs well.
        modules: number of further modules.
    """
    name = f"small-{version}"
    path = folder / f"{name}-py3-none-any.whl"
    files = {
        "small.py": SMALL,
        "small_word.py": f"VERSION = {version!r}\n",
        f"{name}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: small\nVersion: {version}\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}.dist-info/entry_points.txt": PROGRAMS,
    }
    files |= {f"small_{number}.py": "" for number in range(modules)}
    if padding:
        files["small.dat"] = "x" * padding
    record = "".join(f"{file},,\n" for file in (*files, f"{name}.dist-info/RECORD"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, text in {**files, f"{name}.dist-info/RECORD": record}.items():
            wheel.writestr(file, text)
    return path


def unpacked(folder: Path, version: str, **changes: object) -> Path:
    """A bundle as it lies on a host after unpacking; `changes` go into its manifest, not into the files."""
    wheels = folder / version / "wheels"
    wheels.mkdir(parents=True)
    sizes = {name: changes.pop(name) for name in ("padding", "modules") if name in changes}
    wheel = small_wheel(wheels, version, **sizes)  # type: ignore[arg-type]
    pip, installer = pip_wheel(folder / version), folder / version / "install.py"
    installer.write_bytes(Path(install.__file__).read_bytes())
    files = {pip.name: pip, installer.name: installer, f"wheels/{wheel.name}": wheel}
    document = bundle.manifest(files, python=PYTHON, glibc=(2, 17)) | changes
    disk.write_json(folder / version / install.MANIFEST, document)
    return folder / version


def command(bundle: Path, root: Path) -> list[str]:
    """The command line that the role runs."""
    return [sys.executable, str(bundle / "install.py"), "--root", str(root)]


def run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
