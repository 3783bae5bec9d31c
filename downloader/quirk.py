"""The type `Quirk`: one way in which the published ANRW'23 code measures differently, for `published_quirks`.

The published code is github.com/tumi8/active-tcp-and-quic-measurements at commit 9faf8f4. Quirks that need no other
traffic are in analysis: `upshift tables --quirk`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.domain import Setting, Transport
from downloader.client import Client

Settings = tuple[Setting, ...]


def _same_settings(_: Mapping[str, str], settings: Settings) -> Settings:
    return settings


def _same_client(client: Client) -> Client:
    return client


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """One quirk. Each file in `downloader/quirks` has one, and the registry finds it there."""

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
    back packets to what is not allowed, so not with `isolation = "host"`."""
