"""Confines itself and then becomes the program that its arguments name.

    python -I -S confine.py RULES -- PROGRAM [ARGUMENT …]

A program of its own. It imports only the standard library and modules of sandbox/ that do the same.
RULES is one JSON object. Only `profile` is required; the table shows the defaults:

    profile   "none": only the rules of the other members; "landlock": Landlock and seccomp, no
              privileges needed; "bwrap": namespaces, by bubblewrap; "inside": what bwrap runs;
              "external": the `wrapper`
    write     []    folders and files that may be changed; one that ends in / is made if missing
    read      null  further paths that may be read and run; null: all paths
    hide      []    paths that may not be read, also if they appear later, unless they are below a
                    path in `write` or `show`; FOLDER/.* are all entries that begin with a dot
    show      []    paths that may be read and run although they are below a path in `hide`; what
                    `hide` names below them stays hidden
    same      {}    paths of `write` and `show` that were resolved before: no link may be on the way
                    to one now, and it is the folder with this device and inode, unless null
    connect   null  remote TCP ports; null: all. With "bwrap", []: no network at all
    bind      null  local TCP ports, 0 for any free port; null: all
    scope     true  no signals and no abstract UNIX sockets to processes outside
    unix      null  UNIX sockets with a path: those below `write` where Landlock knows them (ABI 9),
                    else all; true: all; false: none can be made, except connected pairs
    system_v  false System V memory, queues and semaphores, and POSIX queues, which all programs of
                    the user share; "bwrap" has its own
    limits    {}    by rlimit: "nofile": 1024, "fsize": bytes, "cpu": seconds, "core": 0, …
    uid, gid  null  the user and group to become; for a server that runs as root
    capabilities [] numbers of the capabilities that root keeps ("landlock" only)
    wrapper   []    the command in front of PROGRAM ("external" only)

PROGRAM inherits the environment, the working directory and the descriptors 0-2, no other ones;
signals have their default actions. Under "landlock" and "bwrap" no process can gain privileges, and
sandbox/seccomp.py filters the system calls. If the machine cannot enforce a rule, PROGRAM does not
run: the exit status is 126, and stderr has one line that begins with NOT_STARTED.

docs/security.md lists the limits of the kernel's rules. The rules are bound to files, not to names:
a file that appears after the start, outside the named folders, has the rules of its folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from bridge.sandbox import bwrap, kernel, landlock, seccomp
from bridge.sandbox.kernel import ConfineError
from bridge.sandbox.landlock import is_inside

Rules = Mapping[str, Any]
REFUSED = 126
NOT_STARTED = "coding-agent-bridge: not started: "
PROFILES = ("none", "landlock", "bwrap", "inside", "external")
_ENDINGS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


# --- the members of RULES ------------------------------------------------------------------------


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
    "system_v": (False, lambda value: isinstance(value, bool)),
    "limits": ({}, _limits),
    "uid": (None, _ID),
    "gid": (None, _ID),
    "capabilities": ([], _each(_number(63))),
    "wrapper": ([], _each(lambda value: isinstance(value, str) and "\0" not in value)),
}


def _complete(given: Any) -> dict[str, Any]:
    """The rules with their defaults. Raises ConfineError if a member is unknown or invalid."""
    if not isinstance(given, Mapping):
        raise ConfineError("RULES must be a JSON object")
    unknown = sorted(given.keys() - _SHAPE.keys())
    if unknown:
        raise ConfineError(f"RULES: unknown member {unknown[0]!r}; known: {', '.join(_SHAPE)}")
    rules = {name: given.get(name, default) for name, (default, _) in _SHAPE.items()}
    for name, (_, test) in _SHAPE.items():
        if not test(rules[name]):
            raise ConfineError(f"RULES: {name} cannot be {json.dumps(rules[name], default=str)}")
    written = [os.path.realpath(path) for path in rules["write"]]
    rules["hide"] = [*map(os.path.realpath, rules["hide"])]
    for path in rules["hide"]:
        above = [one for one in written if is_inside(path, one)]
        if above:
            raise ConfineError(
                f"{path} must be hidden and lies in {above[0]}, which must be writable: change one "
                "of them (for example, use another workspace)"
            )
    return rules


def checked(given: Any, abi: int | None = None) -> dict[str, Any]:
    """The rules with their defaults. Raises ConfineError with the reason and the remedy if this
    machine cannot enforce them. Changes nothing and runs nothing. Some problems appear only in a
    trial, for example that the system forbids namespaces to bubblewrap: for these, run
    `confine.py RULES -- /bin/true`. `abi`: as in problem()."""
    rules = _complete(given)
    _check_identity(rules)
    if rules["profile"] in ("landlock", "bwrap"):
        _check_kernel(rules, landlock.abi() if abi is None else abi)
    programs = (os.path.join(path, "bwrap") for path in os.get_exec_path())
    if rules["profile"] == "bwrap" and not any(os.access(one, os.X_OK) for one in programs):
        raise ConfineError("bwrap was not found: install bubblewrap, or choose another profile")
    if rules["profile"] == "external" and not rules["wrapper"]:
        raise ConfineError("the profile external needs a wrapper: a command in front of the CLI")
    return rules


def problem(given: Any, abi: int | None = None) -> str | None:
    """The text of the ConfineError that checked() raises for these rules, if it raises one. `abi`:
    the Landlock ABI; None: that of this kernel."""
    try:
        checked(given, abi)
    except ConfineError as error:
        return str(error)
    return None


def _check_identity(rules: Rules) -> None:
    root = os.geteuid() == 0
    if not root and (rules["uid"] is not None or rules["gid"] is not None):
        raise ConfineError("only root can become another user: leave out uid and gid")
    if rules["uid"] is not None and rules["gid"] is None:
        raise ConfineError("uid needs a gid, or the process would keep the group of root")
    if root and not rules["uid"] and "nproc" in rules["limits"]:
        raise ConfineError(
            "nproc does not bind root: give a uid and gid, or limit the control group"
        )


def _check_kernel(rules: Rules, abi: int) -> None:
    ports = rules["connect"] is not None or rules["bind"] is not None
    needs = (
        (rules["profile"] == "landlock", landlock.LEAST_ABI, "6.2", "protect files from changes"),
        (ports, 4, "6.7", "limit TCP ports (connect, bind)"),
        (rules["scope"], 6, "6.12", "keep signals in (scope)"),
    )
    for asked, least, version, what in needs:
        if asked and abi < least:
            raise ConfineError(
                f"the kernel cannot {what}: this needs Landlock ABI {least} (Linux {version}), and "
                f"the kernel has {f'ABI {abi}' if abi else 'no Landlock'}. Leave the rule out, or "
                "choose another profile"
            )
    machine = os.uname().machine
    if not seccomp.known(machine):
        raise ConfineError(f"no filter for system calls on {machine}: choose another profile")


# --- enforcement ---------------------------------------------------------------------------------


def wrap(rules: Rules, argv: Sequence[str]) -> list[str]:
    """The command for execvp() that runs `argv` under these checked rules: `argv` itself, or `argv`
    behind the command of the profile."""
    if rules["profile"] == "external":
        return [*rules["wrapper"], *argv]
    if rules["profile"] == "bwrap":
        return [*bwrap.command(rules), *argv]
    return list(argv)


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


def enforce(rules: Rules) -> None:
    """Enforce all checked rules that a process can follow itself. Raises ConfineError, OSError.
    PR_SET_DUMPABLE is not among them: execve() resets it, and without it the server could not
    find its processes by their environment."""
    _limit(rules["limits"])
    _change_user(rules["uid"], rules["gid"])
    for path in rules["write"]:
        if path.endswith("/"):
            landlock.make_folder(path, rules["same"])
    if rules["profile"] == "bwrap":  # bwrap resolves the paths again, an instant later
        known = (path for path in rules["show"] if path in rules["same"])
        for path in (*rules["write"], *known):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.close(landlock.open_path(path, rules["same"]))
    if rules["profile"] in ("landlock", "bwrap"):
        ruleset = landlock.ruleset(rules)
        kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1, ctypes.c_ulong(0))
        if rules["profile"] == "landlock":  # bwrap needs its capabilities and drops them itself
            kernel.drop_capabilities(rules["capabilities"])
        ruleset.enforce()
        kernel.filter_system_calls(_filter(rules))
    if rules["profile"] == "inside":
        kernel.filter_system_calls(seccomp.inside())


def _filter(rules: Rules) -> bytes:
    """bwrap makes namespaces, that of System V included."""
    by_bwrap = rules["profile"] == "bwrap"
    return seccomp.program(rules["unix"] is not False, by_bwrap or rules["system_v"], by_bwrap)


def reset_signals(ignored: Sequence[int]) -> None:
    """Give all signals their default actions and unblock them; ignore those in `ignored`."""
    known = signal.valid_signals()
    for number in known - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    for internal in set(range(1, signal.NSIG)) - known:
        kernel.reset_signal(internal)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def refused(become: Callable[[], object], program: str) -> str:
    """Call `become`, which confines this process and executes `program`. Returns, if it returns at
    all, the reason why the program does not run."""
    try:
        become()
    except ConfineError as error:
        return str(error)
    except OSError as error:
        name = error.filename or program
        return f"{name}: {error.strerror} (check that `read` or `write` of the rules allow it)"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{program} did not run"


def _main(arguments: Sequence[str]) -> str:
    """Become the program. Returns the reason if that fails."""
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
