"""Pacing of initial windows by `upshift survey iw --pacing`: burst, paced, and bursts through slow bottlenecks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from survey.iw.pacing import UNPACED_SEGMENTS
from survey.iw.record import IwRecord
from tests.cells import Repeats, cells
from tests.lab import noise
from tests.lab._iw_survey import UPSHIFT, records, survey, targets
from tests.topologies import server, topology
from vantage.lab.lab import Lab, open_lab

pytestmark = [pytest.mark.lab, pytest.mark.measures]

WINDOWS = (10, 16, 20, 32, 50, 100)
PATHS = {
    "R20": "rtt_ms = 20, rate_mbit = 500",
    "R60": "rtt_ms = 60, rate_mbit = 500",
    "R100": "rtt_ms = 100, rate_mbit = 500",
    "S4": 'rtt_ms = 60, rate_mbit = 4, queue = "1 MB"',
    "S10": 'rtt_ms = 60, rate_mbit = 10, queue = "1 MB"',
}
"""Vantage point -> its path. Those of 4 and 10 Mbit/s would hide pacing: a burst cannot be told there."""

HOST = "www.paced.example"


@pytest.fixture(scope="module")
def lab(lab_host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("iwpacing") / "iwpacing.toml"
    found = server("paced", HOST, more=f'web_server = "sender"\nwindows = {list(WINDOWS)}', size="1 MB")
    paths = ", ".join(f"{name} = {{ {path} }}" for name, path in PATHS.items())
    path.write_text(
        topology("iwpacing", found[: found.index("paths = ")] + f"paths = {{ {paths} }}\n", vantages=tuple(PATHS))
    )
    with open_lab(path) as lab:
        yield lab


def senders(window: int, *, is_slow: bool) -> dict[str, float | None]:
    """Query -> the ratio at which it paces; None: a burst. At a ratio of 0.4 the rest takes (N - 10) / N / 0.4 RTT."""
    rest = max(window - UNPACED_SEGMENTS, 1) / window
    paced = {"pace=on": 2.0, f"pace={rest / 0.4:.3f}": 0.4, "pace=on&cc=bbr": 2.86}
    return {"": None} if is_slow else {"": None, **paced}


def url(window: int, query: str) -> str:
    return f"http://iw-{window}.{HOST}/x?size=1000000&{query}"


def fault(record: IwRecord, window: int, ratio: float | None, *, is_slow: bool) -> str | None:
    """What is wrong with a judgement."""
    wanted = "cannot_tell" if is_slow or window <= UNPACED_SEGMENTS else "burst" if ratio is None else "paced"
    if record.iw_segments != window or record.pace != wanted:
        return f"{record.url}: {record.iw_segments} segments, {record.pace} instead of {wanted} ({record.pacing_slope})"
    if wanted == "paced" and record.pacing_ratio != pytest.approx(ratio, rel=0.1):
        return f"{record.url}: ratio {record.pacing_ratio} instead of {ratio}"
    return None


@cells("vantage", every=PATHS, quick=["R60"])
@pytest.mark.soak
def test_every_sender_is_told(lab: Lab, tmp_path: Path, vantage: str, repeats: Repeats) -> None:
    """At least 98 % of the judgements are right; of ten segments nothing is told."""
    slow = vantage.startswith("S")
    truth = {url(w, query): (w, ratio) for w in WINDOWS for query, ratio in senders(w, is_slow=slow).items()}
    source, count = targets(tmp_path / "t.csv", list(truth)), repeats(quick=1, soak=10)

    def measure() -> tuple[list[IwRecord], list[noise.Noise]]:
        found: list[IwRecord] = []
        with noise.host_noise() as noises:
            for _ in range(count):
                out = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
                arguments = ["--mss", 1200, "--pacing", "--per-address", 4, "--address-rate", 1000]
                survey(lab, out, source, *arguments, vantage=vantage, timeout_s=120)
                found += records(out)
        return found, noises

    def wrong(measured: tuple[list[IwRecord], list[noise.Noise]]) -> list[str]:
        assert len(measured[0]) == count * len(truth)
        faults = [fault(record, *truth[record.url or ""], is_slow=slow) for record in measured[0]]
        said = [said for said in faults if said is not None]
        return said if len(said) > 0.02 * len(measured[0]) else []

    noise.measured(measure, wrong, excuse=lambda measured: measured[1][0].excuse)


@pytest.mark.soak
def test_ten_then_twos_as_the_figure_draws_it(lab: Lab, tmp_path: Path) -> None:
    """Burst and paced at IW 10 and 20 over 100 ms (the paper's Fig. 11)."""
    urls = [url(window, query) for window in (10, 20) for query in ("", "pace=on")]
    source, out = targets(tmp_path / "t.csv", urls), tmp_path / "iw.parquet"

    def measure() -> tuple[list[dict[str, object]], list[noise.Noise]]:
        out.unlink(missing_ok=True)
        out.with_name(out.name + ".ledger.sqlite").unlink(missing_ok=True)
        with noise.host_noise() as noises:
            survey(lab, out, source, "--mss", 1200, "--pacing", vantage="R100")
        argv = [*UPSHIFT, "survey", "figures", str(out), "--figure", "arrivals", "--json"]
        return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)["rows"], noises

    def wrong(measured: tuple[list[dict[str, object]], list[noise.Noise]]) -> list[str]:
        panels: dict[str, list[float]] = {}
        for row in measured[0]:
            panels.setdefault(str(row["panel"]), []).append(float(str(row["at_ms"])))
        assert sorted(len(times) for times in panels.values()) == [10, 10, 20, 20], panels.keys()
        said = []
        for panel, times in panels.items():
            is_paced = panel.endswith("paced")
            if times[9] - times[0] > 5:
                said.append(f"{panel}: the first ten took {times[9]:.1f} ms")
            gaps = [after - before for before, after in pairwise(times[9:])]
            # Five trains of two, each 2 / 20 of a round trip over the ratio of 2 after the one before: 5 ms.
            if is_paced and [gap > 2.5 for gap in gaps] != [True, False] * 5:
                said.append(f"{panel}: gaps of {[round(gap, 1) for gap in gaps]} ms")
            if not is_paced and times[-1] > 5:
                said.append(f"{panel}: took {times[-1]:.1f} ms")
        assert sum(panel.endswith("paced") for panel in panels) == 1, panels.keys()
        return said

    noise.measured(measure, wrong, excuse=lambda measured: measured[1][0].excuse)
