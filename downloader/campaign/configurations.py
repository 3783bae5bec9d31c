"""The configurations and comparisons of a campaign file: fields, defaults, and the kernel settings that they mean.

Every configuration sets everything that any factor changes, so no setting of one configuration can affect the next. The
place applies the settings. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from core import paper
from core.domain import Comparison, Configuration, Role, RouteAttribute, Setting, Sysctl, Transport
from core.errors import UsageError, use_one_of
from core.files.campaign_json import DescribedConfiguration, check, fault
from core.files.config import Strict, build
from downloader import clients, factors, presets, quirks
from downloader.client import Client
from downloader.presets import Preset
from downloader.quirks import Settings, TrafficQuirk


def recorded(configuration: Configuration) -> DescribedConfiguration:
    """A configuration as it is recorded: with its transport, the level of every factor and all options of its client.

    A `Configuration` has only what the campaign file says; factors and options that it does not name have defaults.
    """
    client = clients.ALL[configuration.client]
    return DescribedConfiguration(
        name=configuration.name,
        client=client.name,
        transport=client.transport,
        levels={name: configuration.levels.get(name, factor.default) for name, factor in factors.ALL.items()},
        options={**{option.name: option.default for option in client.options}, **configuration.options},
        http=client.http,
        family=client.family,
    )


def written(configuration: Configuration) -> dict[str, object]:
    """What of a configuration differs from the defaults: a new factor or option changes it for no configuration."""
    defaults = {option.name: option.default for option in clients.ALL[configuration.client].options}
    return {
        "name": configuration.name,
        "client": configuration.client,
        "levels": {name: level for name, level in configuration.levels.items() if level != factors.ALL[name].default},
        "options": {name: value for name, value in configuration.options.items() if value != defaults.get(name)},
    }


def settings_for(configuration: Configuration, *, where: str | None = None) -> tuple[Setting, ...]:
    """The complete kernel settings of a configuration, sorted by name.

    Two factors may set the same value: `rmem` and `window_scaling` both set the maximum of tcp_rmem. A level that the
    configuration sets overrides a default; two explicit levels with different values are refused.

    Raises:
        UsageError: two explicit levels contradict each other.
    """
    chosen: dict[tuple[str, str, int], tuple[Setting, str, bool]] = {}
    for name, level in recorded(configuration).levels.items():
        explicit = name in configuration.levels
        for setting in factors.ALL[name].settings(level):
            key = _key(setting)
            other = chosen.get(key)
            if other is None or (explicit and not other[2]):
                chosen[key] = (setting, name, explicit)
            elif explicit == other[2] and setting != other[0]:
                raise UsageError(
                    f"{other[1]} and {name} want different values of {_shown(setting)} "
                    f"({other[0].value} and {setting.value})",
                    where=where,
                    remedy="name only one of the two, or levels that agree",
                )
    return tuple(chosen[key][0] for key in sorted(chosen))


def _key(setting: Setting) -> tuple[str, str, int]:
    if isinstance(setting, RouteAttribute):
        return ("route", setting.name, -1)
    return ("sysctl", setting.name, -1 if setting.field is None else setting.field)


def _shown(setting: Setting) -> str:
    if isinstance(setting, Sysctl):
        return setting.name if setting.field is None else f"{setting.name}[{setting.field}]"
    return f"the route's {setting.name}"


def chosen_quirks(names: Sequence[str]) -> list[TrafficQuirk]:
    """The quirks of these names, always in the same order."""
    return [quirk for name, quirk in quirks.ALL.items() if name in names]


def settings_with(names: Sequence[str], configuration: Configuration) -> Settings:
    """The kernel settings of a configuration, as the quirks of these names change them."""
    levels, settings = recorded(configuration).levels, settings_for(configuration)
    for quirk in chosen_quirks(names):
        settings = quirk.settings(levels, settings)
    return settings


def written_settings(names: Sequence[str]) -> set[str]:
    """The names of all kernel settings that factors and the quirks of these names may write."""
    made = [
        Configuration(name="", client=paper.WARMUP.client, levels={f.name: level})
        for f in factors.ALL.values()
        for level in f.levels
    ]
    settings = itertools.chain.from_iterable(settings_with(names, each) for each in made)
    return {setting.name for setting in settings if isinstance(setting, Sysctl)}


def client_with(names: Sequence[str], name: str) -> Client:
    """The client of that name, or what the quirks run in its place."""
    client = clients.ALL[name]
    for quirk in chosen_quirks(names):
        client = quirk.client(client)
    return client


def pauses_s(names: Sequence[str], transport: Transport) -> tuple[float, float]:
    """Pauses of the quirks before and after each download [s]."""
    pauses = [quirk.pauses_s.get(transport, (0.0, 0.0)) for quirk in chosen_quirks(names)]
    return sum(before for before, _ in pauses), sum(after for _, after in pauses)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
"""Names become folders and columns: no characters that are special in a path or a shell."""

NAME_REMEDY = "use up to 40 letters, digits, dots and dashes"


@dataclass(frozen=True, kw_only=True)
class _ConfigurationEntry(Strict):
    """One `[[configurations]]` of a campaign file."""

    name: str
    client: str
    levels: dict[str, bool | int | str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def _preset(document: Mapping[str, Any], where: str) -> Preset | None:
    """The preset that a campaign file names, or the paper's if it has no other configurations.

    Raises UsageError for an unknown one.
    """
    named = document.get("configurations")
    if isinstance(named, str):
        if named not in presets.ALL:
            remedy = use_one_of(named, presets.ALL)
            raise UsageError(f"unknown preset {named!r}", where=f"{where}: field configurations", remedy=remedy)
        return presets.ALL[named]
    return presets.ALL["paper"] if named is None and document.get("permute") is None else None


def read_configurations(document: Mapping[str, Any], where: str) -> tuple[Configuration, ...]:
    """The configurations of a campaign file, without warm-ups.

    Raises:
        UsageError: a wrong field, a duplicate name, or no configuration.
    """
    named, permuted = document.get("configurations"), document.get("permute")
    remedy = f"write one of {', '.join(map(repr, presets.ALL))}, or [[configurations]] tables"
    if named is not None and not isinstance(named, str | list):
        raise fault(f"{named!r} is unknown", where, "configurations", remedy)
    preset = _preset(document, where)
    configurations = [] if preset is None else list(preset.configurations)
    if isinstance(named, list):
        for entry in named:
            if not isinstance(entry, dict):
                raise fault(f"{entry!r} is not a [[configurations]] table", where, "configurations", remedy)
        configurations += [_configuration(entry, f"{where}: configurations[{i}]") for i, entry in enumerate(named)]
    if permuted is not None:
        taken = {configuration.name for configuration in configurations}
        brought = permutations(permuted, where=where)
        configurations = [c for c in brought if c.name != paper.BASELINE_AGAIN or c.name not in taken] + configurations
    if not configurations:
        raise fault("it names no configuration", where, "configurations", remedy)
    names = [configuration.name for configuration in configurations]
    for name in names:
        if names.count(name) > 1:
            raise fault(f"there are two named {name}", where, "configurations", "give each its own name")
    return prepared(configurations)[0]


def prepared(configurations: Sequence[Configuration]) -> tuple[tuple[Configuration, ...], tuple[str, ...]]:
    """The configurations as the factors prepare them, and for the user what was changed (see `Factor.prepare`)."""
    notes = []
    for factor in factors.ALL.values():
        over_tcp = [c for c in configurations if transport_of(c) is Transport.TCP]
        if factor.prepare is not None and (preparation := factor.prepare(over_tcp)) is not None:
            made = iter(preparation.configurations)
            configurations = [next(made) if transport_of(c) is Transport.TCP else c for c in configurations]
            notes.append(preparation.note)
    return tuple(configurations), tuple(notes)


def transport_of(configuration: Configuration) -> Transport:
    return clients.ALL[configuration.client].transport


def warmups(configurations: Sequence[Configuration]) -> tuple[Configuration, ...]:
    """What comes before the configurations in each measurement run: a download over TCP, and one over QUIC if any of
    them uses QUIC, by the first client that does."""
    quic = (c.client for c in configurations if transport_of(c) is Transport.QUIC)
    client = next(quic, None)
    first = [paper.WARMUP] if client is None else [paper.WARMUP, Configuration(name=paper.WARMUP_QUIC, client=client)]
    return prepared([*first, *configurations])[0][: len(first)]


def _configuration(data: object, where: str) -> Configuration:
    entry = build(data, _ConfigurationEntry, where=where)
    if not NAME.fullmatch(entry.name) or entry.name in paper.WARMUPS:
        raise fault(f"{entry.name!r} is not a valid name", where, "name", NAME_REMEDY)
    client = clients.ALL.pick(entry.client, where=where)
    levels = {name: _level(value) for name, value in entry.levels.items()}
    if levels and client.transport is not Transport.TCP:
        raise fault(
            f"{client.name} does not use TCP, so {', '.join(levels)} would change nothing",
            where,
            "levels",
            "leave them out",
        )
    configuration = Configuration(
        name=entry.name,
        client=client.name,
        levels=canonical_levels(levels, where=where),
        options=client.parse_options(entry.options, where=where),
    )
    settings_for(configuration, where=where)  # finds contradictions now, not in the middle of a campaign
    return configuration


def _level(value: bool | int | str) -> str:
    """A level as text: TOML's `true` and `false` are `on` and `off`."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def canonical_levels(levels: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Factor -> canonical level, of the factors that are named. Raises UsageError for an unknown factor or level."""
    return {name: factors.ALL.pick(name, where=where).parse(level, where=where) for name, level in levels.items()}


