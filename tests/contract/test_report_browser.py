"""The report in headless Chromium without a network: what its script draws, filters and shows to whom."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import api
from analysis.measures import dataset
from analysis.measures.rows import PairShare
from analysis.report import render, report
from core.domain import Transport
from core.files import campaign_json
from tests.browser import Browser, Visit
from tests.cells import cells
from tests.contract.test_analysis_report import HOSTILE, hostile_campaign
from tests.unit import pcap_writer
from tests.unit.analysis_factory import make_download, of_records, realistic, write_campaign

VISIBLE_TARGETS = "[...document.querySelectorAll('details.target')].filter((one) => !one.hidden).length"
A4 = 794
"""Width of the paper [CSS pixels]."""
KEPT = "document.getElementById('kept').textContent"


SET = """((id, value, event) => {
  const box = document.getElementById(id);
  box.value = value;
  box.dispatchEvent(new Event(event));
  return box.value;
})"""


def choose(visit: Visit, name: str, value: str) -> None:
    """Chooses an option, as a user does."""
    assert visit.run(f"{SET}({json.dumps(name)}, {json.dumps(value)}, 'change')") == value


def search(visit: Visit, words: str) -> int:
    """Types into the search field; the number of targets that are left."""
    visit.run(f"{SET}('filter', {json.dumps(words)}, 'input')")
    return int(visit.run(VISIBLE_TARGETS))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    downloads, lab = realistic(domains=12)
    downloads[10] = dataclasses.replace(downloads[10], outcome="failed", failure="connect_timeout", last_byte_s=None)
    folder = write_campaign(tmp_path_factory.mktemp("campaign"), downloads, lab=lab)
    described = campaign_json.read(folder)  # as `upshift run` writes it, so that Table 2 has its column *differs in*
    configurations = tuple(
        dataclasses.replace(one, family=one.client, http="3" if one.transport is Transport.QUIC else "1.1")
        for one in described.configurations
    )
    campaign_json.write(folder, dataclasses.replace(described, configurations=configurations))
    api.make_tables(dataset.load([folder])).write(folder / "tables")
    return page_of(folder)


def page_of(folder: Path) -> Path:
    """The report of a campaign, without the files of figures, of which the page reads none."""
    path = folder / "report" / "index.html"
    report.write(dataset.load([folder]), path)
    return path


@pytest.fixture(scope="module")
def opened(browser: Browser, page: Path) -> Iterator[Visit]:
    with browser.visit(page) as visit:
        yield visit


@pytest.fixture
def visit(opened: Visit, page: Path) -> Iterator[Visit]:
    """The page as it was opened, save its width: for tests that choose, search and look."""
    yield opened
    opened.run("document.getElementById('reset').click()")
    assert opened.complaints == []
    assert opened.requests == [page.as_uri()]


@pytest.fixture
def own(browser: Browser, page: Path) -> Iterator[Visit]:
    """The page in a tab of its own: for tests that change more than filters."""
    with browser.visit(page) as visit:
        yield visit
        assert visit.complaints == []
        assert visit.requests == [page.as_uri()]


def test_drawings_have_each_comparison_with_its_pairs(visit: Visit) -> None:
    titles = visit.run("[...document.querySelectorAll('#cdfs figcaption')].map((one) => one.textContent)")
    assert len(titles) == len(visit.run("data.comparisons")) == 12
    assert any(title.startswith("WS vs BL12 domains, 35 runs; median 1.") for title in titles), titles
    assert visit.run("document.querySelectorAll('#clouds svg path').length") >= 12
    assert "of" in visit.run(KEPT) and "12 targets" in visit.run(KEPT)


def test_filters_keep_what_was_chosen(visit: Visit) -> None:
    everything = int(visit.run(KEPT).split()[0])
    choose(visit, "by-provider", "akamai")
    assert visit.run(VISIBLE_TARGETS) == 2
    kept = int(visit.run(KEPT).split()[0])
    assert 0 < kept < everything
    assert "2 domains, 6 runs;" in visit.run("document.querySelector('#cdfs figcaption').textContent")
    assert visit.run("document.querySelector('#servers output').textContent") == "6 of 36"
    assert visit.run("document.querySelector('#targets output').textContent") == "2 of 12"
    choose(visit, "by-vantage", "SGP")
    assert int(visit.run(KEPT).split()[0]) * 3 == kept
    rows = "[...document.querySelectorAll('#servers tbody tr')].filter((one) => !one.hidden)"
    assert visit.run(f"{rows}.map((one) => one.cells[0].textContent)") == ["SGP", "SGP"]
    failed = "document.querySelector('#flagged tbody tr')"
    assert "connect_timeout" in visit.run(f"{failed}.textContent") and visit.run(f"{failed}.hidden")
    visit.run("document.getElementById('reset').click()")
    assert visit.run(VISIBLE_TARGETS) == 12 and int(visit.run(KEPT).split()[0]) == everything


CELLS = "[...{row}.cells].slice(1).map((one) => one.textContent.trim().split(' ')[0])"
COUNTED = ("domains", "n", "median", "gain", "lose", "faster", "slower", *(["bin"] * 10))


def test_table_2_and_the_parts_are_counted_again(visit: Visit) -> None:
    """The page's own counts are those of the table that analysis made for one vantage point."""
    before = visit.run("document.getElementById('speedups').textContent")
    choose(visit, "by-vantage", "SGP")
    name = "document.querySelector('#speedups tr[data-comparison=\"3\"] th').textContent"
    assert visit.run(name) == "WS vs BL"
    alone = (
        "[...document.querySelectorAll('#tests details')].find((one) => one.textContent.includes('Vantage point SGP'))"
    )

    def counted(name: str) -> list[str]:
        cells = []
        for table in ("document.querySelector('#speedups')", alone):
            row = f"[...{table}.querySelectorAll('tbody tr')].find((one) => one.cells[0].textContent === '{name}')"
            kinds = visit.run(f"[...{row}.cells].slice(1).map((one) => one.dataset.cell ?? '')")
            texts = visit.run(CELLS.format(row=row))
            cells.append([text for kind, text in zip(kinds, texts, strict=True) if kind in COUNTED])
        assert len(cells[0]) == len(COUNTED) and cells[0] == cells[1]
        return cells[0]

    noise = dict(zip(COUNTED, counted("BL2 vs BL"), strict=False))
    assert all(noise[kind].startswith("(") and noise[kind].endswith(")") for kind in ("gain", "lose"))
    style = """getComputedStyle(document.querySelector('tr.noise td[data-cell="gain"]'), '::before').content"""
    assert "(" not in visit.run(style)  # a style's brackets would stand around those of the text
    live = counted("WS vs BL")
    assert "(" not in "".join(live)
    part = "document.querySelectorAll('#speedups tr[data-comparison=\"3\"]')[1].cells[1].textContent"
    assert visit.run(part) == live[1]
    visit.run("document.getElementById('reset').click()")
    assert visit.run("document.getElementById('speedups').textContent") == before


