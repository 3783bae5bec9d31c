"""Freed memory goes back to the system: allocators keep it for later, here for arrays of other sizes."""

from __future__ import annotations

import ctypes


def release() -> None:
    """Gives back what pyarrow and the C library keep; a C library other than glibc decides itself."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
