"""One server's survey of its initial window: a row of a `survey_iw` file, and its vocabularies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from core.errors import UsageError
from survey.iw.votes import Vote
from survey.iw.wire import Arrival

OF_WINDOW = ("iw_segments", "iw_bytes", "iw_kind")
"""What makes a window: a target or record that has none of these has none."""

OF_TARGETS = (*OF_WINDOW, "paced")
"""What a target has of it: one value, so columns of two surveys are never mixed."""


@dataclass(slots=True, kw_only=True)
class IwRecord:
    """What one server sent before the first ACK. None: unknown."""

    domain: str
    """A domain, or an address of a sample."""
    rank: int | None = None
    """Rank in the list."""
    provider: str | None = None
    """Provider, if the input was mapped before the survey."""
    verdict: str | None = None
    """How it ended: `limited` if the window was the limit at one MSS at least, else the verdict with the largest MSS
    (`lower_bound`, `window_bound`, `late`, `undecided`), else the failure."""
    failure: str | None = None
    """Why there is no number: no_data, merged (the segments, on their way), reset, connection_refused, connect_timeout,
    unreachable, address_refused, blocked, dns_error, no_such_domain, no_address, url_refused (the list's URL is too
    long, or not one)."""
    failure_detail: str | None = None
    """The reason as text."""
    server_ip: str | None = None
    """The address that was contacted."""
    scheme: str | None = None
    """http or https."""
    url: str | None = None
    """What was requested last."""
    mime_type: str | None = None
    """Type of the object, if the list has it."""
    cdn: str | None = None
    """The CDN, by the suffixes of the host and of its CNAMEs."""
    cname_chain: str | None = None
    """CNAMEs from the domain to its address, in order, separated by spaces."""
    iw_kind: str | None = None
    """What the window is counted in: segments, bytes, rfc3390, floor, mixed. None: fewer than two MSS were decided."""
    iw_segments: int | None = None
    """The window in segments, if it is counted in segments."""
    iw_bytes: int | None = None
    """The window with segments of 1460 bytes."""
    within_rfc6928: bool | None = None
    """At or below min(10 MSS, max(2 MSS, 14600)) at each MSS (RFC 6928), or the server's own where its segments are
    larger."""
    windows: str | None = None
    """The votes per MSS, as JSON: MSS -> verdict, segments, bytes, payload_bytes (largest), agreeing, probes."""
    probes: int = 0
    """Connections, all MSS together."""
    losses: int = 0
    """Probes in whose flight segments were missing at the end, but not the last one."""
    mss_ignored: bool | None = None
    """A segment was larger than the MSS that we announced."""
    rtt_s: float | None = None
    """Shortest time from SYN to SYN-ACK."""
    retransmission_s: float | None = None
    """Shortest time from the flight's first segment to its retransmission."""
    http_status: int | None = None
    """Status of the last answer."""
    tls_version: str | None = None
    """1.2 or 1.3."""
    paced: bool | None = None
    """Whether the window is paced; None if it was not asked, or cannot be told."""
    pace: str | None = None
    """burst, paced or cannot_tell; None if it was not asked."""
    pacing_slope: float | None = None
    """Growth of the flight's span over the delay of the handshake's ACK."""
    pacing_slope_low: float | None = None
    """Low end of its 95 % interval."""
    pacing_slope_high: float | None = None
    """High end of its 95 % interval."""
    first_burst: int | None = None
    """Segments before the first gap."""
    train: float | None = None
    """Mean number of segments of the trains after the first burst."""
    spread_rtt: float | None = None
    """Span of the flight over the round trip that the server believes in."""
    pacing_ratio: float | None = None
    """Windows per round trip that the span implies, for a sender that paces what follows the first ten segments."""
    arrivals: str | None = None
    """One flight without delay, as JSON: [time since the first segment in us, bytes up to the segment's end]."""
    vantage: str | None = None
    """Name of the vantage point."""
    vantage_fit: bool | None = None
    """Whether the controls' windows were measured correctly from here; None without a control."""
    surveyed_at: float | None = None
    """When the survey of the server ended."""


def windows_text(votes: Mapping[int, Vote]) -> str:
    """The column `windows`."""
    return json.dumps({str(mss): asdict(vote) for mss, vote in sorted(votes.items())})


def votes_of(record: IwRecord) -> dict[int, Vote]:
    """The votes in the column `windows`, by MSS. Raises UsageError, as the file may be of anybody."""
    try:
        return {int(mss): Vote(**vote) for mss, vote in json.loads(record.windows or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        raise _unreadable(record, "windows") from None


def arrivals_text(arrivals: Sequence[Arrival]) -> str:
    """The column `arrivals`."""
    return json.dumps([[arrival.at_us, arrival.end] for arrival in arrivals])


def arrivals_of(record: IwRecord) -> list[tuple[int, int]]:
    """The column `arrivals`: (time [us], bytes up to the segment's end). Raises as `votes_of`."""
    try:
        return [(int(at), int(end)) for at, end in json.loads(record.arrivals or "[]")]
    except (ValueError, TypeError):
        raise _unreadable(record, "arrivals") from None


def _unreadable(record: IwRecord, column: str) -> UsageError:
    return UsageError(f"the column {column} of {record.domain} cannot be read", remedy="use files of upshift survey iw")
