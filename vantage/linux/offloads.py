"""Offload features of network interfaces by ioctl, so that `ethtool` need not be installed.

Sources: linux/ethtool.h (ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS, ETHTOOL_GFEATURES, ETHTOOL_SFEATURES,
ETHTOOL_GDRVINFO), netdevice(7). The names are the kernel's (net/ethtool/common.c, netdev_features_strings), as
`ethtool -k` prints most of them. The interface is looked up in the caller's network namespace.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Mapping

from core.errors import PlaceError

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSSET_INFO, _GFEATURES, _SFEATURES = 0x03, 0x1B, 0x37, 0x3A, 0x3B
_SS_FEATURES = 4
_NAME_BYTES = 32

_MERGING_OR_SPLITTING = ("segmentation", "gro", "gso", "lro", "tx-checksum")


def wire_features(names: Mapping[str, bool]) -> dict[str, bool]:
    """The features, all off, that would make a capture differ from the packets on the wire.

    Segmentation and receive offloads (one super-packet instead of many), and checksums that are filled in later.
    """
    return {name: False for name in names if any(part in name for part in _MERGING_OR_SPLITTING)}


def features(interface: str) -> dict[str, bool]:
    """Feature -> whether it is active. Raises PlaceError if the interface does not exist."""
    names = _names(interface)
    blocks = _read_blocks(interface, len(names))
    return {name: bool(blocks[i // 32][2] >> (i % 32) & 1) for i, name in enumerate(names) if name}


def set_features(interface: str, wanted: Mapping[str, bool]) -> list[str]:
    """Switches features on or off; returns the names of those that the driver keeps as they were.

    Unknown names are ignored: kernels differ.
    """
    names = _names(interface)
    changeable = _read_blocks(interface, len(names))
    blocks = [[0, 0] for _ in changeable]
    for i, name in enumerate(names):
        if name in wanted and changeable[i // 32][0] >> (i % 32) & 1:
            blocks[i // 32][0] |= 1 << (i % 32)
            blocks[i // 32][1] |= int(wanted[name]) << (i % 32)
    flat = [number for block in blocks for number in block]
    _ask(interface, struct.pack(f"=II{len(flat)}I", _SFEATURES, len(blocks), *flat))
    now = features(interface)
    return [name for name, value in wanted.items() if name in now and now[name] != value]


def driver(interface: str) -> dict[str, str]:
    """Driver, its version and the firmware's, as the driver reports them; empty strings where it does not."""
    answer = _ask(interface, struct.pack("=I", _GDRVINFO) + bytes(192))
    texts = [answer[start : start + 32].partition(b"\0")[0].decode(errors="replace") for start in (4, 36, 68)]
    return dict(zip(("driver", "version", "firmware"), texts, strict=True))


def _names(interface: str) -> list[str]:
    info = _ask(interface, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_FEATURES, 0))
    count = struct.unpack_from("=I", info, 16)[0]
    strings = _ask(interface, struct.pack("=III", _GSTRINGS, _SS_FEATURES, count) + bytes(count * _NAME_BYTES))
    return [
        strings[12 + i * _NAME_BYTES : 12 + (i + 1) * _NAME_BYTES].partition(b"\0")[0].decode() for i in range(count)
    ]


def _read_blocks(interface: str, count: int) -> list[tuple[int, int, int, int]]:
    """(changeable, requested, active, never changed) bits, 32 features each."""
    size = (count + 31) // 32
    answer = _ask(interface, struct.pack("=II", _GFEATURES, size) + bytes(size * 16))
    return [struct.unpack_from("=IIII", answer, 8 + i * 16) for i in range(size)]


def _ask(interface: str, request: bytes) -> bytes:
    """One SIOCETHTOOL call: struct ifreq with a pointer to the request, which the kernel overwrites."""
    buffer = array.array("B", request)
    address, _ = buffer.buffer_info()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            fcntl.ioctl(handle, _SIOCETHTOOL, struct.pack("=16sQ16x", interface.encode()[:15], address))
    except OSError as error:
        raise PlaceError(f"the features of the interface {interface} cannot be used ({error.strerror})") from None
    return buffer.tobytes()
