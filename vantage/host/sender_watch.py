"""Follows closed connections, and gives routes with a smaller initial window to prefixes that it hurts.

The guardian removes all routes however the watch ends: they have a protocol number of their own, so that one recorded
step is enough for any number of them.
"""

from __future__ import annotations

import ipaddress
import select
import time
from collections.abc import Callable

from core.domain import RouteAttribute
from core.errors import PlaceError, UsageError
from core.reach import IPNetwork
from core.system.process import run
from core.untrusted import last_line
from vantage.host.fallback import Fallback, FallbackRules
from vantage.host.place import NET_ADMIN, may
from vantage.host.undo import UndoStep
from vantage.host.undo_log import UndoLog
from vantage.linux.closed_connections import ClosedConnections
from vantage.linux.namespace import attribute_of, parse_route, with_attributes
from vantage.linux.state_folder import state_directory

PROTOCOL = "213"
"""The origin of our routes (rtnetlink(7), `rtm_protocol`): a number that no routing daemon of rt_protos uses."""

PAUSE_S = 0.02
"""Between two readings: events come in batches, and decisions are late by no more."""

LOOK_S = 1.0
"""Longest time without a look at the clock and the guardian."""


class PrefixRoutes:
    """Routes of prefixes with an initial window of their own.

    Args:
        device: the interface to the clients.
        log: where changes are recorded; None: nothing is changed, only checked.

    Raises:
        UsageError: no such interface.
        PlaceError: routes of somebody else have our protocol number.
    """

    def __init__(self, device: str, log: UndoLog | None) -> None:
        self._device = device
        self._log = log
        if run(("ip", "link", "show", "dev", device)).returncode != 0:
            raise UsageError(f"no network interface named {device!r}", where="--prefix-routes", remedy="see: ip link")
        for family in ("-4", "-6"):
            if run(("ip", family, "route", "show", "table", "all", "proto", PROTOCOL)).stdout.strip():
                raise PlaceError(
                    f"there are routes of protocol {PROTOCOL}, which are not ours",
                    remedy=f"see: ip {family} route show table all proto {PROTOCOL}",
                )

    def present(self) -> set[IPNetwork]:
        """The prefixes that have a route of ours."""
        lines: list[str] = []
        for family in ("-4", "-6"):
            argv = ("ip", "-o", family, "route", "show", "dev", self._device, "proto", PROTOCOL)
            lines += run(argv).stdout.splitlines()
        return {ipaddress.ip_network(line.split()[0]) for line in lines}

    def set_window(self, prefix: IPNetwork, client: str, window: int | None) -> str | None:
        """Why the prefix cannot have this window; None if it has it now. None as window: that of the host's routes."""
        family = f"-{prefix.version}"
        if window is None:
            if self._log is not None:
                self._log.run(("ip", family, "route", "del", str(prefix), "dev", self._device, "proto", PROTOCOL))
            return None
        if run(("ip", "-o", family, "route", "show", "exact", str(prefix))).stdout.strip():
            return "it has a route that somebody else set"
        shown = run(("ip", "-o", family, "route", "get", "fibmatch", client))
        route = parse_route((shown.stdout.splitlines() or [""])[0])
        if attribute_of(route, "dev") != self._device:
            return f"there is no route to it over {self._device}"
        try:
            covering = ipaddress.ip_network("::/0" if route[0] == "default" else route[0])
        except ValueError:  # a multicast, local or unreachable one
            return f"its route is of another kind: {' '.join(route)}"
        if route[0] != "default" and covering.prefixlen >= prefix.prefixlen:
            return f"{route[0]} in it has a route of its own"
        if self._log is None:
            return None
        removed = [RouteAttribute(name=name, value=None) for name in ("metric", "pref")]
        ours = [RouteAttribute(name="proto", value=PROTOCOL), RouteAttribute(name="initcwnd", value=str(window))]
        line = with_attributes((str(prefix), *route[1:]), [*removed, *ours])
        self._log.add([UndoStep(kind="routes", name=family, value=f"dev {self._device} proto {PROTOCOL}")])
        # `add` refuses to replace a route that came in between.
        done = self._log.run(("ip", family, "route", "add", *line))
        return None if done.returncode == 0 else last_line(done.stderr)


def watch(
    device: str,
    rules: FallbackRules,
    *,
    dry_run: bool,
    until: float | None,
    say: Callable[[str], None],
    each: Callable[[Fallback, int], None],
) -> None:
    """Watches until `until` (Unix time) or a KeyboardInterrupt; then all routes are as before.

    Args:
        dry_run: only say what would be changed.
        say: takes a line per change or fault.
        each: called every second and at the end with the prefixes and the number of events lost.

    Raises:
        UsageError: no such interface.
        PlaceError: no right to change routes, or a kernel that does not tell.
    """
    if not dry_run and not may(NET_ADMIN):
        raise PlaceError("only root may change routes", remedy="use sudo, or --dry-run")
    log: UndoLog | None = None
    with ClosedConnections() as events:
        try:
            if not dry_run:
                log = UndoLog(f"sender watch on {device}", isolation="host", state=state_directory())
                for line in log.recovered:
                    say(line)
            routes = PrefixRoutes(device, log)
            fallback = Fallback(rules, routes.set_window, say)
            try:
                _follow(events, fallback, routes, log, until, say, each)
            finally:
                each(fallback, events.lost)
        finally:
            if log is not None:
                log.release()


def _follow(
    events: ClosedConnections,
    fallback: Fallback,
    routes: PrefixRoutes,
    log: UndoLog | None,
    until: float | None,
    say: Callable[[str], None],
    each: Callable[[Fallback, int], None],
) -> None:
    lost_before = 0
    looked = 0.0
    while until is None or time.time() < until:
        if select.select((events,), (), (), LOOK_S)[0]:
            time.sleep(PAUSE_S)
        now = time.monotonic()
        for closed in events.read():
            fallback.add(closed, now)
        fallback.retry(now)
        if now - looked < LOOK_S:
            continue
        looked = now
        if log is not None:
            log.check_guarded()
            if fallback.small_prefixes():
                fallback.keep(routes.present(), now)
        if events.lost > lost_before:
            say(f"{events.lost - lost_before:,} events were lost, as they came too fast; shares are of the others")
            lost_before = events.lost
        each(fallback, events.lost)
