"""Compressed files as a stream of plain chunks: gz, bz2, zst or none, told by their first bytes, never by their names.

The decompressors of the standard library are fed by hand because `bz2.open` and `gzip.open` throw away what they had
already inflated when a file is cut short (EOFError), and `zstandard`'s reader ends a cut file as if it were whole.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from upshift.errors import UsageError

PIECE_BYTES = 32_768
"""Compressed bytes fed at a time. Small, so that a file made to explode inflates by pieces, not at once."""

PLAIN_PIECE_BYTES = 1 << 20

_BZ2_BLOCK = bytes.fromhex("314159265359")
_BZ2_END = bytes.fromhex("177245385090")


class _Inflater(Protocol):
    """What zlib, bz2 and zstandard offer alike."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _zstd_inflater() -> Any:
    import zstandard  # here, as it comes with the extra `crawl` and most RIBs are gz or bz2

    return zstandard.ZstdDecompressor().decompressobj()


def _inflater_for(head: bytes) -> tuple[Callable[[], _Inflater], bytes] | None:
    """How to make an inflater for a file that begins so, and the magic of a further member; None for a plain file.

    `BZh` alone does not tell: as an MRT timestamp it is a few minutes of 2005-04-11, so the block magic is asked too.
    """
    if head[:2] == b"\x1f\x8b":
        return (lambda: zlib.decompressobj(wbits=31)), b"\x1f\x8b"
    if head[:3] == b"BZh" and head[4:10] in (_BZ2_BLOCK, _BZ2_END):
        return bz2.BZ2Decompressor, b"BZh"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return _zstd_inflater, b"\x28\xb5\x2f\xfd"
    return None


class Inflated:
    """A file as plain chunks.

    Attributes:
        path: the file.
        size_bytes: its size on disk, 0 where that is unknown (a pipe).
        read_bytes: how much of it has been read so far.
        cut: True when the compressed stream ended before its end mark.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        self.cut = False
        try:
            self._handle = path.open("rb", buffering=0)
            self.size_bytes = path.stat().st_size
        except OSError as error:
            said = "there is no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
            raise UsageError(said, where=str(path), remedy="check the path") from None

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
                plain = inflater.decompress(piece)
            except Exception as error:  # zlib.error, OSError, EOFError, ZstdError: no common base
                raise UsageError(
                    f"the compressed data is damaged before byte {self.read_bytes} of the file ({error})",
                    where=str(self.path),
                    remedy="fetch the file again",
                ) from None
            if plain:
                yield plain
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
