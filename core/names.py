"""Names of hosts."""

from __future__ import annotations

import functools
from collections.abc import Callable


@functools.cache
def _extract() -> Callable[[str], tuple[str, str]]:
    import tldextract  # imports requests, which most commands do not need

    # The public suffix list shipped with the package: fetching a newer one would be unrequested traffic. Private
    # suffixes count (`user.github.io` is a registered domain), as the names below them have different owners.
    extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)

    def split(host: str) -> tuple[str, str]:
        parts = extract(host)
        return parts.domain, parts.suffix

    return split


def registered_domain(host: str) -> str:
    """The registered domain of a name; for a name without a public suffix (as in the lab), its last two labels."""
    domain, suffix = _extract()(host)
    return f"{domain}.{suffix}" if domain and suffix else ".".join(host.split(".")[-2:])