def permutations(names: object, *, where: str) -> list[Configuration]:
    """The full factorial of some factors: every combination of their levels, with the client of the paper's baseline.

    A combination of the paper keeps the paper's name (BL, ECN, SACK, WS, ALL); others are named by their non-default
    levels, e.g. `ECN+SACK` or `TS-off`. BL comes with BL2, an identical configuration, for the noise floor.
    """
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise fault("not a list of factors", where, "permute", 'write permute = ["ecn", "sack"]')
    if len(set(names)) != len(names):
        raise fault("a factor is named twice", where, "permute", "name each once")
    chosen = [factors.ALL.pick(name, where=f"{where}: field permute") for name in names]
    combinations = []
    for combination in itertools.product(*(factor.levels for factor in chosen)):
        levels = {factor.name: level for factor, level in zip(chosen, combination, strict=True)}
        configuration = Configuration(name="", client=paper.WARMUP.client, levels=levels)
        settings_for(configuration, where=where)
        name = _combination_name(configuration)
        names = (name, paper.BASELINE_AGAIN) if name == paper.BASELINE else (name,)
        combinations += [replace(configuration, name=each) for each in names]
    return combinations


def _combination_name(combination: Configuration) -> str:
    for known in paper.CONFIGURATIONS:
        if recorded(known).same_as(recorded(combination)):
            return known.name
    parts = []
    for name, level in combination.levels.items():
        factor = factors.ALL[name]
        if level != factor.default:
            plain = factor.levels == (factor.default, level)
            parts.append(factor.label if plain else f"{factor.label}-{level.replace('/', '-')}")
    return "+".join(parts) or paper.BASELINE


