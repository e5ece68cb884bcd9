"""Runs a filter for system calls as the kernel would, so that the one of another machine can be
tested: classic BPF, with the instructions that such filters have."""

from __future__ import annotations

import struct
from collections.abc import Sequence

ALLOW, ERROR = 0x7FFF0000, 0x50000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _EQUAL, _AT_LEAST, _ANY_BIT = 0x05, 0x15, 0x35, 0x45


def errno_of(program: bytes, arch: int, number: int, arguments: Sequence[int] = ()) -> int:
    """The error of this call; 0 if it is allowed."""
    words = [word & (2**64 - 1) for word in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *words)
    action = _run([*struct.iter_unpack("<HBBI", program)], data)
    assert action == ALLOW or action & ~0xFFFF == ERROR, hex(action)
    return 0 if action == ALLOW else action & 0xFFFF


def _run(lines: Sequence[tuple[int, int, int, int]], data: bytes) -> int:
    value = at = 0
    while True:
        code, if_true, if_false, operand = lines[at]
        at += 1
        if code == _LOAD:
            (value,) = struct.unpack_from("<I", data, operand)
        elif code == _AND:
            value &= operand
        elif code == _RETURN:
            return operand
        elif code == _JUMP:
            at += operand
        else:
            tests = {_EQUAL: value == operand, _AT_LEAST: value >= operand}
            tests[_ANY_BIT] = bool(value & operand)
            at += if_true if tests[code] else if_false
