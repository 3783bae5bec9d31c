from os import PathLike
from typing import Any, final

__all__ = [
    "FIELDS",
    "MOST_CONNECTIONS",
    "SOURCE",
    "CaptureError",
    "ConnectionReader",
    "PacketReader",
    "__version__",
    "write_packets",
]

__version__: str
FIELDS: dict[str, list[tuple[str, str, str]]]
MOST_CONNECTIONS: int
SOURCE: str

class CaptureError(Exception): ...

@final
class ConnectionReader:
    def __new__(cls, path: str | PathLike[str], *, series: bool = False, rules: str = "4.0") -> ConnectionReader: ...
    def next_batch(self) -> list[dict[str, Any]] | None: ...
    @property
    def packets(self) -> int: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def skipped(self) -> dict[str, int]: ...

@final
class PacketReader:
    def __new__(cls, path: str | PathLike[str], *, rules: str = "4.0") -> PacketReader: ...
    def next_batch(self) -> dict[str, bytes] | None: ...
    def warnings(self) -> list[str]: ...

def write_packets(path: str | PathLike[str], descriptor: int, *, rules: str = "4.0") -> tuple[int, list[str]]: ...
