"""Confines itself and then becomes the program that it is given.

    python -I -S confine.py RULES -- PROGRAM [ARGUMENT …]

A program of its own, with nothing but the standard library and sandbox/seccomp.py. RULES is one
JSON object. Only `profile` must be there; what is left out is the value shown here:

    profile   "none": only what the other members ask for; "landlock": the kernel's own rules, no
              privileges needed; "bwrap": namespaces, by bubblewrap; "external": the `wrapper`
    write     []    folders and files that may be changed; one that ends in / is made if missing
    read      null  what may be read and run besides those; null: everything
    hide      []    what may not be read all the same, unless it is below a path in `write`, `show`
    show      []    what may be read and run although it is below a path in `hide`
    same      {}    paths of `write` and `show` that were resolved before: no link may be on the way
                    to one now, and it is the folder with this device and inode, unless null
    connect   null  remote TCP ports; null: all. With "bwrap", []: no network at all
    bind      null  local TCP ports, 0 for any that is free; null: all
    scope     true  no signals and no abstract UNIX sockets to who is outside
    unix      null  UNIX sockets with a path: those below `write` where Landlock knows them (ABI 9),
                    else all; true: all; false: none can be made, but for connected pairs
    limits    {}    by rlimit: "nofile": 1024, "fsize": bytes, "cpu": seconds, "core": 0, …
    uid, gid  null  whom to become; for a server that is root
    capabilities [] numbers of those that root keeps ("landlock" only)
    wrapper   []    the command that comes before PROGRAM ("external" only)

The environment, the working directory and 0-2 are handed on, other descriptors are not; signals
are as they are by default. Under "landlock" and "bwrap" nothing that is run can gain privileges,
and system calls are refused as sandbox/seccomp.py says. What is asked for and cannot be had is a
refusal: exit status 126 and a line on stderr (NOT_STARTED), and PROGRAM has not run.

What the kernel's rules do not cover is in docs/security.md. They are bound to files, not to names:
a file that appears after the start, outside the folders named, is under the rules of its folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from bridge.sandbox import seccomp

Rules = Mapping[str, Any]
REFUSED = 126
NOT_STARTED = "coding-agent-bridge: not started: "
PROFILES = ("none", "landlock", "bwrap", "external")
LEAST_ABI = 3  # of Landlock: before it, truncate() reaches every file

# Rights of Landlock, by bit. Those from 13 on came with ABI 2, 3, 5 and 9.
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL, _CONNECT_UNIX = (
    1,
    2,
    4,
    8,
    1 << 14,
    1 << 15,
    1 << 16,
)
_MAKE_DEVICES = 1 << 6 | 1 << 11
_SINCE = ((1, 13), (2, 14), (3, 15), (5, 16), (9, 17))  # ABI: number of rights
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL | _CONNECT_UNIX
_LOOK = _EXECUTE | _READ | _LIST
_USE = _READ | _WRITE | _TRUNCATE | _IOCTL
_BIND, _CONNECT = 1, 2
_SCOPES = 1 | 2
DEVICES = tuple(f"/dev/{name}" for name in "null zero full random urandom tty ptmx".split())

# Emptied by "bwrap": where sockets of services and files of others are.
_PRIVATE = ("/tmp", "/var/tmp", "/run")  # noqa: S108
_SEEN = ("/run/systemd/resolve", "/run/NetworkManager", "/run/resolvconf")  # for /etc/resolv.conf
_ENDINGS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines


class ConfineError(Exception):
    """Why it cannot be confined as asked, and what to do."""


# --- what may be asked for -----------------------------------------------------------------------


def _each(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _or_null(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


def _number(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value <= most


def _path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and "\0" not in value


def _limits(value: Any) -> bool:
    number = _number(2**63 - 1)
    return isinstance(value, dict) and all(
        isinstance(getattr(resource, f"RLIMIT_{name.upper()}", None), int) and number(most)
        for name, most in value.items()
    )


def _places(value: Any) -> bool:
    known = _or_null(lambda pair: len(pair) == 2 and _each(_number(2**64 - 1))(pair))
    return isinstance(value, dict) and all(_path(one) and known(value[one]) for one in value)


_PORTS = _or_null(_each(_number(65535)))
_ID = _or_null(_number(2**32 - 2))
_SHAPE: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "profile": (None, lambda value: value in PROFILES),
    "write": ([], _each(_path)),
    "read": (None, _or_null(_each(_path))),
    "hide": ([], _each(_path)),
    "show": ([], _each(_path)),
    "same": ({}, _places),
    "connect": (None, _PORTS),
    "bind": (None, _PORTS),
    "scope": (True, lambda value: isinstance(value, bool)),
    "unix": (None, _or_null(lambda value: isinstance(value, bool))),
    "limits": ({}, _limits),
    "uid": (None, _ID),
    "gid": (None, _ID),
    "capabilities": ([], _each(_number(63))),
    "wrapper": ([], _each(lambda value: isinstance(value, str) and "\0" not in value)),
}


def _complete(given: Any) -> dict[str, Any]:
    """The rules with nothing left out. Raises ConfineError if they are no rules."""
    if not isinstance(given, Mapping):
        raise ConfineError("RULES must be a JSON object")
    unknown = sorted(given.keys() - _SHAPE.keys())
    if unknown:
        raise ConfineError(f"RULES: there is no {unknown[0]!r}, only {', '.join(_SHAPE)}")
    rules = {name: given.get(name, default) for name, (default, _) in _SHAPE.items()}
    for name, (_, test) in _SHAPE.items():
        if not test(rules[name]):
            raise ConfineError(f"RULES: {name} cannot be {json.dumps(rules[name], default=str)}")
    written = [os.path.realpath(path) for path in rules["write"]]
    for path in map(os.path.realpath, rules["hide"]):
        above = [one for one in written if _inside(path, one)]
        if above:
            raise ConfineError(
                f"{path} is to be hidden, and {above[0]}, which has it, to be written: take one of "
                "them (such as another workspace)"
            )
    return rules


def checked(given: Any) -> dict[str, Any]:
    """These rules, with nothing left out. Raises ConfineError, which says why they cannot be had on
    this machine, and what to do. Changes nothing, and runs nothing: what only running them shows,
    as where a system forbids bubblewrap its namespaces, `confine.py RULES -- /bin/true` does."""
    rules = _complete(given)
    _check_identity(rules)
    if rules["profile"] in ("landlock", "bwrap"):
        _check_kernel(rules)
    if rules["profile"] == "bwrap" and not _on_path("bwrap"):
        raise ConfineError("bwrap was not found: install bubblewrap, or choose another profile")
    if rules["profile"] == "external" and not rules["wrapper"]:
        raise ConfineError("the profile external needs a wrapper, the command to run it by")
    return rules


def problem(given: Any) -> str | None:
    """What checked() has against them, if it has anything."""
    try:
        checked(given)
    except ConfineError as error:
        return str(error)
    return None


def _check_identity(rules: Rules) -> None:
    root = os.geteuid() == 0
    if not root and (rules["uid"] is not None or rules["gid"] is not None):
        raise ConfineError("only root can become another user: leave out uid and gid")
    if rules["uid"] is not None and rules["gid"] is None:
        raise ConfineError("uid needs a gid, or it would keep the group of root")
    if root and not rules["uid"] and "nproc" in rules["limits"]:
        raise ConfineError(
            "nproc does not bind root: give a uid and gid, or limit the control group"
        )


def _check_kernel(rules: Rules) -> None:
    abi = landlock_abi()
    ports = rules["connect"] is not None or rules["bind"] is not None
    needs = (
        (rules["profile"] == "landlock", LEAST_ABI, "6.2", "keep files from being changed"),
        (ports, 4, "6.7", "limit TCP ports (connect, bind)"),
        (rules["scope"], 6, "6.12", "keep signals in (scope)"),
    )
    for asked, least, version, what in needs:
        if asked and abi < least:
            raise ConfineError(
                f"the kernel cannot {what}: that needs Landlock ABI {least} (Linux {version}), and "
                f"here is {abi or 'no Landlock'}. Leave it out, or choose another profile"
            )
    if not seccomp.known(os.uname().machine):
        raise ConfineError(
            f"no filter for system calls on {os.uname().machine}: choose another profile"
        )


def _on_path(program: str) -> bool:
    return any(os.access(os.path.join(path, program), os.X_OK) for path in os.get_exec_path())


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# --- Landlock ------------------------------------------------------------------------------------


@cache
def landlock_abi() -> int:
    """The version of Landlock that the running kernel has; 0: none, or it is switched off."""
    if sys.platform != "linux":
        return 0
    size, version = ctypes.c_size_t(0), 1
    found = _LIBC.syscall(ctypes.c_long(_CREATE_RULESET), None, size, version)
    return max(0, int(found))


def _done(what: str, result: int) -> int:
    if result < 0:
        raise ConfineError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


class _Ruleset:
    """Rules of Landlock, until they are put into force. `files`: whether they are about files."""

    def __init__(self, files: bool, net: int, scopes: int, left: int = 0) -> None:
        """`left`: rights to files that everybody keeps."""
        rights = max(count for abi, count in _SINCE if abi <= landlock_abi())
        self._handled = ((1 << rights) - 1) & ~left if files else 0
        self._fd = -1
        if self._handled or net or scopes:
            attributes = struct.pack("QQQ", self._handled, net, scopes)
            size = ctypes.c_size_t(len(attributes))
            made = _LIBC.syscall(ctypes.c_long(_CREATE_RULESET), attributes, size, 0)
            self._fd = _done("no rules of Landlock", made)

    def allow_path(self, path: str, rights: int, same: Mapping[str, Any] = {}) -> None:
        """Allow it for what is there, and for what is below. Not being there is no error."""
        try:
            fd = _opened(path, same)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            if rights & _WRITE:
                raise
            return  # whoever may not reach it now will not be able to read it
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        self._add(1, struct.pack("=Qi", rights & self._handled, fd), path)
        os.close(fd)

    def allow_port(self, port: int, right: int) -> None:
        self._add(2, struct.pack("QQ", right, port), f"port {port}")

    def _add(self, kind: int, rule: bytes, what: str) -> None:
        added = _LIBC.syscall(ctypes.c_long(_ADD_RULE), self._fd, kind, rule, 0)
        _done(f"no rule for {what}", added)

    def enforce(self) -> None:
        if self._fd >= 0:
            done = _LIBC.syscall(ctypes.c_long(_RESTRICT_SELF), self._fd, 0)
            _done("Landlock", done)
            os.close(self._fd)


def _opened(path: str, same: Mapping[str, Any]) -> int:
    """A descriptor of what is there. Raises ConfineError if `same` knows another, OSError."""
    flags = os.O_PATH | os.O_CLOEXEC
    plain = path.rstrip("/")
    if plain not in same:
        return os.open(path, flags)
    fd = os.open(plain, flags | os.O_NOFOLLOW)
    found, known = os.fstat(fd), same[plain]
    moved = os.readlink(f"/proc/self/fd/{fd}") != plain
    if moved or stat.S_ISLNK(found.st_mode) or (known and [found.st_dev, found.st_ino] != [*known]):
        os.close(fd)
        raise ConfineError(
            f"{plain} is not what it was when the server started: another folder or a link is in "
            "its place. If you have replaced it, restart the server"
        )
    return fd


def _make_folder(path: str, same: Mapping[str, Any]) -> None:
    """A folder that ends in /, with those above it. Raises OSError where a link is in the way."""
    if path.rstrip("/") not in same:
        os.makedirs(path, mode=0o700, exist_ok=True)
        return
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags)
    for name in path.strip("/").split("/"):
        try:
            below = os.open(name, flags, dir_fd=fd)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=fd)
            below = os.open(name, flags, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def _ruleset(rules: Rules) -> _Ruleset:
    files = rules["profile"] == "landlock"
    connect, bind = rules["connect"], rules["bind"]
    net = (_CONNECT if connect is not None else 0) | (_BIND if bind is not None else 0)
    left = _CONNECT_UNIX if rules["unix"] else 0
    ruleset = _Ruleset(files, net, _SCOPES if rules["scope"] else 0, left)
    for ports, right in ((connect, _CONNECT), (bind, _BIND)):
        for port in ports or ():
            ruleset.allow_port(port, right)
    if files:
        for path in DEVICES:
            ruleset.allow_path(path, _USE)
        for path in rules["write"]:
            terminals = 0 if _inside(path, "/dev") else _IOCTL
            ruleset.allow_path(path, ~(_MAKE_DEVICES | terminals), rules["same"])
        for path in rules["show"]:
            ruleset.allow_path(path, _LOOK, rules["same"])
        hidden = [os.path.realpath(path) for path in rules["hide"]]
        for path in ["/"] if rules["read"] is None else rules["read"]:
            for part, rights in _beside(os.path.realpath(path), hidden):
                ruleset.allow_path(part, rights)
    return ruleset


def _beside(path: str, hidden: Sequence[str]) -> Iterator[tuple[str, int]]:
    """What can be allowed of `path` so that the hidden is not: where nothing of it is hidden, the
    whole; otherwise its parts. Names may be listed there, also those of what is hidden."""
    if any(_inside(path, one) for one in hidden):
        return
    below = [one for one in hidden if _inside(one, path)]
    if not below:
        yield path, _LOOK
        return
    yield path, _LIST
    leads = {one[len(path.rstrip("/")) + 1 :].partition("/")[0] for one in below}
    try:
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():  # where it leads to has rules of its own
            continue
        if entry.name in leads:
            yield from _beside(entry.path, below)
        else:
            yield entry.path, _LOOK


# --- putting it into force -----------------------------------------------------------------------


def wrap(rules: Rules, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` under these checked rules, from within this program: `argv`
    itself, or what comes before it."""
    if rules["profile"] == "external":
        return [*rules["wrapper"], *argv]
    if rules["profile"] == "bwrap":
        return [*_bubblewrap(rules), *argv]
    return list(argv)


