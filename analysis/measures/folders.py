"""Campaign folders: the documents beside the downloads, and from them the design that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.domain import Comparison, Dose, Transport
from core.errors import UsageError, not_found
from core.files import campaign_json
from core.files.campaign_json import DescribedConfiguration
from core.files.config import read_json

DOWNLOADS = "downloads.parquet"

_NAME_ONE = "name the --out folder of `upshift run`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One campaign folder."""

    path: Path
    environment: Mapping[str, Any] | None
    """`environment.json`, if present."""
    lab: Mapping[str, Any] | None
    """`lab.json` (see docs/design/house.md), for a campaign that ran in a lab."""
    composition: Mapping[str, Any] | None = None
    """`targets/composition.json`, the report of `upshift targets compose`, if present."""
    windows: Mapping[str, Any] | None = None
    """`targets/windows.json`: domain -> the result of `upshift survey iw`, if the targets have it."""

    @property
    def published_quirks(self) -> tuple[str, ...]:
        """Names of quirks of the published code with which it was measured (`downloader.quirks`)."""
        campaign = (self.environment or {}).get("campaign")
        names = campaign.get("published_quirks") if isinstance(campaign, dict) else None
        return tuple(map(str, names)) if isinstance(names, list) else ()


def read_folder(path: Path) -> Folder:
    """The documents beside the downloads. Raises UsageError for one that is not valid JSON."""

    def document(name: str) -> Mapping[str, Any] | None:
        file = path / name
        return read_json(file) if file.exists() else None

    return Folder(
        path=path,
        environment=document("environment.json"),
        lab=document("lab.json"),
        composition=document("targets/composition.json"),
        windows=document("targets/windows.json"),
    )


