"""sandbox/confine.py as a program that confines itself and becomes another one, and the attempts of
a hostile CLI inside (tests/support/blast_radius.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from bridge.process import pty_runner
from bridge.process.process_tree import leader, marked, reap_orphans
from bridge.sandbox import confine
from tests import CHECKOUT
from tests.support import blast_radius, hostile_cli
from tests.support.bridge_process import bridge
from tests.support.cases import each
from tests.support.client import Client, said, state, states, streamed_text, task_id
from tests.support.confined import (
    ABI,
    CONFINED,
    LAUNCHER,
    PROFILES,
    bwrap,
    command,
    landlock,
)

Rules = dict[str, Any]
WITHIN = 60.0
PYTHON = (sys.executable, "-I", "-S", "-c")
SPAWN = (
    *PYTHON,
    "import os, sys; os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); os.wait()",
)


def run(rules: Any, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(rules, *argv),
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
        **options,
    )


def python(rules: Rules, code: str, *arguments: str, **options: Any) -> str:
    """The output of a program under these rules; it must succeed."""
    done = run(rules, *PYTHON, code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def shell(rules: Rules, line: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return run(rules, "/bin/sh", "-c", line, **options)


# --- what it is asked for ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([], "must be a JSON object"),
        ({}, "profile cannot be null"),
        ({"profile": "chroot"}, 'profile cannot be "chroot"'),
        ({"profile": "none", "writes": []}, "unknown member 'writes'"),
        ({"profile": "none", "write": ["relative"]}, "write cannot be"),
        ({"profile": "none", "write": ["/nul\0"]}, "write cannot be"),
        ({"profile": "none", "write": "/tmp"}, "write cannot be"),
        ({"profile": "none", "read": [1]}, "read cannot be"),
        ({"profile": "none", "connect": [65536]}, "connect cannot be"),
        ({"profile": "none", "connect": [True]}, "connect cannot be"),
        ({"profile": "none", "bind": [-1]}, "bind cannot be"),
        ({"profile": "none", "scope": 1}, "scope cannot be"),
        ({"profile": "none", "limits": {"infinity": 1}}, "limits cannot be"),
        ({"profile": "none", "limits": {"nofile": -1}}, "limits cannot be"),
        ({"profile": "none", "uid": -1}, "uid cannot be"),
        ({"profile": "none", "capabilities": [64]}, "capabilities cannot be"),
        ({"profile": "none", "hide": ["/usr/lib"], "write": ["/usr"]}, "change one of them"),
        ({"profile": "external"}, "needs a wrapper"),
    ],
)
def test_rules_that_are_none_are_refused(tmp_path: Path, rules: Any, why: str) -> None:
    found = confine.problem(rules)
    assert found and why in found
    done = run(rules, "/bin/touch", str(tmp_path / "ran"))
    assert (done.returncode, done.stdout) == (confine.REFUSED, "")
    assert why in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()


@each(
    "arguments",
    [[], ["{}"], ["{", "--", "true"], ["{}", "true"], ["[" * 100000, "--", "true"], ["{}", "--"]],
)
def test_arguments_that_are_none_are_refused(arguments: list[str]) -> None:
    done = subprocess.run([*LAUNCHER, *arguments], capture_output=True, timeout=WITHIN, check=False)
    assert (done.returncode, done.stdout) == (confine.REFUSED, b"")
    assert done.stderr.startswith(b"coding-agent-bridge: not started: ")


@pytest.mark.parametrize(
    ("abi", "rules", "why"),
    [
        (0, {"profile": "landlock"}, "the kernel has no Landlock"),
        (2, {"profile": "landlock"}, "Linux 6.2"),
        (3, {"profile": "landlock", "scope": False, "connect": [443]}, "Linux 6.7"),
        (4, {"profile": "landlock", "scope": True}, "Linux 6.12"),
        (4, {"profile": "landlock", "scope": False, "connect": [443]}, None),
        (3, {"profile": "landlock", "scope": False}, None),
    ],
)
def test_rules_without_support_of_the_kernel_are_refused(
    abi: int, rules: Rules, why: str | None
) -> None:
    found = confine.problem(rules, abi)
    assert why in found if why and found else found == why


def test_the_abi_is_that_of_the_kernel() -> None:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    assert ABI == 0 or ABI >= 6 or release < (6, 12)


def test_a_missing_program_is_named() -> None:
    done = run({"profile": "none"}, "/nowhere/cli")
    assert done.returncode == confine.REFUSED
    assert "/nowhere/cli: No such file" in done.stderr


def test_a_missing_bwrap_is_an_error(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path)}
    done = run({"profile": "bwrap", "scope": False}, "/bin/touch", str(tmp_path / "ran"), env=env)
    assert done.returncode == confine.REFUSED and "install bubblewrap" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_only_root_can_become_another_user() -> None:
    assert "only root" in str(confine.problem({"profile": "none", "uid": 1, "gid": 1}))


# --- what is handed on ---------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_the_program_has_its_arguments_environment_folder_and_streams(
    workspace: Path, profile: str
) -> None:
    rules = {"profile": profile, "write": [str(workspace)]}
    code = "import os,sys; print(sys.argv[1:], os.environ['A'], os.getcwd(), sys.stdin.read())"
    given = ("--", "a b", "", "-x", "é\n")
    done = python(
        rules, code, *given, env={"A": "é", "PATH": os.environ["PATH"]}, cwd=workspace, input="in"
    )
    assert done == f"{list(given)!r} é {workspace} in"


@pytest.mark.parametrize("profile", PROFILES)
@each(("line", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)])
def test_the_exit_status_is_passed_on(profile: str, line: str, code: int) -> None:
    status = shell({"profile": profile}, line).returncode
    assert (128 - status if status < 0 else status) == code


@pytest.mark.parametrize("profile", PROFILES)
def test_signals_are_as_by_default_and_other_descriptors_are_closed(profile: str) -> None:
    """posix_spawn() lets a program ignore the signals that the C library keeps for itself."""
    say = "ls /proc/self/fd | wc -w; grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2"
    with open("/dev/null", "rb") as extra:
        argv = [*SPAWN, "/bin/sh", "-c", "trap '' TERM INT USR1 PIPE; exec \"$@\"", "sh"]
        argv += command({"profile": profile}, "/bin/sh", "-c", say)
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            pass_fds=[extra.fileno()],
            timeout=WITHIN,
            check=True,
        )
    count, blocked, ignored = done.stdout.split()
    assert int(count) == 4  # with the one that ls reads
    assert (int(blocked, 16), int(ignored, 16)) == (0, 0)


def test_limits(tmp_path: Path) -> None:
    limits = {"nofile": 99, "fsize": 12345, "core": 0, "cpu": 77}
    code = "from resource import *; print(*map(getrlimit, (7, 1, 4, 0)))"  # in that order
    assert (
        python({"profile": "none", "limits": limits}, code)
        == "(99, 99) (12345, 12345) (0, 0) (77, 77)"
    )


def test_a_limit_is_not_raised() -> None:
    inner = command({"profile": "none", "limits": {"nofile": 100}}, "/bin/sh", "-c", "ulimit -n")
    done = run({"profile": "none", "limits": {"nofile": 50}}, *inner)
    assert done.stdout.strip() == "50"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    ("profile", "uid"), [("none", 64998), pytest.param("landlock", 64999, marks=landlock)]
)
def test_another_user(profile: str, uid: int) -> None:
    rules: Rules = {"profile": profile, "uid": uid, "gid": 64997, "limits": {"nproc": 10}}
    line = "id -u; id -g; id -G; grep CapEff /proc/self/status; cat /etc/shadow"
    done = shell(rules, line, extra_groups=[4, 27])
    assert done.stdout.split() == [str(uid), "64997", "64997", "CapEff:", "0" * 16]
    assert "Permission denied" in done.stderr
    many = shell(rules, "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done")
    assert "fork" in many.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="it is about root")
def test_a_limit_that_does_not_bind_root_is_refused() -> None:
    assert "does not bind root" in str(confine.problem({"profile": "none", "limits": {"nproc": 9}}))


@landlock
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities")
def test_capabilities_are_dropped_but_for_those_that_are_kept() -> None:
    line = "grep CapEff /proc/self/status | cut -f2"
    assert int(shell({"profile": "landlock"}, line).stdout, 16) == 0
    kept = shell({"profile": "landlock", "capabilities": [0, 1, 3]}, line)
    assert int(kept.stdout, 16) == 0b1011


def test_a_wrapper_comes_before_the_program() -> None:
    rules = {"profile": "external", "wrapper": ["/usr/bin/env", "A=by the wrapper"]}
    done = shell(rules, 'echo "$A" "$@"')
    assert done.stdout == "by the wrapper\n"
    assert confine.wrap(rules, ["x", "-y"]) == ["/usr/bin/env", "A=by the wrapper", "x", "-y"]


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def tree(workspace: Path) -> Path:
    """The workspace; beside it are others, with a file each."""
    for name in ("outside", "hidden", "state", "state/own", "home", "home/.ssh"):
        (workspace.parent / name).mkdir()
        (workspace.parent / name / "file").write_text(name)
    return workspace


@landlock
def test_only_writable_paths_can_be_written(tree: Path) -> None:
    single = tree.parent / "outside" / "single"
    single.touch()
    rules = {"profile": "landlock", "write": [str(tree), str(single), str(tree / "missing")]}
    for line in (
        *("echo 1 >in", "mkdir d", "mv in d/in", "ln d/in again", "ln -s x l", "mkfifo f"),
        *("truncate -s 0 d/in", "rm -r d l f", "echo 2 >../outside/single"),
    ):
        assert shell(rules, line, cwd=tree).stderr == ""
    assert single.read_text() == "2\n"
    for line in ("echo 1 >../x", "echo 1 >../outside/file", "rm ../outside/single", "mkdir ../d"):
        done = shell(rules, line, cwd=tree)
        assert done.returncode and "Permission denied" in done.stderr, line
    assert shell(rules, "echo 1 >/dev/null; head -c 1 /dev/urandom >/dev/null").returncode == 0


@pytest.mark.parametrize("profile", CONFINED)
def test_missing_writable_folders_are_made(workspace: Path, profile: str) -> None:
    made = workspace / "a" / "b"
    assert shell({"profile": profile, "write": [f"{made}/"]}, f"touch {made}/x").stderr == ""
    assert (made / "x").exists()
    assert made.stat().st_mode & 0o777 == 0o700


@landlock
def test_only_readable_paths_can_be_read(tree: Path) -> None:
    system = ["/usr", "/bin", "/lib", "/lib64", "/etc", sys.base_prefix, sys.prefix]
    rules = {
        "profile": "landlock",
        "write": [str(tree)],
        "read": [*system, str(tree.parent / "home")],
    }
    assert shell(rules, f"cat {tree.parent}/home/file").stdout == "home"
    for line in (f"cat {tree.parent}/outside/file", f"ls {tree.parent}"):
        assert "Permission denied" in shell(rules, line).stderr
    done = run({**rules, "read": []}, "/bin/true")
    assert done.returncode == confine.REFUSED and "/bin/true: Permission denied" in done.stderr


@pytest.mark.parametrize("profile", CONFINED)
def test_hidden_paths_cannot_be_read(tree: Path, profile: str) -> None:
    base = tree.parent
    rules = {
        "profile": profile,
        "write": [str(tree), f"{base}/state/own"],
        "hide": [f"{base}/hidden", f"{base}/state", f"{base}/home/.ssh", f"{base}/home/missing"],
    }
    if profile == "bwrap":  # which has a /tmp of its own
        rules["write"] = [str(tree), f"{base}/state/own", f"{base}/home", f"{base}/outside"]
        rules["hide"] = [f"{base}/hidden", f"{base}/state"]
    assert shell(rules, f"cat {base}/home/file {base}/outside/file").stdout == "homeoutside"
    assert (
        shell(rules, f"echo new >{base}/state/own/file; cat {base}/state/own/file").stdout
        == "new\n"
    )
    assert (base / "state/own/file").read_text() == "new\n"
    for name in ("hidden/file", "state/file", "home/.ssh/file")[
        : 3 if profile == "landlock" else 2
    ]:
        done = shell(rules, f"cat {base}/{name}")
        assert done.returncode and not done.stdout
    assert shell(rules, f"echo 1 >{base}/state/new").returncode
    assert not (base / "state/new").exists()


@landlock
def test_a_link_has_the_rights_of_its_target(tree: Path) -> None:
    (tree.parent / "link").symlink_to(tree)
    rules = {"profile": "landlock", "write": [str(tree.parent / "link")]}
    assert shell(rules, f"echo 1 >{tree}/by-link").stderr == ""
    (tree / "out").symlink_to(tree.parent / "outside")
    assert "Permission denied" in shell(rules, f"echo 1 >{tree}/out/x").stderr


# --- the network ---------------------------------------------------------------------------------

CONNECT = (
    "import socket,sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('in')"
)
SENDING = """
import socket, sys
at = ("127.0.0.1", int(sys.argv[1]))
def message(connection):
    connection.sendmsg([b"x"], [], socket.MSG_FASTOPEN, at)
