"""Levels of a configuration -> the complete list of kernel settings. Pure: the place applies them.

Every configuration sets everything that any factor changes, so no setting of one configuration can affect the next.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.domain import Setting, Sysctl
from core.errors import UsageError
from downloader import factors

_Key = tuple[str, str, int]


def complete_levels(levels: Mapping[str, str], *, where: str | None = None) -> dict[str, str]:
    """Factor -> canonical level for *all* factors, defaults included, in order of name.

    Raises:
        UsageError: an unknown factor or level.
    """
    for name in levels:
        factors.ALL.pick(name, where=where or "levels")
    return {
        name: factor.parse(levels[name], where=where) if name in levels else factor.default
        for name, factor in factors.ALL.items()
    }


def settings_for(levels: Mapping[str, str], *, where: str | None = None) -> tuple[Setting, ...]:
    """The complete settings of a configuration whose explicit levels are `levels`, sorted by name.

    Two factors may set the same value: `rmem` and `window_scaling` both set the maximum of tcp_rmem. A level that the
    configuration sets overrides a default; two explicit levels with different values are refused.

    Raises:
        UsageError: an unknown factor or level, or two explicit levels that contradict each other.
    """
    chosen: dict[_Key, tuple[Setting, str, bool]] = {}
    for name, level in complete_levels(levels, where=where).items():
        explicit = name in levels
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


def _key(setting: Setting) -> _Key:
    if isinstance(setting, Sysctl):
        return ("sysctl", setting.name, -1 if setting.field is None else setting.field)
    return ("route", setting.name, -1)


def _shown(setting: Setting) -> str:
    if isinstance(setting, Sysctl):
        return setting.name if setting.field is None else f"{setting.name}[{setting.field}]"
    return f"the route's {setting.name}"
