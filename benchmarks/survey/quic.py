"""Forced version negotiation, at once and paced, and handshakes with HEAD per second: see README.md beside this file.

Server (h3serve, quiche) and survey on the loopback of a network namespace of their own. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trustme

from core.outreach.pace import TokenBucket
from core.system.process import find_program
from survey.quic.exchange import ExchangeRequest, ExchangeResult, exchange
from survey.quic.negotiate import NegotiationAnswer, NegotiationKind, Negotiator

ADDRESS, PORT = "127.0.0.1", 443


def server_drops() -> int:
    """Datagrams that the kernel dropped at the server's socket (proc_net_udp(5), last column)."""
    lines = Path("/proc/net/udp").read_text().splitlines()[1:]
    return sum(int(line.split()[-1]) for line in lines if line.split()[1].endswith(f":{PORT:04X}"))


async def negotiations(count: int, rate_per_s: float | None) -> None:
    bucket = TokenBucket(rate_per_s) if rate_per_s is not None else None
    before = server_drops()
    began, cpu = time.monotonic(), time.process_time()
    async with Negotiator() as negotiator:

        async def one() -> NegotiationAnswer:
            if bucket is not None:
                await bucket.turn()
            return await negotiator.ask(ADDRESS, PORT, timeout_s=3.0)

        answers = await asyncio.gather(*(one() for _ in range(count)))
        drops = negotiator.drops()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    answered = sum(answer.kind is NegotiationKind.VERSIONS for answer in answers)
    pace = "all at once" if rate_per_s is None else f"{rate_per_s:,.0f}/s"
    print(
        f"{count:,} probes, {pace:<12} {answered:>6,} answered  {wall:5.1f} s  {cpu / count * 1e6:5.0f} µs CPU each"
        f"  dropped: {server_drops() - before:,} at the server, {drops:,} here",
        flush=True,
    )


async def handshakes(count: int, at_once: int, ca: Path) -> None:
    places = asyncio.Semaphore(at_once)
    request = ExchangeRequest(
        address=ADDRESS, port=PORT, server_name="quic.example", user_agent="benchmark", ca_file=ca
    )

    async def one() -> ExchangeResult:
        async with places:
            return await exchange(request)

    began, cpu = time.monotonic(), time.process_time()
    findings = await asyncio.gather(*(one() for _ in range(count)))
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    good = sum(finding.cause == "ok" for finding in findings)
    print(
        f"{count:,} handshakes with HEAD, {at_once} at once: {good:,} ok, {count / wall:,.0f}/s,"
        f" {cpu / count * 1e3:.1f} ms CPU each",
        flush=True,
    )


def inside(count: int) -> None:
    h3serve = find_program("h3serve")
    if h3serve is None:
        raise SystemExit("h3serve is not installed: make setup")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ca = trustme.CA()
        ca.cert_pem.write_to_path(folder / "ca.pem")
        certificate = ca.issue_cert("quic.example")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        files = ["--cert", str(folder / "cert.pem"), "--key", str(folder / "key.pem")]
        server = subprocess.Popen([h3serve, "--listen", f"{ADDRESS}:{PORT}", *files], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None and server.stdout.readline()
            for rate in (None, 500, 2_000, 5_000):
                asyncio.run(negotiations(count, rate))
            asyncio.run(handshakes(200, 16, folder / "ca.pem"))
        finally:
            server.kill()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probes", type=int, default=5_000)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["UPSHIFT_ALLOWED_PREFIXES"] = "127.0.0.0/8"
    if arguments.inside:
        inside(arguments.probes)
        return
    words = [sys.executable, __file__, "--inside", "--probes", str(arguments.probes)]
    os.execvp("unshare", ["unshare", "--net", *words])


if __name__ == "__main__":
    main()
