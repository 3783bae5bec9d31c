"""`upshift survey iw` over populations: samples of a full scan, types of objects, scans over time, manners."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from core.files import store
from survey.figures import wilson
from survey.iw.figures import COMMON, OTHERS, bucket
from survey.iw.record import IwRecord
from survey.iw.sources import PrefixSample
from tests.cells import cells
from tests.lab._iw_survey import (
    CONTACT,
    UPSHIFT,
    finished,
    most_in_a_second,
    planted,
    prefix_file,
    records,
    survey,
    syns,
)
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = pytest.mark.lab

HOSTS = {10: 32_768, 4: 16_384, 2: 8_192, 1: 4_096, 32: 4_096}
"""Window -> hosts: 65,536 together."""

URLS = {
    "application/mp2t": (62, 0.9),
    "image/png": (1_812, 0.4),
    "application/javascript": (1_395, 0.3),
    "application/octet-stream": (67, 0.3),
}
"""MIME type -> objects, share of those with 32 segments."""

NEAR = "rtt_ms = 2, rate_mbit = 1000"
QUICK = ("--mss", "64", "--rate", "3000", "--address-rate", "1000")


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("iwmany") / "iwmany.toml"
    blocks = ", ".join(f"{{ hosts = {hosts}, initcwnd = {window} }}" for window, hosts in HOSTS.items())
    more = f'web_server = "nginx"\nplain_http = true\npopulation = [{blocks}]'
    path.write_text(topology("iwmany", server("nginx", "www.many.example", more=more, size="100 kB", path=NEAR)))
    with open_lab(path) as found:
        yield found


def hosts_of(lab: Lab, counts: Mapping[int, int]) -> list[tuple[str, int]]:
    """(address, window) of so many hosts per window."""
    blocks = planted(lab)
    return [(str(blocks[window][index]), window) for window, count in counts.items() for index in range(count)]


def figure(name: str, *files: Path) -> list[dict[str, Any]]:
    argv = [*UPSHIFT, "survey", "figures", *map(str, files), "--figure", name, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def dated(path: Path, found: Sequence[IwRecord], day: datetime) -> Path:
    """A file of results as if they had been found that day."""
    results = [replace(record, surveyed_at=day.timestamp()) for record in found]
    store.write_rows(path, "survey_iw", results, IwRecord)
    return path


def watched_survey(lab: Lab, out: Path, *arguments: object, hosts: int) -> tuple[dict[str, Any], list[int]]:
    """A survey's JSON, and the memory of the command and its prober after each sixth of the hosts but the last [kB].

    After the last host, results are written, which takes memory for a batch of rows.
    """
    argv = [*UPSHIFT, "survey", "iw", "-o", str(out), *CONTACT, "--json", *map(str, arguments)]
    folder, ledger = out.parent, out.with_name(out.name + ".ledger.sqlite")
    memory_kb: list[int] = []
    child = lab.place("V").start(argv, stdout=folder / "stdout", stderr=folder / "stderr")
    while child.returncode is None:
        if len(memory_kb) < 5 and ledger.exists() and finished(ledger) >= hosts // 6 * (len(memory_kb) + 1):
            now_kb = resident_kb(child.pid)
            if finished(ledger) < hosts:
                memory_kb.append(now_kb)
        time.sleep(0.3)
    assert child.returncode == 0, (folder / "stderr").read_text()
    return json.loads((folder / "stdout").read_text().splitlines()[-1]), memory_kb


def resident_kb(pid: int) -> int:
    """Memory of a process and its children."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0  # it has just ended
    own = sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return own + sum(resident_kb(int(child)) for child in children)


