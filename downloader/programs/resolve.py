"""One uncached DNS look-up by dnspython: arguments in, one JSON document out."""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import dns._features

dns._features.force("doq", False)  # DNS over QUIC, for which dns.query would import aioquic: 0.15 s of each start

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdata
import dns.rdatatype
import dns.resolver

from core.domain import FailureCode
from core.errors import UpshiftError
from core.reach import ANYWHERE, IPNetwork, check_address, parse_prefixes
from core.system.confine import add_run_as, confine
from core.untrusted import scrub

_OF_RCODE: Mapping[int, FailureCode] = {
    dns.rcode.SERVFAIL: FailureCode.SERVFAIL,
    dns.rcode.NXDOMAIN: FailureCode.NXDOMAIN,
    dns.rcode.REFUSED: FailureCode.REFUSED,
}


def word_for(error: Exception) -> FailureCode | None:
    """The word for an exception of dnspython's resolver."""
    match error:
        case dns.resolver.NXDOMAIN():
            return FailureCode.NXDOMAIN
        case dns.resolver.NoAnswer():
            return _of_no_answer(error.kwargs["response"])
        case dns.resolver.NoNameservers():
            return _of_servers(error.kwargs["errors"])
        case dns.resolver.LifetimeTimeout() if error.kwargs["errors"]:
            silent = isinstance(error.kwargs["errors"][-1][3], dns.exception.Timeout)
            return FailureCode.TIMEOUT if silent else _of_servers(error.kwargs["errors"])
        case dns.exception.Timeout():
            return FailureCode.TIMEOUT
        case dns.exception.DNSException() | ValueError() | EOFError():
            return FailureCode.BAD_ANSWER
    return None


def _of_servers(errors: list[tuple[object, ...]]) -> FailureCode:
    """Of what the servers said, the last counts."""
    for *_, response in reversed(errors):
        if isinstance(response, dns.message.Message):
            return _OF_RCODE.get(response.rcode(), FailureCode.BAD_ANSWER)
    return FailureCode.BAD_ANSWER


def _unheard(error: Exception | None) -> bool:
    """Whether no server said anything: there is none, the kernel refused each query, or time went by."""
    match error:
        case dns.resolver.NoResolverConfiguration():
            return True
        case dns.resolver.NoNameservers() | dns.resolver.LifetimeTimeout():
            return all(isinstance(answer, OSError | dns.exception.Timeout) for *_, answer, _ in error.kwargs["errors"])
    return False


def _are_silent(resolver: dns.resolver.Resolver) -> bool:
    """Whether its servers, silent on a name, say nothing of the root, either, which each can answer or refuse."""
    resolver.lifetime = 2 * resolver.timeout
    try:
        resolver.resolve(".", "NS", search=False)
    except _FAULTS as error:
        return _unheard(error)
    return False


def _of_no_answer(response: dns.message.Message) -> FailureCode:
    """The word for a response without the wanted record; a server with neither the zone nor recursion refers us."""
    refers = any(rrset.rdtype == dns.rdatatype.NS for rrset in response.authority)
    knows = response.flags & (dns.flags.AA | dns.flags.RA)
    return FailureCode.LAME if refers and not knows else FailureCode.NO_ADDRESS


_DNS_PORT = 53
_FAULTS = (dns.exception.DNSException, OSError, ValueError, EOFError)
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
    """Addresses of a name, with the chain of CNAMEs; a failure is a document, too (`error`; `unreachable`: no server).

    Args:
        run_as: give up all rights before the first query, and become this user and group.
    """
    document: dict[str, Any] = {"schema": 1, "name": name, "addresses": [], "cnames": []}
    document |= {"dns_s": None, "error": None, "code": None, "unreachable": False}
    try:
        document["addresses"] = [str(ipaddress.ip_address(name))]
        document["dns_s"] = 0.0
        return document
    except ValueError:
        pass
    began = time.monotonic()
    fault: Exception | None = None
    try:
        resolver = dns.resolver.Resolver(configure=not nameservers)
        if nameservers:
            resolver.nameservers = list(nameservers)
        for server in resolver.nameservers:
            check_address(str(server), allowed)
        resolver.port, resolver.lifetime = _DNS_PORT, timeout_s
        resolver.timeout = min(2.0, timeout_s)
        if run_as is not None:
            confine(port=_DNS_PORT, user=run_as)
            began = time.monotonic()
        errors = []
        for kind in _TYPES[family]:
            try:
                answer = resolver.resolve(name, kind, search=False)
            except dns.resolver.NoAnswer as error:
                errors.append(f"no {kind} record")
                document["code"] = document["code"] or word_for(error)
                continue
            document["addresses"] += [record.address for record in answer]
            chain = [str(rrset[0].target).rstrip(".") for rrset in answer.chaining_result.cnames]
            document["cnames"] = document["cnames"] or chain
        if document["addresses"]:
            document["code"] = None
        else:
            document["error"] = ", ".join(errors)
    except _FAULTS as error:
        fault = error
        document |= {"error": scrub(f"{type(error).__name__}: {error}"), "code": word_for(error)}
    except UpshiftError as error:
        document["error"] = scrub(error.what)
    document["dns_s"] = round(time.monotonic() - began, 6)
    if not document["addresses"] and _unheard(fault):
        document["unreachable"] = not isinstance(fault, dns.resolver.LifetimeTimeout) or _are_silent(resolver)
    return document


# Made with the import, which a warm interpreter does once.
_PARSER = argparse.ArgumentParser(prog="resolve", description=__doc__, allow_abbrev=False)
_PARSER.add_argument("--name", required=True)
_PARSER.add_argument("--family", choices=sorted(_TYPES), default="ipv4")
_PARSER.add_argument("--nameserver", action="append", default=[], help="may be repeated (default: the system's)")
_PARSER.add_argument("--timeout-s", type=float, default=10.0)
_PARSER.add_argument("--allow", action="append", metavar="PREFIX")
add_run_as(_PARSER)


def main(argv: Sequence[str]) -> int:
    """One look-up. Exit code 0 when a document was printed, 2 for wrong use."""
    arguments = _PARSER.parse_args(argv)
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
