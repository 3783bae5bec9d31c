"""`nginx`: a web server, with HTTP/3 where it is 1.26, or the cache of an edge.

The distribution's, unless that is not 1.26 with HTTP/3 and `make setup` brought Debian 13's, which is
(`scripts/nginx-http3`). Other versions differ: from 1.27.5 on QUIC has CUBIC and a first window of 12,000 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from core.system.process import find_program, require, run
from vantage.server_kind import (
    CACHE_PORT,
    MEDIA_TYPES,
    ORIGIN_PORT,
    ProgramPlan,
    QuicTraits,
    ServerKind,
    ServerRole,
    ServerSetup,
    program_missing,
)

_PACKAGE = "nginx-light"
_ANY = ("0.0.0.0", "[::]")  # noqa: S104 - of a node of the lab
STREAM_BUFFER_BYTES = 65_536
"""nginx's default of `http3_stream_buffer_size`: what is not acknowledged stays in it, so no more per round trip."""


def _nginx() -> str:
    """The program. Raises PlaceError if there is none, with HTTP/3 or without."""
    paths = (path for name in ("nginx", "nginx-http3") if (path := find_program(name)))
    return next(filter(_has_http3, paths), None) or require("nginx", package=_PACKAGE)


@lru_cache(maxsize=8)
def _has_http3(path: str) -> bool:
    built = run((path, "-V")).stderr
    return "nginx/1.26." in built and "http_v3_module" in built


def _http3_missing() -> str | None:
    if _has_http3(_nginx()):
        return None
    return "no nginx 1.26 with HTTP/3 is here; run: make setup, with a network, or choose another kind"


def _programs(setup: ServerSetup) -> Sequence[ProgramPlan]:
    programs = []
    if ServerRole.CACHE in setup.roles:
        if setup.origin is None:
            raise LookupError(f"{setup.name} is not an edge")
        name = f"{setup.name}-cache"
        text = cache_configuration(setup.origin, setup.data(name))
        programs.append(_program(setup, name, text, (("127.0.0.1", CACHE_PORT),)))
    if quic_or_web := setup.roles & {ServerRole.QUIC, ServerRole.WEB}:
        is_web = ServerRole.WEB in quic_or_web
        name = setup.name if is_web else f"{setup.name}-quic"
        text = web_configuration(setup, setup.data(name), http3=_has_http3(_nginx()))
        tcp = tuple((setup.ipv4, port) for port in (80, 443)) if is_web else ()
        programs.append(_program(setup, name, text, tcp, (443,) if ServerRole.QUIC in quic_or_web else ()))
    return programs


def _program(
    setup: ServerSetup, name: str, text: str, tcp: tuple[tuple[str, int], ...], udp: tuple[int, ...] = ()
) -> ProgramPlan:
    folder = setup.data(name)
    path = folder / "nginx.conf"
    path.write_text(text, encoding="utf-8")
    argv = (_nginx(), "-p", str(folder), "-c", str(path), "-e", "stderr")
    return ProgramPlan(name=name, node=setup.name, argv=argv, tcp=tcp, udp=udp)


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


def web_configuration(setup: ServerSetup, folder: Path, *, http3: bool) -> str:
    """nginx as a web server, whatever the name it is asked for: the roles WEB, with HTTP/2, and QUIC.

    Args:
        http3: whether the program has HTTP/3, which it need not have for the role WEB.
    """
    chain, key = setup.certificate(setup.name)
    families = _ANY[: 1 + (setup.ipv6 is not None)]
    is_web, is_quic = ServerRole.WEB in setup.roles, ServerRole.QUIC in setup.roles
    ports = [":443 ssl" + ("" if http3 else " http2"), *([":80"] if setup.plain_http else [])] if is_web else []
    listen = [f"{address}{port}" for port in ports for address in families]
    if is_quic:
        listen += [f"{address}:443 quic" for address in (setup.ipv4, setup.ipv6 and f"[{setup.ipv6}]") if address]
    settings = [*(f"listen {one}" for one in listen), f'ssl_certificate "{chain}"', f'ssl_certificate_key "{key}"']
    settings += ["ssl_protocols TLSv1.2 TLSv1.3", "ssl_session_tickets off"]  # before 1.23.4 TLS 1.2 was the default
    settings += ["http2 on"] if http3 else []
    if is_quic:
        held = setup.stream_buffer_bytes or STREAM_BUFFER_BYTES
        # Before Linux 6.11 a TUN refuses several datagrams in one send (EIO), and nginx then closes the connection.
        settings += ["http3 on", "quic_gso off", f"http3_stream_buffer_size {held}"]
    if is_web and setup.advertises_quic:
        settings.append("add_header Alt-Svc $alt_svc always")
    if setup.origin is None:
        settings.append(f'root "{setup.content}"')
    else:
        settings += ["proxy_http_version 1.1", "proxy_set_header Host $host"]
        settings.append("proxy_set_header X-Forwarded-For $remote_addr")
    lines = "".join(f"        {setting};\n" for setting in settings)
    forward = f"        location / {{ proxy_pass http://127.0.0.1:{CACHE_PORT}; }}\n" if setup.origin else ""
    types = "".join(f'        "{media}" {ending};\n' for ending, media in MEDIA_TYPES.items())
    # A header without a value is not sent: the addresses of other windows have no QUIC.
    without = "".join(f' {name} "";' for name in setup.window_names)
    redirect = "".join(f"        listen {address}:80;\n" for address in families)
    plain = (
        ""
        if setup.plain_http or not is_web
        else f"""    server {{
{redirect}        return 301 https://$host$request_uri;
    }}
"""
    )
    return _in_folder(
        folder,
        f"""    sendfile on;
    tcp_nopush on;
    map_hash_bucket_size 512;
    map $host $alt_svc {{ default 'h3=":443"; ma=2592000';{without} }}
    types {{
{types}    }}
    server {{
{lines}{forward}    }}
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
    help="A web server with HTTP/2 and, where it can, HTTP/3; the cache of an edge.",
    roles=frozenset({ServerRole.CACHE, ServerRole.WEB, ServerRole.QUIC}),
    can_be_chosen=True,
    programs=_programs,
    missing=program_missing("nginx", package=_PACKAGE),
    version=lambda: (_nginx(), "-v"),
    https_alpn=("h2",),
    quic=QuicTraits(
        congestion_control=("reno",),
        # 131,054 bytes: twice its largest UDP payload where RFC 9002, section 7.2, has the size of a packet.
        initial_window_packets=109,
        packet_bytes=1228,  # until it has probed the path, about a second later: then 1499
        stream_buffer_bytes=STREAM_BUFFER_BYTES,
        has_sites=False,
        missing=_http3_missing,
    ),
)
