"""Block lists and opt-outs: domains and prefixes that neither the crawl nor the surveys contact."""

from __future__ import annotations

import ipaddress
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import BlockedError, UsageError
from core.files.config import read_bytes, read_text
from core.outreach.lists import domain_of
from core.reach import IPAddress, IPNetwork, embedded, unmapped, unmapped_prefix

MOST_BYTES = 64 << 20
"""Largest block list."""

REREAD_S = 2.0
"""How often block lists are checked for changes [s]."""

HOST_LIST = Path("/var/lib/upshift/opt-out.txt")
"""Opt-outs of this host: who opted out of one campaign is left alone by all that runs here. It need not exist."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Domains (with all names below them) and prefixes that must not be contacted."""

    domains: frozenset[str] = frozenset()
    prefixes: frozenset[IPNetwork] = frozenset()
    _networks: dict[tuple[int, int], set[int]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """IP version and host bits -> network parts: a list of thousands is looked through for every request."""

    def __post_init__(self) -> None:
        for prefix in self.prefixes:
            host_bits = prefix.max_prefixlen - prefix.prefixlen
            self._networks.setdefault((prefix.version, host_bits), set()).add(int(prefix.network_address) >> host_bits)

    def domain(self, host: str) -> bool:
        """Whether the host or a name above it is listed."""
        labels = host.lower().rstrip(".").split(".")
        return any(".".join(labels[start:]) in self.domains for start in range(len(labels)))

    def address(self, address: str) -> bool:
        """Whether the address is listed, or the IPv4 address to which it leads (NAT64, 6to4)."""
        ip, inner = unmapped(address), embedded(address)
        return self._has(ip) or (inner is not None and self._has(inner))

    def _has(self, ip: IPAddress) -> bool:
        number = int(ip)
        return any(ip.version == v and number >> bits in parts for (v, bits), parts in self._networks.items())


def read_blocked(path: Path) -> Blocked:
    """A block list: one domain or prefix a line, `#` begins a comment. Raises UsageError with the first wrong line."""
    blocked, wrong = parse_blocked(read_text(path, most_bytes=MOST_BYTES))
    if wrong:
        raise first_fault(path, wrong)
    return blocked


def parse_blocked(text: str) -> tuple[Blocked, list[tuple[int, str]]]:
    """What the lines say, and number and text of those that say nothing."""
    domains, prefixes, wrong = set(), set(), []
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        try:
            # 192.0.2.7/24 means its network: to take it for nothing would contact who opted out.
            prefixes.add(unmapped_prefix(ipaddress.ip_network(entry, strict=False)))
            continue
        except ValueError:
            pass
        try:
            domains.add(domain_of(entry.removeprefix("*.").removeprefix(".")))
        except ValueError:
            wrong.append((number, entry[:60]))
    return Blocked(frozenset(domains), frozenset(prefixes)), wrong


def first_fault(path: Path, wrong: Sequence[tuple[int, str]]) -> UsageError:
    """The error for the first of the lines that say nothing."""
    number, entry = wrong[0]
    others = f" (the first of {len(wrong):,} such lines)" if len(wrong) > 1 else ""
    return UsageError(
        f"line {number}: {entry!r} is neither a domain nor a prefix{others}",
        where=str(path),
        remedy="write www.example.org or 192.0.2.0/24, one per line",
    )


def block_list_paths(block_lists: Sequence[Path] | None, opt_out: Path | None) -> list[Path]:
    """The files of `--block-list` and `--opt-out`, and this host's; the opt-out file is created if missing."""
    paths = [*(block_lists or []), HOST_LIST]
    if opt_out is None:
        return paths
    if not opt_out.exists():
        opt_out.parent.mkdir(parents=True, exist_ok=True)
        opt_out.touch()
    return [*paths, opt_out]


class BlockLists:
    """Several block lists, read again while we run: an opt-out takes effect within seconds.

    One wrong line must not undo the opt-outs beside it. As it may be half of an old entry, nothing is taken back while
    there is one: all that was listed stays, and what the other lines add holds, too. A list that cannot be read is
    tried again at each look.

    Attributes:
        complaints: what is wrong with lists that changed; each was printed on standard error at once.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._state = {path: (self._stamp(path), self._first(path)) for path in self._paths}
        self._looked = time.monotonic()
        self._said: dict[Path, str] = {}
        """What was last said of a list that is still wrong."""
        self.complaints: list[str] = []

    @staticmethod
    def _first(path: Path) -> Blocked:
        return Blocked() if path == HOST_LIST and not path.exists() else read_blocked(path)

    @staticmethod
    def _stamp(path: Path) -> tuple[int, ...]:
        try:
            status = path.stat()
        except OSError:
            return ()
        # A change of rights sets the ctime alone; a file that takes another's place may have its time and size.
        return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)

    def check(self, host: str, address: str | None) -> None:
        """Raises BlockedError if host or address is listed."""
        self._refresh()
        for path, (_, blocked) in self._state.items():
            if blocked.domain(host):
                raise BlockedError(f"{host} is in {path.name}")
            if address is not None and blocked.address(address):
                raise BlockedError(f"{address} is in {path.name}")

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._looked < REREAD_S:
            return
        self._looked = now
        for path, (stamp, before) in list(self._state.items()):
            fresh = self._stamp(path)
            if fresh == stamp:
                continue
            try:
                self._state[path] = (fresh, self._again(path, before))
            except UsageError as error:  # its stamp stays the old one: what is in it may be an opt-out
                self._complain(path, error)

    def _again(self, path: Path, before: Blocked) -> Blocked:
        """What a list says now. Raises UsageError if it cannot be read."""
        # A letter that is not UTF-8 spoils its line only.
        blocked, wrong = parse_blocked(read_bytes(path, most_bytes=MOST_BYTES).decode("utf-8-sig", "replace"))
        if not wrong:
            self._said.pop(path, None)
            return blocked
        self._complain(path, first_fault(path, wrong))
        return Blocked(before.domains | blocked.domains, before.prefixes | blocked.prefixes)

    def _complain(self, path: Path, error: UsageError) -> None:
        sentence = f"{error.sentence()}; what was listed stays in force"
        if self._said.get(path) == sentence:
            return
        self._said[path] = sentence
        self.complaints.append(sentence)
        print(f"upshift: {sentence}", file=sys.stderr)  # noqa: T201 - who opts out cannot wait for the end
