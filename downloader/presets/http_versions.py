"""`http-versions`: one program over HTTP/1.1, 2 and 3, so that only the version of HTTP and the transport differ."""

from __future__ import annotations

from core import paper
from core.domain import Comparison, Configuration, Role
from downloader.preset import Preset

_OF_PAPER = {one.name: one for one in paper.CONFIGURATIONS}
_LEVELS = _OF_PAPER[paper.FULL].levels

HTTP_VERSIONS = Preset(
    name="http-versions",
    help="One program (libcurl) over HTTP/1.1, HTTP/2 and HTTP/3, beside the paper's client over TCP.",
    configurations=(
        _OF_PAPER[paper.BASELINE],
        _OF_PAPER[paper.FULL],
        Configuration(name="curl-h1", client="curl-h1", levels=_LEVELS),
        Configuration(name="curl-h2", client="curl-h2", levels=_LEVELS),
        Configuration(name="curl-h3", client="curl-h3"),
        _OF_PAPER[paper.BASELINE_AGAIN],
    ),
    comparisons=(
        Comparison.of(paper.BASELINE_AGAIN, paper.BASELINE, Role.NOISE_FLOOR),
        Comparison.of(paper.FULL, paper.BASELINE),
        Comparison.of("curl-h1", paper.FULL),
        Comparison.of("curl-h2", "curl-h1"),
        Comparison.of("curl-h3", "curl-h2"),
        Comparison.of("curl-h3", "curl-h1"),
        Comparison.of("curl-h3", paper.FULL),
        Comparison.of(paper.WARMUP.name, paper.BASELINE, Role.CACHE),
    ),
)
