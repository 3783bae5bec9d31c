"""Campaign files: TOML in, a frozen `Campaign` out, every fault one sentence with file, field and remedy."""

from __future__ import annotations

import dataclasses
import hashlib
import ipaddress
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from downloader import clients, factors
from downloader.apply import complete_levels, settings_for
from upshift.config import STRICT, build, read_toml
from upshift.domain import Configuration, Target, Transport
from upshift.errors import UsageError
from upshift.reach import ANYWHERE, IPNetwork, parse_prefixes

WARMUP = "warmup"
"""Name of the first download of every measurement run; it fills caches and is in no speed-up."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
"""Names become folders and columns: nothing that a path or a shell could misread."""

_NAME_REMEDY = "use up to 40 letters, digits, dots and dashes"

_OFF = {"ecn": "off", "sack": "off", "window_scaling": "off"}
_ON = {"ecn": "on", "sack": "on", "window_scaling": "14"}

PAPER: tuple[Configuration, ...] = (
    Configuration(name="BL", client="requests", levels=_OFF),
    Configuration(name="BL2", client="requests", levels=_OFF),
    Configuration(name="ECN", client="requests", levels={**_OFF, "ecn": "on"}),
    Configuration(name="SACK", client="requests", levels={**_OFF, "sack": "on"}),
    Configuration(name="WS", client="requests", levels={**_OFF, "window_scaling": "14"}),
    Configuration(name="ALL", client="requests", levels=_ON),
    Configuration(name="aioquic", client="aioquic"),
    Configuration(name="quiche", client="quiche"),
)
"""The configurations of the ANRW'23 paper, and BL2, the noise floor (design, section 1)."""

WARMUP_CONFIGURATION = Configuration(name=WARMUP, client="requests", levels=_OFF)


