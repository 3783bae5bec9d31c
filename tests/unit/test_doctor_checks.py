"""The checks of `upshift doctor`: pure functions of gathered facts."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import LabError, PlaceError
from core.files.disk import nearest
from vantage.doctor import gather
from vantage.doctor.checks import CheckStatus, campaign_can_run, examine, lab_can_run, smallest_window_scale
from vantage.doctor.facts import OUR_BINARIES, PACKAGES, Facts, ServerFacts, UplinkFacts
from vantage.doctor.gather import PROBES
from vantage.linux import state_folder
from vantage.linux.cpu import CpusAwake, Method, Wakeups

GOOD = Facts(
    python=(3, 11, 7),
    kernel="6.1.0-18-amd64",
    may_change_network=True,
    probed=dict.fromkeys(PROBES),
    native=None,
    trustme=None,
    programs=dict.fromkeys((*PACKAGES, *OUR_BINARIES), "1.0"),
    servers={"caddy": ServerFacts(fault=None, version="2.6.2")},
    clients={"requests": None, "quiche": None},
    ceilings={"requests": None, "quiche": None},
    busy_share=0.05,
    available_congestion_controls=("reno", "cubic"),
    allowed_congestion_controls=("reno", "cubic"),
    default_congestion_control="cubic",
    rmem_max=212992,
    tcp_rmem_max=6291456,
    landlock=7,
    steal_share=0.0,
    load_1m=0.2,
    cpus=4,
    clock="kvm-clock",
    wakeups=Wakeups(count=230, p50_us=135.0, p99_us=310.0),
    wakeups_awake=Wakeups(count=230, p50_us=12.0, p99_us=60.0),
    cpus_awake=CpusAwake(method=Method.CPU_DMA_LATENCY),
    out="/tmp",
    free_bytes=10**10,
    time_of_day=None,
    uplink=UplinkFacts(fault=None, name="eth0", addresses=("192.0.2.1",)),
)


def probed(changes: dict[str, str]) -> dict[str, Any]:
    """The change that some probes failed with these messages."""
    return {"probed": {**GOOD.probed, **changes}}


def test_a_good_host_has_nothing_to_fix() -> None:
    findings = examine(GOOD)
    assert {finding.status for finding in findings} == {CheckStatus.OK}
    assert lab_can_run(findings)
    assert len({finding.name for finding in findings}) == len(findings)


@pytest.mark.parametrize(
    ("change", "name", "status", "lab_runs"),
    [
        ({"python": (3, 9, 2)}, "Python", CheckStatus.CANNOT, False),
        ({"kernel": "4.19.0-26-amd64"}, "kernel", CheckStatus.WARN, True),
        ({"may_change_network": False}, "rights", CheckStatus.WARN, True),
        (probed({"namespaces": "Operation not permitted"}), "namespaces", CheckStatus.CANNOT, False),
        (probed({"TUN devices": "open: No such file or directory"}), "TUN devices", CheckStatus.CANNOT, False),
        (probed({"captures": "you don't have permission"}), "captures", CheckStatus.CANNOT, False),
        (probed({"NAT": "Could not process rule"}), "NAT", CheckStatus.CANNOT, True),
        (probed({"raw sockets": "iwprobe: no right to raw sockets"}), "raw sockets", CheckStatus.CANNOT, True),
        (probed({"kernel settings": "Read-only file system"}), "kernel settings", CheckStatus.CANNOT, True),
        ({"native": "No module named 'upshift_native'"}, "capture engine", CheckStatus.CANNOT, False),
        (
            {"servers": {"caddy": ServerFacts(fault="the program caddy is missing; install it", version=None)}},
            "server caddy",
            CheckStatus.CANNOT,
            False,
        ),
        ({"programs": {**GOOD.programs, "knotd": None}}, "knotd", CheckStatus.CANNOT, False),
        ({"programs": {**GOOD.programs, "pathem": None}}, "pathem", CheckStatus.CANNOT, False),
        ({"programs": {**GOOD.programs, "pathem": "pathem 0.1.0, debug build"}}, "pathem", CheckStatus.CANNOT, False),
        ({"clients": {"requests": None, "quiche": "h3get is missing"}}, "client quiche", CheckStatus.WARN, True),
        ({"ceilings": {"requests": None, "quiche": "not calibrated"}}, "client ceilings", CheckStatus.WARN, True),
        ({"busy_share": 0.6}, "client ceilings", CheckStatus.WARN, True),
        ({"default_congestion_control": "bbr"}, "congestion control", CheckStatus.WARN, True),
        ({"rmem_max": None}, "window scale", CheckStatus.WARN, True),
        ({"cpus_awake": CpusAwake(method=Method.NONE, reason="refused")}, "wake-up", CheckStatus.WARN, True),
        ({"wakeups_awake": GOOD.wakeups}, "wake-up", CheckStatus.WARN, True),
        ({"landlock": 3}, "Landlock", CheckStatus.WARN, True),
        ({"steal_share": 0.2}, "quiet", CheckStatus.WARN, True),
        ({"load_1m": 3.5}, "quiet", CheckStatus.WARN, True),
        ({"cpus": 1}, "quiet", CheckStatus.WARN, True),
        ({"cpus": 1.5}, "quiet", CheckStatus.WARN, True),
        ({"clock": "acpi_pm"}, "clock", CheckStatus.WARN, True),
        ({"free_bytes": 10**6}, "disk", CheckStatus.WARN, True),
        ({"time_of_day": "this host's clock is not synchronised"}, "time of day", CheckStatus.WARN, True),
        (
            {"uplink": UplinkFacts(fault="this host has no default route; name the uplink", name=None, addresses=())},
            "uplink",
            CheckStatus.WARN,
            True,
        ),
        ({"host_leftovers": ("MUC: sysctl x",)}, "leftovers", CheckStatus.WARN, True),
        ({"dead_labs": ("small",)}, "leftovers", CheckStatus.WARN, True),
    ],
)
def test_each_lack_is_named_with_its_remedy(
    change: dict[str, Any], name: str, status: CheckStatus, lab_runs: bool
) -> None:
    findings = examine(replace(GOOD, **change))
    found = [finding for finding in findings if finding.status is not CheckStatus.OK]
    assert [(finding.name, finding.status) for finding in found] == [(name, status)]
    if name not in {"window scale"}:
        assert found[0].remedy
    assert lab_can_run(findings) is lab_runs


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        # What only the lab needs
        ({"servers": {"caddy": ServerFacts(fault="caddy is missing; install it", version=None)}}, True),
        ({"programs": {**GOOD.programs, "knotd": None, "pathem": None}}, True),
        ({**probed({"TUN devices": "no such device", "raw sockets": "no right"}), "trustme": "no module"}, True),
        # What makes it worse, not wrong
        ({"busy_share": 0.6, "cpus": 1, "clock": "acpi_pm"}, True),
        ({"clients": {**GOOD.clients, "curl": "missing"}, "ceilings": {**GOOD.ceilings, "curl": "missing"}}, True),
        # What a campaign needs
        ({"ceilings": {"requests": None, "quiche": "not calibrated"}}, False),
        ({"programs": {**GOOD.programs, "tcpdump": None}}, False),
        (probed({"NAT": "Could not process rule"}), False),
        ({"native": "No module named 'upshift_native'"}, False),
        ({"free_bytes": 10**6}, False),
        ({"time_of_day": "this host's clock is not synchronised"}, False),
        ({"may_change_network": False}, False),
        ({"uplink": UplinkFacts(fault="no default route; name it", name=None, addresses=())}, False),
    ],
)
def test_the_verdict_for_campaigns_asks_for_what_they_need(change: dict[str, Any], runs: bool) -> None:
    assert campaign_can_run(examine(GOOD))
    assert campaign_can_run(examine(replace(GOOD, **change))) is runs


def test_clients_of_one_reason_are_told_together() -> None:
    stale = "stale: kernel 6.1.0 -> 6.12.1"
    facts = replace(GOOD, ceilings={"aioquic": stale, "curl": "not calibrated", "quiche": None, "requests": stale})
    [said] = [finding.says for finding in examine(facts) if finding.name == "client ceilings"]
    assert said.endswith(f"aioquic, requests ({stale}); curl (not calibrated)")


@pytest.mark.parametrize(
    ("buffer_bytes", "scale"),
    # The pairs that were measured are in the research notes on the lab: 4 MiB -> 7, 32 MiB -> 10, 2^29 -> 14.
    [(65535, 0), (65536, 1), (212992, 2), (4 << 20, 7), (32 << 20, 10), (1 << 29, 14), ((1 << 31) - 1, 14)],
)
def test_the_least_window_scale_of_a_buffer(buffer_bytes: int, scale: int) -> None:
    assert smallest_window_scale(buffer_bytes) == scale


def test_the_disk_of_a_folder_that_a_user_may_not_enter_is_that_of_one_above(tmp_path: Path) -> None:
    """Root's doctor on a vantage point looks as the service's user, who may not see into root's folders."""
    within = tmp_path / "private" / "within"
    within.mkdir(parents=True)
    within.parent.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        assert tmp_path.is_relative_to(nearest(within)) or nearest(within) == within.parent
    finally:
        os.seteuid(user)
        within.parent.chmod(0o700)


