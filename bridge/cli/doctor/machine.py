"""The checks of this machine: kernel, folders, port. They change nothing."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bridge.cli.doctor.report import Check, failed, note, ok
from bridge.errors import ConfigurationError
from bridge.process import cgroup
from bridge.sandbox import landlock
from bridge.sandbox.landlock import is_inside
from bridge.sandbox.profile import best
from bridge.server.operate.port_users import reason
from bridge.server.operate.ports import Ports
from bridge.server.operate.restore import kept_in
from bridge.server.operate.sockets import check_unix_socket
from bridge.server.settings.root import Settings
from bridge.server.state_dir import DATABASE, is_exposed

MIN_FREE = 100 * 1024**2  # bytes; the tasks of a busy day may need as much
PROBE_TIMEOUT = 5.0  # seconds
_CLONE_NEWUSER = 0x10000000
# SQLite's byte range for readers and writers of a database (its file format, "lock bytes").
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510


def machine() -> Iterator[Check]:
    """The system, and the facilities for sandboxes and cleanup."""
    yield ok("python", platform.python_version())
    yield ok("kernel", f"{platform.system()} {platform.release()}")
    yield _facility("pidfd", _has_pidfd(), "a thread waits for the end of each CLI")
    group = cgroup.home()
    without = "cleanup finds processes by their parents and their environment"
    yield _facility("cgroups", group is not None, without, f"version 2, in {group}")
    auto = best()
    without = "" if auto == "landlock" else ": agents can do all that this user can do"
    yield note("sandbox", f"BRIDGE_SANDBOX=auto is {auto} here{without}", auto=auto)
    abi = landlock.abi()
    yield _facility("landlock", abi > 0, about=f"ABI {abi}", abi=abi)
    path = shutil.which("bwrap")
    yield _facility("bwrap", path is not None, about=str(path))
    yield _facility("user namespaces", _has_user_namespaces())


def _facility(name: str, there: bool, without: str = "", about: str = "", **facts: object) -> Check:
    words = f"available, {about}" if about else "available"
    if there:
        return Check(name, "ok", words, facts={"available": True, **facts}, needed=False)
    text = f"not available: {without}" if without else "not available"
    return note(name, text, available=False, **facts)


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _has_user_namespaces() -> bool:
    """Tests it in a new process, because files in /proc do not show all restrictions."""
    if sys.platform != "linux":
        return False
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({_CLONE_NEWUSER}) != 0)"
    argv = [sys.executable, "-I", "-S", "-c", code]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


# --- folders -------------------------------------------------------------------------------------


def workspace(settings: Settings) -> Iterator[Check]:
    """The workspace of the agent."""
    path = settings.agent.workspaces.default
    problem = _unwritable(path)
    if problem:
        step = f"chown or chmod {path}, or choose another directory with AGENT_REPO_PATH"
        yield failed("workspace", f"{path} is not writable: {problem}", step, path=path)
        return
    inside = repository(path)
    outside = inside and _unwritable_git(settings, inside)
    if outside:
        text = f"{path}, in git, but agents cannot commit: their sandbox keeps {outside} unchanged"
        step = f"BRIDGE_SANDBOX_WRITE={outside}, if agents shall commit"
        facts = {"path": path, "git": True, "readOnly": str(outside)}
        yield Check("workspace", "failed", text, step, facts, needed=False)
    elif inside:
        yield ok("workspace", f"{path}, in git", path=path, git=True)
    else:
        text = f"{path}, not in git: git cannot undo the changes of an agent"
        yield Check("workspace", "ok", text, facts={"path": path, "git": False})


def repository(path: str) -> Path | None:
    """The root of the git repository that contains the folder. In a worktree, `.git` is a file."""
    folder = Path(path)
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def _unwritable_git(settings: Settings, root: Path) -> Path | None:
    """The folder of the repository's objects and branches, if agents cannot write there: in a
    linked worktree or a submodule, or if the workspace is a part of the repository."""
    sandbox = settings.sandbox
    profile = best() if sandbox.profile == "auto" else sandbox.profile
    if profile not in ("landlock", "bwrap"):
        return None
    folder = _git_folder(root)
    given = (settings.agent.workspaces.default, *sandbox.write)
    writable = [os.path.realpath(os.path.expanduser(one)) for one in given]
    if folder is None or any(is_inside(str(folder), one) for one in writable):
        return None
    return folder


def _git_folder(root: Path) -> Path | None:
    """Where git keeps the objects of the working tree. None if a file leads to another place: it
    may be a file of an agent."""
    found = root / ".git"
    try:
        if found.is_file():
            found = root / _line(found).removeprefix("gitdir:").strip()
        common = found / "commondir"
        found = found / _line(common) if common.is_file() else found
        found = found.resolve()
        known = (found / "HEAD").is_file() and (found / "objects").is_dir()
    except (OSError, ValueError, RuntimeError):
        return None
    return found if known else None


def _line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline(4096).strip()


def _unwritable(path: str | Path) -> str | None:
    """Why this user cannot write into the folder; None if it can. Creates a temporary file without
    a name if the file system supports it; otherwise the name is removed at once."""
    try:
        with tempfile.TemporaryFile(dir=path):
            return None
    except OSError as error:
        return error.strerror or str(error)


def state(settings: Settings) -> Check:
    """The state folder. The server runs without the default folder, unless the only credentials
    would be in it."""
    if settings.store.mode == "memory":
        return note("state", "memory: tasks are lost at a restart (BRIDGE_STORE)")
    folder = settings.state_folder
    if folder is None:
        return note("state", "memory: tasks are lost at a restart (PORT=0)")
    check = _state_in(folder)
    has_token = settings.auth.config.required and not settings.auth.config.has_tokens
    return replace(check, needed=bool(settings.store.state_dir) or has_token)


def kept(settings: Settings) -> Iterator[Check]:
    """The databases that earlier servers have put aside; no server removes them."""
    folder = settings.store_folder
    for names in kept_in(folder).values():
        text = f"{', '.join(names)} in {folder}: remove them if you do not need them any more"
        yield note("kept", text, files=names)


def _state_in(folder: Path) -> Check:
    nearest = next(one for one in (folder, *folder.parents) if one.exists())
    other = "choose another folder with BRIDGE_STATE_DIR"
    if not nearest.is_dir():
        return _bad_state(folder, f"{nearest} is not a directory", other)
    if nearest == folder and is_exposed(folder):
        return _bad_state(folder, "other users can read it", f"chmod 700 {folder}")
    problem = _unwritable(nearest)
    if problem:
        step = f"chown or chmod {nearest}, or {other}"
        return _bad_state(folder, f"{nearest} is not writable: {problem}", step)
    if _locked(folder / DATABASE):
        step = f"stop the other server, or {other}"
        return _bad_state(folder, "a running server uses it", step, locked=True)
    free = shutil.disk_usage(nearest).free
    if free < MIN_FREE:
        step = f"free some space there, or {other}"
        return _bad_state(folder, f"only {_size(free)} free", step, free=free)
    about = "private" if nearest == folder else "will be created"
    return ok("state", f"{folder}, {about}, {_size(free)} free", path=str(folder), free=free)


def _bad_state(folder: Path, problem: str, step: str, **facts: object) -> Check:
    return failed("state", f"{folder}: {problem}", step, path=str(folder), **facts)


def _size(count: int) -> str:
    return f"{count / 1024**3:.1f} GB" if count >= 1024**3 else f"{count / 1024**2:.0f} MB"


def _locked(path: Path) -> bool:
    """Whether another process holds SQLite's lock on the database; a server holds it until its end.
    The test holds the lock for a moment; a server that starts at that time waits for it."""
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
    """Whether the server can listen on HOST and PORT."""
    host, number = settings.server.host, settings.server.port
    if number is None:
        return ok("port", "none (PORT=none)")
    where = f"{host}:{number}"
    try:
        ports = Ports()
        for one in ports.listen(host, number):
            one.close()
        ports.close()
    except OSError as error:
        another = number + 1 if number < 65535 else 0
        step = f"stop the program that listens there, or run with --port {another}"
        text = f"cannot listen on {where}: {reason(error, number)}"
        return failed("port", text, step, address=where)
    if number == 0:
        return ok("port", f"any free port on {host}", address=where)
    return ok("port", f"{where} is free", address=where)


def unix_socket(settings: Settings) -> Check:
    """Whether the server can listen on its Unix socket."""
    path = settings.server.unix_socket or ""
    try:
        check_unix_socket(settings)
    except (ConfigurationError, OSError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        step = "set BRIDGE_UNIX_SOCKET to another path"
        return failed("socket", f"cannot listen on {path}: {text}", step, path=path)
    return ok("socket", f"{path} is free", path=path)
