"""What an archive says to its readers: README, citation, licence, and the bag's own description."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import upshift
from core.errors import UsageError, use_one_of
from core.files import disk


class CapturesOf(StrEnum):
    """Which captures an archive has."""

    NONE = "none"
    ALL = "all"


class Identities(StrEnum):
    """What becomes of domains, addresses and URLs."""

    KEEP = "keep"
    HASH = "hash"


LICENCES: Mapping[str, str] = {
    "CC0-1.0": "https://creativecommons.org/publicdomain/zero/1.0/legalcode",
    "CC-BY-4.0": "https://creativecommons.org/licenses/by/4.0/legalcode",
    "CC-BY-SA-4.0": "https://creativecommons.org/licenses/by-sa/4.0/legalcode",
    "CC-BY-NC-4.0": "https://creativecommons.org/licenses/by-nc/4.0/legalcode",
    "ODbL-1.0": "https://opendatacommons.org/licenses/odbl/1-0/",
    "ODC-By-1.0": "https://opendatacommons.org/licenses/by/1-0/",
    "PDDL-1.0": "https://opendatacommons.org/licenses/pddl/1-0/",
}
"""SPDX identifier -> text, of licences for data."""

_PERSON = re.compile(r"(?P<family>[^,<>]+),\s*(?P<given>[^,<>]+?)(?:\s*<(?:https://orcid\.org/)?(?P<orcid>[0-9X-]+)>)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """An author."""

    family: str
    given: str
    orcid: str | None
    """The iD in four groups of four, with its check digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credits:
    """Who made an archive, and what others may do with it."""

    licence: str
    authors: tuple[Person, ...]


def licence(name: str) -> str:
    """The licence of that SPDX identifier. Raises UsageError for one that is not known."""
    if name not in LICENCES:
        raise UsageError(f"unknown licence {name!r}", where="--licence", remedy=use_one_of(name, LICENCES))
    return name


def people(texts: Sequence[str]) -> tuple[Person, ...]:
    """Authors from `Family, Given <ORCID>`. Raises UsageError for one that is not of this form."""
    authors = []
    for text in texts:
        match = _PERSON.fullmatch(text.strip())
        if match is None or not text.isprintable():
            raise UsageError(
                f"{text!r} is not an author", where="--author", remedy='write "Family, Given <0000-0002-1825-0097>"'
            )
        if (orcid := match["orcid"]) is not None and not is_orcid(orcid):
            raise UsageError(f"{orcid} is not an ORCID iD", where="--author", remedy="check its digits")
        authors.append(Person(family=match["family"].strip(), given=match["given"], orcid=orcid))
    return tuple(authors)


def is_orcid(text: str) -> bool:
    """Whether this is an ORCID iD: its last character is a check digit (ISO 7064, MOD 11-2)."""
    if not re.fullmatch(r"(\d{4}-){3}\d{3}[\dX]", text):
        return False
    total = 0
    for digit in text.replace("-", "")[:-1]:
        total = (total + int(digit)) * 2
    return "0123456789X"[(12 - total % 11) % 11] == text[-1]


def bag_info(credits: Credits, now: datetime) -> dict[str, str]:
    """`bag-info.txt` (RFC 8493, section 2.2.2)."""
    return {
        "Bag-Software-Agent": f"upshift {upshift.__version__}",
        "Bagging-Date": now.date().isoformat(),
        "Contact-Name": "; ".join(f"{person.family}, {person.given}" for person in credits.authors),
        "External-Description": "Measurements of download speed by transport option, with tables, figures and report",
    }


def write(
    payload: Path, folders: Sequence[str], contents: Mapping[str, Any], credits: Credits, software: str, now: datetime
) -> None:
    """Writes README.md, CITATION.cff, LICENCE.txt and, from a checkout, the data dictionary.

    Args:
        contents: `archive.json`.
        software: a sentence about the code in the archive.
    """
    title = f"Upshift measurements: {', '.join(folders)}"
    link = LICENCES[credits.licence]
    disk.write_text(payload / "LICENCE.txt", f"{credits.licence}\n{link}\n")
    disk.write_text(payload / "CITATION.cff", _citation(title, credits, now))
    disk.write_text(payload / "README.md", _readme(title, contents, credits, software))
    dictionary = Path(upshift.__file__).resolve().parent.parent / "docs" / "reference" / "data-dictionary.md"
    if dictionary.is_file():
        shutil.copyfile(dictionary, payload / dictionary.name)


def _citation(title: str, credits: Credits, now: datetime) -> str:
    """`CITATION.cff`, Citation File Format 1.2.0; JSON strings are YAML strings."""
    lines = [
        "cff-version: 1.2.0",
        'message: "If you use these data, please cite them."',
        "type: dataset",
        f"title: {json.dumps(title)}",
        f"license: {credits.licence}",
        f"date-released: {now.date().isoformat()}",
        "authors:",
    ]
    for person in credits.authors:
        lines += [f"  - family-names: {json.dumps(person.family)}", f"    given-names: {json.dumps(person.given)}"]
        if person.orcid is not None:
            lines.append(f"    orcid: https://orcid.org/{person.orcid}")
    return "\n".join(lines) + "\n"


def _readme(title: str, contents: Mapping[str, Any], credits: Credits, software: str) -> str:
    authors = "; ".join(f"{person.given} {person.family}" for person in credits.authors)
    left_out = ["Left out: logs, locks and ledgers, routing tables and lists of others."]
    if contents["captures"] == "none":
        left_out.append("Captures, too: what was found in them (proof of treatment, KPIs) is in the journals.")
    if contents["names"] == "hash":
        left_out = [
            "Left out: journals, captures, targets, the lab's paths, logs, locks and ledgers.",
            "Domains, addresses, prefixes and URLs are replaced by keyed hashes (HMAC-SHA-256): equal names have equal "
            "hashes, and without the key nobody can go back. What servers said is empty. AS numbers and providers "
            "stay: they are what the tables are about.",
        ]
    kept = contents["kept"]
    if kept:
        left_out.append(f"The rows of {kept} downloads cannot be rebuilt from what is here, and stay as they were.")
    rebuilt = "inspection, tables, figures and report" if contents["names"] == "keep" else "tables, figures and report"
    return f"""# {title}

{authors}. Licence: {credits.licence} ({LICENCES[credits.licence]}). To cite: `CITATION.cff`.

Made by Upshift {contents["upshift"]}. Each campaign has `downloads.parquet`, a row per planned download with its
outcome, times, proof of treatment and KPIs, and `tables/`, `figures/` and `report/index.html` (of several campaigns, in
`combined/` of the first). Every column: `data-dictionary.md`. {software}

{" ".join(left_out)}

## To check that nothing changed

In the folder above this one, without Upshift: `sha256sum --check --quiet manifest-sha256.txt` (a BagIt bag, RFC 8493).

## To rebuild it

    upshift reproduce NAME

makes {rebuilt} anew, without network or root, and compares each file byte for byte.
"""
