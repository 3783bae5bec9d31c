"""Rows of `downloads`, from the plan and the results of clients, capture and place. Pure."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from core.domain import (
    ClientColumns,
    Configuration,
    Disturbance,
    Download,
    Failure,
    FailureCode,
    Outcome,
    Target,
    VoidReason,
)
from core.system.place import Suitability
from core.untrusted import host_and_port
from downloader.campaign.configurations import recorded
from downloader.campaign.plan import PlannedRun
from downloader.client import Client, ClientResult
from downloader.execution.calls import Resolution
from downloader.pages import html_in_place_of


def record(
    result: ClientResult,
    *,
    campaign: str,
    vantage: str,
    run: PlannedRun,
    index: int,
    configuration: Configuration,
    client: Client,
    attempt: int,
    budget_s: float,
    looked_up: Resolution | None,
) -> Download:
    """The row of a download from a client's result.

    Args:
        index: of the download in the run, from 0.
        client: what downloads: the configuration's client, or what a quirk runs in its place.
        looked_up: the source of its address.
    """
    target = run.target
    result = _without_page(result, target)
    detail = result.tcp if result.tcp is not None else result.quic
    if detail is not None and client.window_bytes is not None:
        detail = {**detail, "window_bytes": client.window_bytes}
    measured: dict[str, Any] = {entry.name: getattr(result, entry.name) for entry in dataclasses.fields(ClientColumns)}
    if measured["server_port"] is None:
        _, measured["server_port"] = host_and_port(target.url)
    return Download(
        **measured,
        campaign=campaign,
        vantage=vantage,
        iteration=run.iteration,
        domain=target.domain,
        url=target.url,
        provider=str(target.provider),
        configuration=configuration.name,
        client=configuration.client,
        client_http=client.http,
        transport=client.transport,
        levels=json.dumps(dict(recorded(configuration).levels)),
        position=run.positions[index],
        attempts=attempt,
        dns_s=None if looked_up is None else looked_up.dns_s,
        cnames=None if looked_up is None else json.dumps(looked_up.cnames),
        budget_s=budget_s,
        transport_detail=None if detail is None else json.dumps(detail, sort_keys=True),
        response_headers=json.dumps(dict(result.response_headers), sort_keys=True) if result.http_status else None,
        prefix=target.prefix,
        asn=target.asn,
    )


def _without_page(result: ClientResult, target: Target) -> ClientResult:
    """The answer, failed if an HTML page came instead of the file."""
    if result.outcome is not Outcome.OK:
        return result
    why = html_in_place_of(
        target.url,
        size_bytes=target.size_bytes,
        size_is_lower_bound=target.size_is_lower_bound,
        content_type=result.content_type,
        body_bytes=result.body_bytes,
    )
    if why is None:
        return result
    return dataclasses.replace(result, outcome=Outcome.FAILED, failure=Failure.CHALLENGE_PAGE, failure_detail=why)


def not_started(
    failure: Failure, detail: str, *, at: float, address: str | None, code: FailureCode | None = None
) -> ClientResult:
    """The result for a client that was not called, because the download was impossible."""
    return ClientResult(
        outcome=Outcome.FAILED,
        failure=failure,
        failure_code=code,
        failure_detail=detail,
        started_at=at,
        server_ip=address,
    )


def complete(
    downloads: Sequence[Download], *, capture: str | None, dropped: int | None, verdict: Suitability | None
) -> list[Download]:
    """The rows of a measurement run with the fields that are known only at its end."""
    done = []
    for download in same_object(downloads):
        flow = None
        if verdict is not None and download.local_port is not None:
            flow = verdict.flows.get((download.transport, download.local_port))
        done.append(
            dataclasses.replace(
                download,
                capture=capture,
                capture_dropped=dropped,
                lab_lateness_p99_ms=None if verdict is None else verdict.lateness_p99_ms,
                lab_sent=None if flow is None else flow.sent,
                lab_received=None if flow is None else flow.received,
                lab_dropped=None if flow is None else flow.dropped,
                lab_marked=None if flow is None else flow.marked,
                server_end=None if flow is None or flow.server_end is None else json.dumps(flow.server_end),
            )
        )
    return done


def reused_port(downloads: Sequence[Download]) -> Disturbance | None:
    """Why a run in which two downloads had one client port is void, None if all ports differ.

    The kernel may reuse a port within seconds (`secure_ipv4_port_ephemeral` changes every ten). Capture filters, the
    lab's counters and readers of the capture identify downloads by their ports.
    """
    seen: dict[tuple[str, str | None, int], Download] = {}
    for download in downloads:
        if not download.local_port:
            continue
        key = (download.transport, download.server_ip, download.local_port)
        if (earlier := seen.setdefault(key, download)) is not download:
            both = f"{earlier.configuration} and {download.configuration}"
            return Disturbance(
                reason=VoidReason.PORT_REUSED, detail=f"{both} had the same client port, {download.local_port}"
            )
    return None


CLOCK_STEP_S = 0.005
"""How much the host's clock may be set during a run: times of clients and captures are compared within 5 ms."""


def clock_offset_s() -> float:
    """CLOCK_REALTIME less CLOCK_MONOTONIC [s]: it changes where the clock is set, not where it is slewed.

    Of some readings the one counts that was interrupted least.
    """
    readings = []
    for _ in range(5):
        before, wall, after = time.monotonic(), time.time(), time.monotonic()
        readings.append((after - before, wall - (before + after) / 2))
    return min(readings)[1]


def stepped_clock(before_s: float, after_s: float) -> Disturbance | None:
    """Why a run is void between whose ends this offset of the clocks changed; None if it did not."""
    step_s = after_s - before_s
    if abs(step_s) <= CLOCK_STEP_S:
        return None
    detail = f"the host's clock was set by {1000 * step_s:+.1f} ms (the limit is {1000 * CLOCK_STEP_S:g} ms)"
    return Disturbance(reason=VoidReason.CLOCK_STEPPED, detail=detail)


def mark_void(downloads: Sequence[Download], why: Disturbance) -> list[Download]:
    """The rows of a run that was disturbed in its last attempt: recorded, but left out of every speed-up."""
    return [
        dataclasses.replace(download, void_reason=why.reason.value, void_detail=why.detail) for download in downloads
    ]


def same_object(downloads: Sequence[Download]) -> list[Download]:
    """The rows, with `ok` ones failed if their length or hash differs from that of most downloads of the run.

    Speed-ups compare times for the same bytes. If two objects are equally frequent, the
    first one of the run counts.
    """
    objects = Counter((d.body_bytes, d.body_sha256) for d in downloads if d.outcome == Outcome.OK)
    if len(objects) < 2:
        return list(downloads)
    true = objects.most_common(1)[0][0]  # equal counts come in order of first appearance
    return [
        d if d.outcome != Outcome.OK or (d.body_bytes, d.body_sha256) == true else _changed(d, true) for d in downloads
    ]


def _changed(download: Download, true: tuple[int, str | None]) -> Download:
    what = f"{download.body_bytes} bytes, others got {true[0]}" if download.body_bytes != true[0] else "another hash"
    return dataclasses.replace(
        download, outcome=Outcome.FAILED, failure=Failure.CONTENT_CHANGED, failure_detail=f"the run's object: {what}"
    )
