"""A fleet's logic apart from Ansible: verdicts from events, the gate before a run, opt-outs, the table of states."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import BlockedError, IncompleteError, UsageError
from core.outreach import opt_out
from downloader.campaign.campaign import load
from downloader.limits.opt_out import block_lists
from tests.cells import examples
from upshift import fleet_plan, fleet_report
from upshift.commands import fleet as commands
from vantage.fleet import runs
from vantage.fleet.inventory import SHARED, Fleet, Host, write_example
from vantage.fleet.readiness import lacks
from vantage.fleet.verdicts import HostVerdict, verdicts


def event(kind: str, host: str, answer: dict[str, Any] | None = None, **data: object) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "res": answer or {}, **data}}


def stats(**counts: dict[str, int]) -> dict[str, Any]:
    return {"event": "playbook_on_stats", "event_data": counts}


def host(name: str, address: str | None = None, *, trusted_clock: bool = False, **variables: object) -> Host:
    return Host(
        name=name,
        address=address or name,
        trusted_clock=trusted_clock,
        variables={**dict.fromkeys(SHARED, ""), **variables},
    )


def fleet(path: Path, *names: str, **variables: object) -> Fleet:
    return Fleet(path=path, hosts={name: host(name, **variables) for name in names}, selected=names)


def test_one_hosts_failure_is_its_own() -> None:
    found = verdicts(
        ["good", "bad", "away", "late"],
        [
            event("runner_on_ok", "good", {"ansible_facts": {"fleet_result": {"pid": 1}}}),
            event("runner_on_failed", "bad", {"msg": "no sudo.\n"}),
            event(
                "runner_on_unreachable", "away", {"msg": "Task failed: Failed to connect to the host via ssh: refused"}
            ),
            stats(
                processed={"good": 1, "bad": 1, "away": 1}, changed={"good": 2}, failures={"bad": 1}, dark={"away": 1}
            ),
        ],
    )
    assert found["good"] == HostVerdict(fault=None, changed=2, result={"pid": 1})
    assert found["bad"].fault == "no sudo" and not found["bad"].unreachable
    assert found["away"].fault == "unreachable: refused" and found["away"].unreachable
    assert found["late"].untouched and not found["bad"].untouched


def test_what_was_ignored_or_rescued_is_no_failure() -> None:
    found = verdicts(
        ["a"],
        [
            event("runner_on_failed", "a", {"msg": "looked"}, ignore_errors=True),
            event("runner_on_failed", "a", {"msg": "mended by rescue"}),
            stats(processed={"a": 1}, failures={}, rescued={"a": 1}),
        ],
    )
    assert found["a"].fault is None


def test_ansible_that_was_killed_leaves_no_host_well() -> None:
    assert verdicts(["a"], [event("runner_on_ok", "a")])["a"].fault is not None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"msg": "non-zero return code", "cmd": ["upshift"], "stderr": "upshift: x: no such plan\n"},
            "x: no such plan",
        ),
        (
            {"msg": "MODULE FAILURE", "module_stderr": "Traceback\nsudo: a password is required\n"},
            "sudo: a password is required",
        ),
        ({"msg": "two\n lines.", "stderr": ""}, "two lines"),
        ({}, "it failed without a message"),
    ],
)
def test_a_fault_is_one_sentence(answer: dict[str, Any], said: str) -> None:
    found = verdicts(["a"], [event("runner_on_failed", "a", answer), stats(processed={"a": 1}, failures={"a": 1})])
    assert found["a"].fault == said


def test_a_loops_fault_is_that_of_its_item() -> None:
    events = [
        event("runner_item_on_failed", "a", {"msg": "cannot copy targets.csv"}),
        event("runner_on_failed", "a", {"msg": "One or more items failed"}),
        stats(processed={"a": 1}, failures={"a": 1}),
    ]
    assert verdicts(["a"], events)["a"].fault == "cannot copy targets.csv"


def answer(*findings: tuple[str, str], addresses: tuple[str, ...] = ()) -> dict[str, Any]:
    listed = [{"name": name, "status": status, "says": "so", "campaign": True} for name, status in findings]
    return {"findings": listed, "uplink": {"addresses": addresses}}


def test_the_gate_before_a_run() -> None:
    hosts = {name: host(name) for name in "ab"} | {"c": host("c", trusted_clock=True)}
    documents = {
        "a": answer(("NAT", "cannot"), ("disk", "ok"), addresses=("198.18.0.1", "fd00:198:18::1")),
        "b": answer(("time of day", "warn"), addresses=("198.18.0.2",)),
        "c": answer(("time of day", "warn"), addresses=("198.18.0.3",)),
    }
    assert lacks(documents, hosts, "netns") == {"a": ["NAT: so"], "b": ["time of day: so"], "c": []}
    assert lacks(documents, hosts, "host")["a"] == []
    without_ipv4 = answer(("uplink", "warn"))
    without_ipv4["uplink"]["ipv6"] = "eth0"
    for isolation, ipv6, against in (
        ("host", True, []),
        ("host", False, ["uplink: so"]),
        ("netns", True, ["uplink: so"]),
    ):
        assert lacks({"a": without_ipv4}, hosts, isolation, ipv6=ipv6) == {"a": against}
    assert lacks({"a": answer(("uplink", "warn"))}, hosts, "host", ipv6=True) == {"a": ["uplink: so"]}
    finding = {"name": "client ceilings", "status": "warn", "says": "not known", "campaign": True}
    remedy = {**finding, "remedy": "run: upshift doctor --calibrate"}
    said = "client ceilings: not known (run: upshift fleet doctor --calibrate)"
    assert lacks({"a": {"findings": [remedy]}}, hosts, "netns") == {"a": [said]}


def test_hosts_that_share_an_uplink_address_are_named() -> None:
    hosts = {name: host(name) for name in "abc"}
    same = answer(addresses=("198.18.0.1",))
    found = lacks({"a": same, "b": same, "c": answer(addresses=("198.18.0.2",))}, hosts, "netns")
    assert found == {
        "a": ["uplink: b has the same address, 198.18.0.1"],
        "b": ["uplink: a has the same address, 198.18.0.1"],
        "c": [],
    }


def test_networks_of_their_own_may_have_the_same_addresses() -> None:
    hosts = {"a": host("a", "198.18.1.1")} | {name: host(name, "198.18.2.1") for name in "bc"}
    same = answer(addresses=("192.168.178.20",))
    assert lacks({"a": same, "b": same}, hosts, "netns") == {"a": [], "b": []}
    assert lacks({"b": same, "c": same}, hosts, "netns")["b"] == ["uplink: c has the same address, 192.168.178.20"]


def test_what_force_overrides_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    doubtful = HostVerdict(fault="NAT: it cannot translate", result={})
    away = HostVerdict(fault="unreachable: refused", unreachable=True)
    assert commands._overridden("a", doubtful).fault is None
    assert commands._overridden("b", away).fault is not None  # nothing to override: it did not answer
    assert capsys.readouterr().err == "upshift: --force: a runs although NAT: it cannot translate\n"


def test_what_a_host_was_not_told_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two hosts are left out for their clocks, and do not do what they are asked."""
    away = HostVerdict(fault="b: disk full")
    monkeypatch.setattr(commands, "play", lambda *_, **__: {"a": HostVerdict(fault=None), "b": away})
    commands._pause(fleet(tmp_path / "hosts.yml", "a", "b"), "week", ["a", "b"], as_json=None)
    said = "upshift: paused until upshift fleet resume: a\nupshift: b could not be paused: disk full\n"
    assert capsys.readouterr().err == said


