"""What others see of this host: reverse DNS and abuse contact of its addresses; prints one sentence each.

Run on a vantage point by the role explain. Asks the host's own DNS servers. Source of abuse contacts: Abusix Contact
DB, TXT records under abuse-contacts.abusix.zone, named as in reverse DNS.
"""

import socket

import dns.exception
import dns.resolver
import dns.reversename

ABUSE_ZONE = "abuse-contacts.abusix.zone"
WAIT_S = 3.0


def own_addresses() -> list[str]:
    """The source addresses of packets to the Internet, IPv4 and IPv6; connecting a UDP socket sends nothing."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                found.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    return found


def first(name: str, kind: str) -> str | None:
    """The first record of that name, None if there is none or no server answers in `WAIT_S`."""
    try:
        return str(dns.resolver.resolve(name, kind, lifetime=WAIT_S, search=False)[0]).strip('"')
    except (dns.exception.DNSException, OSError):
        return None


def main() -> None:
    for address in own_addresses():
        reverse = dns.reversename.from_address(address)
        name = first(str(reverse), "PTR")
        if name is None:
            print(f"{address} has no reverse DNS: ask its provider for one that names the measurement")
        else:
            print(f"{address} has the reverse DNS name {name}")
        owner = str(reverse).removesuffix(".in-addr.arpa.").removesuffix(".ip6.arpa.")
        contact = first(f"{owner}.{ABUSE_ZONE}", "TXT")
        if contact is None:
            print(f"{address}: its abuse contact was not found; tell its provider's abuse desk what this host does")
        else:
            print(f"{address}: abuse reports go to {contact}; tell them what this host does")


if __name__ == "__main__":
    main()
