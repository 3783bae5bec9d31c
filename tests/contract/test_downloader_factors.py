"""What every factor of the registry owes: levels, settings that repeat, and a proof that can say yes and no."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from analysis.captures.kpis import ALL as KPIS
from core.domain import Handshake, Wire
from core.errors import UsageError
from downloader import factors
from downloader.campaign.configurations import recorded, settings_for
from downloader.factors import Factor
from tests.configurations import over_tcp


@pytest.fixture(params=list(factors.ALL.values()), ids=lambda factor: factor.name)
def factor(request: pytest.FixtureRequest) -> Factor:
    found: Factor = request.param
    return found


def handshakes() -> Iterator[Handshake]:
    """A grid of what a wire can carry."""
    bools = (False, True)
    answers = (None, False, True)
    for offered, answered, scale, fell_back, window in itertools.product(
        bools, answers, (None, 0, 7, 14), bools, (1000, 32_120, 64_240)
    ):
        yield Handshake(
            syn_ecn=offered,
            synack_ecn=answered,
            syn_sack=offered,
            synack_sack=answered,
            syn_window_scale=scale,
            synack_window_scale=7 if answered else None,
            synack_seen=answered is not None,
            syn_timestamps=offered,
            synack_timestamps=answered,
            syn_mss=1460,
            synack_mss=1460,
            syn_window=window,
            later_syn_without_ecn=fell_back and offered,
        )


def test_is_described(factor: Factor) -> None:
    assert factor.default in factor.levels
    assert factor.help.endswith(".") and factor.label and factor.accepted


def test_levels_are_canonical(factor: Factor) -> None:
    for level in factor.levels:
        assert factor.parse(level) == factor.parse(f" {level.upper()} ") == level


def test_unknown_levels_are_told(factor: Factor) -> None:
    for wrong in ("", "nonsense", "-1", "999", "on off", "²", "1" * 5000):
        with pytest.raises(UsageError, match="accepted are"):
            factor.parse(wrong, where="file.toml")


def test_settings_repeat_and_cover_the_same_things(factor: Factor) -> None:
    for level in factor.levels:
        assert factor.settings(level) == factor.settings(level)
    names = {
        frozenset((type(s).__name__, s.name) for s in settings_for(over_tcp({factor.name: lv}))) for lv in factor.levels
    }
    assert len(names) == 1, "a level that leaves a setting out inherits it from the download before"


def test_proof_accepts_what_fits_and_tells_what_does_not(factor: Factor) -> None:
    for level in factor.levels:
        wires = [
            Wire(client=handshake, kpi={"request_window": window}.get)
            for handshake, window in itertools.product(handshakes(), (None, 29_200, 64_240))
        ]
        reasons = [factor.proof(level, wire) for wire in wires]
        assert None in reasons, "no handshake proves this level"
        if level != "default":  # the system's own value, whatever it is
            assert any(reasons), "no handshake contradicts this level"
        assert all(refuted is None or refuted.detail for refuted in reasons)


def test_dose_is_a_kpi(factor: Factor) -> None:
    if factor.dose is not None:
        kinds = (int, float) if factor.dose.equals is None else (str,)
        assert factor.dose.words and KPIS[factor.dose.kpi].kind in kinds


def test_levels_exclude_each_other(factor: Factor) -> None:
    for handshake in handshakes():
        proven = [level for level in factor.levels if factor.proof(level, Wire(client=handshake)) is None]
        assert len(proven) <= 1


def test_completing_names_every_factor() -> None:
    assert set(recorded(over_tcp({})).levels) == set(factors.ALL)
