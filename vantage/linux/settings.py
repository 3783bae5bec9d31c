"""A process in a place's network namespace that writes kernel settings: one for a whole campaign. Chains of nsenter,
setpriv and sysctl for each download took half of the time between two of them.

    python -m vantage.linux.settings NAME...

It knows the settings whose names it was started with, and no others. Standard input: one JSON line per request, a list
of `[name, field, value]`, where `field` is the position of the number that changes, null for the whole value. Standard
output: `{"before": {name: value}}`, or `{"fault": why}`, after which the campaign ends. It ends with its input.
"""

from __future__ import annotations

import json
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from core.errors import PlaceError
from vantage.linux import sysctls

if TYPE_CHECKING:  # the process, which each campaign waits for, does without
    from core.domain import Sysctl
    from core.system.process import Child

NO_METRICS = "net.ipv4.tcp_no_metrics_save"
"""1: the kernel keeps no metrics of closed connections, so that there are none to flush (ip-sysctl.rst)."""

ANSWER_S = 10.0
"""How long an answer may take on a busy host, and the start of the process."""


class Start(Protocol):
    """Starts a program in the namespace (`core.system.place.Place.start`)."""

    def __call__(
        self, argv: Sequence[str], *, stdin: bool = False, stdout: bool = False, binary: bool = False
    ) -> Child: ...


class SettingsProcess:
    """The process, from outside. It ends with the thread that made this, and with `stop`.

    Args:
        names: the settings that it may write, e.g. `net.ipv4.tcp_sack`.
    """

    def __init__(self, start: Start, names: Collection[str]) -> None:
        command = [sys.executable, "-P", "-m", "vantage.linux.settings", *sorted(names)]
        self._child = start(command, stdin=True, stdout=True, binary=True)

    def write(self, settings: Sequence[Sysctl]) -> dict[str, str]:
        """Makes these settings hold; the values before, by name, with that of `NO_METRICS`.

        Raises PlaceError if the kernel or the process refuses one, or if the process has ended.
        """
        request = [[setting.name, setting.field, setting.value] for setting in settings]
        answer = self._ask(json.dumps(request).encode() + b"\n")
        if "fault" in answer:
            raise PlaceError(str(answer["fault"]), remedy="leave that factor out")
        before: dict[str, str] = answer["before"]
        return before

    def _ask(self, line: bytes) -> dict[str, Any]:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None and stdout is not None  # noqa: S101 - started with pipes
        deadline, answer = time.monotonic() + ANSWER_S, b""
        try:
            stdin.write(line)
            stdin.flush()
            while not answer.endswith(b"\n"):
                if not select.select([stdout], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                    raise PlaceError("the process that writes kernel settings does not answer")
                answer += (data := stdout.read1(65536))  # type: ignore[attr-defined]  # a buffered pipe
                if not data:
                    raise BrokenPipeError
        except BrokenPipeError:
            remedy = "run the same command again"
            raise PlaceError("the process that writes kernel settings has ended", remedy=remedy) from None
        document: dict[str, Any] = json.loads(answer)
        return document

    def stop(self) -> None:
        """Ends it. May be called twice."""
        self._child.stop()


def change(settings: Sequence[tuple[str, int | None, str]], known: Collection[str]) -> dict[str, str]:
    """Makes the settings hold; the values before. Raises PlaceError for a name that is not known, and a refusal."""
    for name, *_ in settings:
        if name not in known:
            raise PlaceError(f"{name!r} is no setting of a factor, and is not written")
    present = {name: sysctls.read(name) for name in {NO_METRICS, *(name for name, *_ in settings)}}
    before = {name: value for name, value in present.items() if value is not None}
    for name in present:
        if name not in before:
            raise PlaceError(f"this kernel has no setting {name}")
    values = new_values(before, settings)
    changes = [name for name, value in values.items() if before[name] != value]
    try:
        for name in changes:
            sysctls.write(name, values[name])
    except (PlaceError, OSError):
        for name in changes:  # all or none: who asked does not get to know the values before
            with suppress(PlaceError, OSError):
                sysctls.write(name, before[name])
        raise
    return before


def new_values(present: Mapping[str, str], settings: Iterable[tuple[str, int | None, str]]) -> dict[str, str]:
    """What to write so that `settings` (name, field, value) hold; of a setting of several numbers, other fields stay.

    Raises PlaceError if a field does not exist.
    """
    values: dict[str, str] = {}
    for name, field, value in settings:
        if field is None:
            values[name] = " ".join(value.split())
            continue
        parts = values.get(name, present[name]).split()
        if not 0 <= field < len(parts):
            raise PlaceError(f"{name} has {len(parts)} numbers, none is number {field}")
        parts[field] = value
        values[name] = " ".join(parts)
    return values


def main(names: Sequence[str]) -> int:
    """Answers requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the campaign decides what happens
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"before": change(json.loads(line), names)}
        except (PlaceError, OSError) as error:
            answer = {"fault": error.what if isinstance(error, PlaceError) else str(error)}
        print(json.dumps(answer), flush=True)  # noqa: T201 - the protocol
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
