"""Servers of every kind for the options survey: real kernels in namespaces, joined to one client by veth.

Run as a program it is one server, in its own namespace: it waits for a line on standard input (its addresses are set up
then), listens, and writes the destination of every connection that it accepts, one a line.

    _survey_world.py serve PORT,PORT close|reset|hold
    _survey_world.py names
"""

from __future__ import annotations

import select
import socket
import struct
import sys

NETWORK = "198.18"
"""Server k has the addresses 198.18.k.1 ... 198.18.k.250; k starts at FIRST."""

FIRST = 100
ELSEWHERE = {"private": "10.0.0.1", "outside": "198.19.255.1"}
"""First label -> address of a name that leads where no server of ours is."""


def address_of(label: str) -> str | None:
    """`s3-17` is address 17 of server 3."""
    server, _, number = label.removeprefix("s").partition("-")
    return (
        f"{NETWORK}.{FIRST + int(server)}.{number}" if server.isdigit() and number.isdigit() else ELSEWHERE.get(label)
    )


def serve(ports: str, manner: str) -> None:
    sys.stdin.readline()
    listeners = [socket.create_server(("", int(port)), backlog=4096) for port in ports.split(",")]
    print("ready", flush=True)
    held = []
    while True:
        for listener in select.select(listeners, [], [])[0]:
            connection, _ = listener.accept()
            address, port = connection.getsockname()
            print(address, port, flush=True)
            if manner == "hold":
                held.append(connection)
                continue
            if manner == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()


def names() -> None:
    import dns.message
    import dns.rcode
    import dns.rdatatype
    import dns.rrset

    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    sock.bind(("127.0.0.1", 53))
    six = socket.create_server(("::1", 443), family=socket.AF_INET6)
    print("ready", flush=True)
    while six.fileno() >= 0:  # no accept(2): the kernel completes the handshakes
        data, peer = sock.recvfrom(4096)
        question = dns.message.from_wire(data)
        reply = dns.message.make_response(question)
        asked = question.question[0]
        label = asked.name.to_text().split(".")[0]
        address = address_of(label)
        if label == "missing":
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif label == "six" and asked.rdtype == dns.rdatatype.AAAA:
            reply.answer.append(dns.rrset.from_text(asked.name, 60, "IN", "AAAA", "::1"))
        elif address is not None and asked.rdtype == dns.rdatatype.A:
            target = asked.name
            if label.endswith("7"):
                reply.answer.append(dns.rrset.from_text(asked.name, 60, "IN", "CNAME", "edge.cdn.test."))
                target = dns.name.from_text("edge.cdn.test.")
            reply.answer.append(dns.rrset.from_text(target, 60, "IN", "A", address))
        sock.sendto(reply.to_wire(), peer)


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1] == "serve" else names()
