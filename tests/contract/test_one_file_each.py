"""A factor, a client of an existing program, a KPI and a server kind, each added as one new file and nothing else.

So is a new client, which is one file and its program. The server kind is a server by aioquic, which no shipped one is.

Proven on a copy of the packages, to which only these files are added, through the command line: each appears in
`--help`, in a campaign file, in a campaign that runs in a small lab, in `downloads.parquet`, and in
the tables and the report; and a fault in the use of each is told like that of a shipped one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from core.files import store
from downloader import clients, factors
from tests.command import upshift as ours
from tests.contract._package_copy import (
    copy_packages,
    downloads_by_configuration,
    python,
    report_pages,
    run_campaign,
    several,
    upshift,
)
from tests.topologies import server, topology

FACTOR = '''"""Loss recovery by time (RFC 8985), which no handshake shows."""

from downloader.factors import ON_OFF, Factor
from core.domain import Refutation, Setting, Sysctl, TreatmentReason, Wire


def _settings(level: str) -> tuple[Setting, ...]:
    return (Sysctl(name="net.ipv4.tcp_recovery", value="1" if level == "on" else "0"),)


def _proof(level: str, wire: Wire) -> Refutation | None:
    if wire.client.synack_seen:
        return None
    return Refutation(reason=TreatmentReason.NO_SYN_ACK, detail="no SYN-ACK")


RACK = Factor(
    name="rack", label="RACK", help="Loss recovery by time (RFC 8985).", levels=ON_OFF, default="on",
    settings=_settings, proof=_proof,
)
'''

CLIENT = '''"""quiche with a narrow window."""

from dataclasses import replace

from downloader.client import DownloadRequest, common_arguments
from downloader.clients.quiche import QUICHE as _QUICHE


def _arguments(request: DownloadRequest) -> list[str]:
    return [*common_arguments(request), "--max-data", "65535"]


NARROW = replace(_QUICHE, name="quiche-narrow", help="HTTP/3 through a window of 64 KiB.", arguments=_arguments)
'''

NEW_CLIENT = '''"""HTTP/1.1 by Python's own ssl."""

from downloader.client import Client
from core.domain import Transport

PLAIN = Client(
    name="plain", help="HTTP/1.1 over TCP by Python's ssl alone.", transport=Transport.TCP,
    http="1.1", program="downloader.programs.plain_get", packages=("trustme",),
)
'''

PROGRAM = '''"""One HTTPS download by Python's own ssl."""

import socket
import ssl
import sys

from downloader.programs.codes import of_os_error
from downloader.programs.common import Document, argument_parser, options_from


def download(options, document):
    context = ssl.create_default_context(cafile=options.ca)
    document.start()
    with socket.create_connection((options.address, options.port), options.budget_s) as raw:
        document.mark("connect_s")
        document.values["local_ip"], document.values["local_port"] = raw.getsockname()[:2]
        with context.wrap_socket(raw, server_hostname=options.host) as sock:
            document.mark("tls_s")
            asked = f"GET {options.path} HTTP/1.1\\r\\nHost: {options.host}\\r\\nConnection: close\\r\\n\\r\\n"
            sock.sendall(asked.encode())
            got = b""
            while b"\\r\\n\\r\\n" not in got:
                got += sock.recv(65536)
            head, _, data = got.partition(b"\\r\\n\\r\\n")
            first, *lines = head.decode().splitlines()
            document.take_headers(int(first.split()[1]), [tuple(line.split(": ", 1)) for line in lines])
            while not document.is_over():
                document.take_body(data)
                if document.is_whole or not (data := sock.recv(65536)):
                    document.end_of_body()


def main(argv):
    options = options_from(argument_parser("plain_get", "One download.").parse_args(argv))
    document = Document("plain", "trustme", options, handshake="tls_s")
    if not document.refused():
        try:
            download(options, document)
        except OSError as error:
            connected = document.values["connect_s"] is not None
            document.fail(*of_os_error(error, None, connected=connected, over_tcp=True))
    document.print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
'''

KPI = '''"""A family of one."""

