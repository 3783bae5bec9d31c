"""`upshift demo`, as somebody types it: what stands in the folder and on the terminal is as designed.

Proven are: exit 0 and the output layout of the design (section 3); every first SYN as asked, by the product's verdict
and by tcpdump's; at least 97 % of downloads `ok` among targets that support the transport; at least 90 % of A/A pairs
on clean paths within 10 %; every accepted download balances; Tables 1 and 2 on the terminal; nothing left of the lab.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from analysis.measures import dataset, truth
from analysis.measures.dataset import Dataset, Record
from core.domain import Download, Outcome, Target, Transport
from core.files import store
from core.system import process
from downloader.control.status import read_status
from tests.inspected import kpi_rows
from tests.lab.campaigns import is_void, print_capture, state_folder
from tests.lab.noise import TOO_NOISY, host_noise, measured, too_many_void

# A demo takes minutes, on a busy host twice.
pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

PAPER = ["BL", "BL2", "ECN", "SACK", "WS", "ALL", "aioquic", "quiche"]
VANTAGES = {"small": ("MUC",), "anrw": ("MUC", "SFO", "SGP")}
TARGETS = {"small": 4, "anrw": 16}
DROPPED = {"small": set[str](), "anrw": {"does not support ecn", "does not support sack"}}
ALONE = pytest.param("anrw", marks=[pytest.mark.soak, pytest.mark.measures])
EACH = pytest.mark.parametrize("topology", ["small", ALONE])
"""The whole pipeline in a minute, and the demo of `make demo`."""
FULL = pytest.mark.parametrize("topology", [ALONE])
"""What takes the demo of `make demo`, and a quiet host: marks, enough clean paths, times."""

QUIC_OVERHEAD = 28 + 21 + 4 + 16 + 8
"""IPv4 and UDP headers, short header with its packet number, tag, stream frame [bytes] (RFC 9000, 17.3.1 and 19.8)."""


class Demo:
    """A demo that ended: its folder, what it printed, and what it left."""

    def __init__(self, topology: str, out: Path) -> None:
        self.topology, self.out = topology, out
        self.runs = len(VANTAGES[topology]) * TARGETS[topology]
        program = str(Path(sys.executable).with_name("upshift"))
        command = [program, "demo", "--topology", topology, "--out", str(out)]
        with state_folder() as state, host_noise() as noise:
            self.done = process.run(command, timeout_s=550)
            self.left = [path for path in state.rglob("*") if path.is_dir() and (path / "state.json").exists()]
        self.noise = noise[0]
        complaint = self.done.stderr
        self.unusable = complaint.splitlines()[-1:] if too_many_void(self.done.returncode, complaint) else []
        if self.unusable:
            return
        assert self.done.returncode == 0, complaint
        self.data: Dataset = dataset.load([out])
        lab = self.data.folders[0].lab
        assert lab is not None
        chosen = {d.domain for d in self.downloads}
        self.paths = {(path.vantage, path.domain): path for path in truth.paths(lab) if path.domain in chosen}

    def path(self, download: Download) -> truth.LabPath:
        return self.paths[download.vantage, download.domain]

    @property
    def downloads(self) -> list[Download]:
        return [record.download for record in self.data.records]

    def supported(self) -> list[Download]:
        """Downloads by transports that their target has."""
        return [d for d in self.downloads if d.transport == Transport.TCP or self.path(d).quic]

    def pairs(self) -> list[tuple[str, float]]:
        """BL2 over BL on clean paths."""
        times = {(d.vantage, d.domain, d.configuration): d.last_byte_s for d in self.downloads}
        found = [
            (f"{vantage} {domain}", times[vantage, domain, "BL2"], times[vantage, domain, "BL"])
            for (vantage, domain), path in sorted(self.paths.items())
            if path.clean
        ]
        return [(path, second / first) for path, second, first in found if first and second]

    def round_trip_excess_ms(self) -> dict[tuple[str, str], list[float]]:
        """By path, the smallest round trip of each TCP download over the programmed one."""
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for record in self.data.records:
            download, rtt_min = record.download, record.number("rtt_min")
            if download.outcome == Outcome.OK and download.transport == Transport.TCP:
                assert rtt_min is not None, download
                found[download.vantage, download.domain].append(rtt_min - self.path(download).rtt_ms)
        return found

    def disturbed(self) -> list[str]:
        """What a busy host can do to a demo; only of the one whose times are judged, if it can be used."""
        if self.unusable or self.topology != "anrw":
            return self.unusable
        void = [f"{d.domain} {d.void_detail}" for d in self.downloads if is_void(d)]
        pairs = self.pairs()
        wide = [f"BL2/BL of {domain} is {ratio:.2f}" for domain, ratio in pairs if not 1 / 1.1 <= ratio <= 1.1]
        late = [f"{d.domain}: {d.host_disturbance_detail}" for d in self.downloads if d.host_disturbance]
        long = [
            f"a round trip of {vantage} {domain} is {excess_ms:.2f} ms too long"
            for (vantage, domain), excesses_ms in self.round_trip_excess_ms().items()
            for excess_ms in excesses_ms
            if excess_ms > max(1.0, 0.02 * self.paths[vantage, domain].rtt_ms)
        ]
        return [
            *void,
            *(wide if len(wide) > 0.1 * len(pairs) else []),
            *(late if len(late) > 0.03 * len(self.downloads) else []),
            *(long if len(long) > 0.03 * self.runs * 7 else []),
        ]


@pytest.fixture(scope="module")
def demos(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Demo | str]:
    """A demo of each topology. That of which times are judged is run again where the host was busy and it shows."""

    @cache
    def run(topology: str) -> Demo | str:
        folder = tmp_path_factory.mktemp("demo")
        try:
            return measured(
                lambda: Demo(topology, folder / str(len(list(folder.iterdir())))),
                Demo.disturbed,
                excuse=lambda demo: demo.noise.excuse,
            )
        except pytest.skip.Exception as noisy:  # for all tests of this demo: it is not run for each of them
            return str(noisy)

    return run


@pytest.fixture
def demo(demos: Callable[[str], Demo | str], topology: str) -> Demo:
    made = demos(topology)
    if isinstance(made, str):
        pytest.skip(made)
    return made


@EACH
def test_the_folder_is_laid_out_as_designed(demo: Demo) -> None:
    out = demo.out
    rows = store.read_rows(out / "downloads.parquet", "downloads", Download)
    over_tcp = sum(not path.quic for path in demo.paths.values())
    assert len(rows) == demo.runs * (2 + len(PAPER)) - 3 * over_tcp, "nothing over QUIC where there is no HTTP/3"
    assert sorted({row.vantage for row in rows}) == sorted(VANTAGES[demo.topology])
    assert sorted({row.configuration for row in rows}) == sorted(["warmup", "warmup-quic", *PAPER])
    assert kpi_rows(out) >= len(demo.supported()) - 1
    assert json.loads((out / "environment.json").read_text(encoding="utf-8"))
    assert json.loads((out / "lab.json").read_text(encoding="utf-8"))["topology"] == demo.topology
    assert all((out / "vantage" / name / "journal.sqlite").is_file() for name in VANTAGES[demo.topology])
    for row in rows:
        assert row.capture is not None and (out / row.capture).is_file()
        assert row.capture.startswith(f"vantage/{row.vantage}/captures/")
    for name in ("table1", "configurations", "table2", "dose"):
        with (out / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
            assert list(csv.DictReader(handle)), name
        assert (out / "tables" / f"{name}.md").read_text(encoding="utf-8").startswith("|"), name
    for number in (1, 2, 3):
        for suffix in ("svg", "png"):
            assert list((out / "figures").glob(f"figure{number}-*.{suffix}")), (number, suffix)
    page = (out / "report" / "index.html").read_text(encoding="utf-8")
    assert "<html" in page and "http://" not in re.sub(r"http://www\.w3\.org/[^\"']*", "", page)
    assert not list(out.rglob("*.part*")), "half files"
    captures = sum(path.stat().st_size for path in (out / "vantage").rglob("*.pcap*"))
    assert (read_status(out).disk.used_bytes or 0) >= captures, "with those of the last minute"
    assert not demo.left, "the lab is gone"


@EACH
def test_the_targets_were_crawled_mapped_surveyed_and_composed(demo: Demo) -> None:
    folder = demo.out / "targets"
    chosen = {row.domain: row for row in store.read_rows(folder / "targets.parquet", "targets", Target)}
    assert set(chosen) == {domain for _, domain in demo.paths} == {d.domain for d in demo.downloads}
    for (_, domain), path in demo.paths.items():
        row = chosen[domain]
        assert row.provider == path.provider and row.quic == path.quic
        assert row.ecn and row.sack and row.window_scaling
    printed = demo.done.stdout
    for number, word in enumerate(("list", "crawl", "map", "survey of TCP options", "survey of QUIC", "compose"), 1):
        assert f"== {number}/6 {word}: upshift " in printed
    account = json.loads((folder / "composition.json").read_text(encoding="utf-8"))
    assert account["targets"] == TARGETS[demo.topology]
    with (folder / "dropped.csv").open(encoding="utf-8", newline="") as handle:
        assert {row["reason"] for row in csv.DictReader(handle)} == DROPPED[demo.topology]


@EACH
def test_the_tables_are_printed(demo: Demo) -> None:
    printed = demo.done.stdout
    assert "Table 1: successful downloads per vantage point and provider" in printed
    assert "Table 2: speed-ups" in printed
    for row in (
        "BL2 vs BL",
        "ECN vs BL",
        "SACK vs BL",
        "WS vs BL",
        "ALL vs BL",
        "ALL vs WS",
        "quiche vs ALL",
        "BL2 vs ALL",
    ):
        assert row in printed
    assert str(demo.out / "report" / "index.html") in printed.replace("\n", "")


@FULL
def test_ecn_has_its_effect_where_packets_were_marked(demo: Demo) -> None:
    with (demo.out / "tables" / "dose.csv").open(encoding="utf-8", newline="") as handle:
        rows = {row["acted"]: row for row in csv.DictReader(handle) if row["comparison"] == "ECN vs BL"}
    marking = [path for path in demo.paths.values() if path.ecn_threshold_bytes is not None]
    assert 0 < int(rows["yes"]["n"]) <= len(marking) and int(rows["unknown"]["n"]) == 0
    assert int(rows["yes"]["n"]) + int(rows["no"]["n"]) <= demo.runs
    assert float(rows["yes"]["median"]) > 1.2 and abs(float(rows["no"]["median"]) - 1) < 0.02


@FULL
def test_the_words_that_its_paths_are_built_for_occur(demo: Demo) -> None:
    """Not for certain are `equivalent` (two QUIC clients, on a quiet host) and `mixed` (ECN): congestion limits BL on
    seven paths, one of which has random loss that ECN cannot help, and all seven have to gain surely for the word."""
    with (demo.out / "tables" / "table2.csv").open(encoding="utf-8", newline="") as handle:
        verdicts = {row["comparison"]: row["verdict"] for row in csv.DictReader(handle)}
    expected = {"ALL vs BL": "faster", "BL2 vs ALL": "slower"}
    assert {name: verdicts[name] for name in expected} == expected, verdicts
    with (demo.out / "tables" / "splits.csv").open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if (row["comparison"], row["by"]) == ("ECN vs BL", "limiter")]
    parts = {line["part"]: float(line["median"]) for line in rows if int(line["domains"]) >= 4}
    assert {line["of"] for line in rows} == {"BL2"} and parts.pop("congestion") > 1.2
    assert parts and all(abs(median - 1) < 0.02 for median in parts.values()), rows
    if verdicts["quiche vs ALL"] == "host too busy":
        pytest.skip(f"{TOO_NOISY}: clients waited for a CPU")
    assert verdicts["quiche vs ALL"] == "faster", verdicts


@EACH
def test_nearly_all_downloads_are_ok(demo: Demo) -> None:
    rows = demo.supported()
    bad = [(d.domain, d.configuration, d.failure, d.failure_detail) for d in rows if d.outcome != Outcome.OK]
    assert len(bad) <= 0.03 * len(rows), bad
    for download in demo.downloads:
        assert (download.outcome == Outcome.OK) == (download.failure is None), "no failure without a cause"


@FULL
def test_every_run_got_the_same_object_from_the_same_place(demo: Demo) -> None:
    flagged = {(d.domain, d.configuration, d.identity_detail) for d in demo.downloads if d.identity_detail}
    assert not flagged
    edges = {domain for (_, domain), path in demo.paths.items() if path.edge}
    states = {d.cache_state for d in demo.supported() if d.domain in edges and d.outcome == Outcome.OK}
    assert states == {"hit", "miss"}, "the warm-up fills the cache, and everything after it comes from there"


@EACH
def test_every_first_syn_is_as_asked(demo: Demo) -> None:
    records = [record for record in demo.data.records if record.download.transport == Transport.TCP]
    assert len(records) == demo.runs * 7
    for record in records:
        download = record.download
        assert download.treatment_ok is True or is_void(download), download
        assert download.capture is not None
        first = print_capture(demo.out / download.capture, download)[0]
        levels = json.loads(download.levels)
        assert first.flags == ("SEW" if levels["ecn"] == "on" else "S")
        assert ("sackOK" in first.options) == (levels["sack"] == "on")
        scale = re.search(r"wscale (\d+)", first.options)
        assert (scale[1] if scale else "off") == levels["window_scaling"]
        assert first.tsval


@FULL
def test_the_same_twice_takes_the_same_time(demo: Demo) -> None:
    pairs = demo.pairs()
    print(pairs, demo.noise)
    assert len(pairs) >= 20
    assert not demo.disturbed()


@FULL
def test_the_smallest_round_trip_is_the_programmed_one(demo: Demo) -> None:
    """On every path, edges and lossy ones included: never less, its median within half a millisecond, and 97 % of all
    downloads to 2 % or 1 ms.

    Not every download: where the first packets fill the queue, its handshake is the only sample, and of 336 the latest
    was 0.5 to 1.2 ms late even on a quiet host.
    """
    excess = demo.round_trip_excess_ms()
    assert sum(map(len, excess.values())) >= demo.runs * 6
    assert set(excess) == set(demo.paths)
    assert min(map(min, excess.values())) >= -0.1
    medians = {path: median(values) for path, values in excess.items()}
    assert max(medians.values()) <= 0.5, medians
    assert not demo.disturbed()


@EACH
def test_quic_clients_get_full_packets(demo: Demo) -> None:
    """The number of packets must not depend on how often a client acknowledges: else headers decide who is faster.

    What a queue dropped is sent again beside other data, and so in up to one packet more for each.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for record in demo.data.records:
        download = record.download
        if download.transport != Transport.QUIC or download.outcome != Outcome.OK or not demo.path(download).clean:
            continue
        full = demo.path(download).quic_packet_bytes - QUIC_OVERHEAD
        packets = record.number("packets_from_server")
        assert packets is not None, download
        found[download.configuration].append((packets - (download.lab_dropped or 0)) / (download.body_bytes / full))
    assert {"aioquic", "quiche"} <= set(found)
    for configuration, ratios in found.items():
        assert median(ratios) <= 1.03, f"{configuration}: {median(ratios):.3f} times the least number of packets"


@EACH
def test_every_accepted_download_balances(demo: Demo) -> None:
    accepted: list[Record] = [record for record in demo.data.records if not is_void(record.download)]
    for record in accepted:
        download = record.download
        assert download.lab_sent is not None and download.lab_received is not None and download.lab_dropped is not None
        assert download.lab_sent == download.lab_received + download.lab_dropped, download
        seen = (record.number("packets_from_server"), record.number("packets_from_client"))
        if None not in seen:
            # The client's side of the balance: what it sent all entered, what it got is the rest of what was delivered.
            assert sum(n for n in seen if n is not None) <= download.lab_sent
            assert sum(n for n in seen if n is not None) >= download.lab_received