def test_exit_codes_tell_failures_from_wrong_input() -> None:
    good, bad = HostVerdict(fault=None), HostVerdict(fault="it is on fire")
    fleet_report.require_all({"a": good})
    with pytest.raises(IncompleteError, match="1 of 2 hosts failed: b;"):
        fleet_report.require_all({"a": good, "b": bad})
    with pytest.raises(IncompleteError, match="a, b"):
        fleet_report.require_all({"a": HostVerdict(fault="a has no campaign x"), "b": bad}, campaign="x")
    with pytest.raises(UsageError, match="no host has a campaign x"):
        fleet_report.require_all({"a": HostVerdict(fault="a has no campaign x")}, campaign="x")


def test_opt_outs_are_kept_once(tmp_path: Path) -> None:
    kept = tmp_path / "opt-out.txt"
    entries = opt_out.checked([" www.a.example", "www.a.example", "198.18.5.0/24"])
    assert entries == ["www.a.example", "198.18.5.0/24"]
    assert opt_out.add(kept, entries[:1]) == ["www.a.example"]
    kept.write_text(kept.read_text() + "b.example  # asked by mail")
    assert opt_out.add(kept, [*entries, "b.example"]) == ["198.18.5.0/24"]
    assert kept.read_text().splitlines() == ["www.a.example", "b.example  # asked by mail", "198.18.5.0/24"]


