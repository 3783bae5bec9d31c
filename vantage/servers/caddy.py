"""`caddy`: the ordinary web server of the lab, from the distribution's packages; its QUIC is quic-go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.files.disk import write_json
from core.system.process import require
from vantage.server_kind import (
    CACHE_PORT,
    MEDIA_TYPES,
    ORIGIN_PORT,
    ORIGIN_SUFFIX,
    ProgramPlan,
    QuicTraits,
    ServerKind,
    ServerRole,
    ServerSetup,
    SiteHost,
    program_missing,
)

_NOT_FOUND = {"handle": [{"handler": "static_response", "status_code": 404, "body": "There is no such page.\n"}]}

_ALT_SVC = {"handle": [{"handler": "headers", "response": {"set": {"Alt-Svc": ['h3=":443"; ma=2592000']}}}]}

_NO_ALT_SVC = {"handle": [{"handler": "headers", "response": {"delete": ["Alt-Svc"]}}]}


def _files(root: Path) -> dict[str, Any]:
    """Files below `root`, with the lab's own media types: Go's table depends on the host."""
    typed = [
        {
            "match": [{"path": [f"*.{ending}"], "file": {"root": str(root)}}],
            "handle": [{"handler": "headers", "response": {"set": {"Content-Type": [media_type]}}}],
        }
        for ending, media_type in MEDIA_TYPES.items()
    ]
    served = {"handle": [{"handler": "file_server", "root": str(root)}]}
    return {"handler": "subroute", "routes": [*typed, served]}


def _caddy(apps: dict[str, Any], data: Path, logs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Admin interface off; nothing is stored, renewed or sent anywhere."""
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "WARN", "exclude": ["http.log.access"]}, **(logs or {})}},
        "storage": {"module": "file_system", "root": str(data)},
        "apps": apps,
    }


def server_configuration(setup: ServerSetup, *, data: Path) -> dict[str, Any]:
    """Caddy for a server's node: HTTPS with HTTP/1.1, 2 and (where it has the role) 3; port 80 leads there, or
    serves the files, too.

    Requests to sites are logged, those to measured files are not.
    """
    if setup.origin is not None:
        forward: dict[str, Any] = {"handler": "reverse_proxy", "upstreams": [{"dial": f"127.0.0.1:{CACHE_PORT}"}]}
    else:
        forward = _files(setup.content)
    own_quic = ServerRole.QUIC in setup.roles
    # Caddy sends this itself if it provides HTTP/3.
    routes: list[dict[str, Any]] = [_ALT_SVC] if setup.advertises_quic and not own_quic else []
    if setup.window_names:  # whose addresses have no QUIC
        routes.append({"match": [{"host": [*setup.window_names]}], **_NO_ALT_SVC})
    measured = {"match": [{"host": [*setup.domains, *setup.window_names]}], "handle": [forward], "terminal": True}
    if setup.domains:
        routes.append(measured)
    https: dict[str, Any] = {
        "listen": [":443"],
        "protocols": ["h1", "h2", "h3"] if own_quic else ["h1", "h2"],
        "automatic_https": {"disable": True},
        "tls_connection_policies": [{}],
    }
    logs = {}
    if setup.hosts:
        routes += [_host_route(host, setup.sites) for host in setup.hosts]
        loggers = {host.name: "sites" for host in setup.hosts}
        https["logs"] = {"logger_names": loggers, "skip_unmapped_hosts": True}
        logs = {"sites": _access_log(setup.access_log)}
    https["routes"] = [*routes, _NOT_FOUND]
    redirect = {
        "handler": "static_response",
        "status_code": 301,
        "headers": {"Location": ["https://{http.request.host}{http.request.uri}"]},
    }
    http = {
        "listen": [":80"],
        "protocols": ["h1"],
        "automatic_https": {"disable": True},
        "routes": [*([measured] if setup.plain_http else []), {"handle": [redirect]}],
    }
    pairs = [setup.certificate(name) for name in setup.certificate_names]
    tls = {
        "certificates": {"load_files": [{"certificate": str(chain), "key": str(key)} for chain, key in pairs]},
        # Clients never resume connections, so tickets are useless.
        "session_tickets": {"disabled": True},
        "automation": {"policies": [{"disable_ocsp_stapling": True}]},
    }
    return _caddy({"http": {"servers": {"https": https, "http": http}, "grace_period": "1s"}, "tls": tls}, data, logs)


