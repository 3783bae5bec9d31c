"""`upshift ARGUMENTS` as where only the extra `analysis` is installed, without network and without other programs.

A program, as imports must be forbidden before the first one of ours.
"""

import importlib.metadata as metadata
import re
import sys
from collections.abc import Iterator

FORBIDDEN = ("socket.connect", "socket.bind", "subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn")


def requirements(distribution: str, extra: str | None) -> Iterator[str]:
    """Names that a distribution asks for, with the extra's own."""
    for line in metadata.requires(distribution) or ():
        name, _, marker = line.partition(";")
        wanted = re.search(r"extra == ['\"]([^'\"]+)", marker)
        found = re.match(r"[A-Za-z0-9._-]+", name.strip())
        if found is not None and (wanted is None or wanted[1] == extra):
            yield normal(found[0])


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def absent_modules() -> set[str]:
    """Top modules that are here and would not be, had only the extra `analysis` been installed."""
    installed: set[str] = set()
    waiting: list[tuple[str, str | None]] = [("upshift", "analysis")]
    while waiting:
        name, extra = waiting.pop()
        try:
            found = list(requirements(name, extra))
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        installed.add(name)
        waiting += [(each, None) for each in found if each not in installed]
    owners = metadata.packages_distributions().items()
    return {module for module, names in owners if not {normal(each) for each in names} & installed}


class Absent:
    """Makes some modules look as if they were not installed."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.modules:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def forbid(event: str, arguments: object) -> None:
    if event in FORBIDDEN:
        raise RuntimeError(event)


if __name__ == "__main__":
    absent = absent_modules()
    assert {"scrapy", "trustme"} <= absent, absent
    sys.meta_path.insert(0, Absent(absent))  # type: ignore[arg-type]
    sys.addaudithook(forbid)
    from upshift.cli import main

    main()
