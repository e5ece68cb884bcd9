"""The filter for system calls of confined programs (bridge/sandbox/confine.py), for seccomp(2).

It refuses

* calls that no coding tool needs, and calls that are newer than the filter,
* calls that change another process of the same user: its limits, its priority, its processors,
  its memory,
* leases, which let every program that opens a file wait,
* System V memory, queues and semaphores, and POSIX queues, unless they are allowed: they belong to
  all programs of the user, and outlive the program that made them,
* namespaces of its own, in which a program has capabilities,
* processes that begin in another control group or as a child of the launcher,
* typing into terminals, modes with a set-user-id or set-group-id bit, attributes of files,
* kinds of sockets that Landlock's rules for ports do not cover, TCP connections that are made while
  data is sent, and, unless they are allowed, UNIX sockets that could be connected to a service of
  the machine.

A filter sees numbers: it cannot know which pids belong to the program. So only pid 0, the caller,
passes. docs/evidence/system-calls.md says for every call of Linux why it reaches no other process.

Nothing but the standard library: the programs that use it run without anything else.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product

from bridge.sandbox.system_calls import LAST, MACHINES, NUMBERS

Line = tuple[int, int, int, int]
Code = Sequence[Line]

# The limit (RLIMIT_LOCKS, without effect since Linux 2.4.25) that can mark the processes of a
# session: no confined program changes it.
SESSION_MARK = 10

_LOAD, _EQUAL, _ABOVE, _ANY_BIT, _MASK, _RETURN, _JUMP = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06, 0x05
_ALLOW = 0x7FFF0000
_EPERM, _ENOSYS, _NO_FAMILY, _NO_PROTOCOL, _NOT_SUPPORTED = 1, 38, 97, 93, 95
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_TYPE = 0xF  # of a socket, without its flags
_SET_ID = 0o6000
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: only then open() has a mode
_FAST_OPEN = 0x20000000  # MSG_FASTOPEN: a connection outside of the rules for connect()
_PRIO_PROCESS, _IOPRIO_PROCESS = 0, 1  # the meaning of a number: a process, not a group or a user

# clone(): the child is a sibling, which the launcher or the server would have to reap.
_CLONE_PARENT = 0x8000
_CLONE_NEW = 0x7E020000  # all namespaces of clone()
# unshare(): FS, FILES, SYSVSEM, THREAD, SIGHAND, VM. All other flags make namespaces.
_UNSHARE_OWN = 0x200 | 0x400 | 0x40000 | 0x10000 | 0x800 | 0x100

# fcntl(): F_SETLEASE, F_NOTIFY (signals about a folder), F_SETDELEG.
_FCNTL = (1024, 1026, 1040)
# ioctl(): typing into a terminal (TIOCSTI, TIOCLINUX). Attributes of a file that is open for
# reading: FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SET_ENCRYPTION_POLICY, FS_IOC_ENABLE_VERITY
# (read-only for ever). Btrfs: subvolumes in a folder that is open for reading.
_IOCTL = (
    *(0x5412, 0x541C, 0x40086602, 0x401C5820, 0x800C6613, 0x40806685),
    *(0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x5000943F, 0x4008941A),
)

# No coding tool needs these: keyrings, BPF, counters, userfaultfd, io_uring (a filter does not see
# its sockets), files by handle, events of whole file systems, secret memory (it prevents
# hibernation), modules, another kernel, descriptors and attributes of others.
_NEVER = (
    *("add_key", "request_key", "keyctl", "bpf", "perf_event_open", "userfaultfd"),
    *("io_uring_setup", "open_by_handle_at", "fanotify_init", "memfd_secret", "init_module"),
    *("finit_module", "delete_module", "kexec_load", "kexec_file_load", "pidfd_getfd"),
    "file_setattr",
)
# These do not exist inside, so that libraries take another way.
_MISSING = (
    "openat2",  # its mode is behind a pointer, which a filter cannot read
    # So are its flags, of which CLONE_INTO_CGROUP leads out of the agent's control group: the
    # kernel asks only for the file's mode then, not Landlock.
    "clone3",
    "io_setup",  # all programs of the machine share one number of events
)
_SYSTEM_V = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd"),
    *("msgrcv", "msgctl", "mq_open", "mq_unlink"),
)
_WITH_PID = (
    *("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
    *("migrate_pages", "move_pages"),
)
# The place of the mode, and of the flags.
_MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1}
_MODES |= {"mknodat": 2, "mkdir": 1, "mkdirat": 2}
_SENDS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
_OPENS = {"open": 1, "openat": 2}
# program(): Landlock without and with System V, bubblewrap.
_KINDS = ((False, False), (True, False), (True, True))


def known(machine: str) -> bool:
    return machine in MACHINES


@cache
def program(
    unix: bool = True,
    system_v: bool = False,
    namespaces: bool = False,
    machine: str = os.uname().machine,
) -> bytes:
    """The filter for a machine, as an array of struct sock_filter. `unix`: UNIX sockets may be
    made; without it, only connected pairs of them. `system_v`: so may System V memory, queues and
    semaphores, and POSIX queues. `namespaces`: so may namespaces."""
    rules: dict[str, Code] = {
        **dict.fromkeys(_NEVER, _refused(_EPERM)),
        **dict.fromkeys(_MISSING, _refused(_ENOSYS)),
        **dict.fromkeys(_WITH_PID, _self(0)),
        **{name: _without(_SET_ID, place, _EPERM) for name, place in _MODES.items()},
        **{name: _without(_FAST_OPEN, place, _NOT_SUPPORTED) for name, place in _SENDS.items()},
        **{name: _open(place) for name, place in _OPENS.items()},
        "setpriority": [_argument(0), *_unless(_EQUAL, _PRIO_PROCESS, _EPERM), *_self(1)],
        "ioprio_set": [_argument(0), *_unless(_EQUAL, _IOPRIO_PROCESS, _EPERM), *_self(1)],
        "prlimit64": _limits(),
        "setrlimit": _keep_mark(0),
        "fcntl": _commands(_FCNTL),
        "ioctl": _commands(_IOCTL),
        "clone": _without(_CLONE_PARENT, 0, _EPERM),
        "socket": _socket(unix),
    }
    if not unix:
        rules["socketpair"] = _pair()
    if not system_v:
        rules |= dict.fromkeys(_SYSTEM_V, _refused(_ENOSYS))
    if not namespaces:
        rules |= _namespaces()
    return _assembled(rules, machine)


@cache
def inside(machine: str = os.uname().machine) -> bytes:
    """The filter for the program that bubblewrap starts, on top of that of bubblewrap: it makes no
    namespaces."""
    return _assembled(_namespaces(), machine)


def prepare() -> None:
    """Fill the caches of program() for all profiles of confine.py."""
    for unix, (system_v, namespaces) in product((False, True), _KINDS):
        program(unix, system_v, namespaces)


def _assembled(rules: Mapping[str, Code], machine: str) -> bytes:
    column = list(MACHINES).index(machine)
    calls = {NUMBERS[name][column]: code for name, code in rules.items()}
    code = [
        *(_load(4), *_unless(_EQUAL, MACHINES[machine], _ENOSYS)),  # 32-bit programs
        *(_load(0), *_if(_ABOVE, LAST + 1, _ENOSYS)),  # the x32 kind of x86_64, too
        *_switch({number: code for number, code in calls.items() if number is not None}),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in code)


# --- arguments of system calls -------------------------------------------------------------------


def _refused(error: int) -> Code:
    return [_end(error)]


def _without(bits: int, place: int, error: int) -> Code:
    return [_argument(place), *_if(_ANY_BIT, bits, error), _end(_ALLOW)]


def _open(flags: int) -> Code:
    mode = _without(_SET_ID, flags + 1, _EPERM)
    return [_argument(flags), *_unless(_ANY_BIT, _CREATES, _ALLOW), *mode]


def _self(place: int) -> Code:
    """Only the caller itself: a pid of 0."""
    return [_argument(place), *_unless(_EQUAL, 0, _EPERM), _end(_ALLOW)]


def _limits() -> Code:
    """Those of any process may be read, as in /proc/PID/limits: then the pointer to new ones is
    NULL, in both halves."""
    return [
        *(_argument(2), (_EQUAL, 0, 3, 0)),
        *(_load(16 + 8 * 2 + 4), *_if(_EQUAL, 0, _ALLOW)),
        *(_argument(0), *_unless(_EQUAL, 0, _EPERM)),
        *_keep_mark(1),
    ]


def _keep_mark(place: int) -> Code:
    return [_argument(place), *_if(_EQUAL, SESSION_MARK, _EPERM), _end(_ALLOW)]


def _commands(refused: Sequence[int]) -> Code:
    return [_argument(1), *_switch(dict.fromkeys(refused, _refused(_EPERM)))]


def _namespaces() -> dict[str, Code]:
    return {
        "clone": _without(_CLONE_PARENT | _CLONE_NEW, 0, _EPERM),
        "unshare": _without(0xFFFFFFFF & ~_UNSHARE_OWN, 0, _EPERM),
        "setns": _refused(_EPERM),
    }


def _socket(unix: bool) -> Code:
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


def _pair() -> Code:
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


def _switch(cases: Mapping[int, Code]) -> list[Line]:
    """The code of the loaded value, which comes to an end, by a binary search; other values are
    allowed."""
    values = sorted(cases)
    if len(values) == 1:
        code = cases[values[0]]
        return [(_EQUAL, 0, len(code), values[0]), *code, _end(_ALLOW)]
    middle = len(values) // 2
    below = _switch({one: cases[one] for one in values[:middle]})
    above = _switch({one: cases[one] for one in values[middle:]})
    return [(_ABOVE, 0, 1, values[middle]), (_JUMP, 0, 0, len(below)), *below, *above]
