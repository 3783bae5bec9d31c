"""Campaign files: TOML in, a frozen `Campaign` out; each error is one sentence with file, field and remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from core import paper
from core.domain import Comparison, Configuration, Target, Transport
from core.errors import UsageError
from core.files.campaign_json import Description, fault
from core.files.config import Strict, build, read_toml
from core.reach import ANYWHERE, IPNetwork, is_everything, parse_prefixes
from core.sequential import Rule
from core.untrusted import contact_fault, is_address
from downloader import factors, quirks
from downloader.campaign.configurations import (
    NAME,
    NAME_REMEDY,
    read_comparisons,
    read_configurations,
    recorded,
    transport_of,
    warmups,
    written,
)
from downloader.campaign.limits import Budgets, Disk, read_budgets, read_disk, read_rule


class Order(StrEnum):
    """The order of configurations in a measurement run."""

    BALANCED = "balanced"
    """Seeded Williams squares: each configuration equally often in each position, and after each other one."""
    PUBLISHED = "published"
    """The paper's: always the same, with an uncached DNS look-up before each download."""


class Isolation(StrEnum):
    """Where kernel settings are changed at a real vantage point."""

    NETNS = "netns"
    """In a network namespace made for the campaign: the host's own settings never change."""
    HOST = "host"
    """On the host itself, as the paper did; restored afterwards."""


class Family(StrEnum):
    """Which addresses are looked up."""

    IPV4 = "ipv4"
    IPV6 = "ipv6"
    ANY = "any"


