"""The alert rules of examples/cloud: every metric, label and state that they name is one that a campaign writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from downloader.control import metrics
from downloader.limits.disk import FULL_SHARE
from downloader.schedule.schedule import State
from tests.unit.test_control_status import status

FILE = Path(__file__).resolve().parents[2] / "examples" / "cloud" / "alerts.yml"
RULES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds; `campaign` is on every metric, or on none."""


def written() -> dict[str, set[tuple[str, str]]]:
    """Metric -> label and value of all its samples, from the page of a campaign that tells everything."""
    found: dict[str, set[tuple[str, str]]] = {}
    for family in text_string_to_metric_families(metrics.page(status())):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels.items())
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_names_what_is_written(rule: dict[str, Any]) -> None:
    page = written()
    expression = str(rule["expr"])
    names = re.findall(r"\bupshift_\w+", expression)
    assert names and set(names) <= set(page), set(names) - set(page)
    labels = {label for name in names for label, _ in page[name]} | SCRAPED | {"campaign"}
    grouped = {label for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in group.split(", ")}
    told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert grouped | told <= labels, (grouped | told) - labels
    for name, selector in re.findall(r"\b(upshift_\w+)\{([^}]*)\}", expression):
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            assert {(label, value) for value in values.split("|")} <= page[name], (name, label, values)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"info", "warning"}
    assert set(rule["annotations"]) == {"summary", "remedy"}


def test_the_disk_s_rule_comes_before_captures_are_removed() -> None:
    (rule,) = (one for one in RULES if one["alert"] == "UpshiftDisk")
    (share,) = re.findall(r"upshift_disk_limit_bytes > ([0-9.]+)", str(rule["expr"]))
    assert float(share) < FULL_SHARE


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_needs_no_state_to_last_that_waits_interrupt(rule: dict[str, Any]) -> None:
    """In a fleet a vantage point waits for its slot again and again: it is never *running* for an hour."""
    lasting = re.findall(r'over_time\(upshift_state\{state="([^"]*)"', str(rule["expr"]))
    lasting += re.findall(r'upshift_state\{state="([^"]*)"', str(rule["expr"])) if "for" in rule else []
    assert not {State.RUNNING.value, "waiting_for_slot"} & set(lasting)


def test_states_that_need_somebody_have_a_rule() -> None:
    named = {state for rule in RULES for state in re.findall(r'state=~?"([^"]*)"', str(rule["expr"]))}
    assert {State.FAILED.value, "waiting_for_clock", "paused_for_disk"} <= named
