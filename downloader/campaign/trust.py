"""The certificates that a campaign's clients trust: the same bundle for all, always given explicitly.

By default requests and aioquic trust certifi's list, and quiche the system's.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from core.errors import UsageError
from core.system.place import Place
from core.system.this_host import count_certificates, system_bundle
from downloader.campaign.campaign import Campaign


def trusted(campaign: Campaign, place: Place) -> Path:
    """The bundle for all downloads at a place: the campaign's, else the place's own (a lab has one), else the system's.

    Raises:
        UsageError: none is given, and this host has none.
    """
    if campaign.ca_file is not None:
        return _named(campaign, campaign.ca_file)
    return place.ca_file or _system(campaign)


def check_trust(campaign: Campaign) -> None:
    """Raises UsageError if the campaign's bundle is missing or holds no certificate, or the host has no bundle."""
    if campaign.ca_file is not None:
        count_certificates(_named(campaign, campaign.ca_file), where=_field(campaign))
    elif campaign.lab is None:
        _system(campaign)


def describe_trust(bundle: Path) -> dict[str, object]:
    """The description of a bundle that is stored with the data. Raises UsageError if it cannot be read."""
    count = count_certificates(bundle)
    return {
        "path": str(bundle),
        "sha256": hashlib.sha256(bundle.read_bytes()).hexdigest(),
        "certificates": count,
    }


def _named(campaign: Campaign, name: str) -> Path:
    return (campaign.path.parent / name).absolute()  # programs of a place may have another working directory


def _system(campaign: Campaign) -> Path:
    try:
        return system_bundle()
    except UsageError as error:
        raise UsageError(error.what, where=_field(campaign), remedy=error.remedy) from None


def _field(campaign: Campaign) -> str:
    return f"{campaign.path}: field ca_file"
