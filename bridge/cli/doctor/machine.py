"""What the server finds on this machine: kernel, folders, port. Nothing is changed by looking.

What sandboxes for agents are made of is told as it is.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bridge.cli.doctor.report import Check, failed, note, ok, unneeded
from bridge.process import cgroup
from bridge.sandbox.confine import landlock_abi
from bridge.sandbox.profile import best
from bridge.server.lifecycle import bind
from bridge.server.settings import Settings
from bridge.server.state_dir import DATABASE, is_exposed

LITTLE = 100 * 1024**2  # bytes: what a busy day of tasks may take
PROBE_WITHIN = 5.0  # seconds
_CLONE_NEWUSER = 0x10000000
# SQLite's byte range for readers and writers of a database (its file format, "lock bytes").
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510


def machine() -> Iterator[Check]:
    """The system, and what a sandbox could be made of."""
    yield ok("python", platform.python_version())
    yield ok("kernel", f"{platform.system()} {platform.release()}")
    yield _facility("pidfd", _has_pidfd(), "the end of a CLI is noticed by a thread")
    group = cgroup.home()
    without = "what agents start is found by its parents and its environment"
    yield _facility("cgroups", group is not None, without, f"version 2, in {group}")
    auto = best()
    without = "" if auto == "landlock" else ": what an agent does, it does with this user's rights"
    yield note("sandbox", f"BRIDGE_SANDBOX=auto is {auto} here{without}", auto=auto)
    abi = landlock_abi()
    yield _facility("landlock", abi > 0, about=f"ABI {abi}", abi=abi)
    path = shutil.which("bwrap")
    yield _facility("bwrap", path is not None, about=str(path))
    yield _facility("user namespaces", _has_user_namespaces())


def _facility(name: str, there: bool, without: str = "", about: str = "", **facts: object) -> Check:
    words = f"available, {about}" if about else "available"
    if there:
        return unneeded(ok(name, words, available=True, **facts))
    text = f"not available: {without}" if without else "not available"
    return note(name, text, available=False, **facts)


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _has_user_namespaces() -> bool:
    """Tried by a process of its own, for files in /proc do not tell of all that may forbid it."""
    if sys.platform != "linux":
        return False
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({_CLONE_NEWUSER}) != 0)"
    argv = [sys.executable, "-I", "-S", "-c", code]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_WITHIN, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


# --- folders -------------------------------------------------------------------------------------


def workspace(settings: Settings) -> Iterator[Check]:
    """Where the agent works."""
    path = settings.workspaces.default
    problem = _unwritable(path)
    if problem:
        step = f"chown or chmod {path}, or choose another directory with AGENT_REPO_PATH"
        yield failed("workspace", f"{path} cannot be written: {problem}", step, path=path)
        return
    inside = repository(path)
    if inside:
        yield ok("workspace", f"{path}, in git", path=path, git=True)
    else:
        text = f"{path}, not in git: what an agent does there cannot be undone with it"
        yield Check("workspace", "ok", text, facts={"path": path, "git": False})


def repository(path: str) -> Path | None:
    """The top of the git repository that has the folder; `.git` is a file in a worktree."""
    folder = Path(path)
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def _unwritable(path: str | Path) -> str | None:
    """Why nobody like us can write into the folder. The file that is tried never has a name,
    where the file system can do that, and has none any more in any case."""
    try:
        with tempfile.TemporaryFile(dir=path):
            return None
    except OSError as error:
        return error.strerror or str(error)


def state(settings: Settings) -> Check:
    """Where tasks survive a restart. The server goes on without a folder that nobody has asked for,
    unless the only credentials that it knows would be there."""
    if settings.bridge_store == "memory":
        return note("state", "in memory: nothing survives a restart (BRIDGE_STORE)")
    folder = settings.state_folder
    if folder is None:
        return note("state", "in memory: nothing survives a restart (PORT=0)")
    check = _state_in(folder)
    has_token = settings.auth.required and not settings.auth.has_tokens
    return check if settings.bridge_state_dir or has_token else unneeded(check)


def _state_in(folder: Path) -> Check:
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    other = "choose another folder with BRIDGE_STATE_DIR"
    if not nearest.is_dir():
        return _bad_state(folder, f"{nearest} is not a directory", other)
    if nearest == folder and is_exposed(folder):
        return _bad_state(folder, "others can look into it", f"chmod 700 {folder}")
    problem = _unwritable(nearest)
    if problem:
        step = f"chown or chmod {nearest}, or {other}"
        return _bad_state(folder, f"{nearest} cannot be written: {problem}", step)
    if _locked(folder / DATABASE):
        step = f"stop the server that runs, or {other}"
        return _bad_state(folder, "a server that runs uses it", step, locked=True)
    free = shutil.disk_usage(nearest).free
    if free < LITTLE:
        step = f"free some space there, or {other}"
        return _bad_state(folder, f"only {_size(free)} free", step, free=free)
    about = "private" if nearest == folder else "will be made"
    return ok("state", f"{folder}, {about}, {_size(free)} free", path=str(folder), free=free)


def _bad_state(folder: Path, problem: str, step: str, **facts: object) -> Check:
    return failed("state", f"{folder}: {problem}", step, path=str(folder), **facts)


def _size(count: int) -> str:
    return f"{count / 1024**3:.1f} GB" if count >= 1024**3 else f"{count / 1024**2:.0f} MB"


def _locked(path: Path) -> bool:
    """Whether another process holds SQLite's lock on the database, as a server does for its life.
    The lock is taken for a moment, which a server that starts just then waits out."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def port(settings: Settings) -> Check:
    """Whether the server could listen."""
    where = f"{settings.host}:{settings.port}"
    try:
        for one in bind(settings.host, settings.port):
            one.close()
    except OSError as error:
        step = f"stop what listens there, or choose another port: --port {_another(settings.port)}"
        return failed("port", f"cannot listen on {where}: {error.strerror}", step, address=where)
    if settings.port == 0:
        return ok("port", f"a free one on {settings.host}", address=where)
    return ok("port", f"{where} is free", address=where)


def _another(taken: int) -> int:
    return taken + 1 if taken < 65535 else 0
