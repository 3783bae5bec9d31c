"""Plans of what has to be undone: kept, read, shared and recovered. No network is touched."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import PlaceError
from core.system.process import Completed, start_time_ticks
from vantage.host import undo
from vantage.host.undo import UndoPlan, UndoStep
from vantage.linux import sysctls
from vantage.linux.namespace import first_route, parse_route

US = (os.getpid(), start_time_ticks(os.getpid()) or 0)
NOBODY = (os.getpid(), 1)
"""A process that cannot be: our number with another start time."""


def plan(**changes: object) -> UndoPlan:
    base = UndoPlan(
        ident="aa",
        place="MUC",
        isolation="host",
        boot=undo.boot_id(),
        namespace=undo.own_namespace(),
        owner=NOBODY,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = plan(owner=US, guardian=NOBODY, steps=(UndoStep(kind="sysctl", name="a/b", value="1", shared=True),))
    undo.write_plan(tmp_path, written)
    assert undo.plans(tmp_path) == [written]
    assert written.owner_lives and written.guarded
    assert undo.leftovers(tmp_path) == []


def test_a_broken_record_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "x.json").write_text('{"schema": 1}')
    with pytest.raises(PlaceError, match="cannot be read"):
        undo.plans(tmp_path)


def test_a_dead_plan_is_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[UndoStep] = []
    monkeypatch.setattr(undo, "undo_step", done.append)
    steps = (UndoStep(kind="sysctl", name="a/b", value="1"), UndoStep(kind="table", name="inet t"))
    undo.write_plan(tmp_path, plan(steps=steps))
    (tmp_path / "host" / ".aa.json.123.part").write_text("half")
    assert [
        words
        for words in undo.recover(tmp_path)
        if "undid the changes of an earlier run (sysctl a/b, table inet t)" in words
    ]
    assert done == list(steps)
    (tmp_path / "host" / ".bb.json.123.part").write_text("half")
    assert undo.recover(tmp_path) == []
    assert list((tmp_path / "host").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "says", "stays"),
    [({"boot": "another"}, "restarted", False), ({"namespace": "net:[1]"}, "another network namespace", True)],
)
def test_what_cannot_be_here_any_more_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], says: str, stays: bool
) -> None:
    monkeypatch.setattr(undo, "undo_step", lambda step: pytest.fail(f"undid {step}"))
    undo.write_plan(tmp_path, plan(steps=(UndoStep(kind="link", name="ups0"),), **changes))
    assert says in undo.recover(tmp_path)[0]
    assert bool(undo.plans(tmp_path)) is stays


def test_a_plan_in_run_is_of_this_boot_whatever_name_the_kernel_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[UndoStep] = []
    monkeypatch.setattr(undo, "undo_step", done.append)
    monkeypatch.setattr(undo, "RUN", tmp_path)
    (tmp_path / "upshift").mkdir()
    (tmp_path / "there").symlink_to("upshift")
    step = UndoStep(kind="link", name="ups0", shared=True)
    seen_by_the_unit = plan(boot="another", steps=(step,))
    undo.write_plan(tmp_path / "there", replace(seen_by_the_unit, ident="bb", owner=US))
    assert set(undo.shared_steps(tmp_path / "upshift", without="aa")) == {("link", "ups0")}
    undo.plan_path(tmp_path / "there", "bb").unlink()
    undo.write_plan(tmp_path / "there", seen_by_the_unit)
    assert "undid" in undo.recover(tmp_path / "there")[0] and done == [step]


def test_a_shared_setting_waits_for_the_last_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[UndoStep] = []
    monkeypatch.setattr(undo, "undo_step", done.append)
    shared = UndoStep(kind="sysctl", name="f", value="0", shared=True)
    first, second = plan(ident="aa", owner=US, steps=(shared,)), plan(ident="bb", owner=US, steps=(shared,))
    undo.write_plan(tmp_path, first)
    undo.write_plan(tmp_path, second)
    assert undo.undo(tmp_path, first) == () and done == []
    assert undo.undo(tmp_path, second) == () and done == [shared]


@pytest.mark.parametrize(("before", "now", "left"), [("0", "1", "1"), ("0", "0", "0"), ("1", "1", "0")])
def test_a_flag_that_somebody_has_switched_on_for_all_since_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, now: str, left: str
) -> None:
    monkeypatch.setattr(sysctls, "ROOT", tmp_path)
    flag, switch = (f"net/ipv4/conf/{name}/forwarding" for name in ("eth0.7", "all"))
    for name in (flag, switch):
        sysctls.path_of(name).parent.mkdir(parents=True)
    sysctls.write(switch, before)
    features: list[str] = []
    monkeypatch.setattr(undo, "set_features", lambda name, _: features.append(name))
    shared = {"shared": True, "switch": undo.switch_if_off(flag)}
    sysctls.write(flag, "1")
    sysctls.write(switch, now)
    undo.undo_step(UndoStep(kind="sysctl", name=flag, value="0", **shared))  # type: ignore[arg-type]
    undo.undo_step(UndoStep(kind="feature", name="eth0.7", value="rx-lro", **shared))  # type: ignore[arg-type]
    assert sysctls.read(flag) == left
    assert features == ([] if left == "1" else ["eth0.7"])


def test_a_plan_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    undo.write_plan(tmp_path, plan(steps=(UndoStep(kind="sysctl", name="a/b", value="1", shared=True),)))
    path = undo.plan_path(tmp_path, "aa")
    document = json.loads(path.read_text())
    del document["steps"][0]["switch"]
    path.write_text(json.dumps(document))
    assert undo.plans(tmp_path)[0].steps[0].switch == ""


def test_what_cannot_be_undone_stays_noted_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: UndoStep) -> None:
        if step.kind == "link":
            raise PlaceError("no permission")

    monkeypatch.setattr(undo, "undo_step", refuse)
    undo.write_plan(tmp_path, plan(steps=(UndoStep(kind="sysctl", name="a"), UndoStep(kind="link", name="ups0"))))
    assert "no permission" in undo.recover(tmp_path)[0]
    (left,) = undo.plans(tmp_path)
    assert [step.kind for step in left.steps] == ["link"] and left.faults


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("default via 192.0.2.1 dev eth0 linkdown ", "default via 192.0.2.1 dev eth0"),
        (
            "default via fe80::1 dev eth0 proto ra metric 1024 expires 1799sec pref medium",
            "default via fe80::1 dev eth0 proto ra metric 1024 pref medium",
        ),
    ],
)
def test_routes_are_read_as_ip_takes_them(line: str, plain: str) -> None:
    assert " ".join(parse_route(line)) == plain


@pytest.mark.parametrize(
    ("listed", "route"),
    [
        ("unreachable default dev lo metric 1024 pref medium \n", ()),
        ("blackhole default \ndefault via 192.0.2.1 dev eth0 metric 50 \n", ()),
        ("default via 192.0.2.1 dev eth0 \n", ("default", "via", "192.0.2.1", "dev", "eth0")),
        ("", ()),
    ],
)
def test_a_default_route_that_lets_nothing_out_has_no_attributes(listed: str, route: tuple[str, ...]) -> None:
    """`ip route change` refuses them, so a campaign ended at its first factor of a route."""

    def run(argv: Sequence[str], **_: object) -> Completed:
        return Completed(argv=tuple(argv), returncode=0, stdout=listed, stderr="")

    assert first_route(run, "-6") == route
