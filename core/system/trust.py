"""The trusted certificate authorities: one bundle for all clients of a campaign."""

from __future__ import annotations

import ssl
from pathlib import Path

from core.errors import UsageError

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
