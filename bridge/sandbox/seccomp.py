"""The filter for system calls of confined programs (bridge/sandbox/confine.py), for seccomp(2).

It refuses system calls that no coding tool needs, typing into terminals, kinds of sockets that
Landlock's rules for ports do not cover, TCP connections that are made while data is sent, processes
that begin in another control group, modes with a set-user-id or set-group-id bit, and, unless they
are allowed, UNIX sockets that could be connected to a service of the machine.

Nothing but the standard library: the programs that use it run without anything else.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from functools import cache

Line = tuple[int, int, int, int]
_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_EPERM, _ENOSYS, _NO_FAMILY, _NO_PROTOCOL, _NOT_SUPPORTED = 1, 38, 97, 93, 95
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_TYPE = 0xF  # of a socket, without its flags
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: only then open() has a mode

_FAST_OPEN = 0x20000000  # MSG_FASTOPEN: a connection outside of the rules for connect()

# Per machine: AUDIT_ARCH, socket(), socketpair(), ioctl(), open(), openat(), and by number the
# calls with a mode, with the place of that argument: chmod, fchmod, fchmodat, fchmodat2, creat,
# mknod, mknodat, mkdir, mkdirat; the same for the flags of sendto, sendmsg, sendmmsg. No coding
# tool needs the last ones: keyrings, BPF, perf, userfaultfd, io_uring (a filter does not see its
# sockets), files by handle, modules, another kernel.
_MACHINES: dict[
    str, tuple[int, int, int, int, int | None, int, dict[int, int], dict[int, int], tuple[int, ...]]
] = {
    "x86_64": (
        *(0xC000003E, 41, 53, 16, 2, 257),
        {90: 1, 91: 1, 268: 2, 452: 2, 85: 1, 133: 1, 259: 2, 83: 1, 258: 2},
        {44: 3, 46: 2, 307: 3},
        (248, 249, 250, 321, 298, 323, 425, 304, 175, 313, 176, 246, 320),
    ),
    "aarch64": (
        *(0xC00000B7, 198, 199, 29, None, 56),
        {52: 1, 53: 2, 452: 2, 33: 2, 34: 2},
        {206: 3, 211: 2, 269: 3},
        (217, 218, 219, 280, 241, 282, 425, 265, 105, 273, 106, 104, 294),
    ),
}
_OPENAT2, _CLONE3 = 437, 435  # the same on all machines


def known(machine: str) -> bool:
    return machine in _MACHINES


@cache
def program(unix: bool = True) -> bytes:
    """The filter for this machine, as an array of struct sock_filter. `unix`: UNIX sockets may be
    made; without it, only connected pairs of them."""
    arch, socket, pair, ioctl, open_, openat, modes, sends, denied = _MACHINES[os.uname().machine]
    code = [
        *(_load(4), *_unless(_EQUAL, arch, _ENOSYS)),  # 32-bit programs
        *(_load(0), *_if(_ABOVE, 0x40000000, _ENOSYS)),  # the x32 kind of x86_64
        # Its mode is behind a pointer, which a filter cannot read: programs use openat() instead.
        *_if(_EQUAL, _OPENAT2, _ENOSYS),
        # So are its flags, of which CLONE_INTO_CGROUP leads out of the agent's control group: the
        # kernel asks only for the file's mode then, not Landlock. Programs use clone() instead.
        *_if(_EQUAL, _CLONE3, _ENOSYS),
    ]
    for number in denied:
        code += _if(_EQUAL, number, _EPERM)
    for number, place in modes.items():
        code += _of(number, _without(_SET_ID, place, _EPERM))
    for number, place in sends.items():
        code += _of(number, _without(_FAST_OPEN, place, _NOT_SUPPORTED))
    code += _of(openat, _open(2))
    if open_ is not None:
        code += _of(open_, _open(1))
    code += _of(ioctl, _ioctl())
    code += _of(socket, _socket(unix))
    if not unix:
        code += _of(pair, _pair())
    code.append(_end(_ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in code)


# --- arguments of system calls -------------------------------------------------------------------


def _without(bits: int, place: int, error: int) -> list[Line]:
    return [_argument(place), *_if(_ANY_BIT, bits, error), _end(_ALLOW)]


def _open(flags: int) -> list[Line]:
    mode = _without(_SET_ID, flags + 1, _EPERM)
    return [_argument(flags), *_unless(_ANY_BIT, _CREATES, _ALLOW), *mode]


def _ioctl() -> list[Line]:
    code = [_argument(1)]
    for request in (_TIOCSTI, _TIOCLINUX):
        code += _if(_EQUAL, request, _EPERM)
    return [*code, _end(_ALLOW)]


def _socket(unix: bool) -> list[Line]:
    """NETLINK lists the network's interfaces. Multipath TCP, SCTP and the like would pass by the
    ports of Landlock."""
    code = [
        _argument(0),
        *_if(_EQUAL, _UNIX, _ALLOW if unix else _NO_FAMILY),
        *_if(_EQUAL, _NETLINK, _ALLOW),
        (_EQUAL, 2, 0, _INET),
        *_unless(_EQUAL, _INET6, _NO_FAMILY),
        _argument(1),
        (_MASK, 0, 0, _TYPE),
        (_EQUAL, 2, 0, _STREAM),
        *_unless(_EQUAL, _DGRAM, _EPERM),
        _argument(2),
    ]
    for protocol in (0, 6, 17, 1, 58):  # any, TCP, UDP, ICMP and its 6
        code += _if(_EQUAL, protocol, _ALLOW)
    return [*code, _end(_NO_PROTOCOL)]


def _pair() -> list[Line]:
    """Datagrams of a pair can be sent to any other socket by its path."""
    return [
        *(_argument(1), (_MASK, 0, 0, _TYPE)),
        *_if(_EQUAL, _STREAM, _ALLOW),
        *_if(_EQUAL, _SEQPACKET, _ALLOW),
        _end(_NO_FAMILY),
    ]


# --- lines of it ---------------------------------------------------------------------------------


def _load(offset: int) -> Line:
    return (_LOAD, 0, 0, offset)


def _argument(number: int) -> Line:
    return _load(16 + 8 * number)  # its lower half


def _end(action: int) -> Line:
    """`action`: _ALLOW, or the number of an error."""
    return (_RETURN, 0, 0, action if action == _ALLOW else 0x50000 | action)


def _if(jump: int, value: int, action: int) -> list[Line]:
    """`action` where the comparison holds, else go on."""
    return [(jump, 0, 1, value), _end(action)]


def _unless(jump: int, value: int, action: int) -> list[Line]:
    return [(jump, 1, 0, value), _end(action)]


def _of(number: int, code: Sequence[Line]) -> list[Line]:
    """For the system call `number`; `code` comes to an end."""
    return [(_EQUAL, 0, len(code), number), *code]
