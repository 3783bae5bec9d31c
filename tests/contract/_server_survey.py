"""`upshift survey server`: what servers call themselves, in the `Server` header of HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from survey.figures import Breakdown, Figures, shares_by_group, wilson
from survey.subjects import Subject
from survey.surveys import Context, Survey, each

MOST_BYTES = 8_192
"""Of a response's head that are read."""


@dataclass(slots=True, kw_only=True)
class ServerRecord:
    """One row of the results."""

    domain: str
    rank: int | None = None
    provider: str | None = None
    surveyed_at: float | None = None
    failure: str | None = None
    """blocked, address_refused, dns_error, no_such_domain, no_address, no_answer, no_http."""
    failure_detail: str | None = None
    server_ip: str | None = None
    status: int | None = None
    server: str | None = None
    """None where the response has no such header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port, plain HTTP.")] = 80
    path_file: Annotated[Path | None, typer.Option(help="File that has the path to ask for. Default: /")] = None


async def _visit(context: Context, subject: Subject, record: ServerRecord) -> ServerRecord:
    record.server_ip, _ = await context.access.address(subject)
    path = context.settings.path_file.read_text().strip() if context.settings.path_file else "/"
    async with context.access.turn(subject.domain, address=record.server_ip):
        try:
            async with asyncio.timeout(context.options.timeout):
                head = await _head(record.server_ip, context.settings.port, path, subject.domain, context.user_agent)
        except (TimeoutError, OSError, EOFError) as error:
            record.failure, record.failure_detail = "no_answer", str(error) or type(error).__name__
            return record
    first, *fields = head.decode("latin-1").split("\r\n")
    protocol, _, rest = first.partition(" ")
    if not protocol.startswith("HTTP/1.") or not rest[:3].isdecimal():
        record.failure, record.failure_detail = "no_http", first[:60]
        return record
    headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    record.status, record.server = int(rest[:3]), headers.get("server")
    return record


async def _head(address: str, port: int, path: str, host: str, agent: str) -> bytes:
    reader, writer = await asyncio.open_connection(address, port, limit=MOST_BYTES)
    try:
        head = f"HEAD {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise OSError("the head of the response does not end") from None
    finally:
        writer.close()


def _figures(records: Sequence[ServerRecord]) -> Figures:
    answered = [record for record in records if record.failure is None]
    makes = Counter((record.server or "(no header)").partition("/")[0] for record in answered)
    failures = Counter(record.failure for record in records if record.failure is not None)
    return Figures(
        title=f"{len(answered):,} of {len(records):,} domains answered. Shares of these in %, 95 % intervals:",
        counts={"domains": len(records), "answered": len(answered)},
        shares=shares_by_group(
            answered, "all", {"named": lambda r: r.server is not None, "version": lambda r: "/" in (r.server or "")}
        ),
        breakdowns={
            "makes": Breakdown(
                title="Servers, in % of those that answered:",
                heading=("server", "domains %"),
                group="domains that answered",
                shares={make: wilson(count, len(answered)) for make, count in makes.most_common()},
            ),
            "failures": Breakdown(
                title="Domains without an answer, in % of all:",
                heading=("cause", "domains %"),
                group="all domains",
                shares={cause: wilson(count, len(records)) for cause, count in failures.most_common()},
            ),
        },
    )


SERVER = Survey(
    name="server",
    help="Ask every domain's server for its name: the Server header of HTTP.",
    record=ServerRecord,
    visits=each(_visit),
    figures=_figures,
    settings=Settings,
)
