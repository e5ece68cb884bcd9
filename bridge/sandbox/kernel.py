"""System calls of Linux that the standard library has no function for.

Nothing but the standard library: the programs that use this module run without anything else.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_SIGNAL_ACTION = {"x86_64": 13, "aarch64": 134}  # the number of rt_sigaction()


class ConfineError(Exception):
    """Why a process cannot be confined as its rules require, and the remedy."""


def done(what: str, result: int) -> int:
    """The result of a system call. Raises ConfineError if the call failed."""
    if result < 0:
        raise ConfineError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(option: int, value: int, pointer: Any = 0) -> None:
    """prctl(2). Raises ConfineError."""
    zero = ctypes.c_ulong(0)
    done(f"prctl {option}", LIBC.prctl(option, ctypes.c_ulong(value), pointer, zero, zero))


def reset_signal(number: int) -> None:
    """Give a signal that the C library keeps for itself its default action. A program that was
    started by posix_spawn() ignores these signals, as those of Python 3.13 often are."""
    call = _SIGNAL_ACTION.get(os.uname().machine)
    if call:
        action, size = bytes(32), ctypes.c_size_t(8)  # SIG_DFL; the size of its mask
        LIBC.syscall(ctypes.c_long(call), number, action, None, size)


def drop_capabilities(kept: Sequence[int]) -> None:
    """Permanently: without new privileges, even root cannot get them back. Raises ConfineError."""
    mask = sum(1 << number for number in set(kept))
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("Ii", 0x20080522, 0)
    done("capabilities", LIBC.capset(header, struct.pack("6I", low, low, 0, high, high, 0)))


def filter_system_calls(code: bytes) -> None:
    """Enforce a filter of seccomp.program(). Raises ConfineError."""
    lines = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(lines))
    prctl(_SET_SECCOMP, _FILTER, program)
