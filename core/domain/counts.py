"""How far a plan is: one set of counts for journals, progress, status and summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.domain.download import Download
from core.domain.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How far a plan is: downloads, unless a name says runs."""

    planned: int = 0
    ok: int = 0
    failed: int = 0
    censored: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    """Cause of failure or censoring -> downloads, most frequent first."""
    void_runs: int = 0
    """Attempts of measurement runs that were disturbed."""
    interrupted_runs: int = 0
    """Attempts of measurement runs that were interrupted."""

    @property
    def recorded(self) -> int:
        return self.ok + self.failed + self.censored

    def with_run(self, downloads: Sequence[Download], *, void: bool) -> Counts:
        """The counts with a measurement run that is recorded, void if its last attempt was disturbed, too."""
        outcomes = Counter(download.outcome for download in downloads)
        causes = Counter(download.failure for download in downloads if download.failure is not None)
        run = Counts(
            ok=outcomes[Outcome.OK],
            failed=outcomes[Outcome.FAILED],
            censored=outcomes[Outcome.CENSORED],
            causes={str(cause): count for cause, count in causes.items()},
            void_runs=int(void),
        )
        return replace(total([self, run]), planned=self.planned)


def total(parts: Iterable[Counts]) -> Counts:
    """The sum of several counts."""
    added = list(parts)
    causes = sum((Counter(part.causes) for part in added), Counter[str]())
    return Counts(
        planned=sum(part.planned for part in added),
        ok=sum(part.ok for part in added),
        failed=sum(part.failed for part in added),
        censored=sum(part.censored for part in added),
        causes=dict(causes.most_common()),
        void_runs=sum(part.void_runs for part in added),
        interrupted_runs=sum(part.interrupted_runs for part in added),
    )
