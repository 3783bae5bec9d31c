"""Kernel settings of one network namespace: read, change, restore, describe.

`apply_settings` is handed a function that runs programs in a place (`core.system.place.Place.run`), so the same code
serves a lab node and anything else with its own network namespace. Each step is one program start for
all settings.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from core.domain import RouteAttribute, Setting, Sysctl
from core.errors import PlaceError
from core.system.process import Completed
from core.untrusted import last_line
from vantage.linux.settings import NO_METRICS, SettingsProcess, Start, new_values

Route = tuple[str, ...]
"""A route as `ip route show` prints it and `ip route change` reads it, word by word."""

_NOT_INPUT = frozenset({"linkdown", "dead", "offload", "trap", "rt_offload", "rt_trap"})
"""Words of `ip route show` that describe a route but are not part of it."""


_REFUSING = ("unreachable ", "blackhole ", "prohibit ", "throw ")
"""Types of routes without an interface, which have no attributes that a connection could take (ip-route(8))."""

OWN_PROTOCOL = "214"
"""The origin of routes that we set beside those from router advertisements (rtnetlink(7), `rtm_protocol`): a number
that no routing daemon of rt_protos uses."""


class Run(Protocol):
    """Runs a program in the namespace to its end."""

    def __call__(self, argv: Sequence[str], *, timeout_s: float = 60.0, stdin: str | None = None) -> Completed: ...


@dataclass(frozen=True, slots=True)
class Before:
    """The values before settings were applied: sysctls by name, routes by family (`-4`, `-6`) and destination."""

    sysctls: Mapping[str, str]
    routes: Mapping[tuple[str, str], Route]


def apply_settings(run: Run, settings: Sequence[Setting], *, destinations: Sequence[str] = ("default",)) -> Before:
    """Applies these settings, flushes cached TCP metrics, and returns the previous values.

    Args:
        run: runs programs in the network namespace concerned.
        destinations: destinations of the routes that downloads take; `RouteAttribute`s go to these.

    Raises PlaceError if the kernel refuses a setting or does not know it; then the sysctls are as before.
    """
    sysctls = [setting for setting in settings if isinstance(setting, Sysctl)]
    attributes = [setting for setting in settings if isinstance(setting, RouteAttribute)]
    before = read_sysctls(run, {setting.name for setting in sysctls}) if sysctls else {}
    values = new_values(before, [(s.name, s.field, s.value) for s in sysctls])
    routes = read_routes(run, destinations) if attributes else {}
    changes = {place: with_attributes(route, attributes) for place, route in routes.items()}
    try:
        write_sysctls(run, values, present=before)
        change_routes(run, {place: _beside(route) for place, route in changes.items() if route != routes[place]})
    except PlaceError:
        with suppress(PlaceError):  # that of the refused setting is refused again, the others are written
            write_sysctls(run, before)
        raise
    return Before(before, routes)


class Namespace:
    """Applies settings in a network namespace and restores the original values.

    Arguments as for `apply_settings`.
    """

    def __init__(self, run: Run, destinations: Sequence[str]) -> None:
        self._run = run
        self._destinations = tuple(destinations)
        self._first = Before({}, {})
        self._process: SettingsProcess | None = None
        self._attributes: list[RouteAttribute] | None = None

    def limit(self, start: Start, names: Collection[str]) -> None:
        """Starts a process that writes the settings from now on, these and no others; the calling thread keeps it."""
        if self._process is not None:
            self._process.stop()
        self._process, self._attributes = SettingsProcess(start, names), None

    def apply(self, settings: Sequence[Setting]) -> None:
        """See `apply_settings`."""
        if self._process is None:
            self._keep(apply_settings(self._run, settings, destinations=self._destinations))
        else:
            self._apply_by_process(self._process, settings)

    def _keep(self, before: Before) -> None:
        self._first = Before({**before.sysctls, **self._first.sysctls}, {**before.routes, **self._first.routes})

    def _apply_by_process(self, writer: SettingsProcess, settings: Sequence[Setting]) -> None:
        """The same without a program, unless a route has to be changed or metrics have to be flushed."""
        sysctls = writer.write([setting for setting in settings if isinstance(setting, Sysctl)])
        attributes = [setting for setting in settings if isinstance(setting, RouteAttribute)]
        saves = sysctls.pop(NO_METRICS)
        self._keep(Before(sysctls, {}))
        if saves != "1" or attributes != self._attributes:
            self._keep(apply_settings(self._run, attributes, destinations=self._destinations))
            self._attributes = attributes

    def restore(self) -> None:
        """Restores the values that the first `apply` found. May be called twice."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        write_sysctls(self._run, self._first.sysctls)
        if self._first.routes:
            change_routes(self._run, self._first.routes)
        self._first = Before({}, {})


def read_sysctls(run: Run, names: set[str]) -> dict[str, str]:
    """The present values. Raises PlaceError if the kernel does not know a name."""
    done = run(["sysctl", *sorted(names)])
    values = parse_sysctls(done.stdout)
    if missing := sorted(names - set(values)):
        raise PlaceError(f"this kernel has no setting {missing[0]}", remedy="leave that factor out")
    return values


