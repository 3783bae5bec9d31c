"""A new QUIC server kind of the lab, added as one file and nothing else: a server by aioquic, which no shipped kind is.

Proven on a copy of the packages by the command line: the kind is known to topologies, a campaign downloads from it,
`lab.json` has its window and algorithm, and the report's check of the truth names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.contract._package_copy import copy_packages, downloads_by_configuration, report_pages, run_campaign, upshift
from tests.topologies import server, topology

KIND = '''"""`python`: HTTP/3 by aioquic."""

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

TOPOLOGY = topology(
    "new-kind",
    server(
        "s",
        "www.new.example",
        size="300 kB",
        path="rtt_ms = 10, rate_mbit = 50",
        more='quic_server = "python"\nquic_congestion_control = "cubic"',
    ),
)

CAMPAIGN = """name = "new-kind"
lab = "./new.toml"
targets = "lab"
[[configurations]]
name = "BL"
client = "requests"
[[configurations]]
name = "h3"
client = "quiche"
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("new-kind")
    copy_packages(folder, {"vantage/servers/python.py": KIND})
    (folder / "new.toml").write_text(TOPOLOGY)
    (folder / "c.toml").write_text(CAMPAIGN)
    yield folder


def test_a_wrong_name_or_algorithm_is_told_with_the_new_kind(copy: Path) -> None:
    for old, new, said in (
        ('"python"', '"perl"', "unknown QUIC server 'perl'; use one of: caddy, nginx, python, quiche"),
        ('"cubic"', '"bbr"', "python does not support 'bbr'; python has reno and cubic"),
    ):
        (copy / "wrong.toml").write_text(TOPOLOGY.replace(old, new))
        done = upshift(copy, "lab", "files", "./wrong.toml", "-o", "files")
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.lab
def test_it_serves_a_campaign_and_says_what_it_is(copy: Path) -> None:
    run_campaign(copy)
    rows = downloads_by_configuration(copy)
    assert {row.outcome for row in rows.values()} == {"ok"}, [row.failure_detail for row in rows.values()]
    assert rows["h3"].body_sha256 == rows["BL"].body_sha256
    assert json.loads(rows["h3"].response_headers or "{}")["server"] == "python"
    [path] = json.loads((copy / "out/lab.json").read_text())["paths"]
    fields = ("quic_server", "quic_congestion_control", "quic_initial_window_packets", "quic_packet_bytes")
    assert [path[field] for field in fields] == ["python", "cubic", 10, 1228]
    environment = (copy / "out/environment.json").read_text()
    assert '"python": "aioquic ' in environment
    named = f"the QUIC server python (aioquic {version('aioquic')}) uses cubic, 10 packets at first, 1228-byte packets"
    assert named in report_pages(copy)