for send in (lambda one: one.sendto(b"x", socket.MSG_FASTOPEN, at), message):
    with socket.socket() as connection:
        try:
            send(connection)
            print("sent")
        except OSError as error:
            print(error.strerror)
"""
LISTEN = "import socket,sys; socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('in')"


@pytest.mark.parametrize("profile", CONFINED)
def test_only_some_ports(profile: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        allowed, other = (server.getsockname()[1] for server in (one, two))
        rules = {"profile": profile, "connect": [allowed], "bind": [0]}
        assert python(rules, CONNECT, str(allowed)) == "in"
        for wanted in (other, 65000):
            assert "PermissionError" in run(rules, *PYTHON, CONNECT, str(wanted)).stderr
        assert python({"profile": profile}, CONNECT, str(other)) == "in"
    assert python(rules, LISTEN, "0") == "in"
    assert "PermissionError" in run(rules, *PYTHON, LISTEN, str(other)).stderr
    assert python({"profile": profile, "bind": [other]}, LISTEN, str(other)) == "in"


@pytest.mark.parametrize("profile", CONFINED)
def test_no_connection_is_made_by_sending(profile: str) -> None:
    """TCP Fast Open, to which the kernel's rules for ports do not apply."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rules = {"profile": profile, "connect": [9]}
        said = python(rules, SENDING, str(server.getsockname()[1]))
        assert said.splitlines() == ["Operation not supported"] * 2
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@bwrap
@landlock
def test_no_network_at_all() -> None:
    code = "import socket; print(socket.if_nameindex())"
    assert python({"profile": "bwrap", "connect": []}, code) == "[(1, 'lo')]"


