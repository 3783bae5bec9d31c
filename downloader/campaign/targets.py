"""The files that a campaign names: its targets, and the certificates that its clients trust.

Every row of the targets can be downloaded, and is unique. The certificates are the same bundle for all clients, always
given explicitly: by default requests and aioquic trust the list of certifi, and quiche that of the system.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from core.domain import Target
from core.errors import UsageError
from core.files import targets as table
from core.system.place import Place
from core.system.this_host import count_certificates, system_bundle
from core.untrusted import domain_fault, scrub, url_fault
from downloader.campaign.campaign import Campaign


def load_targets(campaign: Campaign) -> list[Target]:
    """The targets of a campaign's file; a relative path starts at the campaign file.

    Raises:
        UsageError: a missing file, a broken row (with file, line and remedy), or a duplicate target.
    """
    path = campaign.path.parent / campaign.targets
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise UsageError(
            f"{campaign.targets!r} is neither a .csv nor a .parquet file",
            where=f"{campaign.path}: field targets",
            remedy='name such a file, or write "lab"',
        )
    return _checked(table.rows(path, needs=("domain", "url", "provider")), where=str(path))


def check_targets(targets: Sequence[Target], *, where: str) -> None:
    """Raises UsageError unless every target can be downloaded and is unique."""
    _checked(((f"{where}: target {number}", target) for number, target in enumerate(targets, 1)), where=where)


def _checked(rows: Iterable[tuple[str, Target]], *, where: str) -> list[Target]:
    """Checks the targets, each given with its place in the file. Raises UsageError."""
    checked: list[Target] = []
    seen: set[tuple[str, str]] = set()
    for place, target in rows:
        fault = domain_fault(target.domain) or url_fault(target.url, schemes=("https",))
        if fault is None and target.key in seen:
            fault = f"this target ({scrub(target.domain, most=80)}) is listed twice"
        if fault is not None:
            raise UsageError(fault, where=place, remedy="correct or remove it")
        seen.add(target.key)
        checked.append(target)
    if not checked:
        raise UsageError("no targets", where=where, remedy="add at least one row")
    return checked


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
