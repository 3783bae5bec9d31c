"""Server kinds of the lab: who fills which role, what is refused, and the plan as a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import PlaceError, UsageError
from tests.topologies import MINI, server, site_kinds, topology
from vantage import server_kind
from vantage.lab import dns, planner, roles
from vantage.lab.addresses import address_plan
from vantage.lab.control import make_plan
from vantage.lab.plan import LabPlan, read_plan, write_plan
from vantage.lab.state import LabFolder
from vantage.lab.topology import Topology
from vantage.lab.topology_file import load_topology, shipped
from vantage.server_kind import ServerRole
from vantage.servers import ALL, caddy, nginx, quiche

TOP = "\n[[vantage]]"
SITE = '\n[[site]]\nkind = "unsized"\ndomain = "a.example"\nserver = "own"\n' + site_kinds("unsized")


def load(text: str, folder: Path) -> Topology:
    path = folder / "t.toml"
    path.write_text(text)
    return load_topology(path)


def everything(folder: Path, *, more: str = "") -> Topology:
    text = topology(
        "all",
        server("s", "www.s.example", more=more),
        server("edge", "www.edge.example", more="edge = { rtt_ms = 2, rate_mbit = 400 }"),
        server("none", "www.none.example", more="quic = false"),
        server("broken", "www.broken.example", more='fault = "stall"'),
        '\n[[server]]\nname = "own"\norganisation = "o"\npaths = { V = { rtt_ms = 6, rate_mbit = 50 } }\n',
    )
    return load(text.replace(TOP, f'\nquic_server = "quiche"{TOP}', 1) + SITE, folder)


def test_who_fills_which_role(tmp_path: Path) -> None:
    found = everything(tmp_path, more='quic_server = "caddy"')
    filled = {
        server.name: {role.value: kind.name for role, kind in roles.roles(found, server).items()}
        for server in found.server
    }
    assert filled == {
        "s": {"web": "caddy", "quic": "caddy"},
        "edge": {"web": "caddy", "quic": "quiche", "cache": "nginx", "origin": "caddy"},
        "none": {"web": "caddy"},
        "broken": {"web": "fault"},
        "own": {"web": "sites"},
    }
    speaking = [server.name for server in found.server if roles.speaks_quic(found, server)]
    assert speaking == ["s", "edge"]


def test_every_kind_says_what_the_lab_needs_of_it() -> None:
    for kind in ALL.values():
        assert kind.roles and kind.help
        assert (kind.quic is not None) == (ServerRole.QUIC in kind.roles)
        if kind.quic is not None:
            assert kind.quic.congestion_control and kind.quic.initial_window_packets > 0
            assert 1200 < kind.quic.packet_bytes <= 1500
    assert ALL[roles.DEFAULT_QUIC_SERVER].quic is not None


@pytest.mark.parametrize("name", shipped())
def test_shipped_topologies_have_the_default(name: str) -> None:
    found = load_topology(name)
    default = ALL[roles.DEFAULT_QUIC_SERVER].quic
    assert default is not None
    for one in found.server:
        if roles.speaks_quic(found, one):
            assert roles.quic_server(found, one) == roles.DEFAULT_QUIC_SERVER
            assert roles.quic_congestion_control(found, one) == default.congestion_control[0]


@pytest.mark.parametrize(
    ("top", "own", "sentence"),
    [
        (
            "",
            'quic_server = "msquic"',
            r"field server\.s\.quic_server: unknown QUIC server 'msquic'; did you mean quiche\? use one of: .*qui",
        ),
        ('quic_server = "apache"', "", r"field quic_server: unknown QUIC server 'apache'; use one of: caddy, nginx, "),
        (
            "",
            'quic_server = "caddy"\nquic_congestion_control = "bbr2"',
            r"field server\.s\.quic_congestion_control: caddy does not support 'bbr2'; caddy has reno only",
        ),
        (
            'quic_server = "quiche"\nquic_congestion_control = "vegas"',
            "",
            r"field quic_congestion_control: quiche does not support 'vegas'; quiche has cubic, reno and bbr2",
        ),
        (
            'quic_server = "quiche"',
            'quic_congestion_control = "vegas"',
            r"field server\.s\.quic_congestion_control: quiche does not support 'vegas'",
        ),
        (
            "",
            'quic = false\nquic_server = "quiche"',
            r"field server\.s\.quic_server: the server has no QUIC; remove this field",
        ),
        ("", 'fault = "reset"\nquic_server = "quiche"', r"field server\.s\.quic_server: the server has no QUIC"),
        (
            'quic_server = "nginx"\nquic_congestion_control = "cubic"',
            "",
            r"field quic_congestion_control: nginx does not support 'cubic'; nginx has reno only",
        ),
        (
            "",
            'quic_stream_buffer = "4 MB"',
            r"field server\.s\.quic_stream_buffer: quiche has no such setting; remove this field, or add quic_",
        ),
        (
            "",
            'quic = false\nquic_stream_buffer = "4 MB"',
            r"field server\.s\.quic_stream_buffer: the server has no QUIC; remove this field",
        ),
        (
            'quic_server = "nginx"',
            "quic_stream_buffer = 100",
            r"field server\.s\.quic_stream_buffer: 100 is out of range; use 4096 to",
        ),
    ],
)
def test_faults_are_sentences_with_the_field(tmp_path: Path, top: str, own: str, sentence: str) -> None:
    text = topology("bad", server("s", "www.s.example", more=own)).replace(TOP, f"\n{top}{TOP}", 1)
    with pytest.raises(UsageError, match=sentence) as caught:
        load(text, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/t.toml: ")


def test_nginx_has_no_sites_and_not_everywhere_http_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_top = MINI.replace(TOP, f'\nquic_server = "nginx"{TOP}', 1)
    site = '\n[[site]]\nkind = "plain"\ndomain = "a.example"\nserver = "s"\n'
    with pytest.raises(UsageError, match="field quic_server: nginx has no sites, and s has; put these sites on anoth"):
        load(at_top + site, tmp_path)
    found = load(at_top, tmp_path)
    assert roles.quic_stream_buffer(found, found.server[0]) == 65_536
    monkeypatch.setattr(nginx, "_has_http3", lambda _: False)
    with pytest.raises(
        UsageError, match=r"t\.toml: field quic_server: no nginx 1\.26 with HTTP/3 is here; run: make s"
    ):
        roles.check_quic_here(found, where="t.toml")
    roles.check_quic_here(load(MINI, tmp_path), where="t.toml")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        *((f'web_server = "{kind}"', f"web_server: {kind}") for kind in ("nginx", "sender", "smoltcp")),
        ('body = { rate_mbit = 4, chunk = "16 kB" }', "body: paced"),
    ],
)
def test_sites_on_a_server_that_would_not_serve_them_are_refused(tmp_path: Path, own: str, said: str) -> None:
    site = '\n[[site]]\nkind = "plain"\ndomain = "a.example"\nserver = "s"\n'
    text = topology("bad", server("s", "www.s.example", more=own))
    load(text, tmp_path)
    with pytest.raises(UsageError, match=rf"field server\.s\.{said} has no sites, and s has; put these sites on an"):
        load(text + site, tmp_path)


def test_the_algorithm_goes_with_the_server_that_it_was_named_for(tmp_path: Path) -> None:
    text = topology(
        "algorithms",
        server("general", "www.a.example"),
        server("other", "www.b.example", more='quic_server = "caddy"'),
        server("own", "www.c.example", more='quic_congestion_control = "reno"'),
        server("none", "www.d.example", more="quic = false"),
    ).replace(TOP, f'\nquic_server = "quiche"\nquic_congestion_control = "bbr2"{TOP}', 1)
    found = load(text, tmp_path)
    chosen = {one.name: roles.quic_congestion_control(found, one) for one in found.server}
    assert chosen == {"general": "bbr2", "other": "reno", "own": "reno", "none": ""}


def test_nginx_sends_each_datagram_by_itself_in_a_lab(tmp_path: Path) -> None:
    """Before Linux 6.11 a TUN refuses several in one send, at which nginx closes the connection."""
    found = load(MINI.replace(TOP, f'\nquic_server = "nginx"{TOP}', 1), tmp_path)
    folder = LabFolder(tmp_path / "lab")
    [_, (_, quic)] = planner.server_setups(found, found.server[0], address_plan(found), folder, ipv6=True)
    text = nginx.web_configuration(quic, tmp_path, http3=True)
    assert "http3 on;" in text and "quic_gso off;" in text


def test_caddy_advertises_what_another_program_speaks(tmp_path: Path) -> None:
    found = everything(tmp_path)
    folder = LabFolder(tmp_path / "lab")
    setups = planner.server_setups(found, found.server[0], address_plan(found), folder, ipv6=True)
    assert [kind.name for kind, _ in setups] == ["caddy", "quiche"]
    (_, web), (_, quic) = setups
    https = caddy.server_configuration(web, data=tmp_path)["apps"]["http"]["servers"]["https"]
    assert https["protocols"] == ["h1", "h2"]
    assert "Alt-Svc" in json.dumps(https["routes"][0])
    assert dns.https_alpn(found, found.server[0]) == "h3,h2"
    assert [dns.https_alpn(found, one) for one in found.server[2:]] == ["h2", "", ""]
    assert quiche.hosts_document(quic)["hosts"] == {"www.s.example": {"root": str(folder.content / "s")}}
    [_, (_, edge), _] = planner.server_setups(found, found.server[1], address_plan(found), folder, ipv6=True)
    assert quiche.hosts_document(edge)["hosts"] == {"www.edge.example": {"upstream": "127.0.0.1:8080"}}


def test_a_plan_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_PATHEM", "/bin/true")
    folder = LabFolder(tmp_path / "lab")
    made = make_plan(everything(tmp_path), "text", folder)
    assert isinstance(made, LabPlan)
    assert read_plan(folder.plan) == made
    names = [(program.name, Path(program.argv[0]).name.removesuffix("-http3")) for program in made.programs]
    assert ("edge-quic", "h3serve") in names and ("edge-cache", "nginx") in names and ("none", "caddy") in names
    write_plan(replace(made, ipv6=not made.ipv6), folder.plan)
    assert read_plan(folder.plan).ipv6 != made.ipv6


def test_a_kind_that_is_not_installed_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSHIFT_PATHEM", "/bin/true")
    monkeypatch.setattr(server_kind, "find_program", lambda _: None)
    with pytest.raises(PlaceError, match="the QUIC server h3serve is not installed; run: make setup"):
        make_plan(everything(tmp_path), "text", LabFolder(tmp_path / "lab"))
    without = MINI.replace(TOP, f'\nquic_server = "caddy"{TOP}', 1)
    make_plan(load(without, tmp_path), "text", LabFolder(tmp_path / "other"))  # who does not ask for it needs it not