class Order(StrEnum):
    """In which order the configurations of a measurement run follow each other."""

    BALANCED = "balanced"
    """Seeded, each configuration equally often in each position, TCP and QUIC alternating."""
    PUBLISHED = "published"
    """The paper's: always the same, fresh DNS before each download."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to measure. Everything in it is part of the plan: a folder is resumed only with the same one."""

    name: str
    path: Path
    """The file that it came from."""
    lab: str | None
    """Name or path of the lab's topology; None for real vantage points."""
    targets: str
    """`lab`, or the path of a CSV or Parquet file."""
    vantage_points: tuple[str, ...]
    """Empty for all that there are."""
    allowed_prefixes: tuple[IPNetwork, ...]
    """What real vantage points may contact; a lab limits itself."""
    nameservers: tuple[str, ...]
    """Empty for the place's own."""
    iterations: int
    seed: int
    order: str
    """One of `Order`."""
    isolation: str
    """One of `Isolation`; a lab is isolated anyway."""
    budget_s: float | None
    """Time per download; None for a budget from the target's size (see `budget_for`)."""
    slowest_mbit: float
    """Goodput that the automatic budget expects of BL at the least [Mbit/s]."""
    max_bytes: int
    """Body bytes per download."""
    user_agent: str
    max_attempts: int
    """Measurement runs per target and iteration until a disturbed one is recorded as void."""
    address_family: Family
    configurations: tuple[Configuration, ...]
    """Without the warm-up."""

    def __post_init__(self) -> None:
        # Checked here too, as the command line replaces them in a campaign that was loaded.
        for name, words in (("order", Order), ("isolation", Isolation)):
            if getattr(self, name) not in tuple(words):
                raise UsageError(
                    f"{getattr(self, name)!r} is no {name}", where=str(self.path), remedy=f"write {' or '.join(words)}"
                )
        for name in self.vantage_points:
            if not _NAME.fullmatch(name):
                raise _fault(f"{name!r} is no name", str(self.path), "vantage_points", _NAME_REMEDY)

    def budget_for(self, target: Target) -> float:
        """Time budget [s] of every download of this target, the same for all configurations (design, rule 5).

        Twice what BL should need: three seconds of look-ups, handshakes and one lost SYN, then the file at
        `slowest_mbit`. A target whose size is not known counts as `max_bytes`.
        """
        if self.budget_s is not None:
            return self.budget_s
        known = target.size_bytes is not None and not target.size_is_lower_bound
        size = min(target.size_bytes or self.max_bytes, self.max_bytes) if known else self.max_bytes
        return round(2 * (3.0 + size * 8 / (self.slowest_mbit * 1e6)), 1)

    def configuration(self, name: str) -> Configuration:
        """The configuration of that name, the warm-up included."""
        return next(c for c in (WARMUP_CONFIGURATION, *self.configurations) if c.name == name)

    def description(self) -> dict[str, Any]:
        """The campaign as plain data, with the complete levels of each configuration."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        del plain["path"]  # where the file lies does not matter
        plain["allowed_prefixes"] = [str(prefix) for prefix in self.allowed_prefixes]
        for entry in plain["configurations"]:
            entry["levels"] = complete_levels(entry["levels"])
        return plain


def plan_hash(campaign: Campaign, targets: Sequence[Target], vantage_points: Sequence[str]) -> str:
    """SHA-256 over everything that decides what is downloaded, how, and in which order."""
    plan = {
        "campaign": campaign.description(),
        "targets": [[t.domain, t.url, t.provider, t.size_bytes, t.size_is_lower_bound] for t in targets],
        "vantage_points": sorted(vantage_points),
    }
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class _File:
    """The fields of a campaign file, save `configurations`, `permute` and `budget`, which have several shapes."""

    name: str
    targets: str
    lab: str | None = None
    vantage_points: list[str] = field(default_factory=list)
    allowed_prefixes: list[str] = field(default_factory=list)
    nameservers: list[str] = field(default_factory=list)
    iterations: int = 1
    seed: int = 1
    order: Order = Order.BALANCED
    isolation: Isolation = Isolation.NETNS
    slowest_mbit: float = 2.0
    max_bytes: int = 20_000_000
    contact: str | None = None
    max_attempts: int = 3
    address_family: Family = Family.IPV4

    __pydantic_config__ = STRICT


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One `[[configurations]]` of a campaign file."""

    name: str
    client: str
    levels: dict[str, bool | int | str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    __pydantic_config__ = STRICT


def load(path: Path) -> Campaign:
    """The campaign of a TOML file. Raises UsageError: one sentence with file, field and remedy."""
    return from_document(read_toml(path), path)


def from_document(document: Mapping[str, Any], path: Path) -> Campaign:
    """The campaign of a TOML document; `path` is named in faults and is where relative paths start."""
    where = str(path)
    rest = {key: value for key, value in document.items() if key not in {"configurations", "permute", "budget"}}
    entry = build(rest, _File, where=where)
    _check(entry, where)
    return Campaign(
        name=entry.name,
        path=path,
        lab=entry.lab,
        targets=entry.targets,
        vantage_points=tuple(entry.vantage_points),
        allowed_prefixes=parse_prefixes(",".join(entry.allowed_prefixes), where=f"{where}: field allowed_prefixes")
        or ANYWHERE,
        nameservers=tuple(entry.nameservers),
        iterations=entry.iterations,
        seed=entry.seed,
        order=entry.order,
        isolation=entry.isolation,
        budget_s=_budget(document.get("budget", "auto"), where),
        slowest_mbit=entry.slowest_mbit,
        max_bytes=entry.max_bytes,
        user_agent=f"upshift/0.1 (Internet measurement; {entry.contact or 'no contact given'})",
        max_attempts=entry.max_attempts,
        address_family=entry.address_family,
        configurations=_configurations(document, where),
    )


def _fault(what: str, where: str, name: str, remedy: str) -> UsageError:
    return UsageError(f"field {name}: {what}", where=where, remedy=remedy)


def _check(entry: _File, where: str) -> None:
    if not _NAME.fullmatch(entry.name):
        raise _fault(f"{entry.name!r} is no name", where, "name", _NAME_REMEDY)
    if len(set(entry.vantage_points)) != len(entry.vantage_points):
        raise _fault("a vantage point is named twice", where, "vantage_points", "name each once")
    for name in ("iterations", "max_bytes", "max_attempts", "slowest_mbit"):
        if not 0 < getattr(entry, name) < float("inf"):
            raise _fault("it must be greater than 0", where, name, "leave it out for the default")
    for server in entry.nameservers:
        try:
            ipaddress.ip_address(server)
        except ValueError:
            raise _fault(f"{server!r} is no IP address", where, "nameservers", "name servers by address") from None
    if entry.contact is not None and not entry.contact.isprintable():
        raise _fault("it has control characters", where, "contact", "write an e-mail address or a URL")
    if entry.contact is None and entry.lab is None:
        raise _fault(
            "real servers are measured only by somebody who can be reached", where, "contact", "write an e-mail address"
        )
    if entry.targets == "lab" and entry.lab is None:
        raise _fault(
            "there is no lab in this campaign", where, "targets", 'name a file of targets, or set lab = "anrw"'
        )


def _budget(value: object, where: str) -> float | None:
    if value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.1 <= value <= 3600:
        raise _fault("it is neither auto nor a number of seconds", where, "budget", 'write "auto", or 0.1 to 3600')
    return float(value)


def _configurations(document: Mapping[str, Any], where: str) -> tuple[Configuration, ...]:
    named, permuted = document.get("configurations"), document.get("permute")
    found: list[Configuration] = []
    if permuted is not None:
        found += permutations(permuted, where=where)
    if isinstance(named, list):
        found += [_configuration(entry, f"{where}: configurations[{i}]") for i, entry in enumerate(named)]
    elif named is not None or permuted is None:
        if named not in ("paper", None):
            raise _fault(
                f"{named!r} is unknown", where, "configurations", 'write "paper", or [[configurations]] tables'
            )
        found += PAPER
    if not found:
        raise _fault(
            "it names no configuration", where, "configurations", 'write "paper", or [[configurations]] tables'
        )
    names = [configuration.name for configuration in found]
    for name in names:
        if names.count(name) > 1:
            raise _fault(f"there are two named {name}", where, "configurations", "give each its own name")
    return tuple(found)


def _configuration(data: object, where: str) -> Configuration:
    entry = build(data, _Entry, where=where)
    if not _NAME.fullmatch(entry.name) or entry.name == WARMUP:
        raise _fault(f"{entry.name!r} is no name", where, "name", _NAME_REMEDY)
    client = clients.ALL.pick(entry.client, where=where)
    levels = {name: _level(value) for name, value in entry.levels.items()}
    if levels and client.transport is not Transport.TCP:
        raise _fault(
            f"{client.name} does not use TCP, so {', '.join(levels)} would change nothing",
            where,
            "levels",
            "leave them out",
        )
    canonical = complete_levels(levels, where=where)
    settings_for(levels, where=where)  # contradictions are told now, not in the middle of a campaign
    return Configuration(
        name=entry.name,
        client=client.name,
        levels={name: canonical[name] for name in levels},
        options=client.parse_options(entry.options, where=where),
    )


def _level(value: bool | int | str) -> str:
    """A level as text: TOML's `true` and `false` are `on` and `off`."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def permutations(names: object, *, where: str) -> list[Configuration]:
    """The full factorial of some factors: every combination of their levels, by the client `requests`.

    A combination that the paper has keeps the paper's name (BL, ECN, SACK, WS, ALL); others are named by the labels of
    what is not at its default, as in `ECN+SACK` or `TS-off`.
    """
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _fault("it is no list of factors", where, "permute", 'write permute = ["ecn", "sack"]')
    if len(set(names)) != len(names):
        raise _fault("a factor is named twice", where, "permute", "name each once")
    chosen = [factors.ALL.pick(name, where=f"{where}: field permute") for name in names]
    found = []
    for combination in itertools.product(*(factor.levels for factor in chosen)):
        levels = {factor.name: level for factor, level in zip(chosen, combination, strict=True)}
        settings_for(levels, where=where)
        found.append(Configuration(name=_combination_name(levels), client="requests", levels=levels))
    return found


def _combination_name(levels: Mapping[str, str]) -> str:
    complete = complete_levels(levels)
    for known in PAPER:
        if known.client == "requests" and complete_levels(known.levels) == complete:
            return known.name
    parts = []
    for name, level in levels.items():
        factor = factors.ALL[name]
        if level != factor.default:
            plain = factor.levels == (factor.default, level)
            parts.append(factor.label if plain else f"{factor.label}-{level.replace('/', '-')}")
    return "+".join(parts) or "BL"