from analysis.captures.connection import Connection
from analysis.captures.kpis import kpi


@kpi(unit="B", source="a test")
def bytes_per_packet(connection: Connection) -> float | None:
    """Bytes of the server per packet of the server."""
    packets = connection.server.packets
    return connection.server.ip_bytes / packets if packets else None
'''

SERVER_KIND = '''"""`python`: HTTP/3 by aioquic."""

import importlib.util
import sys

from vantage.server_kind import ProgramPlan, QuicTraits, ServerKind, ServerRole

_PROGRAM = """
import asyncio, sys
from pathlib import Path
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

address, certificate, key, root, algorithm = sys.argv[1:]

class Serving(QuicConnectionProtocol):
    http = None
    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        for asked in self.http.handle_event(event) if self.http else ():
            if isinstance(asked, HeadersReceived):
                body = Path(root + dict(asked.headers)[b":path"].decode()).read_bytes()
                fields = [(b":status", b"200"), (b"server", b"python"), (b"content-length", b"%d" % len(body))]
                self.http.send_headers(asked.stream_id, fields)
                self.http.send_data(asked.stream_id, body, end_stream=True)
                self.transmit()

async def main():
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=["h3"], congestion_control_algorithm=algorithm
    )
    configuration.load_cert_chain(certificate, key)
    await serve(address, 443, configuration=configuration, create_protocol=Serving)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def _programs(setup):
    name = f"{setup.name}-python"
    script = setup.data(name) / "server.py"
    script.write_text(_PROGRAM)
    chain, key = setup.certificate(setup.name)
    argv = (sys.executable, str(script), setup.ipv4, str(chain), str(key), str(setup.content))
    argv += (setup.congestion_control,)
    return [ProgramPlan(name=name, node=setup.name, argv=argv, udp=(443,))]


PYTHON = ServerKind(
    name="python",
    help="HTTP/3 by aioquic.",
    roles=frozenset({ServerRole.QUIC}),
    programs=_programs,
    missing=lambda: None if importlib.util.find_spec("aioquic") else "aioquic is not installed",
    version=lambda: (sys.executable, "-c", "import aioquic; print('aioquic', aioquic.__version__)"),
    quic=QuicTraits(congestion_control=("reno", "cubic"), initial_window_packets=10, packet_bytes=1228),
)
'''

FILES = {
    "downloader/factors/rack.py": FACTOR,
    "downloader/clients/quiche_narrow.py": CLIENT,
    "downloader/clients/plain.py": NEW_CLIENT,
    "downloader/programs/plain_get.py": PROGRAM,
    "analysis/captures/kpis/bytes_per_packet.py": KPI,
    "vantage/servers/python.py": SERVER_KIND,
}

TOPOLOGY = topology(
    "one-file",
    server(
        "s",
        "www.one.example",
        size="300 kB",
        path="rtt_ms = 10, rate_mbit = 50",
        more='quic_server = "python"\nquic_congestion_control = "cubic"',
    ),
)

CAMPAIGN = """name = "one-file"
lab = "./one.toml"
targets = "lab"
max_attempts = 8
permute = ["rack"]
[[configurations]]
name = "narrow"
client = "quiche-narrow"
[[configurations]]
name = "new"
client = "plain"
levels = { window_scaling = "14" }
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the packages with a few more files, and a state folder of its own."""
    folder = tmp_path_factory.mktemp("one-file")
    copy_packages(folder, FILES)
    (folder / "one.toml").write_text(TOPOLOGY)
    (folder / "c.toml").write_text(CAMPAIGN)
    yield folder


def test_each_is_in_the_help(copy: Path) -> None:
    run, kpis = several(copy, ("run", "--help"), ("kpis", "--help"))
    assert run.returncode == 0, run.stderr
    assert "rack" in run.stdout and "Loss recovery by time (RFC 8985)." in run.stdout
    assert "quiche-narrow" in run.stdout and "HTTP/3 through a window of 64 KiB." in run.stdout
    assert "plain" in run.stdout and "HTTP/1.1 over TCP by Python's ssl alone." in run.stdout
    for shipped in (*factors.ALL, *clients.ALL):
        assert f"\n  {shipped} " in run.stdout
    assert kpis.returncode == 0, kpis.stderr
    words = " ".join(kpis.stdout.split())
    assert "bytes_per_packet [B] Bytes of the server per packet of the server. Source: a test" in words
    assert "\n  mean_throughput " in kpis.stdout


def test_the_shipped_packages_know_none_of_them() -> None:
    """Else the test above would prove nothing."""
    for command, known, words in (
        ("run", "requests", ("rack", "quiche-narrow", "plain")),
        ("kpis", "mean_throughput", ("bytes_per_packet",)),
    ):
        shown = ours(command, "--help")
        assert shown.returncode == 0 and f"\n  {known} " in shown.stdout
        assert not any(f"\n  {word}" in shown.stdout for word in words)


SHOW = """
import json
from pathlib import Path
from core.domain import Configuration
from downloader.campaign.campaign import load
from downloader.campaign.configurations import recorded, settings_for
configurations = load(Path(sys.argv[1])).configurations
off = Configuration(name="x", client="requests", levels={"rack": "off"})
print(json.dumps({
    "configurations": [c.name for c in configurations],
    "levels": dict(recorded(configurations[0]).levels),
    "settings": sorted(s.name for s in settings_for(off)),
}))
"""


def test_a_permutation_names_its_configurations_and_has_its_settings(copy: Path) -> None:
    (copy / "permuted.toml").write_text(CAMPAIGN.replace('["rack"]', '["sack", "rack"]'))
    done = python(copy, SHOW, "permuted.toml")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["configurations"] == ["RACK-off", "BL", "BL2", "SACK+RACK-off", "SACK", "narrow", "new"]
    assert seen["levels"]["rack"] == "off" and seen["levels"]["timestamps"] == "on"
    assert "net.ipv4.tcp_recovery" in seen["settings"]


def test_a_wrong_use_of_each_is_told(copy: Path, tmp_path: Path) -> None:
    levels = '[[configurations]]\nname = "x"\nclient = "requests"\nlevels = { rack = "sometimes" }\n'
    cases = (
        (CAMPAIGN.split("[[")[0].replace("permute", "# permute") + levels, "rack has no level 'sometimes'; accepted"),
        (
            CAMPAIGN.replace("quiche-narrow", "quiche-wide"),
            f"use one of: {', '.join(sorted([*clients.ALL, 'plain', 'quiche-narrow']))}",
        ),
        (CAMPAIGN.replace('["rack"]', '["rick"]'), "use one of: ecn, initrwnd, rack, rmem, "),
    )
    for number, (text, _) in enumerate(cases):
        (copy / f"wrong-{number}.toml").write_text(text)
    out = str(tmp_path / "out")
    answers = several(copy, *(("run", f"wrong-{number}.toml", "--out", out) for number in range(len(cases))))
    for (_, said), done in zip(cases, answers, strict=True):
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_wrong_server_or_algorithm_is_told_with_the_new_kind(copy: Path) -> None:
    cases = (
        ('"python"', '"perl"', "unknown QUIC server 'perl'; use one of: caddy, nginx, python, quiche"),
        ('"cubic"', '"bbr"', "python does not support 'bbr'; python has reno and cubic"),
    )
    for number, (old, new, _) in enumerate(cases):
        (copy / f"wrong-{number}.toml").write_text(TOPOLOGY.replace(old, new))
    lines = [("lab", "files", f"./wrong-{number}.toml", "-o", "files") for number in range(len(cases))]
    for (*_, said), done in zip(cases, several(copy, *lines), strict=True):
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_the_host_is_asked_for_what_the_client_needs(copy: Path) -> None:
    """`doctor` looks for its program and packages; a campaign that names it is refused where one is missing."""
    lacking = copy / "downloader/clients/lacking.py"
    program = NEW_CLIENT.replace('"plain"', '"lacking"').replace('"trustme"', '"trustme", "not-there"')
    binary = (
        NEW_CLIENT.replace("PLAIN", "BINARY")
        .replace('"plain"', '"binary"')
        .replace("downloader.programs.plain_get", "nosuch-get")
    )
    lacking.write_text(program + binary.partition("Transport\n")[2])
    try:
        doctor = upshift(copy, "doctor", "--quick", "--json")
        found = {entry["name"]: entry for entry in json.loads(doctor.stdout)["findings"]}
        for name, fault in (("lacking", "the package not-there"), ("binary", "the program nosuch-get")):
            said = f"the client {name} needs {fault}, which is missing"
            entry = found[f"client {name}"]
            assert entry["status"] == "warn" and said in entry["says"] and "make setup" in entry["remedy"]
            (copy / "lacking.toml").write_text(CAMPAIGN.replace('"plain"', f'"{name}"'))
            run = upshift(copy, "run", "lacking.toml", "--out", "refused")
            assert run.returncode == 2 and said in run.stderr and run.stderr.count("\n") == 1, run.stderr
        assert found["client plain"]["status"] == found["client requests"]["status"] == "ok"
        assert not (copy / "refused").exists()
    finally:
        lacking.unlink()


ALONE = 'import downloader.clients as c; c.ALL = {"plain": c.ALL["plain"]}'


@pytest.mark.lab
def test_the_new_client_has_a_ceiling(copy: Path) -> None:
    """Alone: that all clients are calibrated shows tests/lab/test_host_doctor.py, and takes half a minute."""
    arguments = ["--calibrate", "--seconds", "1", "--quick", "--json"]
    doctor = upshift(copy, "doctor", *arguments, state=str(copy / "state"), before=ALONE)
    ceilings = json.loads(doctor.stdout)["ceilings"]["clients"]
    assert ceilings["plain"]["fault"] is None and ceilings["plain"]["ceiling_mbit_s"] > 10


@pytest.mark.lab
def test_each_is_in_a_campaign_and_its_output(copy: Path) -> None:
    run_campaign(copy)
    rows = downloads_by_configuration(copy)
    assert set(rows) == {"warmup", "warmup-quic", "RACK-off", "BL", "BL2", "narrow", "new"}
    assert all(row.outcome == "ok" for row in rows.values()), [row.failure_detail for row in rows.values()]
    assert json.loads(rows["RACK-off"].levels)["rack"] == "off" and json.loads(rows["BL"].levels)["rack"] == "on"
    assert rows["narrow"].client == "quiche-narrow" and rows["narrow"].transport == "quic"
    parameters = json.loads(rows["narrow"].transport_detail or "")["transport_parameters"]["local"]
    assert parameters["initial_max_data"] == 65_535
    assert (rows["new"].client, rows["new"].transport) == ("plain", "tcp")
    environment = json.loads((copy / "out/environment.json").read_text())
    [vantage] = environment["vantage_points"].values()
    assert vantage["python_packages"]["trustme"] == version("trustme") == rows["new"].client_version
    kpis = store.read_table(copy / "out/downloads.parquet", "downloads")
    assert kpis.schema.field("bytes_per_packet").metadata[b"unit"] == b"B"
    assert 14 in kpis.column("window_scale_client").to_pylist()  # the new client's level, which no other asked for
    values = kpis.column("bytes_per_packet").to_pylist()
    assert len(values) == 7 and all(100 < value < 1501 for value in values), values
    pages = report_pages(copy)
    assert "RACK-off" in pages and "narrow" in pages

    assert rows["narrow"].body_sha256 == rows["BL"].body_sha256
    assert json.loads(rows["narrow"].response_headers or "{}")["server"] == "python"
    [path] = json.loads((copy / "out/lab.json").read_text())["paths"]
    fields = ("quic_server", "quic_congestion_control", "quic_initial_window_packets", "quic_packet_bytes")
    assert [path[field] for field in fields] == ["python", "cubic", 10, 1228]
    assert '"python": "aioquic ' in (copy / "out/environment.json").read_text()
    aioquic = f"aioquic {version('aioquic')}"
    assert f"the QUIC server python ({aioquic}) uses cubic, 10 packets at first, 1228-byte packets" in pages