@pytest.mark.parametrize("entry", ["not a domain!", "", "a.example # x", "a.example\nb.example"])
def test_an_opt_out_that_says_nothing_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match="neither a domain nor a prefix"):
        opt_out.checked(["good.example", entry])


def state(**changes: object) -> dict[str, Any]:
    activity = {"state": "running", "reason": "www.a.example", "since": 900.0, "until": None}
    progress = {
        "planned": 1800, "ok": 40, "failed": 8, "censored": 2, "recorded": 50, "causes": {},
        "void_runs": 0, "interrupted_runs": 0,
    }  # fmt: skip
    found = {
        "schema": 1, "written_at": 1000.0, "activity": activity, "progress": progress, "rate_per_s": 0.5,
        "eta_s": 3600.0, "campaign": "x", "plan_sha256": "ab" * 32, "started_at": 1.0, "pid": 7, "versions": {},
        "vantage_points": {"a": {"activity": activity, "progress": progress}}, "budgets": [],
        "disk": {"free_bytes": 5_000_000_000, "used_bytes": None, "limit_bytes": None, "reserve_bytes": None},
        "last_error": {"at": 940.0, "what": "timeout"}, "silent": False, "process_runs": True,
    }  # fmt: skip
    return {**found, **changes}


def test_the_table_of_states() -> None:
    found = {
        "a": HostVerdict(fault=None, result=state()),
        "b": HostVerdict(fault="unreachable: refused", unreachable=True),
        "c": HostVerdict(fault=None, result=state(silent=True, process_runs=False)),
        "d": HostVerdict(fault=None, result={"schema": 2}),
    }
    head, a, b, c, d = fleet_report.cells(found, now=1030.0)
    assert list(a) == [
        "a", "running (www.a.example)", "50", "1,800", "1,800", "1 h", "5 GB", "1 min 30 s ago: timeout",
    ]  # fmt: skip
    assert b[:2] == ["b", "unreachable: refused"]
    assert c[1].startswith("silent for 1 min") and "its process is gone" in c[1]
    assert "cannot be read" in d[1]
    assert {len(row) for row in (head, a, b, c, d)} == {8}
    assert not fleet_report.ended(found, "x")


def test_a_hosts_clock_decides_whether_it_is_silent() -> None:
    """Ours may be wrong by more than the 60 s after which a status is old."""
    [_, row] = fleet_report.cells({"a": HostVerdict(fault=None, result=state())}, now=10_000.0)
    assert row[1] == "running (www.a.example)"


def test_a_watch_ends_with_the_campaign() -> None:
    """Until then hosts need it: one that boots waits for the opt-outs that the watch hands over."""

    def at(name: str, age_s: float) -> HostVerdict:
        now = 1000.0 + age_s  # by the host's clock, which may be years from ours
        clock = {"began": now, "now": now, "synchronised": True, "max_error_s": 0.1}
        return HostVerdict(fault=None, result=state(activity={**state()["activity"], "state": name}, clock=clock))

    done, runs = at("done", 0.0), at("running", 1.0)
    away = HostVerdict(fault="unreachable: refused", unreachable=True)
    none = HostVerdict(fault="b has no campaign x")
    broken = HostVerdict(fault="b: sudo asks for a password")
    assert fleet_report.ended({"a": done}, "x") and fleet_report.ended({"a": done, "b": none}, "x")
    for other in (runs, away, broken, at("failed", 61.0), at("stopped", 299.0), HostVerdict(fault=None, result={})):
        assert not fleet_report.ended({"a": done, "b": other}, "x"), other
    for name in ("failed", "stopped"):
        assert fleet_report.ended({"a": done, "b": at(name, 301.0)}, "x")
    assert not fleet_report.ended({"b": away}, "x")


