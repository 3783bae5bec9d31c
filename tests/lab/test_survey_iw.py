"""`upshift survey iw` in labs that plant the truth: windows, kinds, unfit vantage points, samples, opt-outs, kills."""

from __future__ import annotations

import ipaddress
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.system.place import Place
from survey.iw.record import IwRecord, arrivals_of, votes_of
from tests.cells import Repeats, cells
from tests.lab import noise
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
    targets,
)
from tests.topologies import UNFIT, server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = pytest.mark.lab

VANTAGES = ("V", "P")
NEAR = "rtt_ms = 10, rate_mbit = 1000"
WINDOWS = (1, 4, 10, 32, 100)
SWEEP = (1, 2, 3, 4, 10, 16, 20, 25, 30, 32, 48, 64, 100)
BYTES = (14_600, 65_536, 105_000)
HOSTS = {10: 2048, 4: 1024, 25: 512}


def text() -> str:
    def made(name: str, more: str, path: str = NEAR) -> str:
        found = server(name, f"www.{name}.example", more=more, vantages=VANTAGES, size="1 MB", path=path)
        paths = f"V = {{ {path} }}, P = {{ {UNFIT} }}"
        return found[: found.index("paths = ")] + f"paths = {{ {paths} }}\n"

    blocks = ", ".join(f"{{ hosts = {hosts}, initcwnd = {window} }}" for window, hosts in HOSTS.items())
    return topology(
        "iwsurvey",
        made("nginx", f'web_server = "nginx"\nplain_http = true\nwindows = {list(SWEEP)}\npopulation = [{blocks}]'),
        made("caddy", f"plain_http = true\nwindows = {list(SWEEP)}"),
        made("sender", 'web_server = "sender"\ninitcwnd = 2000'),
        made("paced", 'web_server = "sender"\ninitcwnd = 32', "rtt_ms = 100, rate_mbit = 500"),
        made("ten", 'web_server = "sender"\ninitcwnd = 10'),
        vantages=VANTAGES,
    )


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("iwsurvey") / "iwsurvey.toml"
    path.write_text(text())
    with open_lab(path) as found:
        yield found


def test_every_window_is_exact_and_targets_are_filled(lab: Lab, tmp_path: Path) -> None:
    truth: dict[str, tuple[str, int | None, int]] = {}
    for name in ("nginx", "caddy"):
        for window in WINDOWS:
            truth[f"http://iw-{window}.www.{name}.example/a.bin"] = ("segments", window, window * 1460)
    for size in BYTES:
        truth[f"http://www.sender.example/x?size=1000000&first={size}"] = ("bytes", None, size)
    truth["http://www.sender.example/x?size=1000000&first=rfc3390"] = ("rfc3390", None, 4380)
    source, out, filled = targets(tmp_path / "t.csv", list(truth)), tmp_path / "iw.parquet", tmp_path / "filled.csv"
    survey(lab, out, source, "--targets-out", filled, "--address-rate", 1000, "--per-address", 8)
    found = {record.url: record for record in records(out)}
    assert set(found) == set(truth)
    for url, (kind, count, size) in truth.items():
        record = found[url]
        assert (record.verdict, record.iw_kind, record.iw_segments, record.iw_bytes) == (
            "limited",
            kind,
            count,
            size,
        ), (
            url,
            record,
        )
        assert {mss: vote.verdict for mss, vote in votes_of(record).items()} == dict.fromkeys(
            (64, 128, 536, 1200), "limited"
        )
        if kind == "segments":
            assert record.within_rfc6928 == ((count or 0) <= 10)
    lines = filled.read_text().splitlines()
    header = lines[0].split(",")
    rows = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    assert {row["url"]: (row["iw_kind"], row["iw_bytes"]) for row in rows} == {
        url: (kind, str(size)) for url, (kind, _, size) in truth.items()
    }


def test_tls(lab: Lab, tmp_path: Path) -> None:
    urls = {f"https://iw-{window}.www.caddy.example/a.bin": window for window in WINDOWS}
    out = tmp_path / "iw.parquet"
    survey(lab, out, targets(tmp_path / "t.csv", list(urls)), "--address-rate", 1000, "--per-address", 8)
    late = 0
    for record in records(out):
        window = urls[record.url or ""]
        for mss, vote in votes_of(record).items():
            late += vote.verdict == "late"
            assert vote.verdict == "late" or (vote.verdict, vote.segments) == ("limited", window), (window, mss, vote)
        assert record.iw_segments in (window, None), record
    assert late <= 4, late  # of 20; where nothing else runs, it is none or one


@cells("window", every=SWEEP, quick=[16])
def test_the_sweep_of_windows(lab: Lab, tmp_path: Path, repeats: Repeats, window: int) -> None:
    hosts = [f"http://iw-{window}.www.{name}.example" for name in ("nginx", "caddy")]
    urls = [f"{host}/a.bin" for host in (*hosts, hosts[1].replace("http:", "https:"))]
    for number in range(repeats(quick=1, soak=3)):
        out = tmp_path / f"{number}.parquet"
        survey(lab, out, targets(tmp_path / "t.csv", urls))
        for record in records(out):
            votes = [vote for vote in votes_of(record).values() if vote.verdict != "late"]
            assert {vote.segments for vote in votes} <= {window}, record
            if record.scheme == "http" or len(votes) > 1:
                assert (record.iw_kind, record.iw_segments) == ("segments", window), record


