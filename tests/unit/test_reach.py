"""Nothing but allowed addresses is contacted."""

from __future__ import annotations

import ipaddress
import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import reach
from core.errors import ReachError, UsageError

LAB = {reach.ENVIRONMENT_VARIABLE: "198.18.0.0/15,fd00:198:18::/48"}


@given(st.ip_addresses())
@mock.patch.dict(os.environ, LAB)
def test_environment_limits_every_address(address: reach.IPAddress) -> None:
    inside = any(address.version == p.version and address in p for p in reach.LAB_PREFIXES)
    if inside:
        reach.check_address(str(address))
    else:
        with pytest.raises(ReachError):
            reach.check_address(str(address))


@mock.patch.dict(os.environ, LAB)
def test_both_limits_count() -> None:
    with pytest.raises(ReachError, match="this place"):
        reach.check_address("198.18.0.1", [ipaddress.ip_network("198.19.0.0/16")])


@mock.patch.dict(os.environ, LAB)
def test_mapped_address_is_its_ipv4_address() -> None:
    with pytest.raises(ReachError):
        reach.check_address("::ffff:8.8.8.8")
    reach.check_address("::ffff:198.18.0.1")


def test_bad_prefix_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="is not an IP prefix"):
        reach.parse_prefixes("198.18.0.0/15,bogus", where="campaign.toml: allowed")


NAMED = tuple(map(ipaddress.ip_network, ["198.18.0.0/15", "fd00:198:18::/48", "0.0.0.0/0", "::/0"]))
HALVES = tuple(map(ipaddress.ip_network, ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"]))


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "224.0.0.1", "100.64.0.1"),
        *("::1", "fe80::1", "ff02::1", "::ffff:10.0.0.1", "fd00::1"),
        *("64:ff9b::10.0.0.1", "2002:a00:1::1", "fec0::1", "3fff::1"),
    ],
)
def test_everything_does_not_name_a_special_address(address: str) -> None:
    for named in (reach.ANYWHERE, NAMED, HALVES, ()):
        with pytest.raises(ReachError, match="is not a public address; name its prefix in allowed_prefixes"):
            reach.check_named(address, named)
    own = ipaddress.ip_network(reach.unmapped(address))
    reach.check_named(address, (*reach.ANYWHERE, own))


@pytest.mark.parametrize("address", ["198.18.0.1", "fd00:198:18::5", "8.8.8.8", "2001:4860:4860::8888"])
def test_public_and_named_addresses_pass(address: str) -> None:
    reach.check_named(address, NAMED)


def test_a_name_that_a_library_would_look_up_is_refused_while_a_lab_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("localhost", "127.0.0.1", "198.18.0.1", "fd00:198:18::1"):
        reach.check_host(host)
    for host in ("192.0.2.1", "s3.example", ""):
        with pytest.raises(ReachError):
            reach.check_host(host)
    monkeypatch.delenv(reach.ENVIRONMENT_VARIABLE)
    reach.check_host("s3.example")