def check(path: Path) -> None:
    """Raises UsageError if this is not a campaign folder."""
    if not path.exists():
        raise not_found(path, "folder", remedy=_NAME_ONE)
    if not path.is_dir():
        raise UsageError("this is a file, not a folder", where=str(path), remedy=_NAME_ONE)
    if not (path / DOWNLOADS).is_file():
        # A campaign that was stopped has its downloads in journals alone.
        stopped = any(path.glob("vantage/*/journal.sqlite"))
        remedy = f"run: upshift inspect {path}" if stopped else f"{_NAME_ONE}, or let `upshift run` finish there"
        raise UsageError("this folder has no downloads.parquet", where=str(path), remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Configurations and comparisons of all folders."""

    configurations: tuple[DescribedConfiguration, ...]
    """In the order in which tables and figures show them, the warm-up first."""
    comparisons: tuple[Comparison, ...]
    """In the order of the rows of Table 2."""
    doses: Mapping[str, Dose] = field(default_factory=dict)
    """Factor -> when it took effect."""
    without_http3: frozenset[str] = frozenset()
    """Domains at which nothing was planned over QUIC, as they were known to be without HTTP/3."""

    def rank(self, configuration: str) -> tuple[int, str]:
        """Sort key: the campaigns' order, then others by name."""
        names = [known.name for known in self.configurations]
        return (names.index(configuration) if configuration in names else len(names), configuration)

    def dose_of(self, comparison: Comparison) -> tuple[Dose, ...]:
        """When the options in which the two sides differ took effect; empty if unknown (different clients)."""
        named = {one.name: one for one in self.configurations}
        config, vs = named.get(comparison.config), named.get(comparison.vs)
        if config is None or vs is None or {config.transport, vs.transport} != {Transport.TCP}:
            return ()
        differences = config.differences(vs)
        if any(name not in self.doses for name in differences):
            return ()
        return tuple(self.doses[name] for name in differences)

    def differs_in(self, comparison: Comparison) -> str:
        """What the two sides differ in: client, transport, HTTP version, options; empty if it is unknown or nothing.

        Within a family the client is the same program, so what differs is the transport or the HTTP version.
        """
        named = {one.name: one for one in self.configurations}
        config, vs = named.get(comparison.config), named.get(comparison.vs)
        if config is None or vs is None or None in (config.family, vs.family):
            return ""
        both_tcp = {config.transport, vs.transport} == {Transport.TCP}
        options = [
            name for name in config.differences(vs) if name != "client" and (both_tcp or name not in config.levels)
        ]
        parts = {
            "client": config.family != vs.family,
            "transport": config.transport is not vs.transport,
            "HTTP version": config.http != vs.http
            and not (config.transport is not vs.transport and _is_h3_h2(config, vs)),
            "options": bool(options),
        }
        return ", ".join(part for part, differs in parts.items() if differs)

    def cells(self) -> list[list[str]]:
        """Heading and rows: each configuration by the levels and options in which configurations differ."""
        tcp = [one.levels for one in self.configurations if one.transport is Transport.TCP]
        levels = sorted({name for one in tcp for name in one if len({other.get(name) for other in tcp}) > 1})
        cells = [["configuration", "client", "transport", *levels, "options"]]
        for one in self.configurations:
            shown = [one.levels.get(name, "–") if one.transport is Transport.TCP else "–" for name in levels]
            options = ", ".join(f"{name} {value}" for name, value in one.options.items())
            cells.append([one.name, one.client, one.transport.upper(), *shown, options])
        return cells


def _is_h3_h2(one: DescribedConfiguration, other: DescribedConfiguration) -> bool:
    """HTTP/3 is HTTP/2 over QUIC (RFC 9114, section 1.2): of these two only the transport differs."""
    return {one.http, other.http} == {"2", "3"}


def read_design(folders: Sequence[Path]) -> Design:
    """The design of folders.

    Raises:
        UsageError: a `campaign.json` is missing or damaged, or two folders use one name for different things.
    """
    configurations: dict[str, tuple[Path, DescribedConfiguration]] = {}
    comparisons: dict[str, tuple[Path, Comparison]] = {}
    doses: dict[str, tuple[Path, Dose]] = {}
    without_http3: set[str] = set()
    for path in folders:
        recorded = campaign_json.read(path)
        for configuration in recorded.configurations:
            first, known = configurations.setdefault(configuration.name, (path, configuration))
            if differences := known.differences(configuration):
                raise _contradiction("configuration", configuration.name, (first, path), ", ".join(differences))
        for comparison in recorded.comparisons:
            first, known_comparison = comparisons.setdefault(comparison.name, (path, comparison))
            if known_comparison != comparison:
                what = " and ".join(f"{c.config} vs {c.vs} ({c.role})" for c in (known_comparison, comparison))
                raise _contradiction("comparison", comparison.name, (first, path), what)
        without_http3.update(recorded.without_http3)
        for factor, dose in recorded.doses.items():
            first, known_dose = doses.setdefault(factor, (path, dose))
            if known_dose != dose:
                what = " and ".join(f"{d.kpi} above {d.above:g}" for d in (known_dose, dose))
                raise _contradiction("dose of", factor, (first, path), what)
    return Design(
        doses={factor: dose for factor, (_, dose) in doses.items()},
        configurations=tuple(configuration for _, configuration in configurations.values()),
        comparisons=tuple(comparison for _, comparison in comparisons.values()),
        without_http3=frozenset(without_http3),
    )


def _contradiction(kind: str, name: str, folders: tuple[Path, Path], what: str) -> UsageError:
    first, second = folders
    difference = f"they differ in {what}" if kind == "configuration" else f"it is {what}"
    return UsageError(
        f"the {kind} {name!r} is not the one of {first}: {difference}",
        where=str(second),
        remedy="read the folders separately",
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns errors of the file system into UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"this cannot be written ({error.strerror or error})",
            where=str(folder),
            remedy="use another --out",
        ) from None


def output_folder(paths: Sequence[Path], out: Path | None) -> Path:
    """Where results go: `out`, else the folder itself, else for several folders `combined/` in the first."""
    if out is not None:
        return out
    return paths[0] if len(paths) == 1 else paths[0] / "combined"
