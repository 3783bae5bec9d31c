"""The factors' settings and proofs, number by number, and who wins where two own one setting."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain import Handshake, RouteAttribute, Sysctl, TreatmentReason, Wire
from core.errors import UsageError
from downloader import factors
from downloader.campaign.configurations import canonical_levels, settings_for
from tests.configurations import over_tcp

PLAIN = Handshake(
    syn_ecn=False,
    synack_ecn=False,
    syn_sack=False,
    synack_sack=False,
    syn_window_scale=None,
    synack_window_scale=None,
    synack_seen=True,
    syn_timestamps=True,
    synack_timestamps=True,
    syn_mss=1460,
    synack_mss=1460,
    syn_window=64_240,
    later_syn_without_ecn=False,
)


def like(**changes: object) -> Handshake:
    return dataclasses.replace(PLAIN, **changes)  # type: ignore[arg-type]


def rmem(levels: dict[str, str]) -> dict[int | None, str]:
    return {
        s.field: s.value
        for s in settings_for(over_tcp(levels))
        if isinstance(s, Sysctl) and s.name == "net.ipv4.tcp_rmem"
    }


def window(levels: dict[str, str]) -> str | None:
    [found] = [s for s in settings_for(over_tcp(levels)) if isinstance(s, RouteAttribute) and s.name == "window"]
    return found.value


def test_baseline_is_complete_and_sorted() -> None:
    settings = settings_for(over_tcp({"ecn": "off", "sack": "off", "window_scaling": "off"}))
    assert settings == (
        RouteAttribute(name="initrwnd", value=None),
        RouteAttribute(name="window", value=None),
        Sysctl(name="net.ipv4.tcp_ecn", value="0"),
        Sysctl(name="net.ipv4.tcp_rmem", field=1, value="131072"),
        Sysctl(name="net.ipv4.tcp_rmem", field=2, value="6291456"),
        Sysctl(name="net.ipv4.tcp_sack", value="0"),
        Sysctl(name="net.ipv4.tcp_timestamps", value="1"),
        Sysctl(name="net.ipv4.tcp_window_scaling", value="0"),
    )


def test_scale_14_comes_from_the_maximum_alone() -> None:
    assert rmem({"window_scaling": "14"}) == {1: "131072", 2: str(1 << 29)}
    assert window({"window_scaling": "14"}) is None


@given(st.integers(0, 14), st.integers(212_992, 4 << 20))
def test_the_kernel_would_choose_the_scale(scale: int, rmem_max: int) -> None:
    """tcp_select_initial_window, for hosts whose rmem_max lies between Debian's default and 4 MiB."""
    level = {"window_scaling": str(scale)}
    space = max(int(rmem(level)[2]), rmem_max)
    limit = window(level)
    if limit is not None:
        space = min(space, int(limit))
    assert min(max(space.bit_length() - 1 - 15, 0), 14) == scale


def test_scaling_wins_over_the_default_buffer_only() -> None:
    assert rmem({"window_scaling": "14"})[2] == str(1 << 29)
    assert rmem({"window_scaling": "off", "rmem": "65536/1000000"}) == {1: "65536", 2: "1000000"}
    assert rmem({"window_scaling": "14", "rmem": f"65536/{1 << 29}"}) == {1: "65536", 2: str(1 << 29)}
    with pytest.raises(UsageError, match=r"rmem and window_scaling want different values of net.ipv4.tcp_rmem\[2\]"):
        settings_for(over_tcp({"window_scaling": "14", "rmem": "131072/6291456"}), where="a.toml")


def test_unknown_factor_and_level() -> None:
    with pytest.raises(UsageError, match=r"a\.toml: unknown factor 'sak'; did you mean sack\? use one of: ecn, "):
        canonical_levels({"sak": "on"}, where="a.toml")
    with pytest.raises(UsageError, match=r"window_scaling has no level '15'; accepted are: off, 0 to 14"):
        canonical_levels({"window_scaling": "15"}, where="a.toml")


@pytest.mark.parametrize(
    ("factor", "level", "handshake", "reason"),
    [
        ("ecn", "on", like(syn_ecn=True, synack_ecn=True), None),
        ("ecn", "on", like(syn_ecn=True, synack_ecn=False), "did not agree"),
        ("ecn", "on", like(syn_ecn=True, synack_ecn=None, synack_seen=False), "no SYN-ACK"),
        ("ecn", "on", like(), "did not offer"),
        ("ecn", "on", like(syn_ecn=True, synack_ecn=False, later_syn_without_ecn=True), "fell back"),
        ("ecn", "on", like(syn_ecn=True, synack_ecn=True, later_syn_without_ecn=True), None),
        ("ecn", "off", like(), None),
        ("ecn", "off", like(syn_ecn=True), "against what was asked"),
        ("sack", "on", like(syn_sack=True, synack_sack=True), None),
        ("sack", "on", like(syn_sack=True), "did not agree"),
        ("sack", "off", like(syn_sack=True), "offered SACK"),
        ("window_scaling", "14", like(syn_window_scale=14, synack_window_scale=0), None),
        ("window_scaling", "14", like(syn_window_scale=7, synack_window_scale=7), "scale 7, 14 was requested"),
        ("window_scaling", "14", like(syn_window_scale=14), "did not agree"),
        ("window_scaling", "14", like(), "did not offer"),
        ("window_scaling", "off", like(syn_window_scale=7), "offered window scaling"),
        ("window_scaling", "off", like(), None),
        ("timestamps", "on", like(), None),
        ("timestamps", "on", like(synack_timestamps=False), "did not agree"),
        ("timestamps", "off", like(), "against what was asked"),
        ("rmem", "131072/6291456", like(), None),
        ("rmem", "131072/6291456", like(syn_window=29_200), "smaller"),
        ("rmem", "16384/6291456", like(syn_window=64_240), "larger"),
        ("rmem", "16384/6291456", like(syn_window=8_192), None),
        ("initrwnd", "default", like(), None),
        ("initrwnd", "44", like(), "no request of the client"),
    ],
)
def test_proofs(factor: str, level: str, handshake: Handshake, reason: str | None) -> None:
    refuted = factors.ALL[factor].proof(level, Wire(client=handshake))
    assert refuted is None if reason is None else refuted is not None and reason in refuted.detail


