"""Shares of domains that offer, answer and serve HTTP/3, with 95 % intervals: overall, by rank, provider and cause."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from survey.figures import Breakdown, Figures
from survey.quic.negotiate import NegotiationKind
from survey.quic.record import NOT_ASKED, QuicCause, QuicRecord
from survey.shares import Share, cell, shares_by_group, wilson


def _offers(record: QuicRecord) -> bool:
    return bool(record.https_record_h3 or record.alt_svc_h3)


def _serves(record: QuicRecord) -> bool:
    return record.cause == QuicCause.OK


SHARES: Mapping[str, Callable[[QuicRecord], bool]] = {
    "offered": _offers,
    "https record": lambda r: bool(r.https_record_h3),
    "alt-svc": lambda r: bool(r.alt_svc_h3),
    "answers vn": lambda r: r.negotiation == NegotiationKind.VERSIONS,
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


def figures(records: Sequence[QuicRecord]) -> Figures:
    """Counts records. A domain that is in several files counts as often as it is there."""
    surveyed = [record for record in records if record.cause not in NOT_ASKED]
    offered = [record for record in surveyed if _offers(record)]
    answered = [record for record in surveyed if record.negotiation == NegotiationKind.VERSIONS]
    listed = Counter(version for record in answered for version in (record.versions or "").split(","))
    causes = Counter(record.cause for record in records)
    small = [record for record in surveyed if record.answers_unpadded is not None]
    times = [record.handshake_s for record in surveyed if record.handshake_s is not None]
    flaws = dict(Counter(r.negotiation_flaw for r in surveyed if r.negotiation_flaw is not None).most_common())
    singles = {
        "usable_of_offered": wilson(sum(map(_serves, offered)), len(offered)),
        "greased": wilson(sum(bool(record.versions_greased) for record in answered), len(answered)),
        "answers_unpadded": wilson(sum(bool(record.answers_unpadded) for record in small), len(small)),
    }
    median_s = statistics.median(times) if times else None
    return Figures(
        title=f"{len(surveyed):,} of {len(records):,} domains could be surveyed. Shares of these in %, 95 % intervals:",
        counts={"domains": len(records), "asked": len(surveyed)},
        shares=shares_by_group(surveyed, "all", SHARES),
        breakdowns={
            "causes": Breakdown(
                title="All domains, by cause:",
                heading=("cause", "domains %"),
                group="all domains",
                shares={cause: wilson(count, len(records)) for cause, count in causes.most_common()},
            ),
            "versions": Breakdown(
                title="Versions that servers list, in % of those that answered the negotiation:",
                heading=("version", "servers %"),
                group="servers that answered the negotiation",
                shares={version: wilson(count, len(answered)) for version, count in listed.most_common()},
                labels={version: f"{version} {name}" for version, name in NAMED_VERSIONS.items()},
            ),
        },
        singles=singles,
        values={"flaws": flaws, "handshake_median_s": median_s},
        notes=_notes(singles, flaws, median_s),
    )


def _notes(singles: Mapping[str, Share], flaws: Mapping[str, int], median_s: float | None) -> list[str]:
    notes = [f"Of domains that offer h3, {cell(singles['usable_of_offered'])} % serve it."]
    unpadded = singles["answers_unpadded"]
    if unpadded.n:
        notes.append(f"Of servers that answered, {cell(unpadded)} % also answer a probe that is too small.")
    if flaws:
        notes.append("Flawed answers: " + ", ".join(f"{flaw} {count:,}" for flaw, count in flaws.items()) + ".")
    if median_s is not None:
        notes.append(f"Median handshake time: {median_s * 1000:.1f} ms.")
    return notes