class VantageClock(StrEnum):
    """Whether slots may be told by this host's clock."""

    CHECKED = "checked"
    """Only while the kernel says that it is synchronised, and wrong by less than 1 s."""
    TRUSTED = "trusted"
    """Always: for test hosts, whose clocks nobody synchronises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to measure and compare. All except comparisons and `stop_when` is the plan: a folder is resumed only with
    the same."""

    name: str
    path: Path
    """The file that it came from."""
    lab: str | None
    """Name or path of the lab's topology, as written in the file (see `topology`); None for real vantage points."""
    targets: str
    """`lab`, or the path of a CSV or Parquet file."""
    ca_file: str | None
    """Bundle of the certificates that all clients trust, as written in the file; None: the lab's own, or this host's
    (see `downloader.campaign.targets`)."""
    vantage_points: tuple[str, ...] = ()
    """Empty: all vantage points of the lab."""
    allowed_prefixes: tuple[IPNetwork, ...]
    """What real vantage points may contact; a lab limits itself."""
    nameservers: tuple[str, ...] = ()
    """Empty: the place's own."""
    iterations: int
    seed: int
    order: str
    """One of `Order`."""
    isolation: str
    """One of `Isolation`; a lab is isolated anyway."""
    budget_s: float | None
    """Time per download; None for a budget from the target's size (see `budget_for`)."""
    slowest_mbit: float
    """Lowest goodput of BL that the automatic budget allows [Mbit/s]."""
    max_bytes: int
    """Body bytes per download."""
    user_agent: str
    max_attempts: int
    """Measurement runs per target and iteration until a disturbed one is recorded as void."""
    address_family: Family
    configurations: tuple[Configuration, ...]
    """Without warm-ups."""
    comparisons: tuple[Comparison, ...]
    """For analysis; not part of the plan."""
    published_quirks: tuple[str, ...] = ()
    """Names from `downloader.quirks`, in order of name."""
    stop_when: Rule
    """When a vantage point stops before the end of its plan. Not part of the plan: the intervals are valid at every
    look, so a finished folder may be continued with a stricter rule."""
    budgets: Budgets = field(default_factory=Budgets)
    block_lists: tuple[str, ...] = ()
    """Files of domains and prefixes that are not contacted, relative to the campaign file. Like the next two a matter
    of each host, so not part of the plan."""
    opt_out: str | None = None
    """The same, for opt-outs during the run; created if missing."""
    disk: Disk = field(default_factory=Disk)
    slot_s: float | str | None = None
    """Length of slots [s] (`downloader.schedule.slots`), 0 for none, or `auto`. None: `auto` where a host runs only
    some of the vantage points, else none."""
    uplink: str | None = None
    """Network interface of this host to measure by; None: that of the default route. A matter of each host."""
    vantage_clock: str = "checked"
    """One of `VantageClock`. A matter of each host."""
    warmups: tuple[Configuration, ...] = field(init=False, repr=False, compare=False)
    """What comes before the configurations in each measurement run. They follow from these, once for all targets."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "warmups", warmups(self.configurations))
        # Checked here too, as the command line replaces them in a campaign that was loaded.
        for name, words in (("order", Order), ("isolation", Isolation)):
            if getattr(self, name) not in tuple(words):
                raise UsageError(
                    f"{getattr(self, name)!r} is not a valid {name}",
                    where=str(self.path),
                    remedy=f"write {' or '.join(words)}",
                )
        self._check_quirks()
        if len(set(self.vantage_points)) != len(self.vantage_points):
            raise fault("a vantage point is named twice", str(self.path), "vantage_points", "name each once")
        for name in self.vantage_points:
            if not NAME.fullmatch(name):
                raise fault(f"{name!r} is not a valid name", str(self.path), "vantage_points", NAME_REMEDY)

    def _check_quirks(self) -> None:
        where = f"{self.path}: field published_quirks"
        if self.published_quirks and self.order != Order.PUBLISHED:
            remedy = 'write order = "published", or give --order published'
            raise UsageError(f"they need another order than {self.order}", where=where, remedy=remedy)
        for name in self.published_quirks:
            quirk = quirks.ALL.pick(name, where=where)
            if quirk.on_host and (self.lab is not None or self.isolation != Isolation.HOST):
                remedy = f'leave {name} out, or set isolation = "host" for a real vantage point'
                raise UsageError(f"{name} changes settings of the whole host", where=where, remedy=remedy)
            has_walls = self.isolation == Isolation.NETNS and not is_everything(self.allowed_prefixes)
            if quirk.contacts_others and self.lab is None and not has_walls:
                remedy = f'leave {name} out, or set isolation = "netns" and name in allowed_prefixes where it may go'
                raise UsageError(f"the client of {name} follows redirects to any address", where=where, remedy=remedy)

    @property
    def topology(self) -> str | None:
        """Name of the lab's topology, or its path; like that of targets, it is relative to the campaign file."""
        if self.lab is None or not (self.lab.endswith(".toml") or "/" in self.lab):
            return self.lab
        return str(self.path.parent / self.lab)

    def body_bytes(self, target: Target) -> int:
        """Expected body of a download of this target [bytes]; `max_bytes` if its size is not known."""
        if target.size_bytes is None or target.size_is_lower_bound:
            return self.max_bytes
        return min(target.size_bytes, self.max_bytes)

    def budget_for(self, target: Target) -> float:
        """Time budget [s] of every download of this target, the same for all configurations.

        Twice what BL should need: three seconds of look-ups, handshakes and one lost SYN, then the body at
        `slowest_mbit`.
        """
        if self.budget_s is not None:
            return self.budget_s
        return round(2 * (3.0 + self.body_bytes(target) * 8 / (self.slowest_mbit * 1e6)), 1)

    def configuration(self, name: str) -> Configuration:
        """The configuration of that name, warm-ups included."""
        return next(c for c in self.every if c.name == name)

    @property
    def every(self) -> tuple[Configuration, ...]:
        """The configurations of each measurement run, warm-ups first."""
        return (*self.warmups, *self.configurations)

    def of(self, target: Target) -> tuple[Configuration, ...]:
        """The configurations of a target's measurement runs, warm-ups first: none over QUIC where the target is known
        to be without HTTP/3."""
        if target.quic is not False:
            return self.every
        return tuple(one for one in self.every if transport_of(one) is not Transport.QUIC)

    def measures(self, target: Target) -> bool:
        """Whether there is anything but warm-ups to download there."""
        return any(one.name not in paper.WARMUPS for one in self.of(target))

    def without_http3(self, targets: Sequence[Target]) -> tuple[Target, ...]:
        """The targets that lack what this campaign has over QUIC, as they are known to be without HTTP/3."""
        if all(transport_of(one) is not Transport.QUIC for one in self.configurations):
            return ()
        return tuple(target for target in targets if target.quic is False)

    def description(self) -> dict[str, Any]:
        """The plan as it is recorded, as plain data: all fields, and each configuration with all levels and options."""
        configurations = [dataclasses.asdict(recorded(configuration)) for configuration in self.every]
        return {**self._plan(), "configurations": configurations}

    def differences(self) -> dict[str, Any]:
        """What of the plan is not the default, as plain data. A new field, factor or option leaves it as it is."""
        usual = {entry.name for entry in dataclasses.fields(self) if getattr(self, entry.name) == _default(entry)}
        changed = {name: value for name, value in self._plan().items() if name not in usual}
        return {**changed, "configurations": [written(configuration) for configuration in self.every]}

    def _plan(self) -> dict[str, Any]:
        """The fields that affect what is downloaded, or in which order, as plain data."""
        fields = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        plan = {name: value for name, value in fields.items() if name not in _NOT_THE_PLAN}
        return plan | {
            "allowed_prefixes": [str(prefix) for prefix in self.allowed_prefixes],
            "budgets": dataclasses.asdict(self.budgets),
        }

    def for_analysis(self, without_http3: Sequence[Target] = ()) -> Description:
        """The campaign's description for analysis: `campaign.json`.

        Args:
            without_http3: targets at which nothing was planned over QUIC.
        """
        configurations = tuple(map(recorded, self.every))
        doses = {name: factor.dose for name, factor in factors.ALL.items() if factor.dose is not None}
        return Description(
            campaign=self.name,
            configurations=configurations,
            comparisons=self.comparisons,
            doses=doses,
            without_http3=tuple(sorted({target.domain for target in without_http3})),
        )