@pytest.mark.soak  # test_survey_cdn_iw: one beside fit ones
def test_an_unfit_vantage_point_is_marked(lab: Lab, tmp_path: Path) -> None:
    source = targets(tmp_path / "t.csv", ["http://iw-32.www.nginx.example/a.bin"])
    control = "http://iw-10.www.nginx.example/a.bin=10"
    for vantage, is_fit in (("V", True), ("P", False)):
        out = tmp_path / f"{vantage}.parquet"
        arguments = [source, "--mss", 64, "--mss", 536, "--control", control, "--vantage", vantage]
        document = survey(lab, out, *arguments, vantage=vantage)
        [record] = records(out)
        assert (record.vantage, record.vantage_fit) == (vantage, is_fit), record
        assert record.iw_segments == (32 if is_fit else 1), record
        assert (document["unfit"], document["decided"]) == ((0, 1) if is_fit else (document["unfit"], 0))


def test_lists_without_urls_find_enough_data(lab: Lab, tmp_path: Path) -> None:
    source, out = tmp_path / "list.txt", tmp_path / "iw.parquet"
    source.write_text("www.ten.example\n")
    # Its pages of errors repeat the path: more than ten segments of 64 bytes, fewer than ten of 1200.
    survey(lab, out, source)
    [record] = records(out)
    votes = votes_of(record)
    assert (votes[64].verdict, votes[64].segments, votes[1200].verdict) == ("limited", 10, "lower_bound"), record
    assert record.url is not None and record.url.endswith("a" * 1000)
    assert (record.verdict, record.failure) == ("limited", None)


def test_objects_of_an_archive_per_type(lab: Lab, tmp_path: Path) -> None:
    """The largest object per domain and type; a server's windows differ per host name."""
    source, out = tmp_path / "objects.csv", tmp_path / "iw.parquet"
    rows = [(f"http://iw-{n}.www.nginx.example/a.bin", kind, n) for n in (16, 32) for kind in ("image/png", "text/css")]
    rows += [("http://iw-16.www.nginx.example/none", "image/png", 1)]  # smaller, and does not exist
    source.write_text("url,mime_type,size_bytes\n" + "".join(f"{url},{kind},{size}\n" for url, kind, size in rows))
    survey(lab, out, source, "--mss", 64, "--mss", 536)
    found = {(record.url, record.mime_type): record.iw_segments for record in records(out)}
    assert found == {(url, kind): size for url, kind, size in rows[:4]}


def test_a_sample_has_the_shares_of_the_population(lab: Lab, tmp_path: Path) -> None:
    out, blocks = tmp_path / "iw.parquet", planted(lab)
    arguments = [
        "--prefixes",
        prefix_file(lab, tmp_path / "p.txt"),
        "--sample",
        0.1,
        "--seed",
        7,
        "--mss",
        64,
        "--path",
        "/a.bin",
    ]
    document = survey(lab, out, *arguments, "--rate", 2000)
    found = records(out)
    assert len(found) == round(sum(HOSTS.values()) * 0.1)
    for record in found:
        [window] = [w for w, block in blocks.items() if ipaddress.ip_address(record.domain) in block]
        assert (record.verdict, record.iw_segments) == ("limited", window), record
    ten = document["shares"]["all servers"]["10"]
    assert ten["low"] <= HOSTS[10] / sum(HOSTS.values()) <= ten["high"]


