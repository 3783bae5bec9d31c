"""Headless Chromium in a network namespace without a route, driven by the DevTools protocol over a pipe.

`--remote-debugging-pipe`: JSON messages that end with a NUL byte, from file descriptor 3 and to 4. It needs neither a
port nor another package. https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_READ_BYTES = 1 << 16


def program() -> str:
    """The installed Chromium; skips the test where there is none."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed (apt-get install chromium; Ubuntu has it only as a snap)")
    return found


@dataclass
class Visit:
    """An open page, and what happened in it."""

    browser: Browser
    session: str
    requests: list[str] = field(default_factory=list)
    """URLs of all requests, that of the page first."""
    complaints: list[str] = field(default_factory=list)
    """Exceptions, console messages, entries of the browser's log (violations of the content security policy)."""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the DevTools protocol, for this page."""
        return self.browser.call(method, session=self.session, **params)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def look(self, width: int, *, dark: bool = False, media: str = "screen") -> None:
        """Emulates a window of this width, a colour scheme, and `screen` or `print`."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """A PNG of the page's first `height` pixels (None: all of it), as wide as the window."""
        width = self.run("document.documentElement.clientWidth")
        height = height or self.run("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        done = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(done["data"]))

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Keeps an event."""
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(a.get("value", a)) for a in params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])


class Browser:
    """One Chromium without a network."""

    def __init__(self, profile: Path, *, deadline_s: float = 60.0) -> None:
        chromium = program()
        self._deadline_s = deadline_s
        self._number = 0
        self._waiting = b""
        self._visits: dict[str, Visit] = {}
        self._loaded: set[str] = set()
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self._in, self._out = ours_in, ours_out
        apart = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
        command = [*apart, "--", chromium, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    @contextmanager
    def visit(self, page: Path) -> Iterator[Visit]:
        """Opens a file and waits until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        visit = self._visits[session] = Visit(browser=self, session=session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            visit.call(f"{domain}.enable")
        visit.call("Page.setLifecycleEventsEnabled", enabled=True)
        loader = visit.call("Page.navigate", url=page.resolve().as_uri())["loaderId"]
        until = time.monotonic() + self._deadline_s
        while loader not in self._loaded:
            self._take(until)
        yield visit
        self.call("Target.closeTarget", targetId=target)

    def call(self, method: str, *, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self._deadline_s
        while True:
            answer = self._take(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def _take(self, until: float) -> dict[str, Any]:
        """The next message; events are kept with their page."""
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, _READ_BYTES) if ready else b""
            if not data:
                raise AssertionError("chromium ended" if ready else f"chromium did not answer in {self._deadline_s} s")
            self._waiting += data
        text, _, self._waiting = self._waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        visit = self._visits.get(message.get("sessionId", ""))
        if visit is not None and "method" in message:
            visit.note(message["method"], message["params"])
            if (message["method"], message["params"].get("name")) == ("Page.lifecycleEvent", "load"):
                self._loaded.add(message["params"]["loaderId"])
        return message
