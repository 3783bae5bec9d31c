"""The fields `budgets`, `disk`, `block_lists` and `opt_out` of a campaign file, and what they are to the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.domain import Target
from core.errors import UsageError
from core.files.disk import size_text
from downloader.campaign.campaign import Campaign, from_document
from downloader.campaign.expected import download_bytes, run_bytes, worst_run_bytes
from downloader.campaign.limits import Budgets, Disk, KeptCaptures
from downloader.campaign.plan import plan_hash

TARGET = Target(domain="a.example", url="https://a.example/f", size_bytes=1_000_000)


def campaign(**changes: Any) -> Campaign:
    return from_document({"name": "c", "lab": "anrw", "targets": "lab", **changes}, Path("c.toml"))


def test_the_defaults() -> None:
    plain = campaign()
    assert plain.budgets == Budgets(domain=10**9, network=50 * 10**9, campaign=500 * 10**9)
    assert plain.disk == Disk(captures=KeptCaptures.ALL, sample=0.01, limit=20 * 10**9, reserve=10**9)
    assert (plain.block_lists, plain.opt_out) == ((), None)


def test_what_is_written_counts() -> None:
    found = campaign(budgets={"as": "20 MB", "domain": 7}, disk={"captures": "sample", "sample": 1, "limit": "32 MiB"})
    assert found.budgets == Budgets(domain=7, network=20_000_000)
    assert found.disk == Disk(captures=KeptCaptures.SAMPLE, sample=1.0, limit=32 << 20)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("budgets", {"asn": 1}, r"c.toml: field budgets.asn: unknown field; did you mean as\?"),
        ("budgets", {"as": f"{'9' * 400} GB"}, r"field budgets.as: '9+ GB' is not a valid size; write a number of"),
        ("budgets", {"as": "20 mB"}, r"field budgets.as: '20 mB' is not a valid size; write a number of bytes, or"),
        ("budgets", {"domain": 0}, r"field budgets.domain: it must be at least 1;"),
        ("budgets", {"domain": True}, r"field budgets.domain: it is not a size;"),
        ("budgets", "1 GB", r"field budgets: it is not a table; write domain = "),
        (
            "disk",
            {"captures": "some"},
            r"field disk.captures: 'some' is unknown; use one of all, sample, failures, none",
        ),
        ("disk", {"sample": 2}, r"field disk.sample: 2 is not a share; write a number from 0 to 1"),
        ("disk", {"reserve": -1}, r"field disk.reserve: it must be at least 0;"),
        ("disk", {"limits": 1}, r"field disk.limits: unknown field; did you mean limit\?"),
    ],
)
def test_bad_input_is_one_sentence(field: str, value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        campaign(**{field: value})
    assert "\n" not in caught.value.sentence()


def test_budgets_are_part_of_the_plan_and_what_is_the_hosts_is_not() -> None:
    def digest(**changes: Any) -> str:
        return plan_hash(campaign(**changes), [TARGET], ["MUC"])

    own = {"disk": {"captures": "none"}, "block_lists": ["blocks.txt"], "opt_out": "opt-out.txt"}
    assert digest(**own) == digest()
    assert digest(budgets={"as": "20 MB"}) != digest()


def test_expected_bytes() -> None:
    """By the file's size where it is known, else by `max_bytes`; each download of a run counts."""
    plain = campaign()
    one = download_bytes(plain, TARGET)
    assert 1_000_000 < one < 1_150_000
    assert run_bytes(plain, TARGET) == 10 * one  # eight configurations and two warm-ups
    unknown = Target(domain="b.example", url="https://b.example/f", size_bytes=1_000_000, size_is_lower_bound=True)
    assert download_bytes(plain, unknown) > plain.max_bytes
    assert worst_run_bytes(plain) > run_bytes(plain, unknown)


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 6_666_666, 10**9)] == ["0 B", "999 B", "6.67 MB", "1 GB"]
    assert [size_text(n) for n in (999_499, 999_500, 999_700_000_000)] == ["999 kB", "1 MB", "1 TB"]