@landlock
@each(
    ("what", "error"),
    [
        ("socket.socket(2, 1)", ""),
        ("socket.socket(10, 2)", ""),
        ("socket.socket(1)", ""),
        ("socket.socketpair()", ""),
        ("socket.socket(16, 3)", ""),
        ("socket.getaddrinfo('127.0.0.1', 1)", ""),
        ("socket.socket(2, 1, 262)", "Protocol not supported"),
        ("socket.socket(10, 1, 132)", "Protocol not supported"),
        ("socket.socket(2, 3, 1)", "not permitted"),
        ("socket.socket(40, 1)", "Address family"),
        ("socket.socket(38, 5)", "Address family"),
    ],
)
def test_sockets_of_which_kinds(what: str, error: str) -> None:
    done = run({"profile": "landlock"}, *PYTHON, f"import socket; {what}")
    assert error in done.stderr if error else done.returncode == 0, done.stderr


SOCKETS = """
import errno, socket, sys
def attempt(act):
    try:
        act()
        return "worked"
    except OSError as error:
        return errno.errorcode[error.errno]
def datagram():
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", sys.argv[1])
found = [attempt(lambda kind=kind: socket.socket(socket.AF_UNIX, kind)) for kind in (1, 2, 5)]
found += [attempt(datagram)]
found += [attempt(lambda kind=kind: socket.socketpair(socket.AF_UNIX, kind)) for kind in (1, 5)]
print(*found)
"""


