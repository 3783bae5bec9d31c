"""A DNS server for tests on port 53 of 127.0.0.1, or of the address given: NAME.example is that address, save for some
special names.
"""

from __future__ import annotations

import socket
import sys

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"

sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((ADDRESS, 53))
print("ready", flush=True)
while True:
    data, peer = sock.recvfrom(4096)
    query = dns.message.from_wire(data)
    response = dns.message.make_response(query)
    response.flags |= dns.flags.RA
    question = query.question[0]
    name = question.name.to_text()
    if name.startswith("missing."):
        response.set_rcode(dns.rcode.NXDOMAIN)
    elif question.rdtype == dns.rdatatype.A:
        address = "198.18.0.1" if name.startswith("outside.") else ADDRESS
        if name.startswith("alias."):
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "CNAME", "edge.example."))
            response.answer.append(dns.rrset.from_text("edge.example.", 60, "IN", "A", address))
        else:
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", address))
    sock.sendto(response.to_wire(), peer)
