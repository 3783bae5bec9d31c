"""A configuration as written -> as recorded -> kernel settings, client and pauses, quirks included. Pure.

Every configuration sets everything that any factor changes, so no setting of one configuration can affect the next. The
place applies the settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.domain import Configuration, RouteAttribute, Setting, Sysctl, Transport
from core.errors import UsageError
from core.files.description import DescribedConfiguration
from downloader import clients, factors, quirks
from downloader.client import Client
from downloader.quirk import Quirk, Settings


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


def chosen_quirks(names: Sequence[str]) -> list[Quirk]:
    """The quirks of these names, always in the same order."""
    return [quirk for name, quirk in quirks.ALL.items() if name in names]


def settings_with(names: Sequence[str], configuration: Configuration) -> Settings:
    """The kernel settings of a configuration, as the quirks of these names change them."""
    levels, settings = recorded(configuration).levels, settings_for(configuration)
    for quirk in chosen_quirks(names):
        settings = quirk.settings(levels, settings)
    return settings


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
