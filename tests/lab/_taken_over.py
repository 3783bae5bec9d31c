"""Plays a program that a server has taken over: makes a running process do system calls of our choice, by ptrace(2)."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import time
from types import TracebackType

KNOWN = platform.machine() == "x86_64"
OPEN, CONNECT, SOCKET, FORK, EXECVE, KILL, PTRACE, MMAP, BIND, UNSHARE = 2, 42, 41, 57, 59, 62, 101, 9, 49, 272
"""Numbers of x86_64."""

_SYSTEM_CALL = 0x050F
_CONT = 7
_PEEK, _POKE, _STEP, _GET, _SET, _KILL, _SEIZE, _INTERRUPT = 2, 5, 9, 12, 13, 8, 0x4206, 0x4207
_ALL = 0x40000000  # __WALL
_REGISTERS = 27
_RAX, _RCX, _RDX, _RSI, _RDI, _ORIG_RAX, _RIP, _RSP = 10, 11, 12, 13, 14, 15, 16, 19
_R10, _R8, _R9 = 7, 9, 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def _ptrace(request: int, pid: int, at: int = 0, data: object = 0) -> int:
    ctypes.set_errno(0)
    found: int = _libc.ptrace(request, pid, at, data)
    if number := ctypes.get_errno():
        raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")
    return found


class TakenOver:
    """A process that waits in a system call. It ends with the block: it cannot go on after what was done to it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> TakenOver:
        _ptrace(_SEIZE, self.pid)
        self._registers = (ctypes.c_ulong * _REGISTERS)()
        for _ in range(100):
            _ptrace(_INTERRUPT, self.pid)
            os.waitpid(self.pid, _ALL)
            _ptrace(_GET, self.pid, 0, ctypes.byref(self._registers))
            self._call = self._registers[_RIP] - 2
            if _ptrace(_PEEK, self.pid, self._call) & 0xFFFF == _SYSTEM_CALL:
                return self
            _ptrace(_CONT, self.pid)  # between its first packet and its wait
            time.sleep(0.05)
        raise AssertionError(f"process {self.pid} waits in no system call")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def call(self, number: int, *arguments: int | bytes) -> int:
        """Makes it do a system call: its result, a negative errno where it was refused."""
        registers = (ctypes.c_ulong * _REGISTERS)(*self._registers)
        free = (self._registers[_RSP] - 4096) & ~0xF
        values = []
        for argument in arguments:
            if isinstance(argument, bytes):
                data = argument + bytes(8 - len(argument) % 8)
                for offset in range(0, len(data), 8):
                    (word,) = struct.unpack_from("=q", data, offset)
                    _ptrace(_POKE, self.pid, free + offset, word)
                values.append(free)
                free += len(data)
            else:
                values.append(argument & (1 << 64) - 1)
        for register, value in zip((_RDI, _RSI, _RDX, _R10, _R8, _R9), values, strict=False):
            registers[register] = value
        registers[_RIP], registers[_RAX], registers[_ORIG_RAX] = self._call, number, (1 << 64) - 1
        _ptrace(_SET, self.pid, 0, ctypes.byref(registers))
        _ptrace(_STEP, self.pid)
        _, status = os.waitpid(self.pid, _ALL)
        assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTRAP, f"it ended or stopped: {status:#x}"
        _ptrace(_GET, self.pid, 0, ctypes.byref(registers))
        return ctypes.c_long(registers[_RAX]).value