def test_what_is_not_counted_again_stays_that_of_all_data(visit: Visit) -> None:
    """What two configurations differ in became a dash, as did verdict, q and the typical speed-up."""
    cells = "[...document.querySelectorAll('#speedups tr[data-comparison] td:not([data-cell])')]"
    rest = f"{cells}.map((one) => one.textContent)"
    before = visit.run(rest)
    assert len(before) == 12 * 4 and "options" in before
    choose(visit, "by-vantage", "SGP")
    assert visit.run(rest) == before


def test_shares_are_rounded_as_in_the_tables(visit: Visit) -> None:
    counts = [(25, 200), (27, 200), (29, 200), (3, 8), (7, 25), (1, 12)]
    shown = visit.run(f"{json.dumps(counts)}.map(([count, n]) => percent(count, n))")
    assert shown == [render.percent(PairShare(count=count, n=n)) for count, n in counts]


def test_the_choice_is_in_the_address(browser: Browser, page: Path) -> None:
    with browser.visit(page) as visit:
        choose(visit, "by-provider", "akamai")
        choose(visit, "show-against", "size")
        assert search(visit, "site") == 2
        query = visit.run("location.search")
        assert query == "?provider=akamai&against=size&find=site"
        visit.call("Page.navigate", url="about:blank")  # or the page would stay as it is
        visit.call("Page.navigate", url=page.as_uri() + query + "#targets")
        ready = "new Promise((done) => { const look = () => globalThis.data ? done(1) : setTimeout(look, 50); look() })"
        visit.run(ready.replace("globalThis.data", "document.readyState === 'complete'"))
        assert visit.run("document.getElementById('by-provider').value") == "akamai"
        assert visit.run(VISIBLE_TARGETS) == 2 and visit.run("location.hash") == "#targets"
        visit.run("document.getElementById('reset').click()")
        assert visit.run("location.search") == "?against=size"


