"""No two vantage points of a process download from one target at the same time."""

from __future__ import annotations

import threading


class Turns:
    """The targets in use, shared by the vantage points of a process."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._busy: set[str] = set()

    def take(self, domain: str) -> bool:
        """Takes a target; False if it is in use."""
        with self._condition:
            free = domain not in self._busy
            self._busy.add(domain)
        return free

    def give_back(self, domain: str) -> None:
        """Ends the use of a target."""
        with self._condition:
            self._busy.discard(domain)
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns when a target is given back, or after that time."""
        with self._condition:
            self._condition.wait(seconds)
