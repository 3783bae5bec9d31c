"""Presets: configurations and comparisons that a campaign file names by one word.

`paper` is what a campaign file has by default; `http-versions` has one program over HTTP/1.1, 2 and 3, so that only the
version of HTTP and the transport differ; `quic-clients` shows what a QUIC client alone does: several of them, one of
them twice, beside one over TCP.
"""

from __future__ import annotations

from dataclasses import dataclass

from core import paper
from core.domain import Comparison, Configuration, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A preset."""

    name: str
    """Its name in the field `configurations` of campaign files."""
    help: str
    """The question that it answers, as one sentence."""
    configurations: tuple[Configuration, ...]
    comparisons: tuple[Comparison, ...]
    """Its rows of Table 2; those of the campaign file are added."""


_OF_PAPER = {one.name: one for one in paper.CONFIGURATIONS}
_LEVELS = _OF_PAPER[paper.FULL].levels
_TCP, _FIRST, _AGAIN = "curl-h2", "quiche", "quiche2"
_CLIENTS = ("aioquic", _FIRST, "quinn", "curl-h3")

_PRESETS = (
    Preset(
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
    ),
    Preset(
        name="paper",
        help="The ANRW'23 paper: ECN, SACK and window scaling against a baseline, and two QUIC clients.",
        configurations=paper.CONFIGURATIONS,
        comparisons=paper.COMPARISONS,
    ),
    Preset(
        name="quic-clients",
        help="QUIC clients against each other and against HTTP/2 over TCP, with a noise floor over QUIC.",
        configurations=(
            Configuration(name=_TCP, client=_TCP, levels=_LEVELS),
            *(Configuration(name=client, client=client) for client in _CLIENTS),
            Configuration(name=_AGAIN, client=_FIRST),
        ),
        comparisons=(
            Comparison.of(_AGAIN, _FIRST, Role.NOISE_FLOOR),
            *(Comparison.of(client, _TCP) for client in _CLIENTS),
            *(Comparison.of(client, _FIRST) for client in _CLIENTS if client != _FIRST),
        ),
    ),
)

ALL = {preset.name: preset for preset in _PRESETS}