def _bubblewrap(rules: Rules) -> list[str]:
    """It is the child of whoever started this program, and ends with that: the shim, which outlives
    the server. Signals to the group are meant for the program, not for bwrap, which ignores them
    (see main); so a second one of these must restore them inside."""
    command = ["bwrap", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    command += ["--die-with-parent", "--cap-drop", "ALL"]
    command += ["--unshare-net"] if rules["connect"] == [] else []
    for path in ["/"] if rules["read"] is None else rules["read"]:
        command += ["--ro-bind-try", path, path]
    # For root, bwrap leaves the kernel's settings as they are: it takes them for read-only.
    command += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for path in filter(os.path.isdir, _PRIVATE):
        command += ["--tmpfs", path]
    hidden = [os.path.realpath(path) for path in rules["hide"] if os.path.exists(path)]
    folders = [path for path in hidden if os.path.isdir(path)]
    for path in hidden:
        command += ["--tmpfs", path] if path in folders else ["--ro-bind", "/dev/null", path]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for path in (*_SEEN, sys.base_prefix, sys.prefix, os.path.dirname(sys.executable), own):
        command += ["--ro-bind-try", path, path]
    for path in rules["show"]:
        command += ["--ro-bind-try", path, path]
    for path in rules["write"]:
        command += ["--bind-try", path, path]
    for path in folders:
        command += ["--remount-ro", path]
    again = [sys.executable, "-I", "-S", os.path.abspath(__file__), '{"profile":"none"}']
    return [*command, "--", *again, "--"]


def _limit(limits: Mapping[str, int]) -> None:
    for name, most in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(number)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (least, least))