@pytest.mark.parametrize("profile", CONFINED)
def test_path_sockets_are_refused_unless_they_are_allowed(workspace: Path, profile: str) -> None:
    """Datagrams included: an end of a connected pair sends to any other address, too."""
    path = str(workspace / "service")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(path)
        rules = {"profile": profile, "write": [str(workspace)], "unix": False}
        no = "EAFNOSUPPORT"
        assert python(rules, SOCKETS, path) == f"{no} {no} {no} {no} worked worked"
        service.setblocking(False)
        with pytest.raises(BlockingIOError):
            service.recv(1)
        assert python({**rules, "unix": True}, SOCKETS, path) == " ".join(["worked"] * 6)
        assert service.recv(1) == b"x"


# --- modes of files ------------------------------------------------------------------------------

SET_ID = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
def call(number, *given):
    longs = [ctypes.c_long(one) if isinstance(one, int) else one for one in given]
    if libc.syscall(ctypes.c_long(number), *longs) < 0:
        raise OSError(ctypes.get_errno(), "")
def ways(name, mode):
    path = name.encode()
    here, create, temporary = -100, os.O_CREAT | os.O_WRONLY, 0o20000000 | os.O_DIRECTORY | 1
    if x86:
        yield "chmod", lambda: call(90, b"f", mode)
        yield "open", lambda: call(2, path, create, mode)
        yield "creat", lambda: call(85, path, mode)
        yield "mknod", lambda: call(133, path, 0o100000 | mode, 0)
        yield "mkdir", lambda: call(83, path, mode)
    at = (91, 268, 257, 259, 258) if x86 else (52, 53, 56, 33, 34)
    fd = os.open("f", os.O_RDONLY)
    yield "fchmod", lambda: call(at[0], fd, mode)
    yield "fchmodat", lambda: call(at[1], here, b"f", mode)
    yield "fchmodat2", lambda: call(452, here, b"f", mode, 0)
    yield "openat", lambda: call(at[2], here, path, create, mode)
    yield "temporary", lambda: call(at[2], here, b".", temporary, mode)
    yield "mknodat", lambda: call(at[3], here, path, 0o100000 | mode, 0)
    yield "mkdirat", lambda: call(at[4], here, path, mode)
    yield "openat2", lambda: call(437, here, path, (ctypes.c_uint64 * 3)(create, mode, 0), 24)
