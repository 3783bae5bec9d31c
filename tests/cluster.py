"""A Dask cluster and an S3 server on loopback: processes of their own, so that they can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.ports import free_port

HOST = "127.0.0.1"
BUCKET, PREFIX = "captures", "week/first"

PATIENCE_S = 60.0
"""Longest time for a program to start."""

ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "eu-central-1",
}
"""Credentials that are none, for servers on loopback."""


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HOST, port)):
            return
        assert time.monotonic() < deadline and process.poll() is None, f"{process.args!r} does not start"
        time.sleep(0.05)


@dataclass
class Dask:
    """A scheduler and its workers, without dashboards."""

    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    cpu_s: float = 0.0
    """CPU time of those that have ended [s]."""

    def __post_init__(self) -> None:
        self.scheduler = self._start("scheduler", "--port", str(self.port))
        _wait_for(self.port, self.scheduler)

    @property
    def address(self) -> str:
        """Of the scheduler."""
        return f"tcp://{HOST}:{self.port}"

    def work(self, *, at: Path | None = None) -> subprocess.Popen[bytes]:
        """One more worker, with one thread; it joins when it has started.

        Args:
            at: folder with the packages that it shall have; None for those of this checkout.
        """
        argv = ("worker", self.address, "--no-nanny", "--nthreads", "1", "--local-directory", str(self.folder))
        self.workers.append(self._start(*argv, at=at))
        return self.workers[-1]

    def end(self, process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGKILL) -> None:
        """Ends one of the processes, and waits for that."""
        if process.returncode is None:
            os.kill(process.pid, number)  # Popen's own way would take the exit code, and with it the CPU time
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s += usage.ru_utime + usage.ru_stime

    @property
    def alive(self) -> list[subprocess.Popen[bytes]]:
        """The workers that have not been ended."""
        return [worker for worker in self.workers if worker.returncode is None]

    def end_workers(self) -> None:
        """Ends all workers."""
        for worker in self.alive:
            self.end(worker)

    def close(self) -> None:
        """Ends all."""
        self.end_workers()
        self.end(self.scheduler)

    def _start(self, *argv: str, at: Path | None = None) -> subprocess.Popen[bytes]:
        loopback = ("--host", HOST, "--no-dashboard", "--dashboard-address", f"{HOST}:0")
        environ = {**os.environ, **ACCOUNT, **self.environ, **({"PYTHONPATH": str(at)} if at else {})}
        with (self.folder / "dask.log").open("ab") as log:
            program = [sys.executable, "-m", "dask", *argv, *loopback]
            return subprocess.Popen(program, env=environ, cwd=at or self.folder, stdout=log, stderr=log)


@contextlib.contextmanager
def dask(folder: Path, **environ: str) -> Iterator[Dask]:
    """A scheduler without workers."""
    made = Dask(folder, environ)
    try:
        yield made
    finally:
        made.close()


@dataclass
class S3:
    """moto's server."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which it is found."""
        return {**ACCOUNT, "AWS_ENDPOINT_URL": f"http://{HOST}:{self.port}"}

    @property
    def files(self) -> Any:
        """Its file system, to write."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key="nobody",
            secret_key="nothing",
            region=ACCOUNT["AWS_REGION"],
            endpoint_override=f"{HOST}:{self.port}",
            scheme="http",
            allow_bucket_creation=True,
        )

    def upload(self, folder: Path, *, bucket: str = BUCKET, prefix: str = PREFIX) -> str:
        """All captures of a campaign folder, under their paths in it; returns the URL of them."""
        files = self.files
        files.create_dir(bucket)
        for path in sorted(folder.glob("vantage/*/captures/*")):
            with files.open_output_stream(f"{bucket}/{prefix}/{path.relative_to(folder).as_posix()}") as out:
                out.write(path.read_bytes())
        return f"s3://{bucket}/{prefix}"

    @contextlib.contextmanager
    def denying(self) -> Iterator[None]:
        """Meanwhile nobody has any right (moto's own interface: so many requests are not judged)."""
        url = f"http://{HOST}:{self.port}/moto-api/reset-auth"
        requests.post(url, data=b"0", timeout=10).raise_for_status()
        try:
            yield
        finally:
            requests.post(url, data=b"inf", timeout=10).raise_for_status()


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[S3]:
    """An S3 server without buckets."""
    port = free_port()
    with (folder / "moto.log").open("ab") as log:
        argv = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
        process = subprocess.Popen(argv, env={**os.environ, **ACCOUNT}, cwd=folder, stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        yield S3(port, process)
    finally:
        process.kill()
        process.wait()
