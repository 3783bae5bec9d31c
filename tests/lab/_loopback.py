"""A campaign's surroundings on the loopback of one network namespace: real kernel, real servers, nothing else.

Used by the tests of the downloader and by the programs that they start and kill.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from core.domain import Disturbance, RouteAttribute, Setting, Sysctl, Target, VoidReason
from core.errors import PlaceError
from core.files.config import read_toml
from core.reach import LOOPBACK_PREFIXES, IPNetwork
from core.system import process
from core.system.place import Prober, Suitability
from core.system.process import Child, Completed
from core.terminal import show_progress
from downloader.campaign.campaign import from_document
from tests.campaigns import run_in


class LoopbackWatch:
    def __init__(self, disturbed: str | None) -> None:
        self.disturbed = disturbed and Disturbance(reason=VoidReason.EMULATOR_LATE, detail=disturbed)

    def settle(self) -> None:
        """Loopback delivers at once."""

    def finish(self) -> Suitability:
        return Suitability(disturbed=self.disturbed, lateness_p99_ms=1.0, flows={})


class LoopbackPlace:
    """A network namespace with only `lo`; servers and clients are both in it."""

    interface = "lo"
    nameservers: tuple[str, ...] = ("127.0.0.1",)
    allowed_prefixes: tuple[IPNetwork, ...] = LOOPBACK_PREFIXES

    def __init__(self, name: str, namespace: str, ca_file: Path) -> None:
        self.name, self.namespace, self.ca_file = name, namespace, ca_file
        self.disturbances: list[str | None] = []
        """What the next watches will say; then they say that nothing disturbed."""
        self.is_measuring = False

    def prefix(self) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.namespace}"]

    def run(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed:
        return replace(process.run([*self.prefix(), *argv], timeout_s=timeout_s, stdin=stdin), argv=tuple(argv))

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bool = False,
        stdout: bool | Path = False,
        stderr: bool | Path = False,
        binary: bool = False,
    ) -> Child:
        return process.start(argv, prefix=self.prefix(), stdin=stdin, stdout=stdout, stderr=stderr, binary=binary)

    def apply(self, settings: Sequence[Setting]) -> None:
        words = []
        for setting in settings:
            if isinstance(setting, RouteAttribute):
                assert setting.value is None, "loopback routes are the kernel's own"
                continue
            words.append(f"{setting.name}={self._value(setting)}")
        self.run(["sysctl", "-qw", *words]).check(doing="setting sysctls")

    def limit_settings(self, names: Collection[str]) -> None:
        """Nothing: `apply` stays as it is."""

    def _value(self, setting: Sysctl) -> str:
        if setting.field is None:
            return setting.value
        fields = self.run(["sysctl", "-n", setting.name]).stdout.split()
        fields[setting.field] = setting.value
        self.run(["sysctl", "-qw", f"{setting.name}={' '.join(fields)}"]).check(doing="setting sysctls")
        return " ".join(fields)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        self.is_measuring = True
        try:
            yield
        finally:
            self.is_measuring = False

    def watch(self, server_ip: str) -> LoopbackWatch:
        assert self.is_measuring, "a measurement run is surrounded by `measuring`"
        return LoopbackWatch(self.disturbances.pop(0) if self.disturbances else None)

    def prober(self) -> Prober:
        raise PlaceError("loopback has no prober address")

    def check(self) -> None:
        """Whoever made the namespace keeps it."""

    def environment(self) -> Mapping[str, object]:
        return {"kind": "loopback"}

    def close(self) -> None:
        """Whoever made the namespace removes it."""


def targets_of(port: int, names: Sequence[str]) -> list[Target]:
    return [Target(domain=n, url=f"https://{n}:{port}/file", provider="other", size_bytes=200_000) for n in names]


def main() -> None:
    """campaign.toml namespace ca port out domain...: one campaign, to be killed by a test."""
    campaign, namespace, ca, port, out, *domains = sys.argv[1:]
    path = Path(campaign)
    places = {name: LoopbackPlace(name, namespace, Path(ca)) for name in ("A", "B")}
    with show_progress() as progress:
        summary = run_in(
            from_document(read_toml(path), path),
            targets_of(int(port), domains),
            places,
            Path(out),
            progress=progress,
        )
    print(json.dumps(summary.document()))


if __name__ == "__main__":
    main()
