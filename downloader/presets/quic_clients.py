"""`quic-clients`: what a QUIC client alone does: several of them, one twice, beside one over TCP."""

from __future__ import annotations

from core import paper
from core.domain import Comparison, Configuration, Role
from downloader.preset import Preset

_LEVELS = next(one.levels for one in paper.CONFIGURATIONS if one.name == paper.FULL)
_TCP, _FIRST, _AGAIN = "curl-h2", "quiche", "quiche2"
_CLIENTS = ("aioquic", _FIRST, "quinn", "curl-h3")

QUIC_CLIENTS = Preset(
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
)