CAMPAIGN = """
name = "f"
targets = "targets.csv"
vantage_points = ["a", "b"]
contact = "me@net.test"
budget = 2
slot_s = {slot}
[[configurations]]
name = "BL"
client = "requests"
[[configurations]]
name = "BL2"
client = "requests"
"""


def campaign(folder: Path, *, slot: str = "60") -> Path:
    (folder / "targets.csv").write_text("domain,url,provider\na.test,https://a.test/1,x\nb.test,https://b.test/1,x\n")
    path = folder / "f.toml"
    path.write_text(CAMPAIGN.format(slot=slot))
    return path


@pytest.mark.thorough
def test_the_plan_is_that_of_the_hosts(tmp_path: Path) -> None:
    campaign(tmp_path)
    elsewhere = tmp_path / "far"
    elsewhere.mkdir()
    (tmp_path / "targets.csv").rename(elsewhere / "t.csv")
    found = fleet_plan.planned(
        fleet(tmp_path / "hosts.yml", "a", "b", campaign_file="f.toml", campaign_targets="far/t.csv")
    )
    (elsewhere / "t.csv").rename(tmp_path / "targets.csv")
    assert found.slots is not None and found.vantage_points == ("a", "b")
    assert found.campaign.targets == "targets.csv"  # as ansible/roles/campaign has it
    assert found.digest == fleet_plan.planned(fleet(tmp_path / "hosts.yml", "a", "b", campaign_file="f.toml")).digest


def test_targets_have_any_name(tmp_path: Path) -> None:
    """As the campaign's file has it, where the inventory says nothing; what hosts call them is another thing."""
    path = campaign(tmp_path)
    path.write_text(path.read_text().replace("targets.csv", "sites/mine.csv"))
    (tmp_path / "sites").mkdir()
    (tmp_path / "targets.csv").rename(tmp_path / "sites" / "mine.csv")
    found = fleet(tmp_path / "hosts.yml", "a", "b", campaign_file="f.toml")
    assert fleet_plan.planned(found).campaign.targets == "targets.csv"
    assert fleet_plan.targets_file(found) == str(tmp_path / "sites" / "mine.csv")


@pytest.mark.parametrize(
    ("state", "changed_at", "starts"), [("done", 50.0, False), ("done", 150.0, True), ("stopped", 50.0, True)]
)
def test_a_campaign_with_more_iterations_goes_on(state: str, changed_at: float, starts: bool) -> None:
    """They are no other plan, so hosts that were done said so again, and measured nothing."""
    tasks = yaml.safe_load((runs.files() / "roles" / "campaign" / "tasks" / "start.yml").read_text())
    [when] = [task["when"] for task in tasks if task["name"] == "Start the campaign"]
    status = {"activity": {"state": state}, "started_at": 100.0}
    known = {"campaign_status": status, "campaign_toml": {"stat": {"mtime": changed_at}}}
    assert jinja2.Environment(autoescape=False).compile_expression(when)(known) is starts


@pytest.mark.parametrize(("code", "content", "known"), [(0, '{"schema": 1}', 1), (0, "", 0), (1, "", 0)])
def test_a_status_that_a_power_cut_left_empty_is_none(code: int, content: str, known: int) -> None:
    """Nobody could start the campaign of such a host again, and Ansible said that it expected a value."""
    tasks = yaml.safe_load((runs.files() / "roles" / "campaign" / "tasks" / "check.yml").read_text())
    [taken] = [task for task in tasks if task["name"] == "Take the earlier status"]
    env = jinja2.Environment(autoescape=False)
    env.filters["from_json"] = json.loads
    given = {"campaign_status_file": {"rc": code, "stdout": content}}
    text = env.from_string(taken["ansible.builtin.set_fact"]["campaign_status"]).render(given)
    assert len(yaml.safe_load(text)) == known


