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
from core.files import disk
from vantage.fleet import runs

FILE_NAME = "hosts.yml"

LOCAL = "local"
"""The connection to this machine."""

PATHS = ("vantage_bundles", "campaign_file", "campaign_targets", "campaign_opt_out", "collect_into")
"""Variables that are paths on the control machine, relative to the inventory's folder."""

SHARED = (*PATHS, "campaign_name", "campaign_isolation", "collect_without_captures", "collect_free")
"""Variables with one value for the whole fleet."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

_SSH = "plugin_type='connection', plugin_name='ssh'"
"""Of Ansible's own look-up of a connection's options, which knows all their names."""

_SELECTED, _OURS = "fleet_selected", "fleet_ours"

_INSIDE = {"hosts": "hosts", "vars": "vars", "children": "groups"}
"""Keys of a group, and what lies there."""

_OUR_NAMES = "^(vantage|explain|campaign|collect)_"
"""Variables of our roles: one that is misspelt would be ignored, and with it what it says, e.g. opt-outs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A vantage point."""

    name: str
    address: str
    """As the inventory has it: an address or a name; `local` for this machine."""
    port: int = 22
    trusted_clock: bool
    variables: Mapping[str, Any]
    """The values of `SHARED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The vantage points of an inventory."""

    path: Path
    hosts: Mapping[str, Host]
    """All, in order of name."""
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
        for host, its in values.items():
            if its != value:
                raise UsageError(
                    f"{name} is {str(value)!r} for {first}, but {str(its)!r} for {host}: it is one for all hosts",
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


def write_example(folder: Path) -> Path:
    """Copies the example inventory into a folder and returns its path. Raises UsageError if the folder has one."""
    path = folder / FILE_NAME
    if path.exists():
        raise UsageError("there is an inventory already", where=str(path), remedy="name another folder, or edit it")
    folder.mkdir(parents=True, exist_ok=True)
    disk.write_text(path, (runs.files() / "inventories" / "example" / FILE_NAME).read_text(encoding="utf-8"))
    return path


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
        "address": f"{{{{ query('ansible.builtin.config', 'host', 'port', {_SSH}) | map('default', 22, true) }}}}",
        "connection": "{{ ansible_connection | default('ssh', true) }}",
        "clock": "{{ vantage_clock | default('', true) }}",
    }
    expressions[_OURS] = f"{{{{ query('ansible.builtin.varnames', '{_OUR_NAMES}') }}}}"
    if limit:
        pattern = json.dumps(limit)
        expressions[_SELECTED] = f"{{{{ query('ansible.builtin.inventory_hostnames', {pattern}) }}}}"
    events = runs.look(runs.templated(expressions), inventory)
    values = runs.values_of(events)
    if error := typing_error(inventory):
        where = f"{error.path}, line {error.line}"
        raise UsageError(error.what, where=where, remedy="correct it there, or above it")
    if not values:
        raise _empty(inventory, events)
    known = _known()
    for name, own in values.items():
        if wrong := sorted(set(own[_OURS]) - known):
            meant = nearest(wrong[0], known)
            remedy = f"did you mean {meant}?" if meant else "see the table of variables in docs/design/fleet.md"
            raise UsageError(f"{wrong[0]}, set for {name}, is not known", where=str(inventory), remedy=remedy)
    hosts = {
        name: Host(
            name=name,
            address=LOCAL if own["connection"] == LOCAL else str(own["address"][0]),
            port=int(own["address"][1]),
            trusted_clock=own["clock"] == "trusted",
            variables={key: own[key] for key in SHARED},
        )
        for name, own in sorted(values.items())
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
    if wrong := runs.own_error(events):
        return UsageError(wrong, where=str(inventory), remedy="correct the inventory")
    return UsageError(
        "the inventory has no hosts in the group vantage",
        where=str(inventory),
        remedy="write them below vantage: hosts:, see upshift fleet init",
    )


def _check_addresses(inventory: Path, hosts: Mapping[str, Host]) -> None:
    """Two vantage points with one address are one host, and would disturb each other.

    Another port may lead to another host: behind a router, or by a tunnel.
    """
    seen: dict[tuple[str, int], str] = {}
    for host in hosts.values():
        if (other := seen.setdefault((host.address.lower(), host.port), host.name)) != host.name:
            which = "are this machine" if host.address == LOCAL else f"have the address {host.address}"
            raise UsageError(
                f"the hosts {other} and {host.name} both {which}",
                where=str(inventory),
                remedy="a vantage point needs a host of its own",
            )


@dataclass(frozen=True, slots=True)
class TypingError:
    """The first one of an inventory in YAML: Ansible does not tell its line."""

    path: Path
    line: int
    """From 1."""
    what: str


def typing_error(inventory: Path) -> TypingError | None:
    """The first fault of a file, or of a folder's files; None: none in its YAML, or it has none."""
    paths = sorted(inventory.glob("[!.]*")) if inventory.is_dir() else [inventory]
    errors = (_error_in(path) for path in paths if path.suffix in (".yml", ".yaml") and path.is_file())
    return next((error for error in errors if error), None)


def _error_in(path: Path) -> TypingError | None:
    import yaml

    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        root = yaml.compose(text)
    except yaml.MarkedYAMLError as error:
        mark, began = error.problem_mark or error.context_mark, error.context_mark
        what = f"this is not valid YAML: {error.problem}"
        return TypingError(path, mark.line + 1, what + (f", in what began in line {began.line + 1}" if began else ""))
    except yaml.reader.ReaderError as error:
        return TypingError(path, text.count("\n", 0, error.position) + 1, f"this is not valid YAML: {error.reason}")
    stray = None if text.startswith("$ANSIBLE_VAULT") else _stray(root, "groups")
    return TypingError(path, *stray) if stray else None


def _stray(node: Any, kind: str) -> tuple[int, str] | None:
    """Line of the first name that is there twice, or text or list where names with values belong; a clause about it."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        empty = node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"))
        text = repr(node.value.split("\n")[0]) if isinstance(node, yaml.ScalarNode) else "a list"
        return None if empty else (node.start_mark.line + 1, f"{text} is here, where NAME: VALUE belongs")
    names = [str(key.value) for key, _ in node.value]
    for at, (key, value) in enumerate(node.value if kind != "groups" or "plugin" not in names else ()):
        if names[at] in names[:at] and names[at] != "<<":
            return key.start_mark.line + 1, f"{names[at]!r} is here a second time, and Ansible would forget the first"
        inside = {"groups": "group", "hosts": "vars", "vars": ""}.get(kind, _INSIDE.get(names[at]))
        if inside and (stray := _stray(value, inside)):
            return stray
    return None