_NOT_THE_PLAN = frozenset(
    (
        *("path", "comparisons", "stop_when"),  # where it was read, and what is compared
        *("ca_file", "block_lists", "opt_out", "disk", "uplink", "vantage_clock"),  # what each host has of its own
        "warmups",  # they follow from the plan
    )
)


def _default(entry: dataclasses.Field[Any]) -> object:
    """The default of a field; for one that has none, a value that no campaign has."""
    return entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()


MOST_ITERATIONS = 100_000
MOST_BODY_BYTES = 10**15
"""The account holds the worst case of a measurement run in 64 bits."""
MOST_SLOT_S = 86_400

_SEVERAL_SHAPES = frozenset(
    {"configurations", "permute", "comparisons", "budget", "until_ci", "budgets", "disk", "slot_s"}
)
"""Fields that may have several types; parsed separately."""


@dataclass(frozen=True, kw_only=True)
class _File(Strict):
    """The fields of a campaign file, save those of `_SEVERAL_SHAPES`."""

    name: str
    targets: str
    lab: str | None = None
    ca_file: str | None = None
    block_lists: list[str] = field(default_factory=list)
    opt_out: str | None = None
    uplink: str | None = None
    vantage_clock: VantageClock = VantageClock.CHECKED
    vantage_points: list[str] = field(default_factory=list)
    allowed_prefixes: list[str] = field(default_factory=lambda: [str(prefix) for prefix in ANYWHERE])
    nameservers: list[str] = field(default_factory=list)
    iterations: int = 1
    seed: int = 1
    order: Order = Order.BALANCED
    published_quirks: list[str] = field(default_factory=list)
    isolation: Isolation = Isolation.NETNS
    slowest_mbit: float = 2.0
    max_bytes: int = 20_000_000
    contact: str | None = None
    max_attempts: int = 3
    address_family: Family = Family.IPV4


OF_THE_HOST = ("targets", "ca_file", "block_lists", "opt_out", "disk", "uplink", "vantage_clock")
"""Fields that a host may have of its own. All but the name of the targets' file are left out of the plan's hash."""


