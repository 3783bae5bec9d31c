"""One uncached DNS look-up by dnspython: arguments in, one JSON document out."""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import dns.exception
import dns.rdata
import dns.rdatatype
import dns.resolver

from core.errors import UpshiftError
from core.reach import ANYWHERE, IPNetwork, check_address, parse_prefixes
from core.system.confine import confine
from core.untrusted import scrub
from downloader.programs.common import add_run_as

_DNS_PORT = 53
_TYPES = {"ipv4": ("A",), "ipv6": ("AAAA",), "any": ("A", "AAAA")}

# dnspython would import the module of a type with the first answer that has it.
dns.rdata.load_all_types()  # type: ignore[no-untyped-call]


def resolve(
    name: str,
    *,
    family: str,
    nameservers: Sequence[str],
    timeout_s: float,
    allowed: Sequence[IPNetwork],
    run_as: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Addresses of a name, with the chain of CNAMEs; a failure is a document, too (field `error`).

    Args:
        run_as: give up all rights before the first query, and become this user and group.
    """
    document: dict[str, Any] = {"schema": 1, "name": name, "addresses": [], "cnames": [], "nameserver": None}
    document |= {"dns_s": None, "error": None, "asked_at": time.time()}
    try:
        document["addresses"] = [str(ipaddress.ip_address(name))]
        document["dns_s"] = 0.0
        return document
    except ValueError:
        pass
    began = time.monotonic()
    try:
        resolver = dns.resolver.Resolver(configure=not nameservers)
        if nameservers:
            resolver.nameservers = list(nameservers)
        for server in resolver.nameservers:
            check_address(str(server), allowed)
        resolver.lifetime = timeout_s
        resolver.timeout = min(2.0, timeout_s)
        if run_as is not None:
            confine(port=_DNS_PORT, user=run_as)
            began = time.monotonic()
        errors = []
        for kind in _TYPES[family]:
            try:
                answer = resolver.resolve(name, kind, search=False)
            except dns.resolver.NoAnswer:
                errors.append(f"no {kind} record")
                continue
            document["addresses"] += [record.address for record in answer]
            chain = [str(rrset[0].target).rstrip(".") for rrset in answer.chaining_result.cnames]
            document["cnames"] = document["cnames"] or chain
            document["nameserver"] = str(answer.nameserver)
        if not document["addresses"]:
            document["error"] = ", ".join(errors)
    except (dns.exception.DNSException, OSError) as error:
        document["error"] = scrub(f"{type(error).__name__}: {error}")
    except UpshiftError as error:
        document["error"] = scrub(error.what)
    document["dns_s"] = round(time.monotonic() - began, 6)
    return document


def main(argv: Sequence[str]) -> int:
    """One look-up. Exit code 0 when a document was printed, 2 for wrong use."""
    parser = argparse.ArgumentParser(prog="resolve", description=__doc__, allow_abbrev=False)
    parser.add_argument("--name", required=True)
    parser.add_argument("--family", choices=sorted(_TYPES), default="ipv4")
    parser.add_argument("--nameserver", action="append", default=[], help="may be repeated (default: the system's)")
    parser.add_argument("--timeout-s", type=float, default=10.0)
    parser.add_argument("--allow", action="append", metavar="PREFIX")
    add_run_as(parser)
    arguments = parser.parse_args(argv)
    try:
        allowed = parse_prefixes(",".join(arguments.allow), where="--allow") if arguments.allow else ANYWHERE
    except UpshiftError as error:
        sys.stderr.write(f"resolve: {error}\n")
        return 2
    document = resolve(
        arguments.name,
        family=arguments.family,
        nameservers=arguments.nameserver,
        timeout_s=arguments.timeout_s,
        allowed=allowed,
        run_as=arguments.run_as,
    )
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
