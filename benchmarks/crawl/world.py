"""Loopback servers for the crawl's benchmark: any number of virtual hosts, one asyncio process, and a name server.

    python benchmarks/crawl/world.py PORT DNS_PORT [--unsized] [--one-file]

Every host `N.bench.example` has robots.txt, a page with five files, and four small ones; the fifth is large, and with
`--unsized` it has no Content-Length. Hosts are spread over 127.0.1.1 - 127.0.1.50.

With `--one-file` the page is short and names the large file only, and every host has its own address in
127.0.0.0/8: one socket serves them all, bound to the loopback interface.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
import zlib

import dns.message
import dns.rrset

ADDRESSES = [f"127.0.1.{n}" for n in range(1, 51)]
PAGE = b"<html>" + b"".join(b'<p>words<a href="/f%d.zip">x</a>' % n for n in range(5)) + b"words" * 4_000
SHORT_PAGE = b'<html><a href="/f4.zip">x</a>'
BIG = 20_000_000
ONE_FILE = "--one-file" in sys.argv


def address_of(name: str) -> str:
    if ONE_FILE:
        return str(ipaddress.IPv4Address("127.1.0.0") + int(name.partition(".")[0]))
    return ADDRESSES[zlib.crc32(name.encode()) % len(ADDRESSES)]


class Names(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        name = query.question[0].name.to_text()
        answer.answer = [dns.rrset.from_text(name, 60, "IN", "A", address_of(name.rstrip(".")))]
        self.transport.sendto(answer.to_wire(), peer)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    unsized = "--unsized" in sys.argv
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, _ = head.split(b" ", 2)
            body: bytes | int = 1_000
            if path == b"/robots.txt":
                body = b"User-agent: *\nDisallow: /private\n"
            elif path == b"/":
                body = SHORT_PAGE if ONE_FILE else PAGE
            elif path == b"/f4.zip":
                body = BIG
            size = body if isinstance(body, int) else len(body)
            big_without = unsized and body == BIG
            kind = b"application/zip" if isinstance(body, int) else b"text/html"
            length = b"Connection: close" if big_without else b"Content-Length: %d" % size
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n\r\n" % (kind, length))
            if method != b"HEAD":
                if isinstance(body, bytes):
                    writer.write(body)
                else:
                    for _ in range(0, size, 65_536):
                        writer.write(bytes(65_536))
                        await writer.drain()
            await writer.drain()
            if big_without:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def all_of_loopback(port: int) -> socket.socket:
    """A socket for every address of the loopback interface, and for no other interface's."""
    everywhere = socket.socket()
    everywhere.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    everywhere.bind(("0.0.0.0", port))
    return everywhere


async def main() -> None:
    port, dns_port = int(sys.argv[1]), int(sys.argv[2])
    await asyncio.get_running_loop().create_datagram_endpoint(Names, local_addr=("127.0.0.1", dns_port))
    if ONE_FILE:
        servers = [await asyncio.start_server(serve, sock=all_of_loopback(port), backlog=1024)]
    else:
        servers = [await asyncio.start_server(serve, address, port, backlog=1024) for address in ADDRESSES]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main())
