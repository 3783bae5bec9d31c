"""`nginx`: the cache of an edge, from the distribution's packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from upshift.system.process import require
from vantage.lab.plan import ProgramPlan
from vantage.lab.server_kind import CACHE_PORT, ORIGIN_PORT, Role, ServerKind, ServerSetup, program_missing

_PACKAGE = "nginx-light"


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    if setup.origin is None:
        raise LookupError(f"{setup.server.name} is not an edge")
    name = f"{setup.server.name}-cache"
    folder = setup.data(name)
    path = folder / "nginx.conf"
    path.write_text(cache_configuration(setup.origin.ipv4, folder), encoding="utf-8")
    argv = (require("nginx", package=_PACKAGE), "-p", str(folder), "-c", str(path), "-e", "stderr")
    ports = (("127.0.0.1", CACHE_PORT),)
    return [ProgramPlan(name=name, node=setup.server.name, argv=argv, tcp=ports, kind=NGINX.name)]


def cache_configuration(origin: str, folder: Path) -> str:
    """nginx as an edge's cache, in one process in the foreground.

    Each client address has its own entries: each vantage point sees a different cache, as in a CDN, and its first
    download is fetched from the origin.
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


NGINX = ServerKind(
    name="nginx",
    help="The cache of an edge.",
    roles=frozenset({Role.CACHE}),
    programs=_programs,
    missing=program_missing("nginx", package=_PACKAGE),
    version=lambda: ("nginx", "-v"),
)
