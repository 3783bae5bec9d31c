"""The look-ups of surveys that start programs: a process without rights, which reads what name servers answer.

    python -m survey.lookups NAMESERVER PORT

Such a survey cannot give up its own rights (`core.system.confine.confine_here`): it starts its probers again when they
crash. The process writes a line when it is ready. Then it reads requests, `{"n": 1, "host": "a.example", "ipv6":
false}`, one a line, and replies in any order: `{"n": 1, "addresses": [...], "chain": [...]}` or `{"n": 1, "cause":
"...", "detail": "..."}`, or, if the name server cannot be reached, `{"n": 1, "fault": "...", "remedy": "..."}`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import dns.asyncbackend
import dns.rdata

from core.errors import PlaceError
from core.outreach.dns import Answer, Cause, ResolveError, Resolver
from core.system.confine import confine
from core.untrusted import scrub
from survey.programs import ProberPool, ProberProgram, start_here

Question = tuple[str, bool]
"""A host, and whether its IPv6 addresses are wanted."""

LONGEST_S = 300.0
"""Time after which a look-up has failed, whatever the other process does with it."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """Looks names up in the other process, as `core.outreach.dns.Resolver` does."""

    pool: ProberPool[Question, Answer | ResolveError | PlaceError]

    async def addresses(self, host: str, *, ipv6: bool = False) -> Answer:
        """A host's addresses of one family, CNAMEs followed. Raises ResolveError, PlaceError."""
        try:
            async with asyncio.timeout(LONGEST_S):
                answer = await self.pool.ask((host, ipv6))
        except TimeoutError:
            raise ResolveError(Cause.DNS_ERROR, "timeout") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def confined(resolver: Resolver) -> AsyncIterator[Lookups]:
    """Look-ups from the name server of a resolver that is not opened here, and from this network namespace."""
    program = ProberProgram(
        argv=(sys.executable, "-P", "-m", "survey.lookups", resolver.nameserver, str(resolver.port)),
        encode=_request,
        reply_bytes=None,
        decode=_replies,
        greeted=_greeted,
    )
    async with ProberPool(program, start_here) as pool:
        yield Lookups(pool)


def _greeted(line: bytes) -> None:
    if not line:
        raise PlaceError("the look-ups could not be started", remedy="run upshift doctor to see what is missing")


def _request(number: int, question: Question) -> bytes:
    host, ipv6 = question
    return json.dumps({"n": number, "host": host, "ipv6": ipv6}).encode() + b"\n"


def _replies(data: bytes) -> Iterator[tuple[int, Answer | ResolveError | PlaceError]]:
    """Replies of a process that a name server may have taken over. Raises what `ProberProgram.decode` may."""
    for line in data.splitlines():
        reply = json.loads(line)
        if "fault" in reply:
            yield reply["n"], PlaceError(scrub(str(reply["fault"])), remedy=scrub(str(reply["remedy"])))
            continue
        if "cause" in reply:
            yield reply["n"], ResolveError(Cause(reply["cause"]), scrub(str(reply["detail"])))
            continue
        for address in reply["addresses"]:
            ipaddress.ip_address(address)
        chain = tuple(scrub(str(name)) for name in reply["chain"])
        yield reply["n"], Answer(addresses=tuple(reply["addresses"]), chain=chain)


async def serve(nameserver: str, port: int) -> None:
    """Answers requests until standard input ends. Gives up all rights before it reads the first."""
    requests = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    # dnspython would import these with the first answer that is too long for UDP, when no file can be opened any more.
    dns.asyncbackend.get_backend("asyncio")
    dns.rdata.load_all_types()  # type: ignore[no-untyped-call]
    async with Resolver(nameserver, port=port) as resolver, asyncio.TaskGroup() as group:
        confine(port=port)
        print(flush=True)  # noqa: T201 - the protocol
        replies: list[str] = []

        def flush() -> None:
            print(*replies, sep="\n", flush=True)  # noqa: T201 - the protocol
            replies.clear()

        async def look_up(request: dict[str, Any]) -> None:
            try:
                answer = await resolver.addresses(request["host"], ipv6=request["ipv6"])
                reply: dict[str, Any] = {"addresses": answer.addresses, "chain": answer.chain}
            except ResolveError as error:
                reply = {"cause": error.cause, "detail": error.detail}
            except PlaceError as error:
                reply = {"fault": error.what, "remedy": error.remedy}
            if not replies:  # further replies of this loop iteration are written together
                loop.call_soon(flush)
            replies.append(json.dumps({"n": request["n"], **reply}))

        while line := await requests.readline():
            group.create_task(look_up(json.loads(line)))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
