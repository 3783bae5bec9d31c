"""What the quirks of `published_quirks` change. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from core.domain import Configuration, Transport
from downloader import clients, quirks
from downloader.campaign.apply import complete_levels, settings_for
from downloader.client import Client
from downloader.quirk import Quirk, Settings


def chosen(names: Sequence[str]) -> list[Quirk]:
    """The quirks of these names, always in the same order."""
    return [quirk for name, quirk in quirks.ALL.items() if name in names]


def settings_with(names: Sequence[str], configuration: Configuration) -> Settings:
    """The kernel settings of a configuration."""
    levels = complete_levels(configuration.levels)
    settings = settings_for(configuration.levels)
    for quirk in chosen(names):
        settings = quirk.settings(levels, settings)
    return settings


def client_with(names: Sequence[str], client: str) -> Client:
    """The client of that name, or what is run in its place."""
    found = clients.ALL[client]
    for quirk in chosen(names):
        found = quirk.client(found)
    return found


def pauses_s(names: Sequence[str], transport: Transport) -> tuple[float, float]:
    """Pauses before and after each download [s]."""
    pauses = [quirk.pauses_s.get(transport, (0.0, 0.0)) for quirk in chosen(names)]
    return sum(before for before, _ in pauses), sum(after for _, after in pauses)
