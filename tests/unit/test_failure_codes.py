"""Both words on a failure, from what the kernel tells."""

from __future__ import annotations

import os
from errno import ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, ENETUNREACH, ENONET, ENOPROTOOPT

import pytest

from core.domain import Failure, FailureCode
from downloader.programs.codes import Icmp, of_os_error


@pytest.mark.parametrize(
    ("code", "number", "word"),
    [
        (0, ENETUNREACH, FailureCode.ICMP_NET),
        (1, EHOSTUNREACH, FailureCode.ICMP_HOST),
        (2, ENOPROTOOPT, FailureCode.ICMP_HOST),
        (3, ECONNREFUSED, FailureCode.ICMP_PORT),
        (7, EHOSTDOWN, FailureCode.ICMP_HOST),
        (8, ENONET, FailureCode.ICMP_HOST),
        (13, EHOSTUNREACH, FailureCode.ICMP_HOST),
    ],
)
def test_an_icmp_message_has_both_words(code: int, number: int, word: FailureCode) -> None:
    """`number` is what the kernel makes of the code (icmp_err_convert in net/ipv4/icmp.c)."""
    error = OSError(number, os.strerror(number))
    failure, _, second, _ = of_os_error(error, Icmp(4, 3, code, False), connected=False, over_tcp=True)
    refused = word is FailureCode.ICMP_PORT
    assert (failure, second) == (Failure.CONNECTION_REFUSED if refused else Failure.NETWORK_UNREACHABLE, word)
