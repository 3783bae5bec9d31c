"""Source ports for a raw-socket prober on the host itself."""

from __future__ import annotations

import itertools

import pytest

from core.errors import PlaceError
from vantage.host.raw_ports import COUNT, STARTS, free_ports, reset_table


@pytest.mark.parametrize(
    ("reserved", "used", "first"),
    [
        ("", (), 52_000),
        ("7777", (80, 443, 51_999, 60_192), 52_000),
        ("", (60_191,), 43_000),
        ("", (52_000,), 43_000),
        ("50000-53000,45000", (), 34_000),
    ],
)
def test_a_range_that_nobody_has(reserved: str, used: tuple[int, ...], first: int) -> None:
    assert free_ports(reserved, used) == (first, first + COUNT - 1)


def test_ranges_do_not_overlap_and_none_free_is_one_sentence() -> None:
    ranges = sorted((first, first + COUNT - 1) for first in STARTS)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))
    assert ranges[0][0] > 1023 and ranges[-1][1] < 65_536
    with pytest.raises(PlaceError, match="no 8192 source ports in a row are free") as caught:
        free_ports("1024-65535", ())
    assert "\n" not in caught.value.sentence()


def test_only_resets_from_these_ports_are_dropped() -> None:
    rule = [line.strip() for line in reset_table("t", 52_000, 60_191).splitlines() if "drop" in line]
    assert rule == ["tcp sport 52000-60191 tcp flags & rst == rst counter drop"]