def saved(visit: Visit, folder: Path, click: str) -> list[list[str]]:
    """The rows of the CSV file that a click saves."""
    place = folder / str(len(list(folder.iterdir())))
    place.mkdir()
    visit.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(place))
    visit.run(f"{click}.click()")
    for _ in range(600):
        files = [path for path in place.glob("*.csv") if path.stat().st_size]
        if files:
            return list(csv.reader(files[0].read_text(encoding="utf-8").splitlines()))
        visit.run("new Promise((done) => setTimeout(done, 50))")
    raise AssertionError(f"nothing was saved by {click}")


def test_data_can_be_downloaded_from_the_page(browser: Browser, page: Path, tmp_path: Path) -> None:
    tables = page.parents[1] / "tables"
    with browser.visit(page) as visit:
        assert visit.run("document.querySelectorAll('.scroll').length <= document.querySelectorAll('.csv').length")
        table2 = saved(visit, tmp_path, "document.querySelector('#speedups .csv')")
        assert table2 == list(csv.reader((tables / "table2.csv").read_text(encoding="utf-8").splitlines()))
        figures = saved(visit, tmp_path, "document.querySelector('#figures .csv')")
        assert figures[0][:3] == ["vantage", "configuration", "provider"] and len(figures) > 250
        choose(visit, "by-vantage", "SGP")
        pairs = saved(visit, tmp_path, "document.querySelector('#explore .csv')")
        assert len(pairs) - 1 == int(visit.run(KEPT).split()[0]) and {row[1] for row in pairs[1:]} == {"SGP"}
        live = saved(visit, tmp_path, "document.querySelector('#speedups .csv')")
        assert live[0][:2] == ["comparison", "differs in"] and len(live) == len(table2)
        assert {row[0]: row[1] for row in live}["quiche vs ALL"] not in ("", "–")
        assert visit.complaints == [] and visit.requests == [page.as_uri()]


def test_the_printed_median_is_on_its_curve(visit: Visit) -> None:
    assert visit.run("document.querySelectorAll('#cdfs .cross').length") == 12


@pytest.mark.usefixtures("undrawn")
def test_pairs_without_any_bound_are_not_drawn_and_are_no_gain(browser: Browser, tmp_path: Path) -> None:
    downloads = [
        make_download(
            domain=f"d{i}.example",
            configuration=name,
            last_byte_s=time_s,
            **({} if i < 7 else {"outcome": "censored", "failure": "time_budget"}),
        )
        for i in range(15)
        for name, time_s in (("BL", 2.0), ("WS", 1.0))
    ]
    with browser.visit(page_of(write_campaign(tmp_path, downloads))) as visit:
        shown = visit.run("document.querySelector('#cdfs figure').textContent")
        assert "15 domains, 15 runs; median ?" in shown and "1.42" in shown, "the axis ends at what is known"
        assert visit.run("document.querySelectorAll('#cdfs .cross').length") == 0
        assert visit.run("document.querySelector('#clouds path:last-of-type').getAttribute('d').split('M').length") == 8
        gain = "document.querySelector('#speedups [data-cell=gain]').textContent"
        known = "document.querySelector('#speedups [data-cell=known]').textContent"
        assert visit.run(known) == "7", "of a censored download no part is known"
        assert visit.run(gain) == "≥47" and "≥47" in visit.run("document.querySelector('.forest').textContent")
        assert search(visit, "d1") == 6 and visit.run(gain) == "≥1/6" and visit.run(known) == "1"
        assert visit.complaints == []


