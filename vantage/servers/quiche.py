"""`quiche`: HTTP/3 by our program h3serve (rust/h3serve), beside Caddy, which serves TCP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.files.disk import write_json
from core.system.process import find_program
from vantage.server_kind import (
    CACHE_PORT,
    MEDIA_TYPES,
    ProgramPlan,
    QuicTraits,
    ServerKind,
    ServerRole,
    ServerSetup,
    SiteHost,
    binary_missing,
)

_ALGORITHMS = ("cubic", "reno", "bbr2")
_INITIAL_WINDOW_PACKETS = 10


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    name = f"{setup.name}-quic"
    data = setup.data(name)
    hosts, settings = data / "hosts.json", data / "settings.json"
    write_json(hosts, hosts_document(setup))
    values = {
        "congestion_control": setup.congestion_control,
        "initial_window_packets": str(_INITIAL_WINDOW_PACKETS),
        "hystart": "on",
        "body_pace": _body_pace(setup),
    }
    write_json(settings, values)
    argv = [find_program("h3serve") or "h3serve", "--hosts", str(hosts), "--settings", str(settings)]
    for address in (setup.ipv4, *([f"[{setup.ipv6}]"] if setup.ipv6 else [])):
        argv += ["--listen", f"{address}:443"]
    return [ProgramPlan(name=name, node=setup.name, argv=tuple(argv), udp=(443,))]


def _body_pace(setup: ServerSetup) -> str:
    """The value of h3serve's setting `body_pace`: bytes of a piece, and microseconds between two."""
    pieces = setup.pieces
    return "off" if pieces is None else f"{pieces.chunk_bytes}/{max(round(pieces.every_s * 1e6), 1)}"


def hosts_document(setup: ServerSetup) -> dict[str, Any]:
    """The file for h3serve's `--hosts`: the same hosts, files, cache and answers as Caddy's on this server."""
    cached = setup.origin is not None
    measured: dict[str, Any] = {"upstream": f"127.0.0.1:{CACHE_PORT}"} if cached else {"root": str(setup.content)}
    chain, key = setup.certificate(setup.name)
    names = [*setup.domains, *setup.cnames]
    certificates = [{"names": names, "chain": str(chain), "key": str(key)}] if names else []
    for host in setup.hosts:
        chain, key = setup.certificate(host.name)
        certificates.append({"names": [host.name], "chain": str(chain), "key": str(key)})
    return {
        "certificates": certificates,
        "hosts": dict.fromkeys(setup.domains, measured) | {h.name: _host(h, setup.sites) for h in setup.hosts},
        "types": MEDIA_TYPES,
        "access_log": str(setup.access_log) if setup.hosts else None,
    }


def _host(host: SiteHost, folder: Path) -> Mapping[str, Any]:
    """A site's host: answers that are not plain files first, then the files of its folder."""
    answers: dict[str, Any] = {}
    for path, answer in host.answers.items():
        given = {"status": answer.status, "text": answer.text}
        if answer.location is not None:
            answers[path] = given | {"location": answer.location}
        elif not answer.head:
            answers[path] = given | {"status": 405, "method": "HEAD"}
        elif answer.status != 200:
            answers[path] = given
    return {"root": str(folder / host.name), "answers": answers, "log": True}


QUICHE = ServerKind(
    name="quiche",
    help="HTTP/3 by quiche (our h3serve); Caddy serves TCP.",
    roles=frozenset({ServerRole.QUIC}),
    programs=_programs,
    missing=binary_missing("h3serve", title="the QUIC server h3serve"),
    version=lambda: ("h3serve", "--version"),
    quic=QuicTraits(congestion_control=_ALGORITHMS, initial_window_packets=_INITIAL_WINDOW_PACKETS, packet_bytes=1480),
)
