"""The hash of a body, computed without slowing the download: after it, or in a second thread."""

from __future__ import annotations

import hashlib
import queue
import threading

KEPT_BYTES = 64 << 20
"""A body up to this size is kept and hashed after the download; a longer one by a second thread meanwhile."""

BLOCK_BYTES = 1 << 20
"""Block size of the second thread. `hashlib` releases the interpreter lock while it hashes, so that the downloading
thread waits for it only between blocks."""

QUEUED_BLOCKS = 16
"""Most blocks queued for the second thread. With the kept ones, this bounds the memory."""

_Block = list[bytes]


class Body:
    """Takes a body in as it arrives; its SHA-256 afterwards. rust/clientkit/src/body.rs does the same."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._block: _Block = []
        self._block_bytes = 0
        self._kept: list[_Block] = []
        self._kept_bytes = 0
        self._queue: queue.Queue[_Block | None] = queue.Queue(QUEUED_BLOCKS)
        self._thread: threading.Thread | None = None

    def add(self, data: bytes) -> None:
        """Takes in bytes. Waits if the second thread is far behind."""
        self._block.append(data)
        self._block_bytes += len(data)
        if self._block_bytes >= BLOCK_BYTES:
            self._put(self._block)
            self._block, self._block_bytes = [], 0

    def sha256(self) -> str:
        """The hash, in hexadecimal. Call it once, after the timing has ended."""
        if self._thread is None:
            self._hash_kept()
        else:
            self._queue.put(None)
            self._thread.join()
        self._hash(self._block)
        return self._digest.hexdigest()

    def _put(self, block: _Block) -> None:
        if self._thread is not None:
            return self._queue.put(block)
        self._kept.append(block)
        self._kept_bytes += self._block_bytes
        if self._kept_bytes >= KEPT_BYTES:
            self._thread = threading.Thread(target=self._work, name="hash", daemon=True)
            self._thread.start()
        return None

    def _work(self) -> None:
        self._hash_kept()
        while (block := self._queue.get()) is not None:
            self._hash(block)

    def _hash_kept(self) -> None:
        self._kept.reverse()
        while self._kept:
            self._hash(self._kept.pop())  # its memory is free again before the next one is hashed

    def _hash(self, block: _Block) -> None:
        # Joined, as hashlib keeps the interpreter lock for pieces under 2 KiB, as those of QUIC.
        self._digest.update(b"".join(block))