@pytest.mark.parametrize(
    ("level", "window", "is_right"),
    [
        ("20", 20 * 1460, True),
        ("20", 20 * 1448, True),  # segments without their timestamps
        ("20", 24 * 1460, False),
        ("20", 17 * 1460, False),
        ("300", 300 * 1460, True),
        ("300", 65_535, False),  # the buffer was too small
    ],
)
def test_the_window_at_the_request_proves_initrwnd(level: str, window: int, is_right: bool) -> None:
    wire = Wire(client=like(syn_mss=1460), kpi={"request_window": window}.get)
    assert (factors.ALL["initrwnd"].proof(level, wire) is None) == is_right


def test_a_small_initrwnd_does_not_refute_the_buffer() -> None:
    small = like(syn_mss=1460, syn_window=10 * 1460)
    assert factors.ALL["rmem"].proof("131072/6291456", Wire(client=small)) is not None
    assert factors.ALL["rmem"].proof("131072/6291456", Wire(client=small, levels={"initrwnd": "10"})) is None


def test_a_large_initrwnd_gives_its_buffer_to_all_configurations() -> None:
    from downloader.campaign.configurations import read_configurations, warmups

    def configuration(name: str, client: str = "requests", **levels: str) -> dict[str, object]:
        return {"name": name, "client": client, "levels": levels}

    small = [configuration("A", initrwnd="44"), configuration("B")]
    assert [dict(c.levels) for c in read_configurations({"configurations": small}, "f")] == [{"initrwnd": "44"}, {}]
    large = [configuration("A", initrwnd="310"), configuration("B"), configuration("C", window_scaling="14")]
    found = read_configurations({"configurations": large}, "f")
    buffers = {c.name: c.levels["rmem"] for c in (*found, *warmups(found))}
    assert set(buffers) == {"A", "B", "C", "warmup"}
    assert {level.partition("/")[0] for level in buffers.values()} == {str(2 * 310 * 1460)}
    assert buffers["C"].endswith(f"/{1 << 29}")  # as window scaling sets it
    for c in found:
        settings_for(c)


OPTIONS = {
    "ecn": ("on", "syn_ecn", "synack_ecn", True, False),
    "sack": ("on", "syn_sack", "synack_sack", True, False),
    "timestamps": ("on", "syn_timestamps", "synack_timestamps", True, False),
    "window_scaling": ("14", "syn_window_scale", "synack_window_scale", 14, None),
}


@pytest.mark.parametrize("factor", OPTIONS)
@pytest.mark.parametrize(
    ("agreed", "arrived", "answered", "reason"),
    [
        # The client asked; what it got back; what reached the server; what the server answered.
        (True, True, True, None),
        (False, True, False, "server_refused"),
        (False, False, False, "stripped"),
        (False, True, True, "stripped"),
        (True, False, False, "rewritten"),
        (True, True, False, "rewritten"),
    ],
)
def test_two_ends_tell_what_became_of_an_option(
    factor: str, agreed: bool, arrived: bool, answered: bool, reason: str | None
) -> None:
    level, syn, synack, there, absent = OPTIONS[factor]

    def handshake(in_syn: bool, in_synack: bool) -> Handshake:
        return like(**{syn: there if in_syn else absent, synack: there if in_synack else absent})

    wire = Wire(client=handshake(True, agreed), server=handshake(arrived, answered))
    refuted = factors.ALL[factor].proof(level, wire)
    assert (refuted and refuted.reason) == reason
    # Without an account of the server's end nothing tells a server that refuses from a path that strips.
    alone = factors.ALL[factor].proof(level, Wire(client=wire.client))
    assert (alone and alone.reason) == (None if agreed else TreatmentReason.REFUSED_OR_STRIPPED)


def test_a_scale_that_was_changed_on_the_way_is_rewritten() -> None:
    client = like(syn_window_scale=14, synack_window_scale=7)
    for server in (like(syn_window_scale=0, synack_window_scale=7), like(syn_window_scale=14, synack_window_scale=2)):
        refuted = factors.ALL["window_scaling"].proof("14", Wire(client=client, server=server))
        assert refuted is not None and refuted.reason is TreatmentReason.REWRITTEN
    same = Wire(client=client, server=client)
    assert factors.ALL["window_scaling"].proof("14", same) is None


def test_an_option_that_the_path_adds_is_told() -> None:
    refuted = factors.ALL["sack"].proof("off", Wire(client=like(), server=like(syn_sack=True)))
    assert refuted is not None and refuted.reason is TreatmentReason.REWRITTEN
