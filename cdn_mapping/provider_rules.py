"""Providers: which AS numbers, and which CNAMEs, are a CDN's.

A provider is a TOML file in `cdn_mapping/providers` (or a folder of the user's): seed ASNs, from which all ASNs of the
same organisation follow; exclusions; CNAME suffixes for the second opinion. Names of networks are never matched:
`amazon|aws` over 77,586 AS names gave 24 hits, 13 of them wrong (AT&T Wireless, Amazonas in Brazil).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cdn_mapping.as2org import MAX_ASN, Organisations
from core.domain import Provider
from core.errors import UsageError, not_found
from core.files.config import Strict, load_toml

SHIPPED = Path(__file__).parent / "providers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFile(Strict):
    """One TOML file."""

    name: str
    """The name in the column `provider`."""
    title: str
    """Display name."""
    seed_asns: list[int]
    siblings: bool = True
    """Also all ASNs of the seeds' organisations."""
    exclude_asns: list[int] = field(default_factory=list)
    exclude_organisations: list[str] = field(default_factory=list)
    """Ids of organisations whose ASNs count only as seeds."""
    cname_suffixes: list[str] = field(default_factory=list)
    """A CNAME equal to one of these, or below it, points to the provider."""


class RuleKind(StrEnum):
    SEED = "seed"
    SIBLING = "sibling"
    EXCLUDED = "excluded"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Why an AS belongs to a provider, or to no provider."""

    provider: str
    kind: RuleKind
    text: str


class Providers:
    """The rules of a set of providers, applied to an AS2Org file. An AS belongs to at most one provider.

    Raises:
        UsageError: two providers claim the same AS number.
    """

    def __init__(self, files: Mapping[Path, ProviderFile], organisations: Organisations) -> None:
        self._rules: dict[int, Rule] = {}
        self._owner: dict[int, Path] = {}
        self._ends = {
            provider.name: tuple(f".{suffix.strip('. ').lower()}" for suffix in provider.cname_suffixes)
            for provider in files.values()
        }
        for path, provider in files.items():
            for asn in provider.seed_asns:
                if asn not in provider.exclude_asns:
                    self._claim(asn, Rule(provider=provider.name, kind=RuleKind.SEED, text=f"AS{asn} is a seed"), path)
        for path, provider in files.items():
            if provider.siblings:
                self._claim_siblings(path, provider, organisations)
        for path, provider in files.items():
            for asn in provider.exclude_asns:
                text = f"AS{asn} is excluded by {path.name}"
                self._rules.setdefault(asn, Rule(provider=Provider.OTHER, kind=RuleKind.EXCLUDED, text=text))

    def rule(self, asn: int | None) -> Rule:
        """The provider of an AS, and why."""
        if asn is None:
            return Rule(provider=Provider.OTHER, kind=RuleKind.NONE, text="no origin AS is known")
        return self._rules.get(asn) or Rule(
            provider=Provider.OTHER, kind=RuleKind.NONE, text=f"AS{asn} belongs to no provider's organisation"
        )

    def by_cname(self, chain: Sequence[str]) -> str | None:
        """The provider of a chain of CNAMEs: that of the longest suffix of the last name that matches any, or None."""
        for name in reversed(chain):
            labels = f".{name.rstrip('.').lower()}"
            known = ((len(end), p) for p, ends in self._ends.items() for end in ends if labels.endswith(end))
            if (longest := max(known, default=None)) is not None:
                return longest[1]
        return None

    def _claim_siblings(self, path: Path, provider: ProviderFile, organisations: Organisations) -> None:
        for seed in provider.seed_asns:
            organisation = organisations.get(seed)
            if organisation is None or organisation.org_id in provider.exclude_organisations:
                continue
            named = f" ({organisation.name})" if organisation.name else ""
            text = f"of the same organisation as seed AS{seed}: {organisation.org_id}{named}"
            for asn in organisations.members(organisation.org_id):
                known = self._rules.get(asn)
                if asn in provider.exclude_asns or (known is not None and known.provider == provider.name):
                    continue
                self._claim(asn, Rule(provider=provider.name, kind=RuleKind.SIBLING, text=f"AS{asn} is {text}"), path)

    def _claim(self, asn: int, rule: Rule, path: Path) -> None:
        owner = self._owner.setdefault(asn, path)
        if owner != path:
            raise UsageError(
                f"AS{asn} is claimed by {self._rules[asn].provider} ({owner}) and by {rule.provider}"
                f" ({rule.text.partition(' is ')[2]})",
                where=str(path),
                remedy="put it into exclude_asns of one of them",
            )
        self._rules[asn] = rule


def read_providers(folder: Path = SHIPPED) -> dict[Path, ProviderFile]:
    """All provider files of a folder. Raises UsageError that names file and field."""
    if not folder.is_dir():
        raise not_found(folder, "folder", remedy="give a folder of provider TOML files")
    files = {path: _read(path) for path in sorted(folder.glob("*.toml"))}
    if not files:
        raise UsageError("the folder has no *.toml file", where=str(folder), remedy="copy one of " + str(SHIPPED))
    path_of: dict[str, Path] = {}
    for path, provider in files.items():
        other = path_of.setdefault(provider.name, path)
        if other != path:
            raise UsageError(
                f"field name: {provider.name!r} is also the name in {other}", where=str(path), remedy="rename one"
            )
    return files


def _read(path: Path) -> ProviderFile:
    provider = load_toml(path, ProviderFile)
    faults: list[tuple[str, Any, str]] = []
    if not provider.name.replace("-", "").replace("_", "").isalnum() or provider.name != provider.name.lower():
        faults.append(("name", provider.name, "write it in lower-case letters, digits, - and _"))
    if provider.name == Provider.OTHER:
        faults.append(("name", provider.name, "choose another: this name means that no provider matches"))
    if not provider.seed_asns:
        faults.append(("seed_asns", provider.seed_asns, "name at least one AS number"))
    for key in ("seed_asns", "exclude_asns"):
        faults += [
            (key, asn, "write AS numbers of 32 bits") for asn in getattr(provider, key) if not 0 < asn <= MAX_ASN
        ]
    faults += [("cname_suffixes", s, "write a name") for s in provider.cname_suffixes if not s.strip(". ")]
    for key, value, remedy in faults:
        raise UsageError(f"field {key}: {value!r} is not valid", where=str(path), remedy=remedy)
    return provider
