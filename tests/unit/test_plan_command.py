"""`upshift plan`: what a campaign will take, by arithmetic that can be checked by hand."""

from __future__ import annotations

import json
import random
import re
import threading
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.domain import Target
from downloader.campaign.campaign import from_document
from downloader.campaign.expected import USUAL, PathGuess, expected_s, run_bytes, worst_s
from downloader.schedule.schedule import Schedule, State, Turns
from downloader.schedule.slots import SlotGate, share
from upshift.cli import app
from upshift.commands.plan import PlanOptions
from upshift.estimate import Estimate, estimate

NOW = datetime(2027, 1, 5, 20, 0, tzinfo=UTC).timestamp()
NAMES = ("A", "B", "C")
FILE: dict[str, Any] = {
    "name": "c",
    "targets": "targets.csv",
    "contact": "net@uni.edu",
    "vantage_points": list(NAMES),
    "configurations": [{"name": "BL", "client": "requests"}],
}


def target(number: int, size: int = 1_000_000) -> Target:
    name = f"{number}.com"
    return Target(domain=name, url=f"https://{name}/f", provider="other", asn=65_000 + number % 2, size_bytes=size)


def estimated(targets: list[Target], *, hosts: bool = False, **changes: Any) -> Estimate:
    plan = from_document({**FILE, **changes}, Path("c.toml"))
    return estimate(share(plan, targets, NAMES, NAMES[:1] if hosts else NAMES), lambda *_: USUAL, NOW)


def test_time_and_bytes_are_the_sums_over_all_runs() -> None:
    targets = [target(number, 1_000_000 * (number + 1)) for number in range(4)]
    plan = from_document({**FILE, "iterations": 3}, Path("c.toml"))
    found = estimated(targets, iterations=3)
    part = found.parts["B"]
    assert part.runs == 12 and found.slot_s is None
    assert part.expected_s == pytest.approx(3 * sum(expected_s(plan, one) for one in targets))
    assert part.worst_s == pytest.approx(3 * sum(worst_s(plan, one) for one in targets))
    assert part.ip_bytes == 3 * sum(run_bytes(plan, one) for one in targets)
    assert found.campaign.ip_bytes == 3 * part.ip_bytes
    for shares in (found.providers, found.networks, found.domains):
        assert sum(one.ip_bytes for one in shares) == found.campaign.ip_bytes
    assert [one.name for one in found.domains] == ["3.com", "2.com", "1.com", "0.com"]
    assert found.binding is None and found.last_day == date(2027, 1, 5)


def test_expected_times_follow_the_path_and_the_configuration() -> None:
    plan = from_document(FILE, Path("c.toml"))
    scaled = from_document(
        {**FILE, "configurations": [{"name": "WS", "client": "requests", "levels": {"window_scaling": 14}}]},
        Path("c.toml"),
    )
    far = PathGuess(rtt_s=0.2, mbit=100)
    one = target(1, 10_000_000)
    assert expected_s(plan, one, far) > 2 * 10_000_000 / 65_535 * 0.2, "64 KiB per round trip without window scaling"
    assert expected_s(scaled, one, far) < 0.6 * expected_s(plan, one, far), "BL is faster than the warm-up now"
    assert expected_s(plan, replace(one, size_is_lower_bound=True)) == expected_s(plan, replace(one, size_bytes=None))
    assert expected_s(plan, target(1, 100_000_000), far) < 2 * plan.budget_for(target(1, 100_000_000)) + 2


def test_slots_make_it_longer_by_the_waits() -> None:
    targets = [target(number) for number in range(6)]
    found = estimated(targets, hosts=True, slot_s=60)
    alone = estimated(targets)
    assert found.slot_s == 60
    for name in NAMES:
        # Two targets per class. Both fit into a slot as expected, one in the worst case: then each class comes twice.
        assert 120 < found.parts[name].expected_s < 180
        assert 300 < found.parts[name].worst_s < 360
        assert found.parts[name].expected_s > 5 * alone.parts[name].expected_s


@pytest.mark.parametrize("slot_s", [120, 300, 1800])
def test_slots_are_near_what_the_schedule_does(slot_s: int) -> None:
    draw = random.Random(slot_s)
    targets = [target(number, draw.randrange(100_000, 5_000_000)) for number in range(60)]
    plan = from_document({**FILE, "slot_s": slot_s, "iterations": 3}, Path("c.toml"))
    shared = share(plan, targets, NAMES, NAMES[:1])
    assert shared.slots is not None
    clock, until = [NOW], [NOW]

    def tell(state: State, reason: str, end: float | None) -> None:
        until[0] = end or clock[0]

    schedule = Schedule(
        shared.runs("B"),
        turns=Turns(),
        gates=[SlotGate(plan, shared.slots, shared.index("B"))],
        stop=threading.Event(),
        tell=tell,
        clock=lambda: clock[0],
        sleep=lambda seconds: clock.__setitem__(0, max(clock[0] + seconds, until[0])),
    )
    while (run := schedule.next()) is not None:
        clock[0] += expected_s(plan, run.target)
        schedule.give_back(run, again=False)
    found = estimate(shared, lambda *_: USUAL, NOW).parts["B"].expected_s
    # The plan's own order may need a round of slots more, or fewer.
    assert found == pytest.approx(clock[0] - NOW, rel=0.1, abs=len(NAMES) * min(slot_s, 120))


