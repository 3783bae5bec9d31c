"""Ways in which the published ANRW'23 code measures differently, for `published_quirks`: what needs other traffic.

One file per quirk; to add one, add a file. `pauses.py` shows how. The published code is
github.com/tumi8/active-tcp-and-quic-measurements at commit 9faf8f4. Quirks that need no other traffic are in analysis:
`upshift tables --quirk`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.domain import Setting, Transport
from core.registry import Registry
from downloader.client import Client

Settings = tuple[Setting, ...]


def _same_settings(_: Mapping[str, str], settings: Settings) -> Settings:
    return settings


def _same_client(client: Client) -> Client:
    return client


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficQuirk:
    """One quirk. Each file of this folder has one, and the registry finds it there."""

    name: str
    """Its name in campaign files."""
    help: str
    """What the published code does, as one sentence."""
    source: str
    """File and function of the published code."""
    settings: Callable[[Mapping[str, str], Settings], Settings] = _same_settings
    """(complete levels, kernel settings of a configuration) -> its settings."""
    client: Callable[[Client], Client] = _same_client
    """The client that is run instead."""
    pauses_s: Mapping[Transport, tuple[float, float]] = field(default_factory=dict)
    """Transport -> pause before each download and after it [s]."""
    on_host: bool = False
    """It changes settings that only the host itself has: `isolation = "host"`, no lab."""
    contacts_others: bool = False
    """Its client may contact other addresses than that of the target (redirects): only where rules of the place hold
    back packets to what is not allowed, so not with `isolation = "host"`, and only if that is not everything."""


_UNSCALED = 65_535
"""Largest window without scaling [bytes] (RFC 7323)."""


def buffer_bytes(levels: Mapping[str, str]) -> int | None:
    """The buffer that the published code sets together with window scaling [bytes].

    65,535 shifted by the window scale, e.g. 1,073,725,440 for 14; None without scaling, where nothing is set.
    """
    level = levels["window_scaling"]
    return _UNSCALED << int(level) if level.isdecimal() and level != "0" else None


ALL = Registry(__name__, TrafficQuirk)
