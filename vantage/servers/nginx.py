"""`nginx`: the cache of an edge, or a web server, from the distribution's packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.system.process import require
from vantage.server_kind import (
    CACHE_PORT,
    MEDIA_TYPES,
    ORIGIN_PORT,
    ProgramPlan,
    ServerKind,
    ServerRole,
    ServerSetup,
    program_missing,
)

_PACKAGE = "nginx-light"
_ANY = ("0.0.0.0", "[::]")  # noqa: S104 - of a node of the lab


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    programs = []
    if ServerRole.CACHE in setup.roles:
        if setup.origin is None:
            raise LookupError(f"{setup.name} is not an edge")
        name = f"{setup.name}-cache"
        text = cache_configuration(setup.origin, setup.data(name))
        programs.append(_program(setup, name, text, (("127.0.0.1", CACHE_PORT),)))
    if ServerRole.WEB in setup.roles:
        text = web_configuration(setup, setup.data(setup.name))
        programs.append(_program(setup, setup.name, text, tuple((setup.ipv4, port) for port in (80, 443))))
    return programs


def _program(setup: ServerSetup, name: str, text: str, ports: tuple[tuple[str, int], ...]) -> ProgramPlan:
    folder = setup.data(name)
    path = folder / "nginx.conf"
    path.write_text(text, encoding="utf-8")
    argv = (require("nginx", package=_PACKAGE), "-p", str(folder), "-c", str(path), "-e", "stderr")
    return ProgramPlan(name=name, node=setup.name, argv=argv, tcp=ports)


def _in_folder(folder: Path, http: str) -> str:
    """A whole configuration: one process in the foreground, all its files in the folder."""
    return f"""daemon off;
master_process off;
pid "{folder}/nginx.pid";
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    server_tokens off;
    default_type application/octet-stream;
    client_body_temp_path "{folder}/body";
    proxy_temp_path "{folder}/proxy";
    fastcgi_temp_path "{folder}/fastcgi";
    uwsgi_temp_path "{folder}/uwsgi";
    scgi_temp_path "{folder}/scgi";
{http}}}
"""


def web_configuration(setup: ServerSetup, folder: Path) -> str:
    """nginx as a web server over HTTP and HTTPS, whatever the name it is asked for; without HTTP/2."""
    chain, key = setup.certificate(setup.name)
    families = _ANY[: 1 + (setup.ipv6 is not None)]
    ports = [":443 ssl", *([":80"] if setup.plain_http else [])]
    listen = "".join(f"        listen {address}{port};\n" for port in ports for address in families)
    types = "".join(f'        "{media}" {ending};\n' for ending, media in MEDIA_TYPES.items())
    redirect = "".join(f"        listen {address}:80;\n" for address in families)
    plain = (
        ""
        if setup.plain_http
        else f"""    server {{
{redirect}        return 301 https://$host$request_uri;
    }}
"""
    )
    return _in_folder(
        folder,
        f"""    sendfile on;
    tcp_nopush on;
    types {{
{types}    }}
    server {{
{listen}        root "{setup.content}";
        ssl_certificate "{chain}";
        ssl_certificate_key "{key}";
        ssl_session_tickets off;
    }}
{plain}""",
    )


def cache_configuration(origin: str, folder: Path) -> str:
    """nginx as an edge's cache.

    Each client address has its own entries: each vantage point sees a different cache, as in a CDN, and its first
    download is fetched from the origin.
    """
    return _in_folder(
        folder,
        f"""    proxy_cache_path "{folder}/cache" keys_zone=lab:1m max_size=1g inactive=1d use_temp_path=off;
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
""",
    )


NGINX = ServerKind(
    name="nginx",
    help="The cache of an edge, or a web server without HTTP/2.",
    roles=frozenset({ServerRole.CACHE, ServerRole.WEB}),
    can_be_chosen=True,
    programs=_programs,
    missing=program_missing("nginx", package=_PACKAGE),
    version=lambda: ("nginx", "-v"),
)
