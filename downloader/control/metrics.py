"""A status as a page of Prometheus metrics (text format 0.0.4).

Counters begin at what the journals hold, so a restart does not set them back.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import UsageError
from downloader.control.status import Status
from downloader.schedule.schedule import State

if TYPE_CHECKING:
    from prometheus_client import Metric

_REMEDY = "write unix:PATH or 127.0.0.1:PORT"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the page is served: a socket file, or a port of a loopback address."""

    path: Path | None = None
    address: str = ""
    port: int = 0


def parse_endpoint(text: str) -> Endpoint:
    """The value of `--metrics`.

    Raises:
        UsageError: it is neither a socket file nor a port of this host's loopback addresses.
    """
    if text.startswith("unix:"):
        if not text.removeprefix("unix:"):
            raise UsageError("no path after unix:", where="--metrics", remedy=_REMEDY)
        return Endpoint(path=Path(text.removeprefix("unix:")))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} names no port", where="--metrics", remedy=_REMEDY)
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise UsageError(f"{host!r} is not an IP address", where="--metrics", remedy=_REMEDY) from None
    if not local:
        raise UsageError(
            f"{host} is not a loopback address, and metrics are served to this host only",
            where="--metrics",
            remedy=_REMEDY,
        )
    return Endpoint(address=host, port=int(port))


FILE_NAME = "upshift.prom"
"""The page in the campaign's folder, for node_exporter's textfile collector."""


def page(status: Status) -> str:
    """The page of a status."""
    metrics = [*_campaign(status), *_vantage_points(status), *_limits(status)]
    for metric in metrics:  # a host may have several campaigns, and one collector of their pages
        metric.samples = [
            sample._replace(labels={"campaign": status.campaign, **sample.labels}) for sample in metric.samples
        ]
    return exposition(metrics)


def exposition(metrics: Iterable[Metric]) -> str:
    """A page of metrics in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest  # 0.1 s to import

    class Page:
        def collect(self) -> Iterable[Metric]:
            return metrics

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page())
    return generate_latest(registry).decode("utf-8")


def _campaign(status: Status) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    def gauge(name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"upshift_{name}", text, value=value)

    versions = status.versions
    info = GaugeMetricFamily("upshift_info", "The campaign; always 1.", labels=("plan_sha256", "version", "kernel"))
    info.add_metric((status.plan_sha256, versions.get("upshift") or "", versions.get("kernel") or ""), 1)
    yield info
    yield gauge("status_timestamp_seconds", "Unix time of this status.", status.written_at)
    yield gauge("start_timestamp_seconds", "Unix time at which the process started.", status.started_at)
    yield gauge("downloads_per_second", "Downloads recorded per second in the last hour.", status.rate_per_s)
    if status.eta_s is not None:
        yield gauge("eta_seconds", "Time left at that rate.", status.eta_s)
    if status.last_error is not None:
        yield gauge("last_error_timestamp_seconds", "Unix time of the last error.", status.last_error.at)


def _vantage_points(status: Status) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    state = GaugeMetricFamily("upshift_state", "1 for what a vantage point does now.", labels=("vantage", "state"))
    planned = GaugeMetricFamily("upshift_downloads_planned", "Downloads in the plan.", labels=("vantage",))
    recorded = CounterMetricFamily("upshift_downloads", "Downloads recorded.", labels=("vantage", "outcome"))
    causes = CounterMetricFamily(
        "upshift_downloads_not_ok", "Downloads that failed or were censored.", labels=("vantage", "cause")
    )
    discarded = CounterMetricFamily(
        "upshift_runs_discarded", "Attempts of measurement runs that did not count.", labels=("vantage", "reason")
    )
    for name, part in status.vantage_points.items():
        progress = part.progress
        for known in State:
            state.add_metric((name, known.value.replace(" ", "_")), float(part.activity.state is known))
        planned.add_metric((name,), progress.planned)
        for outcome in ("ok", "failed", "censored"):
            recorded.add_metric((name, outcome), getattr(progress, outcome))
        for cause, count in progress.causes.items():
            causes.add_metric((name, cause), count)
        for reason, count in (("void", progress.void_runs), ("interrupted", progress.interrupted_runs)):
            discarded.add_metric((name, reason), count)
    yield from (state, planned, recorded, causes, discarded)


def _limits(status: Status) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ("vantage", "budget")  # whose it is changes all the time
    used = GaugeMetricFamily("upshift_budget_used_bytes", "Bytes of this UTC day.", labels=labels)
    limit = GaugeMetricFamily("upshift_budget_limit_bytes", "Most bytes per UTC day.", labels=labels)
    for budget in () if status.ended else status.budgets:  # the last page stays, and its day passes
        used.add_metric((budget.vantage, budget.budget), budget.used_bytes)
        limit.add_metric((budget.vantage, budget.budget), budget.limit_bytes)
    yield from (used, limit)
    if status.disk is not None:
        disk = {
            "free": (status.disk.free_bytes, "Free bytes on the disk of the campaign's folder."),
            "used": (status.disk.used_bytes, "Bytes of journals, captures and tables."),
            "limit": (status.disk.limit_bytes, "Most bytes of journals, captures and tables."),
            "reserve": (status.disk.reserve_bytes, "Bytes that have to stay free."),
        }
        for name, (value, text) in disk.items():
            if value is not None:
                yield GaugeMetricFamily(f"upshift_disk_{name}_bytes", text, value=value)