@pytest.mark.usefixtures("undrawn")
def test_limiters_can_be_chosen_and_have_a_bar(browser: Browser, tmp_path: Path) -> None:
    downloads = [make_download(domain=f"d{i}", configuration=name) for i in range(3) for name in ("BL", "WS")]
    data = dataset.load([write_campaign(tmp_path, downloads)])
    limited = [
        dataclasses.replace(r, kpis={**r.kpis, "limiter": "congestion" if r.download.domain == "d1" else "path_rate"})
        for r in data.records
    ]
    told = of_records(limited, kpi_units={**data.kpi_units, "limiter": ""}, design=data.design)
    report.write(told, tmp_path / "report.html")
    with browser.visit(tmp_path / "report.html") as visit:
        assert visit.run("[...document.querySelectorAll('#by-limiter option')].map((one) => one.value)") == [
            *("", "congestion", "path_rate")
        ]
        choose(visit, "by-limiter", "congestion")
        assert visit.run(KEPT).startswith("1 of 3 pairs, 1 target; limiter of a pair: of the reference's twin")
        choose(visit, "by-limiter", "")
        assert visit.run(KEPT) == "3 of 3 pairs, 3 targets"
        choose(visit, "show-colour", "limiter")
        assert "; limiter of a pair: of the reference's twin" in visit.run(KEPT)
        choose(visit, "by-limiter", "congestion")
        assert visit.run("document.querySelectorAll('.bars rect').length") == 4
        assert (
            visit.run("document.querySelector('.bars rect title').textContent") == "BL: congestion 33 % of 3 downloads"
        )
        assert visit.complaints == []


def test_search_finds_targets_by_domain_and_cause(visit: Visit) -> None:
    assert search(visit, "connect_timeout") == 1
    assert "1 domain, 2 runs; median" in visit.run("document.querySelector('#cdfs figcaption').textContent")
    assert visit.run("document.querySelector('#speedups [data-cell=domains]').textContent") == "1"
    assert search(visit, "site3.") == 1
    assert search(visit, "") == 12


def test_colours_parts_and_paths_can_be_chosen(own: Visit) -> None:
    choose(own, "show-colour", "vantage")
    assert own.run("[...document.querySelector('[data-drawn]').children].map((one) => one.textContent)") == [
        *("MUC", "SFO", "SGP")
    ]
    before = own.run("document.querySelector('#cdfs').innerHTML")
    choose(own, "show-part", "0")
    assert own.run("document.querySelector('#cdfs').innerHTML") != before
    for against, label in (("rtt", "handshake RTT [ms]"), ("size", "size [MB]"), ("bdp", "BDP / 64 kB")):
        choose(own, "show-against", against)
        assert label in own.run("document.querySelector('#clouds svg').textContent")


def test_the_pointer_gets_a_tip(visit: Visit) -> None:
    visit.look(1400)
    at = visit.run(
        "(() => { const svg = document.querySelector('#cdfs svg'); svg.scrollIntoView();"
        " const box = svg.getBoundingClientRect();"
        " return [box.left + box.width * 0.53, box.top + box.height * 0.5] })()"
    )
    visit.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    tip = visit.run("document.querySelector('.tip').hidden ? '' : document.querySelector('.tip').textContent")
    assert "iteration 1" in tip and "are not above it" in tip