@dataclass(frozen=True, kw_only=True)
class _ComparisonEntry(Strict):
    """One `[[comparisons]]` of a campaign file."""

    config: str
    vs: str
    name: str | None = None
    role: Role = Role.EFFECT


def read_comparisons(
    document: Mapping[str, Any], configurations: Sequence[Configuration], where: str
) -> tuple[Comparison, ...]:
    """The comparisons of a campaign file.

    A preset brings its own, and `[[comparisons]]` are added. With other configurations only `[[comparisons]]` are used;
    without them, `default_comparisons`.

    Raises:
        UsageError: a wrong field, an unknown configuration, or an invalid comparison (`campaign_json.check`).
    """
    entries = document.get("comparisons")
    preset = _preset(document, where)
    brought = () if preset is None else preset.comparisons
    if entries is None:
        return brought or default_comparisons(configurations)
    if not isinstance(entries, list):
        raise fault("these are not tables", where, "comparisons", 'write [[comparisons]] with config = "..", vs = ".."')
    known = [recorded(configuration) for configuration in (*warmups(configurations), *configurations)]
    comparisons = list(brought)
    for index, data in enumerate(entries):
        place = f"{where}: comparisons[{index}]"
        entry = build(data, _ComparisonEntry, where=place)
        named = Comparison.of(entry.config, entry.vs).name if entry.name is None else entry.name
        comparison = Comparison(name=named, config=entry.config, vs=entry.vs, role=entry.role)
        check(comparison, known=known, earlier=comparisons, where=place)
        comparisons.append(comparison)
    return tuple(comparisons)


def default_comparisons(configurations: Sequence[Configuration]) -> tuple[Comparison, ...]:
    """The comparisons of a campaign file without `[[comparisons]]`; for the paper's configurations, the paper's.

    The baseline is BL, else the first configuration. A configuration that repeats another one gives a noise floor.
    Every other one is compared with the baseline; ALL with WS, too, and QUIC with ALL and with the first QUIC
    configuration and with TCP of its family. The warm-up is compared with an equal configuration, if there is one.
    """
    known = {configuration.name: recorded(configuration) for configuration in configurations}
    baseline = known.get(paper.BASELINE) or next(iter(known.values()))
    originals: list[DescribedConfiguration] = [baseline]
    noise: list[Comparison] = []
    for one in known.values():
        like = next((other for other in originals if one.same_as(other)), None)
        if like is None:
            originals.append(one)
        elif like is not one:
            noise.append(Comparison.of(one.name, like.name, Role.NOISE_FLOOR))
    quic = [one.name for one in known.values() if one.transport is Transport.QUIC]
    effects: list[Comparison] = []
    for one in (one for one in known.values() if one in originals and one is not baseline):
        references = [baseline.name]
        if one.name == paper.FULL:
            references.append(paper.SCALED)
        elif one.transport is Transport.QUIC:
            references += [paper.FULL, quic[0], *_over_tcp(one, originals)]
        effects += [Comparison.of(one.name, vs) for vs in dict.fromkeys(references) if vs in known and vs != one.name]
    warmup = recorded(warmups(configurations)[0])
    like_it = next((one for one in originals if one.same_as(warmup)), None)
    cache = [Comparison.of(warmup.name, like_it.name, Role.CACHE)] if like_it else []
    return (*noise, *effects, *cache)


def _over_tcp(quic: DescribedConfiguration, known: Sequence[DescribedConfiguration]) -> list[str]:
    """The configuration over TCP by the same program, if there is one: that of its highest HTTP version."""
    same = [one for one in known if one.family == quic.family and one.transport is Transport.TCP]
    return [max(same, key=lambda one: one.http or "").name] if same else []
