"""Nothing but allowed addresses is contacted."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upshift import reach
from upshift.errors import ReachError, UsageError

LAB = {reach.ENVIRONMENT_VARIABLE: "198.18.0.0/15,fd00:198:18::/48"}


@given(st.ip_addresses())
def test_environment_limits_every_address(address: reach.IPAddress) -> None:
    inside = any(address.version == p.version and address in p for p in reach.LAB_PREFIXES)
    if inside:
        reach.check_address(str(address), environ=LAB)
    else:
        with pytest.raises(ReachError):
            reach.check_address(str(address), environ=LAB)


def test_both_limits_count() -> None:
    with pytest.raises(ReachError, match="this place"):
        reach.check_address("198.18.0.1", [ipaddress.ip_network("198.19.0.0/16")], environ=LAB)


def test_mapped_address_is_its_ipv4_address() -> None:
    with pytest.raises(ReachError):
        reach.check_address("::ffff:8.8.8.8", environ=LAB)
    reach.check_address("::ffff:198.18.0.1", environ=LAB)


def test_bad_prefix_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="is not an IP prefix"):
        reach.parse_prefixes("198.18.0.0/15,bogus", where="campaign.toml: allowed")