def load(path: Path, host_file: Path | None = None) -> Campaign:
    """The campaign of a TOML file. Raises UsageError: one sentence with file, field and remedy.

    Args:
        host_file: a TOML file with fields of `OF_THE_HOST`, which replace the campaign's; of `disk`, entry by entry.
            Paths in it start at the campaign file's folder, too.
    """
    document = read_toml(path)
    if host_file is not None:
        own = read_toml(host_file)
        for name in own:
            if name not in OF_THE_HOST:
                remedy = f"write it in {path}; a host's own are {', '.join(OF_THE_HOST)}"
                raise fault("it is the same for all hosts", str(host_file), name, remedy)
        disk = document.get("disk", {}), own.get("disk", {})
        if all(isinstance(value, dict) for value in disk) and "disk" in own:
            own["disk"] = {**disk[0], **disk[1]}
        document |= own
    return from_document(document, path)


def from_document(document: Mapping[str, Any], path: Path) -> Campaign:
    """The campaign of a TOML document; `path` is used in errors, and relative paths start there."""
    where = str(path)
    rest = {key: value for key, value in document.items() if key not in _SEVERAL_SHAPES}
    entry = build(rest, _File, where=where, beside=_SEVERAL_SHAPES)
    _check(entry, where)
    configurations = read_configurations(document, where)
    comparisons = read_comparisons(document, configurations, where)
    read: dict[str, Any] = {
        "path": path,
        "allowed_prefixes": _prefixes(entry.allowed_prefixes, where),
        "budget_s": _budget(document.get("budget", "auto"), where),
        "configurations": configurations,
        "comparisons": comparisons,
        "published_quirks": tuple(sorted(set(entry.published_quirks))),
        "stop_when": read_rule(document.get("until_ci", {}), comparisons, f"{where}: field until_ci"),
        "budgets": read_budgets(document.get("budgets", {}), f"{where}: field budgets"),
        "disk": read_disk(document.get("disk", {}), f"{where}: field disk"),
        "slot_s": _slot(document.get("slot_s"), where),
        "user_agent": f"upshift/0.1 (Internet measurement; {entry.contact or 'no contact given'})",
    }
    as_written = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(entry).items()
        if name != "contact"
    }
    return Campaign(**{**as_written, **read})


def _check(entry: _File, where: str) -> None:
    if not NAME.fullmatch(entry.name):
        raise fault(f"{entry.name!r} is not a valid name", where, "name", NAME_REMEDY)
    for name in ("iterations", "max_bytes", "max_attempts", "slowest_mbit"):
        if not 0 < getattr(entry, name) < float("inf"):
            raise fault("it must be greater than 0", where, name, "leave it out for the default")
    for name, most in (("iterations", MOST_ITERATIONS), ("max_bytes", MOST_BODY_BYTES)):
        if (value := getattr(entry, name)) > most:
            raise fault(f"{value} is above {most}, the limit", where, name, "lower it")
    for server in entry.nameservers:
        if not is_address(server):
            raise fault(f"{server!r} is not an IP address", where, "nameservers", "name servers by address")
    if entry.contact is None and entry.lab is None:
        raise fault("required when real servers are measured", where, "contact", "write an e-mail address")
    if entry.contact is not None and (why := contact_fault(entry.contact, closed=entry.lab is not None)) is not None:
        raise fault(why, where, "contact", "write your own e-mail address, or a URL")
    if entry.targets == "lab" and entry.lab is None:
        raise fault("this campaign has no lab", where, "targets", 'name a file of targets, or set lab = "anrw"')


def _prefixes(entries: Sequence[str], where: str) -> tuple[IPNetwork, ...]:
    prefixes = parse_prefixes(",".join(entries), where=f"{where}: field allowed_prefixes")
    if not prefixes:
        raise fault("it allows nothing", where, "allowed_prefixes", "name what may be contacted, or leave it out")
    return prefixes


def _budget(value: object, where: str) -> float | None:
    if value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.1 <= value <= 3600:
        raise fault("it is neither auto nor a number of seconds", where, "budget", 'write "auto", or 0.1 to 3600')
    return float(value)


def _slot(value: object, where: str) -> float | str | None:
    if value is None or value == "auto":
        return None if value is None else "auto"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SLOT_S:
        remedy = f'write "auto", up to {MOST_SLOT_S}, or 0 for no slots'
        raise fault("it is neither auto nor a number of seconds", where, "slot_s", remedy)
    return float(value)
