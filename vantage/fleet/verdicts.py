"""What became of each host in a run of Ansible, from its events, and how far its clock is from ours. Pure.

A host answers with its own time. It did so between two moments of the control machine's clock, so its offset lies in an
interval, and nothing is said against a host unless all of that is too much (`readiness`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from core.errors import UsageError
from core.files.config import build
from core.untrusted import scrub

MOST_CHARACTERS = 600
"""Longest sentence about a host's fault, which is its own words or those of a program there."""

UNTOUCHED = "it was not reached: Ansible ended before its turn"

Interval = tuple[float, float]
"""Least and largest offset of a host's clock from the control machine's [s]; positive: it is ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A host's answer about its clock (`core.system.this_host.clock_account`)."""

    began: float
    now: float
    synchronised: bool
    max_error_s: float | None


def account_of(answer: Mapping[str, Any] | None) -> Account | None:
    """What a host's answer says of its clock; None if it says nothing, or nothing that can be.

    JSON may have NaN, which is near all clocks and far from all: by it a host would speak against others.
    """
    try:
        account = build((answer or {}).get("clock"), Account, where="clock")
    except UsageError:
        return None
    return account if account.began <= account.now else None


def offset(account: Account, start: str, end: str) -> Interval:
    """The offset of a host's clock.

    Args:
        start, end: of the command that told its time, by the control machine's clock (ISO 8601, UTC).
    """
    return account.now - _unix(end), account.began - _unix(start)


def _unix(text: str) -> float:
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVerdict:
    """One host after a run."""

    fault: str | None
    """Why it failed, as one sentence without a full stop; None if it did not."""
    unreachable: bool = False
    changed: int = 0
    """Number of tasks that changed something."""
    result: Mapping[str, Any] | None = None
    """What the playbook set as `fleet_result`."""
    note: str = ""
    """What the playbook set as `fleet_note`: a sentence for the user."""
    clock_offset_s: Interval | None = None
    """How far its clock is ahead of the control machine's, at least and at most, where the result has its time."""

    @property
    def untouched(self) -> bool:
        """Whether no task ran on it."""
        return self.fault == UNTOUCHED


@dataclass(slots=True)
class _Seen:
    fault: str | None = None
    unreachable: bool = False
    result: Mapping[str, Any] | None = None
    note: str = ""
    command: tuple[str, str] = ("", "")
    """When the last command was started and had ended, by the control machine's clock."""
    offset: Interval | None = None
    loop: list[str] = field(default_factory=list)
    """Faults of the items of a loop, whose task says only that some failed."""


def verdicts(hosts: Iterable[str], events: Iterable[Mapping[str, Any]]) -> dict[str, HostVerdict]:
    """Host -> verdict, from ansible-runner's events. A failure that was ignored or rescued is none.

    A host that failed in no task and is missing from the final counts was never reached.
    """
    seen = {host: _Seen() for host in hosts}
    stats: Mapping[str, Mapping[str, int]] | None = None
    for event in events:
        data = event.get("event_data") or {}
        if event.get("event") == "playbook_on_stats":
            stats = data
        elif (host := data.get("host")) in seen:
            _note(seen[host], str(event.get("event")), data)
    return {host: _verdict(host, notes, stats) for host, notes in seen.items()}


def _note(seen: _Seen, event: str, data: Mapping[str, Any]) -> None:
    answer = data.get("res") or {}
    if event == "runner_item_on_failed" and not data.get("ignore_errors"):
        seen.loop.append(sentence(answer))
    elif event == "runner_on_failed" and not data.get("ignore_errors"):
        seen.fault = seen.loop[0] if seen.loop else sentence(answer)
    elif event == "runner_on_unreachable":
        seen.fault, seen.unreachable = f"unreachable: {sentence(answer)}", True
    elif event == "runner_on_ok":
        facts = answer.get("ansible_facts") or {}
        if answer.get("cmd") is not None:
            seen.command = str(data.get("start") or ""), str(data.get("end") or "")
        if isinstance(facts, Mapping):
            if isinstance(result := facts.get("fleet_result"), Mapping):
                seen.result = result
            seen.note = scrub(str(facts.get("fleet_note") or seen.note), most=MOST_CHARACTERS)
        if all(seen.command) and (account := account_of(seen.result)) is not None:
            seen.offset = offset(account, *seen.command)
    if event in ("runner_on_failed", "runner_on_ok"):
        seen.loop.clear()


def _verdict(host: str, seen: _Seen, stats: Mapping[str, Mapping[str, int]] | None) -> HostVerdict:
    if stats is None:  # Ansible was killed, or refused to start
        fault = seen.fault or UNTOUCHED
    elif stats.get("dark", {}).get(host) or stats.get("failures", {}).get(host):
        fault = seen.fault or "it failed, and Ansible does not say why"
    elif host in stats.get("processed", {}):
        changed = stats.get("changed", {}).get(host, 0)
        return HostVerdict(fault=None, changed=changed, result=seen.result, note=seen.note, clock_offset_s=seen.offset)
    else:
        fault = UNTOUCHED
    changed = (stats or {}).get("changed", {}).get(host, 0)
    return HostVerdict(fault=fault, unreachable=seen.unreachable, changed=changed, result=seen.result)


def sentence(answer: Mapping[str, Any]) -> str:
    """Why a task failed: our commands' own sentence where there is one, else the module's message, on one line."""
    message = str(answer.get("msg") or "")
    for stream in ("stderr", "module_stderr"):
        lines = [line.strip() for line in str(answer.get(stream) or "").splitlines()]
        lines = [line for line in lines if line and not line.startswith("upshift: to resume:")]
        if lines and (answer.get("cmd") is not None or stream == "module_stderr"):
            message = lines[-1].removeprefix("upshift: ")
            break
    if "issing sudo password" in message:
        message = "sudo asks for a password there: give -K (--ask-become-pass)"
    for label in ("Task failed: ", "Failed to connect to the host via ssh: "):
        message = message.removeprefix(label)
    return scrub(message, most=MOST_CHARACTERS).rstrip(".") or "it failed without a message"