def write_sysctls(run: Run, values: Mapping[str, str], *, present: Mapping[str, str] | None = None) -> None:
    """Writes those values that differ from the present ones. Raises PlaceError if the kernel refuses."""
    changes = [f"{name}={value}" for name, value in values.items() if (present or {}).get(name) != value]
    if changes:
        done = run(["sysctl", "-qw", *changes]).check(doing=f"setting {' '.join(changes)}")
        # Its exit code is 0 for a setting that may not be changed, e.g. one of the whole kernel in a namespace.
        if refusal := last_line(done.stderr):
            raise PlaceError(f"the kernel refuses {' '.join(changes)} ({refusal.removeprefix('sysctl: ')})")


def read_routes(run: Run, destinations: Sequence[str]) -> dict[tuple[str, str], Route]:
    """The routes to these destinations. Raises PlaceError if none exists."""
    routes: dict[tuple[str, str], Route] = {}
    for destination in destinations:
        families = ("-4", "-6") if destination == "default" else ("-6",) if ":" in destination else ("-4",)
        for family in families:
            if route := first_route(run, family, destination):
                routes[family, destination] = route
    if not routes:
        raise PlaceError(f"no route to {' or '.join(destinations)}", remedy="see: ip route")
    return routes


def is_beside_advertised(route: Route) -> bool:
    """Whether a route comes from a router advertisement, or is ours beside such a one."""
    return attribute_of(route, "proto") in ("ra", OWN_PROTOCOL)


def _beside(route: Route) -> Route:
    """The route, or for one from a router advertisement ours that the kernel prefers to it.

    Who changes such a route makes it one of his own, which no advertisement renews or takes back any more.
    """
    if attribute_of(route, "proto") != "ra":
        return route
    return with_attributes(
        route, [RouteAttribute(name="proto", value=OWN_PROTOCOL), RouteAttribute(name="metric", value="1")]
    )


def change_routes(run: Run, routes: Mapping[tuple[str, str], Route]) -> None:
    """Sets the attributes of routes, and flushes cached TCP metrics."""
    words = []
    for (family, _), route in routes.items():
        # `default` alone does not say its family, which one batch for both must know.
        first = {"-4": "0.0.0.0/0", "-6": "::/0"}[family] if route[0] == "default" else route[0]
        verb = "replace" if attribute_of(route, "proto") == OWN_PROTOCOL else "change"
        words.append(" ".join(("route", verb, first, *route[1:])))
    lines = [*words, "tcp_metrics flush"]
    done = run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
    # The flush, the last line, is not permitted in a user namespace. Having nothing to flush is as good.
    if done.returncode and f"-:{len(lines)}" in done.stderr:
        saves = read_sysctls(run, {"net.ipv4.tcp_no_metrics_save"})
        if saves["net.ipv4.tcp_no_metrics_save"] == "1":
            return
    done.check(doing="; ".join(lines))


def parse_sysctls(text: str) -> dict[str, str]:
    """Name -> value from what sysctl(8) prints; the numbers of one setting are joined by single spaces."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): " ".join(value.split()) for name, sign, value in pairs if sign}


def parse_route(line: str) -> Route:
    """A line of `ip -o route show` as words that `ip route change` takes: without flags, and the time that is left of a
    route from a router advertisement."""
    words = [word for word in line.replace("\\", " ").split() if word not in _NOT_INPUT]
    if "expires" in words:
        at = words.index("expires")
        del words[at : at + 2]
    return tuple(words)


def first_route(run: Run, family: str, destination: str = "default") -> Route:
    """The route that the kernel prefers (`family` is -4 or -6): settings are of that one. Empty if there is none, or if
    it lets no packet out."""
    listed = run(["ip", "-o", family, "route", "show", "exact", destination]).stdout.splitlines()
    return () if not listed or listed[0].startswith(_REFUSING) else parse_route(listed[0])


def attribute_of(route: Route, name: str) -> str | None:
    """The value of a route's attribute; None if it has none."""
    # The first word is the destination, which cannot be mistaken for an attribute's name.
    return route[route.index(name, 1) + 1] if name in route[1:] else None


def with_attributes(route: Route, attributes: Sequence[RouteAttribute]) -> Route:
    """The route with these attributes set or removed; all others stay."""
    words = list(route)
    for attribute in attributes:
        if attribute.name in words[1:]:
            place = words.index(attribute.name, 1)
            del words[place : place + 2]
        if attribute.value is not None:
            words += [attribute.name, attribute.value]
    return tuple(words)


def cpu_model() -> str:
    """The model of the first CPU; empty if the kernel does not tell it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, "")


def describe_host() -> dict[str, object]:
    """Kernel, processor and memory of this host, which every place on it shares."""
    uname = platform.uname()
    memory = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()[0].split()[1]
    return {
        "kernel": uname.release,
        "kernel_version": uname.version,
        "machine": uname.machine,
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "memory_kib": int(memory),
        "python": platform.python_version(),
    }


def describe_network(run: Run) -> dict[str, Any]:
    """Network settings as programs of the namespace see them; those that are not per namespace are the host's."""
    listed = run(["sysctl", "-e", "-a", "-r", r"^net\.(ipv4\.(tcp|udp|ip|ping)_|core\.|ipv6\.bindv6only)"])
    settings = parse_sysctls(listed.stdout).items()
    return {
        "sysctls": {
            name: value for name, value in settings if not name.endswith("_key")
        },  # a secret (tcp_fastopen_key)
        "routes": run(["ip", "route", "show"]).stdout.splitlines(),
        "routes_ipv6": run(["ip", "-6", "route", "show"]).stdout.splitlines(),
        "links": run(["ip", "-o", "-d", "link", "show"]).stdout.splitlines(),
    }