def test_no_block_list_of_a_campaign_is_lost_on_a_host(tmp_path: Path) -> None:
    path = campaign(tmp_path)
    for name in ("uni", "cert"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "blocks.txt").write_text(f"\ufeff{name}.example\n")
    (tmp_path / "own.txt").write_text("own.example\n")
    (tmp_path / "asked.txt").write_text("asked.example\n")
    path.write_text('block_lists = ["own.txt"]\nopt_out = "asked.txt"\n' + path.read_text())
    own = fleet_plan.own_block_lists(load(path))
    assert own == [str(tmp_path / "own.txt"), str(tmp_path / "asked.txt")]
    given = ["uni/blocks.txt", str(tmp_path / "cert" / "blocks.txt")]
    known = {"campaign_own_block_lists": own, "campaign_block_lists": given, "inventory_dir": str(tmp_path)}
    role = runs.files() / "roles" / "campaign"
    env = jinja2.Environment(loader=jinja2.FileSystemLoader(role / "templates"), trim_blocks=True, autoescape=False)
    env.filters |= {"basename": lambda text: Path(text).name, "to_json": json.dumps}
    env.filters["regex_replace"] = lambda text, old, new: re.sub(old, new, text)
    env.globals["lookup"] = lambda _, name: Path(name).read_text()
    expression = yaml.safe_load((role / "vars" / "main.yml").read_text())["campaign_lists"]
    known["campaign_lists"] = env.compile_expression(expression.strip("{} "))(known)
    for name in ("host.toml", "blocks.txt"):
        (tmp_path / name).write_text(env.get_template(f"{name}.j2").render(known, campaign_targets_name="targets.csv"))
    assert "\ufeff" not in (tmp_path / "blocks.txt").read_text(), "no editor's mark in the middle"
    lists = block_lists(replace(load(path, tmp_path / "host.toml"), opt_out=None))
    for name in ("own", "asked", "uni", "cert"):
        with pytest.raises(BlockedError):
            lists.check(f"{name}.example", None)


@pytest.mark.parametrize(
    ("hosts", "slot", "said"),
    [
        ("a", "60", "no host of .* is named b"),
        ("abc", "60", "c of .* is not among them"),
        ("ab", "12", "the longest measurement run .* takes up to"),
    ],
)
def test_a_campaign_that_does_not_fit_the_fleet(tmp_path: Path, hosts: str, slot: str, said: str) -> None:
    path = campaign(tmp_path, slot=slot)
    with pytest.raises(UsageError, match=said):
        fleet_plan.planned(fleet(tmp_path / "hosts.yml", *hosts, campaign_file=str(path)))


def test_a_quirk_that_mounts_is_refused_where_units_may_not(tmp_path: Path) -> None:
    path = campaign(tmp_path)
    own = 'order = "published"\npublished_quirks = ["wget2"]\nallowed_prefixes = ["198.18.0.0/15"]\n'
    path.write_text(own + path.read_text())
    with pytest.raises(
        UsageError, match="the quirk wget2 mounts its name servers, which the service on a host may not"
    ):
        fleet_plan.planned(fleet(tmp_path / "hosts.yml", "a", "b", campaign_file=str(path)))


def test_a_password_for_sudo_is_in_memory_only(tmp_path: Path) -> None:
    with runs.become_password("", tmp_path) as none:
        assert none == {}
    with runs.become_password("pass word", tmp_path) as variables:
        [program] = tmp_path.iterdir()
        assert variables == {"ANSIBLE_BECOME_PASSWORD_FILE": str(program)} and program.stat().st_mode & 0o777 == 0o700
        assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "pass word"
        assert "pass" not in program.read_text()
    assert not list(tmp_path.iterdir())


def test_a_password_that_is_missing_says_how_to_give_one() -> None:
    event = {
        "event": "runner_on_failed",
        "event_data": {"host": "a", "res": {"msg": "Task failed: Missing sudo password"}},
    }
    assert verdicts(["a"], [event])["a"].fault == "sudo asks for a password there: give -K (--ask-become-pass)"