@pytest.mark.usefixtures("undrawn")
def test_an_opened_target_draws_its_downloads_side_by_side(browser: Browser, tmp_path: Path) -> None:
    segments = pcap_writer.download(packets=200, lose=frozenset((5, 6)))
    capture = tmp_path / "vantage" / "MUC" / "run.pcap"
    capture.parent.mkdir(parents=True)
    capture.write_bytes(pcap_writer.pcap((one.time_ns, pcap_writer.ipv4(one)) for one in segments))
    taken = {"capture": "vantage/MUC/run.pcap", "server_ip": "198.18.0.2", "local_port": 40000}
    download = make_download(**taken, configuration=HOSTILE)
    gone = make_download(domain="gone", capture="vantage/MUC/gone.pcap")
    made = page_of(write_campaign(tmp_path, [download, gone]))
    with browser.visit(made) as visit:
        assert visit.run("document.querySelectorAll('.series svg').length") == 0
        visit.run("document.querySelectorAll('details.target').forEach((one) => { one.open = true })")
        visit.look(1400)
        assert visit.run("document.querySelectorAll('.series svg').length") == 3
        assert visit.run("document.querySelector('.series b').textContent") == HOSTILE
        labels = visit.run("[...document.querySelectorAll('.series .label')].map((one) => one.textContent)")
        assert [text for text in labels if text != "time [s]"] == ["throughput [Mbit/s]", "received [MB]", "RTT [ms]"]
        again = visit.run("[...document.querySelectorAll('.series path')].map((one) => one.getAttribute('d'))")
        assert max(path.count("M") for path in again) == 2  # the two retransmissions, one path of two circles
        assert "1 of the measurement runs below have no drawings" in visit.run("document.body.textContent")
        assert visit.complaints == []


OUTSIDE = """[...document.querySelectorAll('.scroll, .forest, .bars, .panel, #filters, .controls, section, header')]
.flatMap((card) => {
  const box = card.getBoundingClientRect();
  const inner = [...card.querySelectorAll('*')].filter((one) => {
    const at = one.getBoundingClientRect();
    return at.width && (at.right > box.right + 1 || at.left < box.left - 1);
  });
  return inner.slice(0, 1).map((one) => `${card.className || card.id}: ${one.tagName} ${one.textContent}`);
})"""
"""Elements that leave their card; a table that could be scrolled sideways leaves it, too."""
COLLIDING = """[...document.querySelectorAll('.forest .axis i')].map((one) => one.getBoundingClientRect())
.filter((box, index, all) => index && box.top === all[index - 1].top && box.left < all[index - 1].right + 2).length"""


@cells("widths", every=[(390, 1280), (768,), (800,), (1920,)], quick=[(390, 1280)])
def test_nothing_leaves_its_card_and_no_column_is_lost(own: Visit, widths: tuple[int, ...]) -> None:
    own.run("document.querySelectorAll('details:not(.target), #t0').forEach((one) => { one.open = true })")
    own.run("document.querySelectorAll('details.target:not([open])').forEach((one) => one.remove())")
    for width in widths:
        nothing_is_lost(own, width)


def nothing_is_lost(own: Visit, width: int) -> None:
    """Of the open page in a window of this width [CSS pixels], light and dark."""
    for dark in (False, True):
        own.look(width, dark=dark)
        own.run("new Promise((done) => setTimeout(done, 300))")  # tables fold after the layout
        assert own.run("document.documentElement.scrollWidth") <= width
        assert own.run(OUTSIDE) == [] and own.run(COLLIDING) == 0
        cells = "[...document.querySelectorAll('#speedups tr[data-comparison] td')]"
        assert own.run(f"{cells}.filter((one) => !one.getBoundingClientRect().width).length") == 0
    assert own.run("document.querySelectorAll('#speedups table.dense thead th').length") == 22, (
        "differs in is one of them"
    )
    folded = own.run("document.querySelector('#speedups table').classList.contains('folded')")
    assert folded == (width < 1280), "where they fit, tables are tables"


