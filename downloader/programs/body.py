"""The hash of a body, computed without slowing the download: after it, or in a second thread."""

from __future__ import annotations

import hashlib
import queue
import threading

BLOCK_BYTES = 1 << 20
"""What is hashed at a time. `hashlib` releases the interpreter lock while it hashes, so that the downloading thread
waits for it only between blocks."""

KEPT_BLOCKS = 64
"""A body of fewer bytes (64 MiB) is kept and hashed after the download; a longer one by a second thread meanwhile."""

QUEUED_BLOCKS = 16
"""Blocks that are free when the second thread starts. With the kept ones, this bounds the memory."""

_MOST_BLOCKS = KEPT_BLOCKS + QUEUED_BLOCKS


class Body:
    """Takes a body in as it arrives; its SHA-256 afterwards. rust/clientkit/src/body.rs does the same."""

    def __init__(self, most_bytes: int | None, expected_bytes: int | None = None) -> None:
        """`most_bytes`: what the body may have at most. `expected_bytes`: what it should have, if that is known.

        So much memory is written once, so that the kernel provides it now: before the clock starts. A page fault for
        every 4 KiB of the body costs as much as hashing it. A longer body takes more as it arrives.
        """
        known = [size // BLOCK_BYTES + 1 for size in (most_bytes, expected_bytes) if size is not None]
        blocks = min([*known, _MOST_BLOCKS])
        self._spare = _MOST_BLOCKS - blocks
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        for _ in range(blocks):
            self._free.put(_new_block())
        self._block, self._used, self._filled = self._free.get(), 0, 0
        self._digest = hashlib.sha256()
        self._thread: threading.Thread | None = None

    def add(self, data: bytes) -> None:
        """Takes in bytes. Waits where the second thread is far behind."""
        while (end := self._used + len(data)) > BLOCK_BYTES:
            room = BLOCK_BYTES - self._used
            self._block[self._used :] = data[:room]
            data = data[room:]
            self._next_block()
        self._block[self._used : end] = data
        self._used = end

    def sha256(self) -> str:
        """The hash, in hexadecimal. Call it once, after all measuring."""
        self._full.put(None)
        if self._thread is None:
            self._work()
        else:
            self._thread.join()
        self._digest.update(self._block[: self._used])
        return self._digest.hexdigest()

    def _next_block(self) -> None:
        self._full.put(self._block)
        self._filled += 1
        if self._filled == KEPT_BLOCKS:
            self._thread = threading.Thread(target=self._work, name="hash", daemon=True)
            self._thread.start()
        if self._spare and self._free.empty():
            self._spare -= 1
            self._free.put(_new_block())
        self._block, self._used = self._free.get(), 0

    def _work(self) -> None:
        while (block := self._full.get()) is not None:
            self._digest.update(block)
            self._free.put(block)


def _new_block() -> memoryview:
    return memoryview(bytearray(b"\1") * BLOCK_BYTES)