found = {}
open("f", "w").close()
for number, (name, act) in enumerate(list(ways(sys.argv[2], int(sys.argv[1], 8)))):
    try:
        act()
        found[name] = "worked"
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
    os.chmod("f", 0o600)
    if os.path.isdir(sys.argv[2]):
        os.rmdir(sys.argv[2])
    elif os.path.exists(sys.argv[2]):
        os.unlink(sys.argv[2])
print(json.dumps(found))
"""


@pytest.mark.parametrize("profile", CONFINED)
@pytest.mark.parametrize("mode", ["4755", "2755", "6000", "1777", "644"])
def test_no_agent_leaves_a_file_with_a_set_id_bit(workspace: Path, profile: str, mode: str) -> None:
    """With each system call that sets a mode; modes without those bits are allowed."""
    rules = {"profile": profile, "write": [str(workspace)]}
    found = json.loads(python(rules, SET_ID, mode, "made", cwd=workspace))
    assert found.pop("openat2") == "ENOSYS"  # its mode cannot be read by a filter
    if found["fchmodat2"] == "ENOSYS":  # before Linux 6.6
        found.pop("fchmodat2")
    expected = "EPERM" if int(mode, 8) & 0o6000 else "worked"
    assert found == dict.fromkeys(found, expected)


# --- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", CONFINED)
def test_it_signals_its_own_and_is_signalled_from_outside(workspace: Path, profile: str) -> None:
    own = "sleep 60 & kill $!; wait $!; echo $?"
    assert shell({"profile": profile}, own).stdout == "143\n"
    # A child in a session of its own, as agents start their commands.
    assert (
        shell({"profile": profile}, "setsid sleep 60 & kill $!; wait $!; echo $?").stdout == "143\n"
    )
    line = "trap 'echo bye; exit 3' TERM; echo on; while :; do sleep 0.02; done"
    child = subprocess.Popen(
        command({"profile": profile}, "/bin/sh", "-c", line),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout
    assert child.stdout.readline() == b"on\n"
    os.killpg(child.pid, signal.SIGTERM)
    assert child.stdout.read() == b"bye\n"
    assert child.wait(WITHIN) == 3
    child.stdout.close()


START = """
import json, sys
from pathlib import Path
from bridge.process.spawn import Start, start_child
argv, env, marker, rules, spool = json.loads(sys.argv[1])
start_child(Start(argv, env, "/", True, marker, {}, rules), Path(spool))
"""


@pytest.mark.parametrize("profile", PROFILES)
def test_it_outlives_the_server_but_under_bwrap_not_its_parent(
    tmp_path: Path, profile: str
) -> None:
    """The streams are files, and the processes can be found by their marker."""
    spool, marker = tmp_path / "spool", f"confine-{os.getpid()}-{profile}"
    line = "echo on; read x; echo $x; setsid sleep 600 & read y; wait"
    start = (["/bin/sh", "-c", line], {**os.environ}, marker, {"profile": profile}, str(spool))
    whole = [sys.executable, "-c", START, json.dumps(start)]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    subprocess.run(whole, env=env, timeout=WITHIN, check=True)
    try:
        with open(spool / "in", "w") as stdin:
            stdin.write("hello\n")
        _until(lambda: (spool / "out").read_text() == "on\nhello\n")
        _until(lambda: _named(marker, "sleep"))
        pid = leader(spool)
        assert pid and os.getpgid(pid) == pid
        if profile == "bwrap":
            psutil.Process(psutil.Process(pid).ppid()).kill()
            _until(lambda: _are_gone(marker))
    finally:
        for pid in marked(marker):
            os.kill(pid, signal.SIGKILL)
    _until(lambda: not marked(marker))
    reap_orphans()


def _are_gone(marker: str) -> bool:
    """After other tests, this process may be the parent of those that have ended."""
    reap_orphans()
    return not marked(marker)


def _named(marker: str, name: str) -> list[int]:
    return [pid for pid in marked(marker) if psutil.Process(pid).name() == name]


def _until(holds: Any) -> None:
    """No event reports the actions of other processes."""
    deadline = os.times().elapsed + WITHIN
    while not holds():
        assert os.times().elapsed < deadline
        os.sched_yield()


@landlock
def test_a_terminal_inside(workspace: Path) -> None:
    """For adapters whose CLI runs behind bridge/process/pty_runner.py."""
    rules = {"profile": "landlock", "write": [str(workspace), "/dev/pts"]}
    order = {"run": {"argv": ["/bin/sh", "-c", "tty; echo on >/dev/tty"], "pty": True}}
    pipe = subprocess.PIPE
    argv = command(rules, sys.executable, "-I", pty_runner.__file__)
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as child:
        assert child.stdin and child.stdout
        child.stdin.write(json.dumps(order).encode() + b"\n")
        child.stdin.flush()
        lines = [json.loads(child.stdout.readline()) for _ in range(3)]
        child.stdin.close()
    assert lines[0]["line"].startswith("/dev/pts/")
    assert lines[1:] == [{"line": "on"}, {"exit": 0, "stderr": ""}]


# --- the hostile CLI -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", blast_radius.SHAPES)
@pytest.mark.parametrize("profile", PROFILES)
async def test_the_blast_radius(profile: str, shape: str) -> None:
    emptied = ("/tmp/", "/var/tmp/", "/run/")
    if profile == "bwrap" and __file__.startswith(emptied):
        pytest.skip("bwrap empties the folder in which this checkout is")
    assert len(hostile_cli.ATTEMPTS) >= 40
    assert set(blast_radius.EXPECTED) == set(hostile_cli.ATTEMPTS)
    timeout = aiohttp.ClientTimeout(60)
    with blast_radius.targets() as at:
        settings = blast_radius.settings(profile, at)
        async with (
            bridge(Path(at["workspace"]), ordinary=shape == "user", **settings) as server,
            aiohttp.ClientSession(
                timeout=timeout, read_bufsize=2**20, headers=server.credentials
            ) as http,
        ):
            client = Client(http, server.url)
            waiting = await client.send_now("wait")
            chosen = {"bridge": {"agent": "open"}}
            asking = await client.send("permit q May I?", metadata=chosen)
            assert state(asking) == "input-required"
            at["token of the operator"] = server.credentials["Authorization"]
            at["asking"] = task_id(asking)
            try:
                neighbour = _neighbour(at["workspace"])
                at |= {"bridge": server.process.pid, "neighbour": neighbour.pid}
                at["port"] = urlsplit(server.url).port
                at["grpc"] = int(server.log.partition("  grpc ")[2].split()[0].rpartition(":")[2])
                file = {"raw": "eA==", "mediaType": "application/zip", "filename": "x.zip"}
                items = await client.collect([{"text": json.dumps(at)}, file])
                assert states(items)[-1] == "completed", said(items[-1])
                assert neighbour.is_running()
                async with asyncio.timeout(WITHIN):
                    while _with_argument(at["token"]):  # noqa: ASYNC110 - of live-on-…
                        await asyncio.sleep(0.02)
                assert state(await client.get(task_id(asking))) == "input-required"
                await client.cancel(task_id(waiting))
                await server.stop()
            finally:
                for process in _with_argument(at["token"]):
                    process.kill()
    lines = map(json.loads, streamed_text(items).splitlines())
    found = {line["name"]: (line["worked"], line["detail"]) for line in lines}
    wrong = {
        name: (*result, f"expected: {expected}")
        for name, result in found.items()
        if (expected := blast_radius.works(name, profile, shape)) is not None
        and result[0] != expected
    }
    assert not wrong
    assert set(found) == set(hostile_cli.ATTEMPTS)


def _neighbour(workspace: str) -> psutil.Process:
    """The program of another conversation of the same agent."""
    found: list[psutil.Process] = []

    def look() -> bool:
        for process in _with_argument(hostile_cli.PROGRAM):
            with contextlib.suppress(psutil.Error):
                if process.name() != "bwrap" and process.cwd() == workspace:
                    found.append(process)
        return bool(found)

    _until(look)
    return found[0]


def _with_argument(token: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if line and line[-1].startswith(token):
            found.append(process)
    return found
