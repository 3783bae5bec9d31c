"""This host: its clock, as far as the kernel trusts it (adjtimex(2)), its memory, IPv6, and trusted authorities."""

from __future__ import annotations

import ctypes
import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import PlaceError, UsageError
from core.reach import IPNetwork

MOST_ERROR_S = 1.0
"""Largest error of a clock that counts as synchronised."""

MOST_APART_S = 3.0
"""Most by which the clocks of two vantage points may differ: taking turns by the clock allows for no more. Larger than
twice `MOST_ERROR_S`."""

_TIME_ERROR, _STA_UNSYNC = 5, 0x40


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The state of a clock."""

    synchronised: bool
    max_error_s: float
    """Largest possible error, as the time daemon estimates it; the kernel lets it grow by 0.5 ms per second."""

    def fault(self) -> str | None:
        """Why slots cannot be told by it, None if they can."""
        if not self.synchronised:
            return "this host's clock is not synchronised"
        if self.max_error_s >= MOST_ERROR_S:
            return f"this host's clock may be wrong by {self.max_error_s:.1f} s"
        return None


class _Timex(ctypes.Structure):
    """struct timex (include/uapi/linux/timex.h), up to what is read here."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock_account(began: float, now: float) -> dict[str, Any]:
    """This host's time and how good it is by its own account, for another machine that compares it with its own.

    Args:
        began, now: Unix times at which the program that answers began, and of the answer.
    """
    try:
        clock = read_clock()
    except PlaceError:
        return {"began": began, "now": now, "synchronised": False, "max_error_s": None}
    return {"began": began, "now": now, "synchronised": clock.synchronised, "max_error_s": clock.max_error_s}


def read_clock() -> Clock:
    """The state of this host's clock. Raises PlaceError if the kernel does not say."""
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        why = os.strerror(ctypes.get_errno())
        raise PlaceError(f"the state of this host's clock cannot be read ({why})", where="adjtimex")
    return Clock(
        synchronised=state != _TIME_ERROR and not timex.status & _STA_UNSYNC,
        max_error_s=timex.maxerror / 1e6,
    )


def available_memory() -> int | None:
    """Memory that a new program can take without swapping [bytes], as the kernel estimates it (MemAvailable, proc(5));
    None if it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kilobytes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(number) * 1024 for number in kilobytes), None)


def check_ipv6(allowed: Iterable[IPNetwork]) -> None:
    """Raises PlaceError if there is no route from here to IPv6 addresses of these prefixes: no server is to blame then.

    No packet is sent: connect(2) on a datagram socket only looks the route up.
    """
    for prefix in allowed:
        address = str(prefix.network_address) if prefix.prefixlen else "2000::"  # connect(2) takes :: for ::1
        if prefix.version == 6:
            try:
                with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
                    return probe.connect((address, 9))
            except OSError:
                continue
    raise PlaceError(
        "this host has no route to any IPv6 address that may be contacted", remedy="see ip -6 route, or use IPv4"
    )


SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""The bundles of trusted certificates of Debian, Fedora, openSUSE, Alpine. h3get uses the
same list (rust/clientkit/src/arguments.rs)."""


def system_bundle() -> Path:
    """The system's bundle of trusted certificates (PEM), else the one of OpenSSL's default verify paths.

    Raises:
        UsageError: this host has none.
    """
    compiled_in = ssl.get_default_verify_paths().cafile  # None if the file does not exist
    for name in (*SYSTEM_BUNDLES, *([compiled_in] if compiled_in else [])):
        if Path(name).is_file():
            return Path(name)
    raise UsageError("this host has no bundle of CA certificates", remedy="install ca-certificates, or name a PEM file")


def count_certificates(bundle: Path, *, where: str | None = None) -> int:
    """The number of certificates in a bundle, read by OpenSSL, which most clients use.

    Args:
        where: named in errors instead of the bundle.

    Raises:
        UsageError: the file is missing, cannot be read, or is not PEM with certificates.
    """
    remedy = "name a PEM file of CA certificates"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # OpenSSL's errors for a folder or an unreadable file are unclear.
        with bundle.open("rb"):
            context.load_verify_locations(cafile=bundle)
    except ssl.SSLError:
        pass
    except OSError as error:
        raise UsageError(f"{bundle} cannot be read ({error.strerror})", where=where, remedy=remedy) from None
    if not (count := context.cert_store_stats()["x509"]):
        raise UsageError(f"{bundle} is not a PEM file with certificates", where=where, remedy=remedy)
    return count