@cells("hosts, share", every=[(4_096, 0.1), (65_536, 0.01)], quick=[(4_096, 0.1)])
def test_a_full_scan_and_100_draws_of_it(lab: Lab, tmp_path: Path, hosts: int, share: float) -> None:
    out, source = tmp_path / "full.parquet", tmp_path / "prefixes"
    parts = {window: count * hosts // 65_536 for window, count in HOSTS.items()}
    lines = [next(block.subnets(new_prefix=33 - parts[w].bit_length())) for w, block in planted(lab).items()]
    source.write_text("".join(f"{line}\n" for line in lines))
    arguments = ["--prefixes", source, "--path", "/a.bin", *QUICK]
    document, memory_kb = watched_survey(lab, out, *arguments, hosts=hosts)
    # Flat: what it had after a sixth of the hosts, and 8 MB for the collector's rhythm.
    assert len(memory_kb) >= 2 and max(memory_kb) <= memory_kb[0] + 8_000, memory_kb
    truth = {str(window) if str(window) in COMMON else OTHERS: parts[window] / hosts for window in parts}
    for name, expected in truth.items():
        assert document["shares"]["all servers"][name]["share"] == pytest.approx(expected, abs=0.002), name
    seen = {record.domain: bucket(record) for record in records(out)}
    assert len(seen) == hosts
    inside: Counter[str] = Counter()
    for seed in range(100):
        draw = Counter(seen[subject.domain] for subject in PrefixSample(source, share=share, seed=seed))
        assert draw.total() == round(hosts * share)
        for name, expected in truth.items():
            interval = wilson(draw[name], draw.total())
            inside[name] += interval.low <= expected <= interval.high
    assert min(inside.values()) >= 90, inside


@cells("divisor", every=[1, 10, 20], quick=[20])
def test_shares_per_mime_type(lab_host: Path, tmp_path: Path, divisor: int) -> None:
    """A survey of objects; each is the largest of its domain and type."""
    source, out, file = tmp_path / "objects.csv", tmp_path / "iw.parquet", tmp_path / "iwtypes.toml"
    domains: dict[int, list[str]] = {10: [], 32: []}
    lines, planted_shares, counts = ["url,mime_type,size_bytes"], {}, {}
    for kind, (count, share) in URLS.items():
        counts[kind] = max(10, count // divisor)
        with_32 = round(counts[kind] * share)
        planted_shares[kind] = with_32 / counts[kind]
        for number in range(counts[kind]):
            mine = domains[32 if number < with_32 else 10]
            mine.append(f"{kind.partition('/')[2]}{number}.example")
            lines.append(f"http://{mine[-1]}/a.bin,{kind},100000")
            lines.append(f"http://{mine[-1]}/smaller.bin,{kind},99")
    source.write_text("\n".join(lines) + "\n")
    servers = [
        server(f"iw{window}", "DOMAINS", more=f'web_server = "sender"\ninitcwnd = {window}', path=NEAR).replace(
            '"DOMAINS"', ", ".join(f'"{name}"' for name in names)
        )
        for window, names in domains.items()
    ]
    file.write_text(topology("iwtypes", *servers))
    with open_lab(file) as lab:
        survey(lab, out, source, *QUICK, "--per-address", 200, timeout_s=590)
    rows = {row["mime_type"]: row for row in figure("mime-types", out) if row["window"] == "32"}
    assert {kind: row["n"] for kind, row in rows.items()} == counts
    for kind, row in rows.items():
        assert row["low"] <= planted_shares[kind] <= row["high"], row
        assert row["share"] == pytest.approx(planted_shares[kind], abs=0.01), row


@cells("hosts", every=[100, 1_000], quick=[100])
@pytest.mark.soak
def test_scans_over_time(lab: Lab, tmp_path: Path, hosts: int) -> None:
    """IW 10 at 54, 60 and 67 % over HTTP; over TLS it passes IW 4 at the second scan."""
    of_ten = {"http": (0.54, 0.60, 0.67), "https": (0.40, 0.55, 0.65)}
    files = []
    for week in range(3):
        found: list[IwRecord] = []
        for scheme, shares in of_ten.items():
            many = round(shares[week] * hosts)
            source, out = tmp_path / "targets.csv", tmp_path / f"{week}-{scheme}.parquet"
            listed = hosts_of(lab, {10: many, 4: hosts - many})
            source.write_text("domain,url\n" + "".join(f"{host},{scheme}://{host}/a.bin\n" for host, _ in listed))
            survey(lab, out, source, *QUICK)
            found += records(out)
        day = datetime(2026, 1, 5, tzinfo=UTC) + timedelta(weeks=week)
        files.append(dated(tmp_path / f"week-{week}.parquet", found, day))
    drawn = {(row["date"], row["scheme"], row["window"]): row for row in figure("over-time", *files)}
    days = sorted({date for date, _, _ in drawn})
    assert days == ["2026-01-05", "2026-01-12", "2026-01-19"]
    for day, ten, ten_tls in zip(days, *of_ten.values(), strict=True):
        row = drawn[day, "http", "10"]
        assert row["share"] == pytest.approx(ten, abs=0.005) and row["n"] == hosts, row
        # Over TLS some are late on a busy host, and decide nothing.
        row, four = drawn[day, "https", "10"], drawn[day, "https", "4"]
        assert row["low"] <= ten_tls <= row["high"] and row["n"] >= 0.8 * hosts, row
        assert (row["share"] > four["share"]) == (day != days[0]), (row, four)


@cells("scale", every=[1, 32], quick=[1])
def test_the_same_scan_again_shows_what_changed(lab_host: Path, tmp_path: Path, scale: int) -> None:
    """Servers change their windows between two scans of the same prefixes: 4 becomes 10, and 2 becomes 4."""
    hosts, file = {10: 64 * scale, 4: 32 * scale, 2: 32 * scale}, tmp_path / "iwagain.toml"
    blocks = ", ".join(f"{{ hosts = {count}, initcwnd = {window} }}" for window, count in hosts.items())
    more = f'web_server = "nginx"\nplain_http = true\npopulation = [{blocks}]'
    file.write_text(topology("iwagain", server("nginx", "www.again.example", more=more, size="100 kB", path=NEAR)))
    scans = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    with open_lab(file) as lab:
        arguments = ["--prefixes", prefix_file(lab, tmp_path / "prefixes"), "--path", "/a.bin", *QUICK]
        survey(lab, scans[0], *arguments)
        node = lab.place("nginx")
        for window, after in ((4, 10), (2, 4)):
            rules = node.run(["ip", "rule", "show", "from", str(planted(lab)[window])]).stdout
            own = ["table", rules.split()[-1]]
            [route] = node.run(["ip", "-4", "route", "show", *own]).stdout.splitlines()
            changed = route.replace(f"initcwnd {window}", f"initcwnd {after}").split()
            assert node.run(["ip", "route", "change", *changed, *own]).returncode == 0
        survey(lab, scans[1], *arguments)
    days = {"2026-01-05": scans[0], "2026-01-12": scans[1]}
    files = [dated(tmp_path / day, records(out), datetime.fromisoformat(f"{day}T00:00Z")) for day, out in days.items()]
    drawn = figure("over-time", *reversed(files))
    shares = {day: {row["window"]: row["share"] for row in drawn if row["date"] == day} for day in days}
    assert len(drawn) == sum(map(len, shares.values())) and {row["n"] for row in drawn} == {sum(hosts.values())}
    assert list(shares.values()) == [
        {"1": 0.0, "2": 0.25, "4": 0.25, "10": 0.5, OTHERS: 0.0},
        {"1": 0.0, "2": 0.0, "4": 0.25, "10": 0.75, OTHERS: 0.0},
    ]


@cells("hosts, at_one, opted_s", every=[(60, 8, 1.0), (5_000, 500, 120.0)], quick=[(60, 8, 1.0)])
def test_rates_hold_in_every_second(lab: Lab, tmp_path: Path, hosts: int, at_one: int, opted_s: float) -> None:
    """Many hosts, some of them at one address; blocked ones; some opt out meanwhile."""
    out, opted, blocked = tmp_path / "iw.parquet", tmp_path / "opt-out", tmp_path / "blocked"
    capture, source, place = tmp_path / "c.pcap", tmp_path / "targets.csv", lab.place("V")
    [(shared, _), *others] = hosts_of(lab, {10: hosts - at_one + 1})
    rows = [(f"h{number}.example", shared) for number in range(at_one)]
    rows += [(f"o{number}.example", host) for number, (host, _) in enumerate(others)]
    step = len(rows) // at_one
    rows = [
        *itertools.chain(
            *([rows[n], *rows[at_one + n * (step - 1) : at_one + (n + 1) * (step - 1)]] for n in range(at_one))
        )
    ]
    source.write_text("domain,url\n" + "".join(f"{domain},http://{host}/a.bin\n" for domain, host in rows))
    listed = {host for _, host in rows}  # the last ones have no place in the pattern above
    blocked_hosts = [host for host, _ in others[1::10] if host in listed]
    blocked.write_text("".join(f"{host}\n" for host in blocked_hosts))
    dump = place.start(
        ["tcpdump", "-i", place.interface, "-U", "-Z", "root", "-w", str(capture), "tcp"], stderr=tmp_path / "d"
    )
    arguments: list[object] = [source, "--mss", 64, "--rate", 50, "--address-rate", 2, "--packet-rate", 400]
    arguments += ["--block-list", blocked, "--opt-out", opted]
    argv = [*UPSHIFT, "survey", "iw", "-o", str(out), *CONTACT, "--json", *map(str, arguments)]
    child = place.start(argv, stdout=tmp_path / "stdout", stderr=tmp_path / "stderr")
    time.sleep(2.0 + opted_s)
    leaving = [host for host, _ in others[-len(others) // 4 :]]
    opted_at = time.time()
    opted.write_text("".join(f"{host}\n" for host in leaving))
    assert child.wait(900) == 0, (tmp_path / "stderr").read_text()
    time.sleep(0.5)
    dump.stop()
    found, sent = records(out), syns(capture)
    assert len(found) == len(rows) == len({record.domain for record in found})
    causes = Counter(record.failure or record.verdict for record in found)
    assert set(causes) == {"limited", "blocked"} and causes["blocked"] >= len(blocked_hosts), causes
    assert {record.iw_segments for record in found if record.verdict == "limited"} == {10}
    assert not {target for _, target in sent} & set(blocked_hosts)
    late = [target for at, target in sent if at > opted_at + min(60.0, 2.0 + 1.0) and target in leaving]
    assert not late, late
    # The prober's own limits; captured packets may have waited for a CPU.
    assert most_in_a_second([at for at, _ in sent]) <= 1.1 * 50 + 2
    assert most_in_a_second(packets_out(capture)) <= 1.1 * 400 + 2
    mine = [at for at, target in sent if target == shared]
    # Two a second, 0.5 s apart; one that waited for a CPU is nearer to the next one.
    assert len(mine) >= at_one and most_in_a_second(mine) <= 3, mine


def packets_out(capture: Path) -> list[float]:
    """When the prober sent a packet."""
    argv = ["tcpdump", "-tt", "-nn", "-r", str(capture), "tcp dst port 80"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return [float(line.split(maxsplit=1)[0]) for line in lines]