@pytest.mark.thorough
def test_commands_at_once_remove_old_artefacts_and_stumble_over_none(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "rc").touch()
        os.utime(tmp_path / str(number), (number, number))
    with ThreadPoolExecutor(4) as commands_at_once:
        for ended in [commands_at_once.submit(runs._tidy, tmp_path, 0.0) for _ in range(4)]:
            ended.result()
    assert len(list(tmp_path.iterdir())) == runs.KEPT


def test_what_stays_on_a_host_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    note = {"event": "runner_on_ok", "event_data": {"host": "a", "res": {"ansible_facts": {"fleet_note": "b, c stay"}}}}
    found = verdicts(["a"], [note, {"event": "playbook_on_stats", "event_data": {"processed": {"a": 1}}}])
    fleet_report.show(found, as_json=False, done="taken away")
    assert "taken away; b, c stay" in capsys.readouterr().out
    answer = {"ansible_facts": {"fleet_note": "\x1b]0;owned\x07\x1b[2Jno\n" + "x" * 2000}}
    [stays] = verdicts(["a"], [event("runner_on_ok", "a", answer), stats(processed={"a": 1})]).values()
    assert stays.note.isprintable() and len(stays.note) <= 600


def test_another_plan_on_a_host_is_refused(tmp_path: Path) -> None:
    campaign(tmp_path)
    plan = fleet_plan.planned(fleet(tmp_path / "hosts.yml", "a", "b", campaign_file="f.toml"))
    same, other = HostVerdict(fault=None, result={"plan_sha256": plan.digest}), HostVerdict(fault=None, result=state())
    none = HostVerdict(fault="b has no campaign f")
    assert commands._of_other_plans({"a": same, "b": none}, plan, "f") == {}
    [(name, why)] = commands._of_other_plans({"a": same, "b": other}, plan, "f").items()
    assert name == "b" and why.startswith("it has results of another plan (abababababab, not ")
    [name] = commands._of_other_plans({"a": none, "b": other}, plan, "f")
    assert name == "b", "one host that lies keeps no other from a new campaign"
    for known in ({"a": none, "b": other, "c": other}, {"b": other}):
        with pytest.raises(UsageError, match=r"b has results of another plan \(abababababab, not "):
            commands._of_other_plans(known, plan, "f")


def test_a_variable_of_the_fleet_is_the_same_everywhere(tmp_path: Path) -> None:
    hosts = {"a": host("a", campaign_isolation="netns"), "b": host("b", campaign_isolation="host")}
    with pytest.raises(UsageError, match="campaign_isolation is 'netns' for a, but 'host' for b"):
        Fleet(path=tmp_path / "h.yml", hosts=hosts, selected=("a",)).shared("campaign_isolation")


def test_paths_start_at_the_inventory(tmp_path: Path) -> None:
    found = fleet(tmp_path / "inventory" / "hosts.yml", "a", collect_into="../there", campaign_file="c/week-1.toml")
    assert found.shared("collect_into") == str(tmp_path / "there")
    assert found.campaign() == "week-1" and found.campaign("other") == "other"
    with pytest.raises(UsageError, match="vantage_bundles is not set"):
        found.required("vantage_bundles", "a folder")


@pytest.mark.parametrize("name", ["../../etc", "/etc", "..", ".hidden", "a b", "a\n", "-rf", "$(id)", "ä", "a" * 101])
def test_a_name_that_is_no_folders_is_refused_by_every_command(tmp_path: Path, name: str) -> None:
    found = fleet(tmp_path / "hosts.yml", "a", campaign_file="c/week-1.toml")
    with pytest.raises(UsageError, match="is not a valid name of a campaign") as caught:
        found.campaign(name)
    assert caught.value.sentence().isprintable() and caught.value.exit_code == 2
    with pytest.raises(UsageError, match="is not a valid name of a campaign"):
        fleet(tmp_path / "hosts.yml", "a", campaign_name=name).campaign()


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**4000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(20))
@given(data=st.data(), value=ANY)
def test_a_table_is_made_of_whatever_a_host_answers(data: st.DataObject, value: Any) -> None:
    document = state()
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from(sorted(document)))
        within = document[name]
        if isinstance(within, dict) and within and data.draw(st.booleans()):
            document[name] = {**within, data.draw(st.sampled_from(sorted(within))): value}
        else:
            document[name] = value
    found = {"a": HostVerdict(fault=None, result=document), "b": HostVerdict(fault=None, result=state())}
    _, row, other = fleet_report.cells(found, now=1030.0)
    assert all(cell.isprintable() and len(cell) <= 300 for cell in row) and len(row) == len(other) == 8
    assert other[1] == "running (www.a.example)"
    fleet_report.ended(found, "x")