@pytest.mark.soak  # test_survey_iw_population: the rates, the block list and an opt-out, of fewer hosts
def test_manners_and_an_opt_out(lab: Lab, tmp_path: Path) -> None:
    """The rates hold; no packet goes to a blocked host, nor to one that opted out."""
    out, opted, blocked = tmp_path / "iw.parquet", tmp_path / "opt-out", tmp_path / "blocked"
    capture, source, place = tmp_path / "c.pcap", tmp_path / "p.txt", lab.place("V")
    hosts = [str(planted(lab)[10][index]) for index in range(200)]
    source.write_text("".join(f"{host}/32\n" for host in hosts))
    blocked.write_text(f"{hosts[3]}\n")
    dump = place.start(
        ["tcpdump", "-i", place.interface, "-U", "-Z", "root", "-w", str(capture)], stderr=tmp_path / "d"
    )
    arguments = ["--prefixes", source, "--mss", 64, "--path", "/a.bin", "--rate", 50, "--address-rate", 2]
    arguments += ["--block-list", blocked, "--opt-out", opted]
    argv = [*UPSHIFT, "survey", "iw", "-o", str(out), *CONTACT, "--json", *map(str, arguments)]
    child = place.start(argv, stdout=tmp_path / "stdout", stderr=tmp_path / "stderr")
    ledger = out.with_name(out.name + ".ledger.sqlite")
    begin = time.monotonic()
    while time.monotonic() < begin + 30:
        time.sleep(0.2)
        if ledger.exists() and finished(ledger) >= 30:
            break
    opted_at = time.time()
    opted.write_text("".join(f"{host}\n" for host in hosts))
    assert child.wait(60) == 0, (tmp_path / "stderr").read_text()
    time.sleep(0.5)
    dump.stop()
    found, sent = records(out), syns(capture)
    causes = Counter(record.failure or record.verdict for record in found)
    assert causes["limited"] >= 30 and causes["blocked"] >= 20, causes
    assert all(record.iw_segments == 10 for record in found if record.verdict == "limited")
    assert hosts[3] not in {target for _, target in sent}
    assert max(at for at, _ in sent) < opted_at + 2 + 1  # the list is read again within 2 s
    times = [at for at, _ in sent]
    # Turns are granted at the rate, and the prober has a limit of its own; captured packets may have waited for a CPU.
    assert len(times) <= 50 * (max(times) - min(times)) + 2 + 0.25 * 50
    assert most_in_a_second(times) <= 1.1 * 50 + 2
    for host in hosts:
        mine = [at for at, target in sent if target == host]
        assert most_in_a_second(mine) <= 3, (host, mine)


def settings(place: Place) -> tuple[str, str, str]:
    """What a survey could leave behind: sysctls (without counters), nft rules, routes and addresses."""
    lines = place.run(["sysctl", "-a"]).stdout.splitlines()
    kept = sorted(line for line in lines if line.startswith("net.") and "count" not in line)
    rules = place.run(["nft", "list", "ruleset"]).stdout
    return "\n".join(kept), rules, place.run(["ip", "-o", "address"]).stdout


def test_kills_lose_nothing(lab: Lab, tmp_path: Path, repeats: Repeats) -> None:
    """Each host is surveyed once, and nothing of the node is changed."""
    before = settings(lab.place("V"))
    out = tmp_path / "iw.parquet"
    arguments = [
        "--prefixes",
        prefix_file(lab, tmp_path / "p.txt"),
        "--sample",
        0.05,
        "--mss",
        64,
        "--path",
        "/a.bin",
        "--rate",
        200,
    ]
    argv = [*UPSHIFT, "survey", "iw", "-o", str(out), *CONTACT, "--json", *map(str, arguments)]
    chance = random.Random(1)
    kills = repeats(quick=3, soak=20)
    for _ in range(kills):
        child = lab.place("V").start(argv, stdout=tmp_path / "stdout", stderr=tmp_path / "stderr")
        time.sleep(chance.uniform(0.3, 2.5 if kills < 10 else 1.5))  # many kills should meet a survey that still runs
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    survey(lab, out, *arguments)
    found = records(out)
    assert len(found) == len({record.domain for record in found}) == round(sum(HOSTS.values()) * 0.05)
    assert {record.verdict for record in found} == {"limited"}
    assert settings(lab.place("V")) == before


@pytest.mark.measures
def test_pacing(lab: Lab, tmp_path: Path) -> None:
    queries = {"": "burst", "pace=on": "paced", "pace=on&cc=bbr": "paced", "pace=1.5": "paced"}
    urls = {f"http://www.paced.example/x?size=1000000&{query}": pace for query, pace in queries.items()}
    urls["http://www.ten.example/x?size=1000000&pace=on"] = "cannot_tell"
    source, numbers = targets(tmp_path / "t.csv", list(urls)), itertools.count()

    def measure() -> tuple[dict[str, IwRecord], list[noise.Noise]]:
        out = tmp_path / f"{next(numbers)}.parquet"
        with noise.host_noise() as noises:
            survey(lab, out, source, "--pacing", "--mss", 1200, "--per-address", 4)
        return {record.url or "": record for record in records(out)}, noises

    def wrong(measured: tuple[dict[str, IwRecord], list[noise.Noise]]) -> list[str]:
        found, _ = measured
        assert found.keys() == urls.keys()
        said = [f"{url}: {found[url].pace} instead of {pace}" for url, pace in urls.items() if found[url].pace != pace]
        for query, ratio in {"pace=on": 2.0, "pace=on&cc=bbr": 2.86}.items():
            seen = found[f"http://www.paced.example/x?size=1000000&{query}"]
            if seen.pacing_ratio != pytest.approx(ratio, rel=0.1):
                said.append(f"{query}: ratio {seen.pacing_ratio} instead of {ratio}")
        paced = found["http://www.paced.example/x?size=1000000&pace=on"]
        if (paced.first_burst, paced.paced) != (10, True) or paced.train != pytest.approx(2, abs=0.5):
            said.append(f"pace=on: {paced.first_burst} at once, then trains of {paced.train}")
        return said

    found, _ = noise.measured(measure, wrong, excuse=lambda measured: measured[1][0].excuse)
    assert len(arrivals_of(found["http://www.paced.example/x?size=1000000&pace=on"])) == 32
