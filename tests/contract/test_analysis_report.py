"""Figures and report: the same bytes each time, nothing loaded from anywhere, no hostile string that runs."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analysis import api
from analysis.measures import dataset, tables, truth
from analysis.measures.dataset import Record
from analysis.report import figures, findings, render, report, targets
from core.domain import Download, Role
from tests.unit.analysis_factory import lab_path, make_download, make_superseded, realistic, write_campaign
from upshift.cli import app

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>--><!--]]>{{7*7}}&#x1b;$x^2$"

LOADING = {"src", "href", "xlink:href", "srcset", "action", "formaction", "poster", "data", "background", "ping"}


class Page(HTMLParser):
    """Elements, attributes and texts as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._open = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._open == "script" else self.text).append(data)


def check_page(html: str) -> Page:
    """Nothing is loaded, and the only script is ours."""
    page = Page(html)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in LOADING:
            assert value.startswith("#"), (tag, name, value)
        if name == "style":
            assert re.fullmatch(r"--h:\d\.\d+|left: \d+\.\d\d%|[a-z-]+: ?[^;(]+(;.*)?|.*clip-path: ?url\(#.*", value), (
                value
            )
    assert not {"iframe", "object", "embed", "link", "base", "form", "img", "audio", "video"} & set(page.tags)
    ours = "".join((Path(report.__file__).parent / "templates" / name).read_text() for name in report.SCRIPTS)
    data, script = page.scripts
    assert script == ours and "<" not in data
    json.loads(data)
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value)
    digest = base64.b64encode(hashlib.sha256(ours.encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy
    css = "".join(re.findall(r"<style[^>]*>(.*?)</style>", html, flags=re.DOTALL))
    assert "@import" not in css and not re.search(r"url\((?!#)", html)
    assert not re.search(r"""(?:src|href|xmlns\S*)\s*=\s*["']?\s*(?:https?:)?//""", html)
    return page


def hostile_campaign(folder: Path) -> Path:
    text_fields = [f.name for f in dataclasses.fields(Download) if str(f.type).startswith("str")]
    keep = {"outcome", "transport", "configuration", "vantage", "domain", "levels"}
    evil = {name: HOSTILE for name in text_fields if name not in keep}
    downloads = [
        make_download(
            **evil, domain=HOSTILE, vantage=HOSTILE, configuration=name, outcome=outcome, treatment_ok=treated
        )
        for name, outcome, treated in (
            ("BL", "ok", True),
            ("WS", "ok", False),
            ("ALL", "failed", None),
            ("quiche", "censored", None),
            (HOSTILE, "ok", True),
        )
    ]
    share = {"seen": HOSTILE, "eligible": HOSTILE, "chosen": HOSTILE, "dropped": {HOSTILE: 1}}
    (folder / "targets").mkdir(parents=True)
    (folder / "targets" / "composition.json").write_text(
        json.dumps({"providers": {HOSTILE: share}, "require": HOSTILE, "seed": HOSTILE})
    )
    texts = dict.fromkeys(("vantage", "domain", "server", "provider", "congestion_control", "note"), HOSTILE)
    return write_campaign(
        folder,
        downloads,
        lab={"schema": 1, "topology": HOSTILE, "paths": [lab_path(**texts)]},
        environment={HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
        superseded=[
            make_superseded(vantage=HOSTILE, domain=HOSTILE, configuration=HOSTILE, reason=HOSTILE, detail=HOSTILE)
        ],
    )


def test_hostile_strings_never_run(tmp_path: Path) -> None:
    folder = hostile_campaign(tmp_path / "<img src=x onerror=alert(3)>")
    html = report.build(dataset.load([folder]), report.ReportOptions())
    page = check_page(html)
    assert "<script>alert" not in html and "<img" not in html
    shown = "".join(page.text)
    for field in ("url", "failure_detail", "treatment_detail", "reason", "topology"):
        assert shown.count("<script>alert(1)</script>") > 10, field
    assert "{{7*7}}" in shown


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    downloads, lab = realistic(domains=12)
    downloads[10] = dataclasses.replace(downloads[10], outcome="failed", failure="connect_timeout", last_byte_s=None)
    return write_campaign(
        tmp_path_factory.mktemp("demo"), downloads, lab=lab, environment={"kernel": "6.18", "cpu": {"cores": 2}}
    )


@pytest.fixture(scope="module")
def drawn(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `upshift figures` and `upshift report` wrote what they made of the demo."""
    folder = tmp_path_factory.mktemp("drawn")
    result = CliRunner().invoke(app, ["figures", str(demo), "--out", str(folder)])
    assert result.exit_code == 0
    (folder / "printed").write_text(result.stdout)
    result = CliRunner().invoke(app, ["report", str(demo), "--out", str(folder), "--json"])
    assert Path(json.loads(result.stdout)["report"]) == folder / "report" / "index.html"
    return folder


def test_report_has_everything(demo: Path, drawn: Path) -> None:
    data = dataset.load([demo])
    html = report.build(data, report.ReportOptions())
    page = check_page(html)
    text = re.sub(r"\s+", " ", " ".join(page.text))
    for words in (
        "faster than BL: typically",
        "Noise floor: two identical configurations",
        "Expected against measured: on clean lab paths",
        "Table 1: successful downloads",
        "Table 2: speed-ups",
        "Figure 3: CDF of mean throughput and handshake RTT per provider",
        "connect_timeout",
        "kernel",
        "Over TCP clients use TLS with HTTP/1.1 or HTTP/2",
        "No prediction is made for QUIC: the QUIC server caddy uses reno, 32 packets at first",
        "Treatment: proven for 323 downloads, unproven for 0, not accepted for 0.",
        "How much faster do downloads from 12 domains to MUC, SFO and SGP get with ECN, SACK, WS, ALL, aioquic or "
        "quiche instead of BL; with ALL instead of WS; with aioquic or quiche instead of ALL",
        "comparison domains runs verdict q typical median gain % lose % faster % slower %",
        "This page loads nothing.",
    ):
        assert words in text, words
    noise = next(row for row in api.make_tables(data).table2 if row.comparison.role is Role.NOISE_FLOOR)
    for kind, share in (("gain", noise.gain), ("lose", noise.lose)):
        cell = f'data-cell="{kind}" title="{render.percent_interval(share)}">({render.percent(share)})</td>'
        assert cell in html, "by chance alone"
    assert page.tags.count("figure") == 3
    anchors = {value for tag, name, value in page.attributes if name == "id"}
    links = {value[1:] for tag, name, value in page.attributes if tag == "a" and name == "href"}
    assert links <= anchors
    ids = [value for _, name, value in page.attributes if name == "id" and not value.startswith("figure")]
    assert len(ids) == len(set(ids))
    assert sum(name == "data-find" for _, name, _ in page.attributes) == 12
    assert html == (drawn / "report" / "index.html").read_text()


def test_report_without_kpis_lab_and_environment(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", [make_download()], kpis=False)
    html = report.build(dataset.load([folder]), report.ReportOptions())
    check_page(html)
    assert "has no KPIs" in html and "No environment.json" in html
    assert 'id="truth"' not in html and "No two configurations could be compared" in html


@pytest.mark.usefixtures("undrawn")
def test_report_tells_how_the_targets_were_chosen(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", [make_download()])
    (folder / "targets").mkdir()
    share = {"seen": 8, "eligible": 7, "chosen": 6, "dropped": {"does not support sack": 1}}
    (folder / "targets" / "composition.json").write_text(
        json.dumps({"providers": {"other": share}, "require": "tcp", "seed": 4})
    )
    text = " ".join(check_page(report.build(dataset.load([folder]), report.ReportOptions())).text)
    assert "How they were chosen" in text and "1 does not support sack" in text
    assert "support ECN, SACK and window scaling; the draw has the seed 4" in text


@pytest.mark.usefixtures("undrawn")
def test_targets_are_limited_aloud(demo: Path) -> None:
    data = dataset.load([demo])
    html = report.build(data, report.ReportOptions(targets=3))
    assert "9 more targets are not shown in detail" in html
    shown, left = targets.views(data, limit=3)
    assert left == 9
    assert shown[0].causes == {"connect_timeout": 1}


def test_time_line_is_the_parts_of_the_download() -> None:
    late = make_download(first_byte_s=0.11)  # its TLS record, not its first packet
    parts = targets.time_line(Record(folder=0, download=late, kpis={"time_to_answer": 0.06}), 2.0)
    assert [kind for kind, *_ in parts] == ["connect", "tls", "wait", "transfer"]
    assert [start for _, start, *_ in parts] == pytest.approx([0, 10, 20, 30])
    assert sum(length for _, _, length, _ in parts) == pytest.approx(500)
    parts = targets.time_line(
        Record(folder=0, download=make_download(configuration="quiche", first_byte_s=None), kpis={}), 1.0
    )
    assert [kind for kind, *_ in parts] == ["connect", "transfer"]
    parts = targets.time_line(Record(folder=0, download=late, kpis={}), 1.0)  # without a capture the client's
    assert [(kind, start) for kind, start, *_ in parts][2:] == [("wait", 40), ("transfer", 110)]
    assert targets.time_line(Record(folder=0, download=late, kpis={}), 0.0) == ()


def test_figures_are_the_same_bytes_each_time(demo: Path, drawn: Path, tmp_path: Path) -> None:
    first = [Path(line) for line in (drawn / "printed").read_text().splitlines()]
    second = figures.write(dataset.load([demo]), tmp_path / "a")
    assert [p.name for p in first] == [
        f"figure{n}-{what}.{kind}"
        for n, what in ((1, "vantage"), (2, "configuration"), (3, "provider"))
        for kind in ("svg", "png")
    ]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert "<dc:date>" not in first[0].read_text()
    assert "are drawn side by side" in first[0].read_text(), "no caption goes with a file"
    assert first[1].read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "a").glob(".*"))


def test_figures_leave_out_warmups_and_failures(demo: Path) -> None:
    data = dataset.load([demo])
    plan = {figure.name: figure for figure in figures.plan(data)}
    lines = plan["figure2-configuration"].lines
    assert list(lines) == ["BL", "BL2", "ECN", "SACK", "WS", "ALL", "aioquic", "quiche"]
    assert sum(map(len, lines.values())) == 36 * 8 - 1
    assert all(data.downloads.outcome[rows].are("ok").all() for rows in lines.values())


def test_no_ok_download_gives_figures_without_lines(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "c", [make_download(outcome="failed", failure="unknown", last_byte_s=None)])
    made = api.make_all([folder])
    assert len(made.figures) == 6
    check_page(made.report.read_text())


def test_verdicts_follow_tests_intervals_and_noise_floor(tmp_path: Path) -> None:
    def verdict(name: str, **times: float) -> tuple[str, str]:
        downloads = [
            make_download(domain=f"d{i}", configuration=c, last_byte_s=t * (1 + (i % 5) / 100 * (c == "BL2")))
            for i in range(12)
            for c, t in times.items()
        ]
        rows = tables.table2(dataset.load([write_campaign(tmp_path / name, downloads)]))
        row = next(row for row in rows if row.comparison.name == "WS vs BL")
        (sentence,) = (found.sentence for found in findings.findings(rows) if found.name == "WS vs BL")
        return render.verdict_words(row), sentence

    assert verdict("a", BL=2.0, WS=1.0)[0] == "faster, at least 2 %"
    assert verdict("b", BL=2.0, WS=2.4)[0] == "slower, at least 2 %"
    assert verdict("c", BL=2.0, WS=2.0)[0] == "equivalent"
    assert verdict("d", BL=2.0, WS=2.02)[0] == "equivalent"
    assert verdict("e", BL=2.0, WS=2.1)[0] == "slower, at least 2 %"
    words, sentence = verdict("f", BL=2.0, BL2=2.4, WS=2.1)
    assert words == "slower, perhaps less than 22.1 %" and "perhaps by less than 22.1 %" in sentence, (
        "two equal ones differ by more"
    )
    assert "No comparison here has the role noise_floor" in findings.noise_sentences([])[0]
    assert findings.truth_sentence([]) is None


def test_panel_follows_the_model(demo: Path) -> None:
    data = dataset.load([demo])
    folder = data.folders[0]
    assert folder.lab is not None
    rows = truth.compare(folder.lab, data)
    assert len(rows) == 36 * 9
    asserted = [row for row in rows if row.within is not None]
    assert asserted and all(row.path.clean and row.transport == "tcp" for row in asserted)
    assert sum(row.within is True for row in asserted) == len(asserted)


def test_negotiated_options_come_from_kpis() -> None:
    kpis = {"ecn": True, "sack": False, "timestamps": True, "window_scale_client": 14, "window_scale_server": 7}
    record = dataset.Record(folder=0, download=make_download(tls_version="TLSv1.3"), kpis=kpis | {"mss_server": 1460})
    assert targets._negotiated(record) == "HTTP/1.1; TLSv1.3; ECN, timestamps, scale 14/7, MSS 1460"
