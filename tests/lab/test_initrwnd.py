"""The factor `initrwnd` on the real kernel: the window at the request, its proof, and everybody's buffer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.domain import Outcome
from tests.lab.campaigns import OFF, Bench, open_bench
from tests.topologies import server, topology

pytestmark = pytest.mark.lab

SEGMENTS = (10, 20, 44, 100, 310)


@pytest.fixture(scope="module")
def bench(lab_host: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("initrwnd")
    path = folder / "initrwnd.toml"
    path.write_text(topology("initrwnd", server("s", "www.s.example")))
    with open_bench(path, folder) as bench:
        yield bench


def test_the_window_at_the_request_is_the_one_asked_for(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    levels = {**OFF, "window_scaling": "7"}
    asked = {f"IRW{n}": {**levels, "initrwnd": str(n)} for n in SEGMENTS}
    found = bench.measure("all", {"BL": levels, **asked})
    assert "all configurations start with tcp_rmem[1] = 905200 bytes" in capsys.readouterr().err
    for name in ("BL", *asked):
        [record] = found.of(name)
        download = record.download
        assert download.outcome == Outcome.OK
        assert download.treatment_ok is True, (name, download.treatment_detail)
        # As many segments of 1448 bytes (timestamps), up to what the scale of 7 rounds off.
        if name != "BL":
            count = int(name.removeprefix("IRW"))
            window = record.kpis["request_window"]
            assert window is not None and count * 1448 - 128 <= float(window) <= count * 1460 + 128, (name, window)
            assert record.kpis["request_window_segments"] == int(float(window) // 1460)
    # All of them have the buffer that 310 segments need, so BL announces more than it does by default.
    [plain] = found.of("BL")
    assert f'"rmem": "{2 * 310 * 1460}/' in plain.download.levels
