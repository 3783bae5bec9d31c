"""Shares of domains that offer, answer and serve HTTP/3, with 95 % intervals: in all, by rank, provider and cause."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from survey.quic.cause import NOT_ASKED, Cause
from survey.quic.negotiate import Kind
from survey.quic.record import QuicRecord
from survey.shares import Share, cell, groups, plain, print_shares, wilson
from upshift.terminal import console, print_line


def _offers(record: QuicRecord) -> bool:
    return bool(record.https_record_h3 or record.alt_svc_h3)


def _serves(record: QuicRecord) -> bool:
    return record.cause == Cause.OK


SHARES: Mapping[str, Callable[[QuicRecord], bool]] = {
    "offered": _offers,
    "https record": lambda r: bool(r.https_record_h3),
    "alt-svc": lambda r: bool(r.alt_svc_h3),
    "answers vn": lambda r: r.negotiation == Kind.VERSIONS,
    "http/3": _serves,
}
"""Name -> whether a domain counts. Of all domains that could be asked (`NOT_ASKED` says which could not)."""

NAMED_VERSIONS = {
    "00000001": "QUIC 1",
    "6b3343cf": "QUIC 2",
    "709a50c4": "QUIC 2, draft",
    "ff00001d": "draft 29",
}
"""RFC 9000, RFC 9369, and what servers still list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures of a survey."""

    domains: int
    asked: int
    """Domains that could be asked: they have an address that may be contacted."""
    shares: dict[str, dict[str, Share]]
    """Group -> share's name -> share. Groups: `all`, rank buckets, providers."""
    usable_of_offered: Share
    """Of those that offer h3, how many serve it: the others only pretend."""
    causes: dict[str, Share]
    """Of all domains, most frequent first."""
    versions: dict[str, Share]
    """Version (8 hexadecimal digits) -> domains whose server lists it, of those that answered the negotiation."""
    greased: Share
    """Servers that list a reserved version, too."""
    unpadded: Share
    """Servers that answer a probe that is too small, of those that were asked by one."""
    flaws: dict[str, int]
    """What was wrong with answers to the negotiation."""
    handshake_median_s: float | None


def figures(records: Sequence[QuicRecord]) -> Figures:
    """Counts records. A domain that is in several files counts as often as it is there."""
    asked = [record for record in records if record.cause not in NOT_ASKED]
    offered = [record for record in asked if _offers(record)]
    answered = [record for record in asked if record.negotiation == Kind.VERSIONS]
    listed = Counter(version for record in answered for version in (record.versions or "").split(","))
    small = [record for record in asked if record.answers_unpadded is not None]
    times = [record.handshake_s for record in asked if record.handshake_s is not None]
    return Figures(
        domains=len(records),
        asked=len(asked),
        shares={
            name: {share: wilson(sum(map(counts, group)), len(group)) for share, counts in SHARES.items()}
            for name, group in _groups(asked)
        },
        usable_of_offered=wilson(sum(map(_serves, offered)), len(offered)),
        causes={cause: wilson(count, len(records)) for cause, count in Counter(r.cause for r in records).most_common()},
        versions={version: wilson(count, len(answered)) for version, count in listed.most_common()},
        greased=wilson(sum(bool(record.versions_greased) for record in answered), len(answered)),
        unpadded=wilson(sum(bool(record.answers_unpadded) for record in small), len(small)),
        flaws=dict(Counter(r.negotiation_flaw for r in asked if r.negotiation_flaw is not None).most_common()),
        handshake_median_s=statistics.median(times) if times else None,
    )


def _groups(asked: Sequence[QuicRecord]) -> Iterator[tuple[str, Sequence[QuicRecord]]]:
    yield "all", asked
    yield from groups(asked, lambda record: record.rank, lambda record: record.provider)


def as_document(found: Figures) -> dict[str, Any]:
    """The figures as plain data; shares from 0 to 1, None where there is nothing to share."""
    return {
        "domains": found.domains,
        "asked": found.asked,
        "shares": {
            group: {name: plain(share) for name, share in shares.items()} for group, shares in found.shares.items()
        },
        "usable_of_offered": plain(found.usable_of_offered),
        "causes": {name: plain(share) for name, share in found.causes.items()},
        "versions": {name: plain(share) for name, share in found.versions.items()},
        "greased": plain(found.greased),
        "answers_unpadded": plain(found.unpadded),
        "flaws": found.flaws,
        "handshake_median_s": found.handshake_median_s,
    }


def print_figures(found: Figures, stream: TextIO) -> None:
    """Prints the figures for people, as wide as the terminal: shares in per cent, with 95 % intervals."""
    to = console(stream)
    title = f"{found.asked:,} of {found.domains:,} domains could be asked. Shares of these in %, 95 % intervals:"
    rows: list[list[str | Share]] = [
        [group, *shares.values(), f"{next(iter(shares.values())).n:,}"] for group, shares in found.shares.items()
    ]
    print_shares(to, title, ["group", *SHARES, "n"], rows)
    print_shares(to, "All domains, by cause:", ["cause", "domains %", "n"], _counted(found.causes.items()))
    named = ((f"{v} {NAMED_VERSIONS.get(v, '')}".rstrip(), share) for v, share in found.versions.items())
    title = "Versions that servers list, in % of those that answered the negotiation:"
    print_shares(to, title, ["version", "servers %", "n"], _counted(named))
    print_line(to, f"Of domains that offer h3, {cell(found.usable_of_offered)} % serve it.")
    if found.unpadded.n:
        print_line(to, f"Of servers that answered, {cell(found.unpadded)} % answer a probe that is too small, too.")
    if found.flaws:
        flaws = ", ".join(f"{flaw} {count:,}" for flaw, count in found.flaws.items())
        print_line(to, f"Flawed answers: {flaws}.")
    if found.handshake_median_s is not None:
        print_line(to, f"Median time of a handshake: {found.handshake_median_s * 1000:.1f} ms.")


def _counted(shares: Iterable[tuple[str, Share]]) -> Iterable[list[str | Share]]:
    return ([name, share, f"{share.count:,}"] for name, share in shares)