def _change_user(uid: int | None, gid: int | None) -> None:
    if gid is not None:
        os.setgroups([gid])
        os.setresgid(gid, gid, gid)
    if uid is not None:
        os.setresuid(uid, uid, uid)


def _drop_capabilities(kept: Sequence[int]) -> None:
    """For good: without new privileges, even root gets no more than it has."""
    mask = sum(1 << number for number in set(kept))
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("Ii", 0x20080522, 0)
    _done("capabilities", _LIBC.capset(header, struct.pack("6I", low, low, 0, high, high, 0)))


def prctl(option: int, value: int, pointer: Any = 0) -> None:
    """prctl(2). Raises ConfineError."""
    zero = ctypes.c_ulong(0)
    _done(f"prctl {option}", _LIBC.prctl(option, ctypes.c_ulong(value), pointer, zero, zero))


def enforce(rules: Rules) -> None:
    """All of the checked rules that a process can follow itself. PR_SET_DUMPABLE is not among
    them: execve sets it anew, and without it the server could not tell its processes by their
    environment."""
    _limit(rules["limits"])
    _change_user(rules["uid"], rules["gid"])
    for path in rules["write"]:
        if path.endswith("/"):
            _make_folder(path, rules["same"])
    if rules["profile"] == "bwrap":  # which looks the paths up again, an instant later
        for path in (*rules["write"], *rules["show"]):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.close(_opened(path, rules["same"]))
    kernel = rules["profile"] in ("landlock", "bwrap")
    ruleset = _ruleset(rules) if kernel else None
    if ruleset:
        prctl(_SET_NO_NEW_PRIVS, 1, ctypes.c_ulong(0))
        if rules["profile"] == "landlock":  # bwrap needs them, where it has them, and drops them
            _drop_capabilities(rules["capabilities"])
        ruleset.enforce()
        code = seccomp.program(rules["unix"] is not False)
        lines = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(lines))
        prctl(_SET_SECCOMP, _FILTER, program)


