"""The visit of one domain: from its start page to its largest file, within budgets.

Order: resolve once and pin; robots.txt; then pages by breadth. After each page the files that it names are probed; as
soon as a page has files of at least the minimum size, the largest of them (below the maximum) is the result and the
visit ends. Every URL, redirect hops included, must have the registered domain, scheme, port and address of the start
page, and be allowed by robots.txt.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin, urlsplit

from core.errors import PlaceError
from core.outreach.blocks import BlockLists
from core.outreach.dns import Answer, ResolveError, Resolver
from core.untrusted import port_of, registered_domain
from crawler.exchange import CrawlOutcome, CrawlReply, CrawlRequest, Fetch, RequestPurpose, unpacked
from crawler.ledger import DomainResult
from crawler.links import extract, normal
from crawler.policy import MAX_CRAWL_DELAY_S, Pins, RefusedError, Robots, Throttle, admit, from_reply

MAX_REDIRECTS = 5
MAX_DETAIL = 200
MAX_ALT_SVC = 8_192
"""What upshift survey quic reads of it: h3 may be the last of many."""

GET_ONLY = (200, 204, 403, 405, 500, 501)
"""Status of a HEAD after which a GET may do better."""

NO_PAGES = (
    *(CrawlOutcome.TIMEOUT, CrawlOutcome.CONNECTION_FAILED, CrawlOutcome.TLS_ERROR, CrawlOutcome.PROTOCOL_ERROR),
    *(CrawlOutcome.OFF_DOMAIN, CrawlOutcome.OTHER_ADDRESS),
)
"""Outcomes of robots.txt which its host's pages most likely have, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlLimits:
    """Budgets of a visit."""

    min_size: int = 1_000_000
    max_size: int = 100_000_000
    depth: int = 2
    pages: int = 8
    probes: int = 40
    """HEADs and GETs for sizes, per domain."""
    max_page_bytes: int = 2_000_000
    domain_s: float = 600.0
    """Longest visit, excluding rate-limit waits for its address."""
    start: str = "https://{domain}/"
    objects: int = 0
    """Measure this many objects of the start page at most (`crawler.objects`); 0: look for a large file."""

    def start_of(self, domain: str) -> str:
        """URL of a domain's start page."""
        return self.start.replace("{domain}", domain)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeFile:
    """A file of at least the minimum size."""

    url: str
    size: int
    lower_bound: bool
    depth: int