@settings(max_examples=examples(20))
@given(value=ANY, name=st.sampled_from(["findings", "uplink"]))
def test_a_doctor_that_answers_anything_speaks_against_its_own_host_only(value: Any, name: str) -> None:
    hosts = {name: host(name) for name in "ab"}
    good = answer(("NAT", "ok"), addresses=("198.18.0.2",))
    found = lacks({"a": {**good, name: value}, "b": answer(addresses=("198.18.0.9",))}, hosts, "netns")
    assert found["b"] == [] and all(clause.isprintable() for clause in found["a"])


def test_what_speaks_against_a_host_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"findings": [{"name": "NAT", "says": "x" * 500, "status": "warn", "campaign": True}] * 1000}
    told = {"a": HostVerdict(fault=None, result=said)}
    monkeypatch.setattr("upshift.commands.fleet_hosts.play", lambda *_, **__: told)
    found = commands.examine(fleet(tmp_path, "a"), "netns", calibrate=False, as_json=False, campaign="week")
    fault = str(found["a"].fault)
    assert fault.startswith("NAT: xxx") and 600 < len(fault) <= 6000


def test_what_a_host_says_does_nothing_to_a_terminal() -> None:
    said = {"msg": "x", "cmd": ["upshift"], "stderr": "upshift: \x1b]0;owned\x07\x1b[2Jno\u202e" + "x" * 10_000}
    found = verdicts(["a"], [event("runner_on_failed", "a", said), stats(processed={"a": 1}, failures={"a": 1})])
    fault = str(found["a"].fault)
    assert fault.isprintable() and len(fault) <= 600
    escape = {"name": "NAT", "says": "\x1b[2Jx", "status": "warn", "campaign": True}
    assert lacks({"a": {"findings": [escape]}}, {"a": host("a")}, "netns")["a"][0].isprintable()


def test_an_inventory_is_not_overwritten(tmp_path: Path) -> None:
    path = write_example(tmp_path / "new")
    path.write_text("mine")
    with pytest.raises(UsageError, match="there is an inventory already"):
        write_example(tmp_path / "new")
    assert path.read_text() == "mine" and json.dumps(sorted(p.name for p in path.parent.iterdir())) == '["hosts.yml"]'


def test_the_playbooks_travel_in_the_wheel() -> None:
    root = Path(__file__).resolve().parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert runs.files() == root / "ansible"  # the checkout's, here
    assert wheel["force-include"] == {"ansible": str(Path(runs.__file__).parent.relative_to(root) / "ansible")}


def test_ssh_gives_up_on_a_host_in_time() -> None:
    said = (runs.files() / "ansible.cfg").read_text()
    assert "\ntimeout = 15\n" in said and "host_key_checking = True" in said
    assert "-o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3" in said
    quick = runs._QUICK["ANSIBLE_SSH_ARGS"]
    assert all("-o ForwardAgent=no -o ForwardX11=no " in arguments for arguments in (said, quick)), "no host has a key"
    assert (
        runs.environment(runs.files(), Path("h"))["ANSIBLE_HOST_KEY_CHECKING"] == "True"
    )  # not ansible-runner's False


def test_fleets_with_the_same_addresses_share_no_connection(tmp_path: Path) -> None:
    paths = {runs.environment(tmp_path, tmp_path / name)["ANSIBLE_SSH_CONTROL_PATH"] for name in ("a", "b", "a")}
    assert len(paths) == 2
    assert all(len(path % {"directory": "/home/somebody/.ansible/cp"}) + 38 + 18 < 108 for path in paths)  # sun_path