def _host_route(host: SiteHost, content: Path) -> dict[str, Any]:
    """A site's host: answers that are not plain files first, then the files of its folder."""
    routes: list[dict[str, Any]] = []
    for path, answer in host.answers.items():
        match: dict[str, Any] = {"path": [path]}
        response: dict[str, Any] = {"handler": "static_response", "status_code": answer.status, "body": answer.text}
        if answer.location is not None:
            response["headers"] = {"Location": [answer.location]}
        elif not answer.head:
            match["method"] = ["HEAD"]
            response["status_code"] = 405
        elif answer.status == 200:
            continue
        routes.append({"match": [match], "handle": [response], "terminal": True})
    routes.append({"handle": [_files(content / host.name)]})
    return {"match": [{"host": [host.name]}], "handle": [{"handler": "subroute", "routes": routes}], "terminal": True}


def _access_log(path: Path) -> dict[str, Any]:
    """One JSON line per request (docs/design/lab.md, *Sites*)."""
    writer = {"output": "file", "filename": str(path), "roll": False}
    return {"writer": writer, "encoder": {"format": "json"}, "include": ["http.log.access.sites"]}


def origin_configuration(setup: ServerSetup, *, data: Path) -> dict[str, Any]:
    """Caddy for an edge's origin: the files over plain HTTP; only the edge can reach it."""
    origin = {
        "listen": [f":{ORIGIN_PORT}"],
        "protocols": ["h1"],
        "automatic_https": {"disable": True},
        "routes": [{"handle": [_files(setup.content)]}],
    }
    return _caddy({"http": {"servers": {"origin": origin}, "grace_period": "1s"}}, data)


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    programs = []
    if ServerRole.ORIGIN in setup.roles and setup.origin is not None:
        name = f"{setup.name}{ORIGIN_SUFFIX}"
        data = setup.data(name)
        ports = ((setup.origin, ORIGIN_PORT),)
        programs.append(_program(name, data, origin_configuration(setup, data=data), ports))
    if ServerRole.WEB in setup.roles:
        data = setup.data(setup.name)
        web = tuple((setup.ipv4, port) for port in (443, 80))
        quic = (443,) if ServerRole.QUIC in setup.roles else ()
        programs.append(_program(setup.name, data, server_configuration(setup, data=data), web, quic))
    return programs


def _program(
    node: str, data: Path, configuration: Mapping[str, Any], tcp: tuple[tuple[str, int], ...], udp: tuple[int, ...] = ()
) -> ProgramPlan:
    """Caddy in a node."""
    path = data / "caddy.json"
    write_json(path, configuration)
    home = {"HOME": str(data), "XDG_DATA_HOME": str(data), "XDG_CONFIG_HOME": str(data)}
    argv = (require("caddy", package="caddy"), "run", "--config", str(path))
    return ProgramPlan(name=node, node=node, argv=argv, tcp=tcp, udp=udp, env=home)


CADDY = ServerKind(
    name="caddy",
    help="Caddy; its QUIC is quic-go's.",
    roles=frozenset({ServerRole.WEB, ServerRole.QUIC, ServerRole.ORIGIN}),
    can_be_chosen=True,
    programs=_programs,
    missing=program_missing("caddy", package="caddy"),
    version=lambda: ("caddy", "version"),
    https_alpn=("h2",),
    # Of Caddy 2.6.2 with quic-go 0.29, which Debian 12 and 13 have.
    quic=QuicTraits(congestion_control=("reno",), initial_window_packets=32, packet_bytes=1280),
)