@dataclass(slots=True, kw_only=True)
class DomainVisit:
    """One domain's visit; call `run` once."""

    domain: str
    limits: CrawlLimits
    fetch: Fetch
    resolver: Resolver
    pins: Pins
    blocks: BlockLists
    pace: Throttle
    _budget: asyncio.Timeout = field(init=False)
    _result: DomainResult = field(init=False)
    _address: str = ""
    _hosts: dict[str, RefusedError | None] = field(default_factory=dict)
    """Host -> why it cannot be used in this visit, None if it is pinned."""
    _chains: dict[str, str] = field(default_factory=dict)
    _alt_svc: dict[str, str] = field(default_factory=dict)
    """Host -> its last Alt-Svc, of any answer but 421 (RFC 7838, sections 2.2, 3 and 6)."""
    _robots: dict[str, Robots] = field(default_factory=dict)
    _probed: set[str] = field(default_factory=set)
    _asked: int = 0
    """Files for which a server was asked, or a host looked up."""
    _best: LargeFile | None = None
    _trouble: Counter[str] = field(default_factory=Counter)

    async def run(self) -> DomainResult:
        """Visits the domain. Raises PlaceError for a fault of this host; else always returns a result."""
        self._result = DomainResult(domain=self.domain, outcome=CrawlOutcome.NO_FILE)
        try:
            async with asyncio.timeout(self.limits.domain_s) as self._budget:
                await self._crawl()
        except RefusedError as error:
            self._result.outcome, self._result.detail = error.cause, error.detail[:MAX_DETAIL]
        except TimeoutError:
            self._result.outcome = CrawlOutcome.TIME_BUDGET
        except PlaceError:
            raise  # no site is to blame for this host's faults
        except Exception as error:  # one unusual site must not end the crawl, now and after each restart
            self._result.outcome = CrawlOutcome.INTERNAL_ERROR
            self._result.detail = f"{type(error).__name__}: {error}"[:MAX_DETAIL]
        finally:
            for host, refused in self._hosts.items():
                if refused is None:
                    self.pins.release(host)
        self._conclude()
        return self._result

    def _conclude(self) -> None:
        if self._best is not None and self._result.outcome != CrawlOutcome.BLOCKED:
            self._result.outcome, self._result.detail = CrawlOutcome.FOUND, None
            self._result.url, self._result.size_bytes = self._best.url, self._best.size
            self._result.size_is_lower_bound, self._result.depth = self._best.lower_bound, self._best.depth
            host = urlsplit(self._best.url).hostname or ""
            self._result.alt_svc, self._result.cname_chain = self._alt_svc.get(host), self._chains.get(host) or None
        elif self._result.detail is None and self._trouble:
            self._result.detail = ", ".join(f"{n} x {cause}" for cause, n in self._trouble.most_common(5))

    async def _crawl(self) -> None:
        await self._settle()
        queue = deque([(self.start, 0)])
        seen = {self.start}
        pages = 0
        while queue and pages < self.limits.pages and self._best is None:
            url, depth = queue.popleft()
            is_start, before = url == self.start, self._spent()
            try:
                url, ask, reply = await self._follow(url, RequestPurpose.PAGE)
            except RefusedError as error:
                if is_start or self._ends(error):
                    raise
                self._trouble[error.cause] += 1
                continue
            finally:
                pages += self._spent() != before
            if reply.status != 200:
                if is_start:
                    raise RefusedError(CrawlOutcome.HTTP_STATUS, str(reply.status))
                self._trouble[f"status {reply.status}"] += 1
                continue
            seen.add(url)
            if not ask.html:
                self._weigh(url, ask, max(0, depth - 1))  # named one page before
                continue
            # In a thread: for a tag of 100,000 attributes libxml2 takes minutes, in which other visits go on.
            links = await asyncio.to_thread(extract, reply.body, url=url, encoding=reply.charset)
            for link in links.files:
                await self._probe(link, depth)
            if depth < self.limits.depth:
                for link in links.pages:
                    if link not in seen and len(seen) < 10 * self.limits.pages and self._fault(link) is None:
                        seen.add(link)
                        queue.append((link, depth + 1))

    def _spent(self) -> tuple[int, int]:
        """Requests and hosts that were looked up, so far: a file or a page without either is known to be elsewhere, or
        to be disallowed, and does not count."""
        return self._result.requests, len(self._hosts)

    def _ends(self, error: RefusedError) -> bool:
        """Whether the visit makes no further request: the server wants fewer, or the domain has opted out meanwhile.

        A host of the domain may be blocked on its own.
        """
        if error.cause != CrawlOutcome.BLOCKED:
            return error.cause == CrawlOutcome.TOO_MANY_REQUESTS
        try:
            admit(self.blocks, self._host, self._address)
        except RefusedError:
            return True
        return False

    @property
    def start(self) -> str:
        """URL of the start page."""
        return self.limits.start_of(self.domain)

    @property
    def _host(self) -> str:
        """Host of the start page."""
        return urlsplit(self.start).hostname or self.domain

    async def _settle(self) -> None:
        """Resolves the domain once, and chooses the address that the whole visit uses."""
        host = self._host
        admit(self.blocks, host)
        answer = await self._resolve(host)
        refused: RefusedError | None = None
        for address in answer.addresses:
            try:
                admit(self.blocks, host, address)
            except RefusedError as error:
                refused = refused or error
                continue
            self._address = self._result.server_ip = self.pins.pin(host, address)
            self._hosts[host] = None
            return
        raise refused or RefusedError(CrawlOutcome.DNS_ERROR, "no address")

    async def _resolve(self, host: str) -> Answer:
        """The host's IPv4 addresses. Raises RefusedError."""
        try:
            answer = await self.resolver.addresses(host)
        except ResolveError as error:
            raise RefusedError(CrawlOutcome.DNS_ERROR, error.detail) from None
        self._chains[host] = " ".join(answer.chain)
        return answer

    def _fault(self, url: str) -> RefusedError | None:
        """Why a URL is out of scope, as far as its text shows; None if it is not."""
        start = urlsplit(self.start)
        parts = urlsplit(url)
        if (parts.scheme, port_of(parts)) != (start.scheme, port_of(start)):
            return RefusedError(CrawlOutcome.OFF_DOMAIN, f"{url} has another scheme or port")
        if registered_domain(parts.hostname or "") != registered_domain(start.hostname or ""):
            return RefusedError(CrawlOutcome.OFF_DOMAIN, f"{parts.hostname} is another domain")
        return None

    async def _admit(self, url: str) -> Robots:
        """The robots.txt rules that apply to the URL. Raises RefusedError if it may not be fetched."""
        refused = self._fault(url) or await self._elsewhere(url)
        if refused is not None:
            raise refused
        host = urlsplit(url).hostname or ""
        if host not in self._robots:
            self._robots[host] = await self._read_robots(url)
        robots = self._robots[host]
        if robots.unreachable:
            raise RefusedError(CrawlOutcome.ROBOTS_UNREACHABLE, f"robots.txt of {host} could not be fetched")
        if robots.delay_s > MAX_CRAWL_DELAY_S:
            raise RefusedError(CrawlOutcome.CRAWL_DELAY, f"{host} asks for {robots.delay_s:g} s between requests")
        if not robots.allows(url):
            raise RefusedError(CrawlOutcome.ROBOTS_DISALLOWED, url)
        return robots

    async def _elsewhere(self, url: str) -> RefusedError | None:
        """Why the URL's host is not at our address, None if it is; each host is resolved once."""
        host = urlsplit(url).hostname or ""
        if host not in self._hosts:
            self._hosts[host] = await self._same_address(host)
        return self._hosts[host]

    async def _same_address(self, host: str) -> RefusedError | None:
        """None if another host of the domain is at our address (it is pinned then)."""
        try:
            admit(self.blocks, host)
            answer = await self._resolve(host)
        except RefusedError as error:
            return error
        if self._address not in answer.addresses:
            return RefusedError(CrawlOutcome.OTHER_ADDRESS, f"{host} is at {answer.addresses[0]}, not {self._address}")
        if self.pins.pin(host, self._address) != self._address:
            self.pins.release(host)
            return RefusedError(CrawlOutcome.OTHER_ADDRESS, f"{host} is being visited at another address")
        return None

    async def _read_robots(self, url: str) -> Robots:
        """robots.txt of the URL's host; up to five redirects on the same domain and address are followed.

        Rules that are elsewhere hold, too, and we do not go there, so we keep out; only after more than five redirects
        may the file count as unavailable (RFC 9309, section 2.3.1.2).
        """
        target = urljoin(url, "/robots.txt")
        for _ in range(MAX_REDIRECTS + 1):
            try:
                _, reply = await self._request(target, RequestPurpose.ROBOTS, None)
                location = reply.headers.get("location")
                if not 300 <= reply.status < 400 or location is None:
                    return from_reply(reply.status, reply.body, is_cut=reply.stopped)
                target = await self._robots_elsewhere(target, location)
            except RefusedError as error:
                if self._ends(error):
                    raise
                if error.cause in NO_PAGES and not self._robots:
                    raise  # the start page would most likely fail as well, and the cause says more than "no robots.txt"
                return Robots(None)
        return Robots("")

    async def _robots_elsewhere(self, target: str, location: str) -> str:
        """The URL to which robots.txt redirects. Raises RefusedError if we do not go there."""
        following = normal(target, location)
        if following is None:
            raise RefusedError(CrawlOutcome.PROTOCOL_ERROR, f"{target} redirects to what is not a URL")
        refused = self._fault(following) or await self._elsewhere(following)
        if refused is not None:
            raise RefusedError(refused.cause, f"robots.txt redirects: {refused.detail}")
        return following

    async def _request(self, url: str, want: RequestPurpose, robots: Robots | None) -> tuple[CrawlRequest, CrawlReply]:
        ask = CrawlRequest(
            url=url,
            want=want,
            address=self._address,
            robots=robots,
            min_size=self.limits.min_size,
            max_page_bytes=self.limits.max_page_bytes,
            gzip=self.limits.objects > 0 and want is not RequestPurpose.ROBOTS,
        )
        host, delay_s = urlsplit(url).hostname or "", robots.delay_s if robots is not None else 0.0
        async with self._turn(host, delay_s, want):
            self._result.requests += 1
            try:
                reply = await self.fetch(ask)
            finally:
                self._result.received_bytes += ask.received
        if reply.address != self._address:
            who = reply.address or "an unknown address"
            raise RefusedError(CrawlOutcome.OTHER_ADDRESS, f"{who} answered, not {self._address}")
        if reply.headers.get("alt-svc") and reply.status != 421:
            self._alt_svc[host] = reply.headers["alt-svc"][:MAX_ALT_SVC]
        if reply.status == 429:
            raise RefusedError(CrawlOutcome.TOO_MANY_REQUESTS, url)
        if ask.reads and 200 <= reply.status < 300:
            reply = replace(reply, body=unpacked(reply.body, ask))
        return ask, reply

    @asynccontextmanager
    async def _turn(self, host: str, delay_s: float, want: RequestPurpose) -> AsyncIterator[None]:
        """Waits for the host and for the rate limit of the address.

        These waits do not count against the domain's time budget, as other visits may hold it up; those at a host with
        a Crawl-delay do, or a visit behind many others would keep its place for hours.
        """
        loop = asyncio.get_running_loop()
        left_s = self._stop_clock() if not delay_s else None
        async with self.pace.gap(host, delay_s):
            left_s = self._stop_clock() if left_s is None else left_s
            async with self.pace.turn(self._address, size_get=want is RequestPurpose.SIZE):
                self._budget.reschedule(loop.time() + left_s)
                yield

    def _stop_clock(self) -> float:
        """Stops the time budget; returns what is left of it [s]."""
        now = asyncio.get_running_loop().time()
        left_s = (self._budget.when() or now) - now
        self._budget.reschedule(None)
        return left_s

    async def _follow(self, url: str, want: RequestPurpose) -> tuple[str, CrawlRequest, CrawlReply]:
        """A request with its redirects; each hop is checked first."""
        for _ in range(MAX_REDIRECTS + 1):
            ask, reply = await self._request(url, want, await self._admit(url))
            location = reply.headers.get("location")
            if reply.status not in (301, 302, 303, 307, 308) or location is None:
                return url, ask, reply
            following = normal(url, location)
            if following is None:
                raise RefusedError(CrawlOutcome.PROTOCOL_ERROR, f"{url} redirects to nowhere")
            url = following
        raise RefusedError(CrawlOutcome.TOO_MANY_REDIRECTS, url)

    async def _probe(self, url: str, depth: int) -> None:
        """Finds a file's size: by HEAD, or, if the response has no length, by a GET that is stopped early."""
        if url in self._probed or self._asked >= self.limits.probes or self._fault(url) is not None:
            return
        self._probed.add(url)
        before = self._spent()
        try:
            final, ask, reply = await self._follow(url, RequestPurpose.HEAD)
            if reply.status in (200, 204) and (ask.length or ask.encoded):
                self._weigh(final, ask, depth)
            elif reply.status in GET_ONLY:
                final, ask, reply = await self._follow(final, RequestPurpose.SIZE)
                if reply.status == 200:
                    self._weigh(final, ask, depth)
        except RefusedError as error:
            if self._ends(error):
                raise
            self._trouble[error.cause] += 1
        finally:
            self._asked += self._spent() != before

    def _weigh(self, url: str, ask: CrawlRequest, depth: int) -> None:
        """Takes a file as the result if it is the largest so far, and within bounds."""
        if ask.encoded:
            self._trouble["encoded body"] += 1
            return
        size = ask.length if ask.length is not None else ask.received
        lower_bound = ask.length is None and ask.received >= self.limits.min_size
        if size < self.limits.min_size or size > self.limits.max_size:
            self._trouble["too small" if size < self.limits.min_size else "too large"] += 1
            return
        if self._best is None or size > self._best.size:
            self._best = LargeFile(url=url, size=size, lower_bound=lower_bound, depth=depth)