@pytest.mark.parametrize(
    ("budgets", "binding", "days"),
    [
        ({"domain": "14 MB"}, "0.com", 4),  # 4.6 MB a day: two runs of 2.2 MB, of seven
        ({"as": "30 MB"}, "AS65000", 4),  # 10 MB a day: four runs of 14
        ({"campaign": "20 MB"}, "the campaign", 14),  # 6.6 MB a day: two runs of 28
    ],
)
def test_the_budget_that_takes_longest(budgets: Any, binding: str, days: int) -> None:
    targets = [target(number) for number in range(4)]
    found = estimated(targets, budgets=budgets, iterations=7)
    assert run_bytes(from_document(FILE, Path("c.toml")), targets[0]) == 2 * 1_112_000
    assert (found.binding, found.last_day.toordinal() - date(2027, 1, 5).toordinal() + 1) == (binding, days)


def test_disk_follows_the_policy() -> None:
    disk = estimated([target(0)], disk={"sample": 0.5}).disk
    assert list(disk) == ["all", "sample", "failures", "none"]
    assert disk["none"] < disk["sample"] < disk["all"]
    assert disk["sample"] - disk["none"] == pytest.approx((disk["all"] - disk["none"]) / 2, abs=2)


def test_hours_last_to_the_last_run_or_to_the_end_of_the_last_day() -> None:
    targets = [target(number) for number in range(4)]
    part = estimated(targets).parts["A"]
    assert part.hours == pytest.approx(part.expected_s / 3600)
    slow = estimated(targets, budgets={"domain": "14 MB"}, iterations=7).parts["A"]
    assert slow.last_day == date(2027, 1, 8) and slow.hours == pytest.approx(4 + 3 * 24), "from 20:00 on the first day"
    assert part.sent_bytes + part.received_bytes == part.ip_bytes + estimated(targets).disk["all"]
    none = estimated(targets, disk={"captures": "none"}).parts["A"]
    assert none.sent_bytes < part.sent_bytes and none.received_bytes == part.received_bytes


