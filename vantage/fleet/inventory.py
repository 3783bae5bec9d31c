"""The hosts of an inventory, and what is one for the whole fleet; checked before any host is contacted."""

from __future__ import annotations

import getpass
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import UsageError, nearest, not_found
from vantage.fleet import runs, yaml_faults

LOCAL = "local"
"""The connection to this machine."""

PATHS = ("vantage_bundles", "campaign_file", "campaign_targets", "campaign_opt_out", "collect_into")
"""Variables that are paths on the control machine, relative to the inventory's folder."""

SHARED = (*PATHS, "campaign_name", "campaign_isolation", "collect_free")
"""Variables with one value for the whole fleet."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

_SELECTED, _OURS = "fleet_selected", "fleet_ours"

_OUR_NAMES = "^(vantage|explain|campaign|collect)_"
"""Variables of our roles: one that is misspelt would be ignored, and with it what it says, e.g. opt-outs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A vantage point."""

    name: str
    address: str
    """As the inventory has it: an address or a name; `local` for this machine."""
    trusted_clock: bool
    variables: Mapping[str, Any]
    """The values of `SHARED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The vantage points of an inventory."""

    path: Path
    hosts: Mapping[str, Host]
    """All, in the inventory's order."""
    selected: tuple[str, ...]
    """Those that `--limit` leaves."""
    password: str = field(default="", repr=False)
    """For sudo on hosts (`--ask-become-pass`)."""

    def shared(self, name: str) -> str:
        """The value of a variable that is one for the whole fleet, paths absolute; empty if it is not set.

        Raises UsageError if two hosts have different ones.
        """
        values = {host.name: host.variables[name] for host in self.hosts.values()}
        first, value = next(iter(values.items()))
        for other, found in values.items():
            if found != value:
                raise UsageError(
                    f"{name} is {str(value)!r} for {first}, but {str(found)!r} for {other}: it is one for all hosts",
                    where=str(self.path),
                    remedy="set it once, in the vars of the group vantage",
                )
        if value in (None, ""):
            return ""
        if name not in PATHS:
            return str(value)
        folder = self.path if self.path.is_dir() else self.path.parent
        return str((folder / Path(str(value)).expanduser()).resolve())

    def required(self, name: str, meaning: str) -> str:
        """The same; raises UsageError if it is not set."""
        if not (value := self.shared(name)):
            raise UsageError(f"{name} is not set", where=str(self.path), remedy=f"set it to {meaning}")
        return value

    def campaign(self, given: str | None = None) -> str:
        """Name of the campaign's folder on hosts: the one given, else campaign_name, else the file's stem.

        Raises UsageError for a name that is not that of a folder, as it becomes a part of paths on all machines.
        """
        name = given or self.shared("campaign_name")
        where = "--campaign" if given else f"{self.path}: campaign_name"
        name = name or Path(self.required("campaign_file", "the campaign's file")).stem
        if not _NAME.fullmatch(name):
            remedy = "use letters, digits, dots, hyphens and underscores"
            raise UsageError(f"{name!r} is not a valid name of a campaign", where=where, remedy=remedy)
        return name


def open_fleet(inventory: Path, limit: str | None, *, ask: bool = False) -> Fleet:
    """Reads an inventory, by Ansible: its variables may be templates.

    Args:
        limit: Ansible's pattern of hosts; None: all.
        ask: ask for the password of sudo: at the terminal, else a line of standard input.

    Raises:
        UsageError: no inventory, one that cannot be read, one without hosts in the group `vantage`, two hosts with one
            address, or a limit that leaves none.
    """
    if not inventory.exists():
        raise not_found(inventory, "inventory", remedy="name one by -i, or make one: upshift fleet init DIR")
    expressions = {name: f"{{{{ {name} | default('', true) }}}}" for name in SHARED}
    expressions |= {
        "address": "{{ ansible_host | default(inventory_hostname, true) }}",
        "connection": "{{ ansible_connection | default('ssh', true) }}",
        "clock": "{{ vantage_clock | default('', true) }}",
    }
    expressions[_OURS] = f"{{{{ query('ansible.builtin.varnames', '{_OUR_NAMES}') }}}}"
    if limit:
        pattern = json.dumps(limit)
        expressions[_SELECTED] = f"{{{{ query('ansible.builtin.inventory_hostnames', {pattern}) }}}}"
    events = runs.look(runs.templated(expressions), inventory)
    values = runs.values_of(events)
    if not values:
        raise _empty(inventory, events)
    known = _known()
    for name, found in values.items():
        if wrong := sorted(set(found[_OURS]) - known):
            meant = nearest(wrong[0], known)
            remedy = f"did you mean {meant}?" if meant else "see the table of variables in docs/design/fleet.md"
            raise UsageError(f"{wrong[0]}, set for {name}, is not known", where=str(inventory), remedy=remedy)
    hosts = {
        name: Host(
            name=name,
            address=LOCAL if found["connection"] == LOCAL else str(found["address"]),
            trusted_clock=found["clock"] == "trusted",
            variables={key: found[key] for key in SHARED},
        )
        for name, found in sorted(values.items())
    }
    _check_addresses(inventory, hosts)
    chosen = next(iter(values.values()))[_SELECTED] if limit else list(hosts)
    selected = tuple(name for name in hosts if name in chosen)
    if not selected:
        raise UsageError(
            f"{limit!r} leaves no host of the group vantage", where="--limit", remedy=f"hosts: {', '.join(hosts)}"
        )
    return Fleet(path=inventory, hosts=hosts, selected=selected, password=_password() if ask else "")


def _password() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("Password for sudo on the hosts: ")
    return sys.stdin.readline().rstrip("\n")


def _known() -> set[str]:
    """The variables that our roles declare."""
    import yaml  # Ansible's

    files = runs.files().glob("roles/*/meta/argument_specs.yml")
    declared = [yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"] for path in files]
    return {name for options in declared for name in options}


def _empty(inventory: Path, events: Sequence[Mapping[str, Any]]) -> UsageError:
    """Why no host of the inventory could be read."""
    if fault := yaml_faults.first(inventory):
        where = f"{fault.path}, line {fault.line}"
        return UsageError(fault.what, where=where, remedy="correct it there, or above it")
    for event in events:
        for line in str(event.get("stdout") or "").splitlines():
            if line.startswith(("[ERROR]", "ERROR")):
                said = runs.plain_error(line)
                return UsageError(said, where=str(inventory), remedy="correct the inventory")
    return UsageError(
        "the inventory has no hosts in the group vantage",
        where=str(inventory),
        remedy="write them below vantage: hosts:, see upshift fleet init",
    )


def _check_addresses(inventory: Path, hosts: Mapping[str, Host]) -> None:
    """Two vantage points with one address are one host, and would disturb each other."""
    seen: dict[str, str] = {}
    for host in hosts.values():
        if (other := seen.setdefault(host.address.lower(), host.name)) != host.name:
            which = "are this machine" if host.address == LOCAL else f"have the address {host.address}"
            raise UsageError(
                f"the hosts {other} and {host.name} both {which}",
                where=str(inventory),
                remedy="a vantage point needs a host of its own",
            )