def test_the_page_fits_on_paper(own: Visit) -> None:
    own.look(A4, media="print")
    assert own.run("document.documentElement.scrollWidth") <= A4
    assert own.run("getComputedStyle(document.getElementById('filters')).display") == "none"


def test_mark_up_in_names_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    made = page_of(hostile_campaign(tmp_path / "c"))
    with browser.visit(made) as visit:
        assert visit.complaints == [] and visit.requests == [made.as_uri()]
        assert visit.run("document.querySelectorAll('img, iframe, object').length") == 0
        assert visit.run("document.querySelectorAll('script').length") == 2
        assert visit.run("document.querySelector('#targets summary b').textContent") == HOSTILE
        visit.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        assert visit.complaints == []


def test_hostile_names_in_drawings_are_text(browser: Browser, tmp_path: Path) -> None:
    downloads = [
        make_download(domain=f"{HOSTILE}{index}", vantage=HOSTILE, provider=provider, configuration=name)
        for index, provider in enumerate((HOSTILE, "=1+1"))
        for name in ("BL", "WS")
    ]
    made = page_of(write_campaign(tmp_path / "c", downloads))
    with browser.visit(made) as visit:
        choose(visit, "show-colour", "provider")
        assert HOSTILE in visit.run("document.querySelector('[data-drawn]').textContent")
        assert visit.run(VISIBLE_TARGETS) == 2
        choose(visit, "by-provider", "=1+1")
        assert visit.run(VISIBLE_TARGETS) == 1
        names, row = saved(visit, tmp_path, "document.querySelector('#explore .csv')")
        assert row[names.index("provider")] == " =1+1", "no formula of a spreadsheet"
        assert visit.complaints == [] and visit.requests == [made.as_uri()]
        assert visit.run("document.querySelectorAll('img').length") == 0


def test_long_names_and_urls_break_into_lines(browser: Browser, tmp_path: Path) -> None:
    """Names as long as DNS allows, and a file's address with a long query."""
    name = ".".join([*(letter * 63 for letter in "abc"), "example"])
    long = {"domain": name, "url": f"https://{name}/{'q' * 1500}", "provider": "p" * 100, "vantage": "v" * 60}
    downloads = [make_download(configuration=configuration, **long) for configuration in ("BL", "WS")]
    downloads.append(make_download(domain="short.example"))
    with browser.visit(page_of(write_campaign(tmp_path / "c", downloads))) as visit:
        visit.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        for width in (1280, 360):
            visit.look(width)
            visit.run("new Promise((done) => setTimeout(done, 300))")  # tables fold after the layout
            assert visit.run("document.documentElement.scrollWidth") <= width


@pytest.mark.usefixtures("undrawn")
def test_addresses_sort_by_all_their_numbers(browser: Browser, tmp_path: Path) -> None:
    addresses = ("198.18.2.1", "198.18.10.1", "198.18.1.20", "198.19.0.1")
    downloads = [make_download(domain=f"d{i}.example", server_ip=one) for i, one in enumerate(addresses)]
    with browser.visit(page_of(write_campaign(tmp_path, downloads))) as visit:
        visit.run("[...document.querySelectorAll('#servers th')].find((one) => one.textContent === 'address').click()")
        shown = visit.run("[...document.querySelectorAll('#servers tbody tr')].map((row) => row.cells[3].textContent)")
        assert shown == ["198.18.1.20", "198.18.2.1", "198.18.10.1", "198.19.0.1"]
        assert visit.run("['-6.6 %', '1.05–1.08 (8)', '38 [17–64]', '2001:db8::1', '1a.example'].map(numberIn)") == [
            *(-6.6, 1.05, 38, None, None)
        ]
        assert visit.complaints == []