def test_a_price_is_the_users_rates_times_the_use() -> None:
    part = replace(
        estimated([target(0)]).parts["A"], hours=10.0, sent_bytes=2_000_000_000, received_bytes=30_000_000_000
    )
    assert PlanOptions(price_hour=0.25, price_gb=0.5).price(part) == pytest.approx(3.5)
    assert PlanOptions(price_gb_in=0.1).price(part) == pytest.approx(3.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [f"{n}.com,https://{n}.com/f,other,{100_000 * n}" for n in range(1, 15)]
    (tmp_path / "targets.csv").write_text("\n".join(["domain,url,provider,size_bytes", *rows]) + "\n")
    path = tmp_path / "c.toml"
    head = 'name = "c"\ntargets = "targets.csv"\ncontact = "net@uni.edu"\n'
    path.write_text(head + 'vantage_points = ["SFO", "MUC"]\niterations = 2\n')
    return path


def test_the_tables_fit_80_columns(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.terminal.PIPE_COLUMNS", 80)
    found = CliRunner().invoke(app, ["plan", str(file)])
    assert found.exit_code == 0, found.output
    assert max(len(line) for line in found.output.splitlines()) <= 80
    for said in (
        "in slots of 0:30:00",
        "the largest 10 of 14",
        "Last day (UTC): ",
        "50 ms and 20 Mbit/s (--rtt-ms",
        "(this campaign has 14)",
    ):
        assert said in found.output.replace("\n", " "), found.output


def test_what_is_found_depends_on_domains_not_on_urls(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{n}.com,https://{n}.com/{path},other,{100_000 * n}\n" for n in range(1, 15) for path in range(20))
    output = planned_output(file, "", rows, monkeypatch)
    assert re.search(r"5 % on all domains is found .* from \d+ domains on \(this campaign has 14\)", output), output


def test_money_is_told_where_prices_are_given(file: Path) -> None:
    told = json.loads(CliRunner().invoke(app, ["plan", str(file), "--json", "--price-hour", "2"]).stdout)
    assert told["prices"] == {name: pytest.approx(2 * part["hours"]) for name, part in told["parts"].items()}
    free = CliRunner().invoke(app, ["plan", str(file)])
    paid = CliRunner().invoke(app, ["plan", str(file), "--price-hour", "2", "--price-gb", "0.09"])
    headings = [any(line.endswith(" price") for line in one.stdout.splitlines()) for one in (free, paid)]
    assert headings == [False, True] and "--price-hour" in free.stdout
    total = float(re.findall(r"^all .* ([0-9.,]+)$", paid.stdout, re.MULTILINE)[-1])
    parts = [float(re.findall(rf"^{name} .* ([0-9.,]+)$", paid.stdout, re.MULTILINE)[-1]) for name in ("MUC", "SFO")]
    assert total == pytest.approx(sum(parts), abs=0.011) and total > 0
    refused = CliRunner().invoke(app, ["plan", str(file), "--price-gb", "-1"])
    assert refused.exit_code == 2


def test_json_has_everything(file: Path) -> None:
    found = CliRunner().invoke(app, ["plan", str(file), "--json", "--mbit", "100"])
    told = json.loads(found.stdout)
    assert set(told["parts"]) == {"MUC", "SFO"} and len(told["domains"]) == 14 and told["slot_s"] == 1800
    assert told["targets"] == 14 and told["downloads_per_run"] == 10 and len(told["plan_sha256"]) == 64
    # Ten effects, and several runs of each domain: with one run each it would be 165.
    assert 40 < told["domains_for_5_percent"] < 120


@pytest.mark.parametrize(
    ("more", "field"), [('[budgets]\ndomain = "1 MB"\n', "budgets.domain"), ('[disk]\nlimit = "2 MB"\n', "disk.limit")]
)
def test_a_budget_or_limit_below_one_run_is_refused(file: Path, more: str, field: str) -> None:
    file.write_text(file.read_text() + more)
    found = CliRunner().invoke(app, ["plan", str(file)])
    assert f"field {field}" in str(found.exception)


def planned_output(file: Path, more: str, rows: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `upshift plan` prints at 80 columns, in one line, for a campaign with further fields and targets."""
    monkeypatch.setattr("core.terminal.PIPE_COLUMNS", 80)
    monkeypatch.delenv("UPSHIFT_ALLOWED_PREFIXES")
    file.write_text(file.read_text() + more)
    with (file.parent / "targets.csv").open("a") as targets:
        targets.write(rows)
    done = CliRunner().invoke(app, ["plan", str(file)])
    assert done.exit_code == 0, done.output or done.exception
    assert max(map(len, done.output.splitlines())) <= 80
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("disk", "sentence"),
    [
        ('limit = "20 MB"', r"needs about \S+ MB, and the limit is 20 MB \(disk.limit\)\. From then on captures"),
        (
            'reserve = "900 TB"',
            r"and 0 B of this disk can be used \(disk.reserve is 900 TB\)\. Without captures it needs",
        ),
        ('limit = "20 MB"\ncaptures = "none"', None),
    ],
)
def test_disk_need_is_compared_with_limit_and_room(
    file: Path, disk: str, sentence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = planned_output(file, f"[disk]\n{disk}\n", "", monkeypatch)
    assert re.search(sentence, output) if sentence else "Disk: " not in output, output


def lab_plan(file: Path, disk: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """What `upshift plan` says of a campaign of 400 downloads at each of a lab's three vantage points, in one line."""
    head = 'name = "c"\nlab = "anrw"\ntargets = "targets.csv"\n'
    client = '[[configurations]]\nname = "BL"\nclient = "requests"\n'
    file.write_text(f"{head}iterations = 25\n[disk]\n{disk}\n{client}")
    rows = [f"{n}.com,https://{n}.com/f,other,100000" for n in range(8)]
    (file.parent / "targets.csv").write_text("\n".join(["domain,url,provider,size_bytes", *rows]) + "\n")
    monkeypatch.setattr("core.terminal.PIPE_COLUMNS", 80)
    done = CliRunner().invoke(app, ["plan", str(file), *options])
    return " ".join(done.output.split()) or str(done.exception)


def test_vantage_points_of_a_lab_share_a_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = 210_000 + 400 * 5_000
    refused = lab_plan(file, 'limit = "4.5 MB"', monkeypatch)
    assert "journal and tables of 1,200 downloads need 7.05 MB" in refused
    alone = lab_plan(file, 'limit = "4.5 MB"', monkeypatch, "--here")
    assert re.search(r"needs about \S+ MB, and the limit is 4.5 MB .* From then on captures", alone), alone
    short = lab_plan(file, 'reserve = "900 TB"', monkeypatch)
    assert f"Without captures it needs {3 * one / 1e6:.2f} MB, so the campaign will pause." in short


def test_a_limit_that_can_never_be_met_is_refused(file: Path) -> None:
    more = 'iterations = 2000\n[disk]\nlimit = "50 MB"\ncaptures = "none"\n'
    file.write_text(file.read_text().replace("iterations = 2\n", more))
    done = CliRunner().invoke(app, ["plan", str(file)])
    assert re.search(
        r"a limit of 50 MB can never be met: journal and tables of 280,000 .* 1.41 GB", str(done.exception)
    )
    file.write_text(file.read_text().replace("iterations", "until_ci = 0.1\niterations"))
    assert CliRunner().invoke(app, ["plan", str(file)]).exit_code == 0, "it may end long before"


def test_targets_that_no_run_downloads_are_counted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "blocked.txt").write_text("1.com\n2.com\n")
    rows = "in.com,https://10.0.0.1/f,other,100000\n"
    more = 'block_lists = ["blocked.txt"]\nopt_out = "opt-out.txt"\n'
    output = planned_output(file, more, rows, monkeypatch)
    assert "Left alone: 2 targets of a block list. Refused: 1 target with an address that may not be" in output
    assert not (file.parent / "opt-out.txt").exists()


@pytest.mark.parametrize(
    ("listed", "opted_out", "alone"),
    [
        ("2.com\n", None, 1),
        ("# none\n", None, 0),
        ("www.3.com\n", None, 1),  # the host of its URL
        ("203.0.113.0/24\n", None, 1),
        ("203.0.113.9\n2.com # asked in June\n", None, 2),
        ("2.com\n", "2.com\n3.com\n", 2),
    ],
)
def test_block_lists_are_read_as_a_run_does(
    file: Path, listed: str, opted_out: str | None, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{n}.com,https://www.{n}.com/f,other,1000000,{'203.0.113.9' if n == 4 else ''}" for n in range(5)]
    (file.parent / "targets.csv").write_text("\n".join(["domain,url,provider,size_bytes,server_ip", *rows]) + "\n")
    (file.parent / "blocked.txt").write_text(listed)
    if opted_out is not None:
        (file.parent / "opt-out.txt").write_text(opted_out)
    output = planned_output(file, 'block_lists = ["blocked.txt"]\nopt_out = "opt-out.txt"\n', "", monkeypatch)
    count = "1 target" if alone == 1 else f"{alone} targets"
    assert f"Left alone: {count} of a block list." in output if alone else "Left alone" not in output


@pytest.mark.parametrize(
    ("listed", "sentence"), [(None, r"blocked\.txt: file not found"), ("2 com\n", r"line 1: '2 com' is neither")]
)
def test_a_block_list_that_cannot_be_read_is_refused(file: Path, listed: str | None, sentence: str) -> None:
    if listed is not None:
        (file.parent / "blocked.txt").write_text(listed)
    file.write_text(file.read_text().replace("iterations = 2\n", 'iterations = 2\nblock_lists = ["blocked.txt"]\n'))
    done = CliRunner().invoke(app, ["plan", str(file)])
    assert re.search(sentence, str(done.exception)), done.exception


def test_what_is_not_planned_over_quic_is_told(file: Path) -> None:
    rows = [f"{n}.com,https://{n}.com/f,other,1000000,{str(n > 2).lower()}" for n in range(5)]
    (file.parent / "targets.csv").write_text("\n".join(["domain,url,provider,size_bytes,quic", *rows]) + "\n")
    told = json.loads(CliRunner().invoke(app, ["plan", str(file), "--json"]).stdout)
    assert told["without_http3"] == ["0.com", "1.com", "2.com"] and told["targets"] == 5
    assert told["domains"][0]["ip_bytes"] * 7 == told["domains"][-1]["ip_bytes"] * 10, "7 downloads in place of 10"
    printed = " ".join(CliRunner().invoke(app, ["plan", str(file)]).output.split())
    assert "Not planned over QUIC: 3 targets known to be without HTTP/3 (column quic of the targets)." in printed
    assert "(this campaign has 5; 2 in comparisons with QUIC)" in printed
    only = '[[configurations]]\nname = "q"\nclient = "quiche"\n'
    file.write_text(file.read_text() + only)
    output = " ".join(CliRunner().invoke(app, ["plan", str(file)]).output.split())
    assert "c: 2 targets" in output and "nothing else is left for 3 of them" in output
    (file.parent / "targets.csv").write_text("\n".join(["domain,url,provider,size_bytes,quic", *rows[:3]]) + "\n")
    refused = CliRunner().invoke(app, ["plan", str(file)])
    assert "all targets are known to be without HTTP/3" in str(refused.exception)