def test_a_folder_of_a_user_who_is_gone_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's runtime folder belongs to the service's user, whom somebody has removed."""
    if os.geteuid() == 0:
        os.chown(tmp_path, 65_533, -1)
    monkeypatch.setattr(state_folder, "ROOTS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(state_folder.pwd, "getpwuid", {}.__getitem__)
    for name in ("UPSHIFT_STATE_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert state_folder.service_user() is None
    with pytest.raises(LabError, match="belongs to another user; set UPSHIFT_STATE_DIR to a folder that you own"):
        state_folder.state_directory()


@pytest.mark.parametrize("runtime", [None, "session"])
def test_root_has_one_folder_however_it_logged_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str | None
) -> None:
    """By SSH it has XDG_RUNTIME_DIR, by sudo it has none: two campaigns would not have known of each other."""
    monkeypatch.delenv("UPSHIFT_STATE_DIR", raising=False)
    monkeypatch.setattr(state_folder, "ROOTS", tmp_path / "run" / "upshift")
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / runtime))
    try:
        folder = str(state_folder.state_directory())
    except LabError as error:  # an ordinary user makes no folder of root's
        folder = str(error.where)
    assert folder == str(tmp_path / "run" / "upshift")


def test_root_of_a_user_namespace_alone_keeps_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPSHIFT_STATE_DIR", raising=False)
    monkeypatch.setattr(state_folder, "ROOTS", tmp_path / "run" / "upshift")  # there is no such run to write to
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "session"))
    assert state_folder.state_directory() == tmp_path / "session" / "upshift"
    assert state_folder.service_user() is None


def test_root_on_a_host_of_a_fleet_is_told_whose_folder_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of root's own would lead to campaigns that do not know of those of the fleet."""
    own = tmp_path / "upshift"
    own.mkdir()
    if os.geteuid() == 0:
        os.chown(own, 65_534, -1)
    user = pwd.getpwuid(own.stat().st_uid)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(state_folder, "ROOTS", own)
    monkeypatch.delenv("UPSHIFT_STATE_DIR", raising=False)
    with pytest.raises(LabError) as caught:
        state_folder.state_directory()
    assert f"belongs to {user.pw_name}, the user of its fleet's campaigns" in caught.value.sentence()
    assert "leave campaigns on this host to its fleet; for a lab set UPSHIFT_STATE_DIR" in caught.value.sentence()


def test_a_host_whose_routes_cannot_be_read_is_examined_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise PlaceError("ip failed", remedy="see: ip route")

    monkeypatch.setattr(gather, "default_routes", fails)
    assert gather._uplink(None) == UplinkFacts(fault="ip failed; see: ip route", name=None, addresses=())
