"""Tells systemd that a service is ready and alive (sd_notify(3), sd_watchdog_enabled(3)). Does nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping


class Notifier:
    """The service manager's socket, if there is one.

    The variables are removed from the environment: programs that we start must not speak for us.

    Attributes:
        watchdog_s: time within which `alive` has to be called, else the service is killed; None: no watchdog.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # abstract, see unix(7)
        every_us, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        meant = self._address and every_us.isdecimal() and whose in ("", str(os.getpid()))
        self.watchdog_s = int(every_us) / 1e6 if meant and int(every_us) else None

    def ready(self) -> None:
        """The service has started."""
        self._send("READY=1")

    def alive(self) -> None:
        """The service works, or waits as it should."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The service begins to end."""
        self._send("STOPPING=1")

    def say(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={' '.join(text.split())}")

    def _send(self, message: str) -> None:
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)  # a manager that does not listen must not hold us up
                sender.sendto(message.encode(), self._address)
