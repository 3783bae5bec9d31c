"""Runs a client's program as the downloader does: Python ones in a warm interpreter, binaries directly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import pytest

from downloader.client import Client, ClientResult, DownloadRequest, with_setup


def require(client: Client) -> tuple[str, ...]:
    """How to start the client's program. Skips where it is missing; in CI nothing may be."""
    if (fault := client.missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(fault)
    return client.command()


def is_here(client: Client) -> bool:
    """Whether the client's program is there. In CI nothing may be missing: the test fails."""
    if (fault := client.missing()) is not None and os.environ.get("CI"):
        pytest.fail(fault)
    return fault is None


class Programs:
    """One interpreter per Python client, kept for all calls; several may be called at once. A context manager."""

    def __init__(self) -> None:
        self._warm: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for warm in self._warm.values():
            warm.communicate()

    def call(self, client: Client, request: DownloadRequest) -> ClientResult:
        """One download."""
        called_at = time.time()
        done = self.run(client, client.arguments(request))
        assert done.returncode == 0 and (client.is_python or not done.stderr), done.stderr
        return with_setup(client.result(done.stdout), called_at=called_at)

    def run(self, client: Client, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """The client's program with any arguments."""
        command = [*require(client), *arguments]
        if not client.is_python:
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if client.name not in self._warm:
            self._warm[client.name] = self._start(client.program)
        answer = self._ask(self._warm[client.name], [*client.variant, *arguments])
        return subprocess.CompletedProcess(command, answer["returncode"], answer["stdout"], answer["stderr"])

    def _start(self, program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "downloader.programs.warm", program]
        warm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert warm.stdout is not None and json.loads(warm.stdout.readline()) == {"ready": True}
        return warm

    def _ask(self, warm: subprocess.Popen[str], argv: list[str]) -> dict[str, Any]:
        assert warm.stdin is not None and warm.stdout is not None
        warm.stdin.write(json.dumps({"argv": argv, "limit_s": 60.0}) + "\n")
        warm.stdin.flush()
        found: dict[str, Any] = json.loads(warm.stdout.readline())
        return found