def reset_signals(ignored: Sequence[int]) -> None:
    """As they are by default, whatever this process was started with, but for these."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def refused(become: Callable[[], object], program: str) -> str:
    """Why `become`, which confines this process and makes it that program, has come back."""
    try:
        become()
    except ConfineError as error:
        return str(error)
    except OSError as error:
        name = error.filename or program
        return f"{name}: {error.strerror} (is it where `read` or `write` of the rules allow it?)"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{program} did not run"


def _main(arguments: Sequence[str]) -> str:
    """Become the program. Returns why not."""
    if len(arguments) < 3 or arguments[1] != "--":
        return "usage: confine.py RULES -- PROGRAM [ARGUMENT …]"
    try:
        given = json.loads(arguments[0])
    except (ValueError, RecursionError) as error:
        return f"RULES are not JSON: {error}"
    return refused(lambda: _become(given, arguments[2:]), arguments[2])


def _become(given: Any, argv: Sequence[str]) -> None:
    rules = checked(given)
    os.closerange(3, 2**31 - 1)
    command = wrap(rules, argv)
    enforce(rules)
    reset_signals(_ENDINGS if rules["profile"] == "bwrap" else ())
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    sys.stderr.write(f"{NOT_STARTED}{_main(sys.argv[1:])}\n")
    sys.exit(REFUSED)
