"""Compressed files as a stream of plain chunks: gz, bz2, zst or none, detected by their first bytes, not by name.

The decompressors of the standard library are used directly because `bz2.open` and `gzip.open` discard the data that
they have decompressed if a file is truncated (EOFError), and `zstandard`'s reader ends as if the file were complete.
"""

from __future__ import annotations

import abc
import bz2
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from core.errors import UsageError, unreadable

PIECE_BYTES = 32_768
"""Compressed bytes read at a time."""

PLAIN_PIECE_BYTES = 1 << 20
"""Plain bytes at a time: bounds the memory for a decompression bomb."""

_ZSTD_PIECE_BYTES = 512
"""Compressed bytes fed at a time: `zstandard` does not limit its output, and four bytes may expand to 128 KiB."""

_BZ2_BLOCK = bytes.fromhex("314159265359")
_BZ2_END = bytes.fromhex("177245385090")


class _Inflater(abc.ABC):
    """One member of a compressed file."""

    _inflater: Any

    @property
    def eof(self) -> bool:
        return bool(self._inflater.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inflater.unused_data)

    @abc.abstractmethod
    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The decompressed form of these bytes, in pieces."""


class _Zlib(_Inflater):
    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(wbits=31)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        # After the end, `unconsumed_tail` may repeat `unused_data`.
        while not self._inflater.eof and (plain := self._inflater.decompress(data, PLAIN_PIECE_BYTES)):
            yield plain
            data = self._inflater.unconsumed_tail


class _Bz2(_Inflater):
    def __init__(self) -> None:
        self._inflater = bz2.BZ2Decompressor()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield self._inflater.decompress(data, PLAIN_PIECE_BYTES)
        while not self._inflater.eof and not self._inflater.needs_input:
            yield self._inflater.decompress(b"", PLAIN_PIECE_BYTES)


class _Zstd(_Inflater):
    def __init__(self) -> None:
        self._inflater = zstandard.ZstdDecompressor().decompressobj()
        self._rest = b""

    @property
    def unused_data(self) -> bytes:
        return self._rest

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_PIECE_BYTES):
            yield self._inflater.decompress(data[start : start + _ZSTD_PIECE_BYTES])
            if self._inflater.eof:
                self._rest = self._inflater.unused_data + data[start + _ZSTD_PIECE_BYTES :]
                return


def _inflater_for(head: bytes) -> tuple[Callable[[], _Inflater], bytes] | None:
    """A function that makes an inflater for a file with this beginning, and the magic of a further member; or None.

    `BZh` alone is not enough: it is also an MRT timestamp of 2005-04-11, so the block magic is checked as well.
    """
    if head[:2] == b"\x1f\x8b":
        return _Zlib, b"\x1f\x8b"
    if head[:3] == b"BZh" and head[4:10] in (_BZ2_BLOCK, _BZ2_END):
        return _Bz2, b"BZh"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return _Zstd, b"\x28\xb5\x2f\xfd"
    return None


class Inflated:
    """A file as plain chunks.

    Attributes:
        path: the file.
        size_bytes: its size on disk, 0 if unknown (a pipe).
        read_bytes: how much of it has been read so far.
        cut: whether the compressed stream ended before its end mark.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        self.cut = False
        try:
            status = path.stat()
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                raise UsageError("this is a device, not a file", where=str(path), remedy="check the path")
            self._handle = path.open("rb", buffering=0)
            self.size_bytes = status.st_size
        except OSError as error:
            raise UsageError(unreadable(error), where=str(path), remedy="check the path") from None

    def __iter__(self) -> Iterator[bytes]:
        with self._handle:
            head = self._read(PIECE_BYTES)
            kind = _inflater_for(head)
            if kind is not None:
                yield from self._inflate(head, *kind)
                return
            while head:
                yield head
                head = self._read(PLAIN_PIECE_BYTES)

    def _read(self, count: int) -> bytes:
        data = self._handle.read(count) or b""
        self.read_bytes += len(data)
        return data

    def _inflate(self, piece: bytes, make: Callable[[], _Inflater], magic: bytes) -> Iterator[bytes]:
        """Members one after the other (parallel compressors write many); padding after the last one is ignored."""
        inflater = make()
        while piece:
            try:
                yield from filter(None, inflater.pieces(piece))
            except Exception as error:  # zlib.error, OSError, EOFError, ZstdError: no common base
                raise UsageError(
                    f"the compressed data is damaged before byte {self.read_bytes} of the file ({error})",
                    where=str(self.path),
                    remedy="fetch the file again",
                ) from None
            if not inflater.eof:
                piece = self._read(PIECE_BYTES)
                continue
            piece = inflater.unused_data or self._read(PIECE_BYTES)
            if len(piece) < len(magic):
                piece += self._read(PIECE_BYTES)
            if not piece.startswith(magic):
                self.cut = bool(piece) and magic.startswith(piece)
                return
            inflater = make()
        self.cut = not inflater.eof
