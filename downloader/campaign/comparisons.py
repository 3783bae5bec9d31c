"""The field `comparisons` of a campaign file, or its default. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core import paper
from core.domain import Comparison, Configuration, Role, Transport
from core.files.config import STRICT, build
from core.files.description import DescribedConfiguration, check
from downloader.campaign.apply import recorded
from downloader.campaign.configurations import fault, is_paper, warmups


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One `[[comparisons]]` of a campaign file."""

    config: str
    vs: str
    name: str | None = None
    role: Role = Role.EFFECT

    __pydantic_config__ = STRICT


def read_comparisons(
    document: Mapping[str, Any], configurations: Sequence[Configuration], where: str
) -> tuple[Comparison, ...]:
    """The comparisons of a campaign file.

    `configurations = "paper"` brings the paper's, and `[[comparisons]]` are added. With other configurations only
    `[[comparisons]]` are used; without them, `default_comparisons`.

    Raises:
        UsageError: a wrong field, an unknown configuration, or an invalid comparison (`description.check`).
    """
    entries = document.get("comparisons")
    brought = paper.COMPARISONS if is_paper(document) else ()
    if entries is None:
        return brought or default_comparisons(configurations)
    if not isinstance(entries, list):
        raise fault("these are not tables", where, "comparisons", 'write [[comparisons]] with config = "..", vs = ".."')
    known = [recorded(configuration) for configuration in (*warmups(configurations), *configurations)]
    found = list(brought)
    for index, data in enumerate(entries):
        place = f"{where}: comparisons[{index}]"
        entry = build(data, _Entry, where=place)
        named = Comparison.of(entry.config, entry.vs).name if entry.name is None else entry.name
        comparison = Comparison(name=named, config=entry.config, vs=entry.vs, role=entry.role)
        check(comparison, known=known, earlier=found, where=place)
        found.append(comparison)
    return tuple(found)


def default_comparisons(configurations: Sequence[Configuration]) -> tuple[Comparison, ...]:
    """The comparisons of a campaign file without `[[comparisons]]`; for the paper's configurations, the paper's.

    The baseline is BL, else the first configuration. A configuration that repeats another one gives a noise floor.
    Every other one is compared with the baseline; ALL with WS, too, and QUIC with ALL and with the first QUIC
    configuration. The warm-up is compared with an equal configuration, if there is one.
    """
    known = {configuration.name: recorded(configuration) for configuration in configurations}
    baseline = known.get(paper.BASELINE) or next(iter(known.values()))
    originals: list[DescribedConfiguration] = [baseline]
    noise: list[Comparison] = []
    for one in known.values():
        like = next((other for other in originals if one.same_as(other)), None)
        if like is None:
            originals.append(one)
        elif like is not one:
            noise.append(Comparison.of(one.name, like.name, Role.NOISE_FLOOR))
    quic = [one.name for one in known.values() if one.transport is Transport.QUIC]
    effects: list[Comparison] = []
    for one in (one for one in known.values() if one in originals and one is not baseline):
        references = [baseline.name]
        if one.name == paper.FULL:
            references.append(paper.SCALED)
        elif one.transport is Transport.QUIC:
            references += [paper.FULL, quic[0]]
        effects += [Comparison.of(one.name, vs) for vs in dict.fromkeys(references) if vs in known and vs != one.name]
    warmup = recorded(paper.WARMUP)
    like_it = next((one for one in originals if one.same_as(warmup)), None)
    cache = [Comparison.of(warmup.name, like_it.name, Role.CACHE)] if like_it else []
    return (*noise, *effects, *cache)
