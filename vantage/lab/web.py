"""Configurations of the lab's web servers: Caddy everywhere, nginx as the cache of an edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vantage.lab.sites import Host
from vantage.lab.topology import Server

CACHE_PORT = 8080
ORIGIN_PORT = 80

_NOT_FOUND = {"handle": [{"handler": "static_response", "status_code": 404, "body": "There is no such page.\n"}]}

_BINARY_TYPE = {
    "match": [{"path": ["*.bin"]}],
    "handle": [{"handler": "headers", "response": {"set": {"Content-Type": ["application/octet-stream"]}}}],
}
"""Go's table of types has no .bin, and a file without a type is no usual sight."""

_PRETENCE = {"handle": [{"handler": "headers", "response": {"set": {"Alt-Svc": ['h3=":443"; ma=2592000']}}}]}
_PEM = {"certificate": ".pem", "key": ".key"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """A server's sites."""

    hosts: Sequence[Host]
    content: Path
    """Has one folder per host."""
    log: Path
    """Of the requests to them."""


def _caddy(apps: dict[str, Any], data: Path, logs: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Admin interface off; nothing is kept, renewed or sent anywhere."""
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "WARN", "exclude": ["http.log.access"]}, **(logs or {})}},
        "storage": {"module": "file_system", "root": str(data)},
        "apps": apps,
    }


def server_configuration(
    server: Server, *, content: Path, certificates: Path, data: Path, sites: Sites | None = None
) -> dict[str, Any]:
    """Caddy for a server's node: HTTPS with HTTP/1.1, 2 and (where asked) 3, and a redirect from port 80.

    Requests to sites are logged, those to measured files are not.
    """
    if server.edge:
        forward = {"handler": "reverse_proxy", "upstreams": [{"dial": f"127.0.0.1:{CACHE_PORT}"}]}
    else:
        forward = {"handler": "file_server", "root": str(content / server.name)}
    routes: list[dict[str, Any]] = [_BINARY_TYPE]
    if server.domains:
        routes.append({"match": [{"host": server.domains}], "handle": [forward], "terminal": True})
    if server.pretends_quic:
        routes.insert(0, _PRETENCE)
    names = [server.name] if server.domains else []
    https: dict[str, Any] = {
        "listen": [":443"],
        "protocols": ["h1", "h2", "h3"] if server.quic else ["h1", "h2"],
        "automatic_https": {"disable": True},
        "tls_connection_policies": [{}],
    }
    logs = {}
    if sites is not None:
        routes += [_host_route(host, sites.content) for host in sites.hosts]
        names += [host.name for host in sites.hosts]
        loggers = {host.name: "sites" for host in sites.hosts}
        https["logs"] = {"logger_names": loggers, "skip_unmapped_hosts": True}
        logs = {"sites": _access_log(sites.log)}
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
        "routes": [{"handle": [redirect]}],
    }
    files = [{kind: str(certificates / f"{name}{end}") for kind, end in _PEM.items()} for name in names]
    tls = {
        "certificates": {"load_files": files},
        # Tickets are worth nothing to measurements: connections are never resumed.
        "session_tickets": {"disabled": True},
        "automation": {"policies": [{"disable_ocsp_stapling": True}]},
    }
    return _caddy({"http": {"servers": {"https": https, "http": http}, "grace_period": "1s"}, "tls": tls}, data, logs)


def _host_route(host: Host, content: Path) -> dict[str, Any]:
    """A site's host: files of its folder, and before them what is no plain file."""
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
    routes.append({"handle": [{"handler": "file_server", "root": str(content / host.name)}]})
    return {"match": [{"host": [host.name]}], "handle": [{"handler": "subroute", "routes": routes}], "terminal": True}


def _access_log(path: Path) -> dict[str, Any]:
    """One JSON line per request (`vantage.lab.access` reads them)."""
    writer = {"output": "file", "filename": str(path), "roll": False}
    return {"writer": writer, "encoder": {"format": "json"}, "include": ["http.log.access.sites"]}


def origin_configuration(server: Server, *, content: Path, data: Path) -> dict[str, Any]:
    """Caddy for an edge's origin: the files over plain HTTP, which only the edge can reach."""
    files = {"handler": "file_server", "root": str(content / server.name)}
    origin = {
        "listen": [f":{ORIGIN_PORT}"],
        "protocols": ["h1"],
        "automatic_https": {"disable": True},
        "routes": [_BINARY_TYPE, {"handle": [files]}],
    }
    return _caddy({"http": {"servers": {"origin": origin}, "grace_period": "1s"}}, data)


def cache_configuration(origin: str, folder: Path) -> str:
    """nginx as an edge's cache, in one process in the foreground.

    Each client address has entries of its own: towards each vantage point the edge is another machine, as it would be
    in a CDN, and the first download from each one has to fetch from the origin.
    """
    return f"""daemon off;
master_process off;
pid "{folder}/nginx.pid";
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    server_tokens off;
    default_type application/octet-stream;
    client_body_temp_path "{folder}/body";
    proxy_temp_path "{folder}/proxy";
    fastcgi_temp_path "{folder}/fastcgi";
    uwsgi_temp_path "{folder}/uwsgi";
    scgi_temp_path "{folder}/scgi";
    proxy_cache_path "{folder}/cache" keys_zone=lab:1m max_size=1g inactive=1d use_temp_path=off;
    server {{
        listen 127.0.0.1:{CACHE_PORT};
        location / {{
            proxy_pass http://{origin}:{ORIGIN_PORT};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_cache lab;
            proxy_cache_key "$http_x_forwarded_for $host$request_uri";
            proxy_cache_valid 200 1d;
            proxy_cache_lock on;
            proxy_buffers 64 16k;
            proxy_ignore_headers Cache-Control Expires Set-Cookie Vary;
            add_header X-Cache $upstream_cache_status always;
        }}
    }}
}}
"""
