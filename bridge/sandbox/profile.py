"""The sandbox profile of an agent: the rules for bridge/sandbox/confine.py, which comes before the
CLI in its command, and its resource limits."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bridge.errors import ConfigurationError, LaunchError
from bridge.files.folders import (
    PASSAGE,
    closing,
    give_folder,
    keep_own,
    open_folder,
    open_to_owner,
    own_folder,
    remove,
)
from bridge.files.home import Home
from bridge.sandbox import confine, landlock
from bridge.sandbox.credentials import Privacy
from bridge.sandbox.homes import PrivateHome, private_homes, resolve
from bridge.sandbox.landlock import is_inside

PROGRAM = (sys.executable, "-I", "-S", str(Path(confine.__file__)))
CHECK_WITHIN = 20.0  # seconds
SCOPES_SINCE, SOCKETS_SINCE = 6, 9  # ABI of Landlock
# Where semaphores are, which sem_open(3) and so every pool of processes in Python needs.
SHARED_MEMORY = "/dev/shm"  # noqa: S108
# Tools that fail if they cannot write their caches. Write access to the caches of the user would
# change the user's own builds, so agents have caches of their own.
CACHES = {
    "npm_config_cache": "npm",
    "PIP_CACHE_DIR": "pip",
    "UV_CACHE_DIR": "uv",
    "YARN_GLOBAL_FOLDER": "yarn",
    "BUN_INSTALL_CACHE_DIR": "bun",
    "DENO_DIR": "deno",
    "CARGO_HOME": "cargo",
    "GOCACHE": "go-build",
    "GOMODCACHE": "go-mod",
    "GRADLE_USER_HOME": "gradle",
}
AHEAD = "session-"  # begins the names of folders of prewarmed sessions
# Without it, root writes only root's files. Landlock limits the paths.
_DAC_OVERRIDE = 1
# The priority of a CLI is never above that of the server, also where the user may raise it.
_PRIORITY = {"nice": 0, "rtprio": 0}
# In the sandbox: whether the CLI and the interpreter of its runner can be started, and whether the
# CLI can work.
_TRY = """
test -x "$1" || { echo "$1 cannot be run inside" >&2; exit 1; }
test -z "$2" || test -w "$2" || { echo "$2 cannot be written inside" >&2; exit 1; }
test -z "$3" || "$3" -I -c 'import sys; open(sys.argv[1]).close()' "$4" ||
    { echo "$3 and $4, which run the CLI, cannot be used inside" >&2; exit 1; }
"""


@dataclass(frozen=True, slots=True)
class User:
    """The user of the CLI processes."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def variables(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The boundary of one agent's CLIs. In addition, they may write in their workspace and in a
    folder below `scratch`, which is their TMPDIR, and read the folder of their attachments.

    `writes`: further paths; `~` and `${NAME:-default}` are the CLI's. `private`: the private places
    of the operator's home; `hidden`: further paths that it may not read; `elsewhere` finds those
    that other servers use. `homes`: folders that it has instead of the operator's.
    `ports`: the remote TCP ports that it may connect to; None for all. `wrapper`: the command of
    "external". `limits`: see setrlimit(2). `sockets`: UNIX sockets may be made and connected to
    anywhere. `system_v`: see the rules of confine.py. `temporary`: its folders go with the server.
    `known`: real paths that were resolved at the start of the server, with the device and the inode
    of those that are folders (see settled()). `abi`: the Landlock ABI of the kernel.
    """

    profile: str
    environment: Mapping[str, str]
    scratch: str
    writes: tuple[str, ...] = ()
    private: Privacy = field(default_factory=Privacy)
    hidden: tuple[str, ...] = ()
    elsewhere: Callable[[], Iterable[str]] = tuple
    homes: tuple[PrivateHome, ...] = ()
    ports: tuple[int, ...] | None = None
    wrapper: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    user: User | None = None
    sockets: bool = False
    system_v: bool = False
    temporary: bool = False
    known: Mapping[str, list[int] | None] = field(default_factory=dict)
    abi: int = field(default_factory=landlock.abi)

    def __str__(self) -> str:
        words = [self.profile]
        words += [f"as {self.user.name}"] if self.user else []
        words += [f"at most {most} {_WORDS.get(name, name)}" for name, most in self.limits.items()]
        return ", ".join(words)

    def command(self, cwd: str, folder: str | None = None) -> tuple[str, ...]:
        """The command in front of the CLI's own command."""
        return (*PROGRAM, json.dumps(self.rules(cwd, folder)), "--")

    def of(self, session: str) -> Sandbox:
        """The same for one session, by its id: see PrivateHome.of()."""
        if all(one.home.kept is None for one in self.homes):
            return self
        return replace(self, homes=tuple(one.of(session) for one in self.homes))

    def clear(self) -> None:
        """Remove what one session alone had, after its end."""
        for home in self.homes:
            with contextlib.suppress(OSError):  # the next server tries again
                home.remove()

    def prepare(self, cwd: str, conversation: str | None = None) -> None:
        """Make the agent's private folders as the operator's are now, for a session in `cwd`, with
        the files of the CLI's `conversation` if that is resumed. Raises LaunchError."""
        try:
            for home in self.homes:
                home.refresh(cwd)
                if conversation:
                    home.adopt(conversation)
        except OSError as error:
            problem = f"{error.filename or 'a private folder of the agent'}: {error.strerror}"
            raise LaunchError(problem, str(error.strerror)) from error

    @property
    def new(self) -> bool:
        """Whether the CLI has not created its database yet (Home.database)."""
        databases = [Path(one.folder, name) for one in self.homes if (name := one.home.database)]
        return not all(map(os.path.lexists, databases))

    def temporary_folder(self, whose: str = "", session: str | None = None) -> str:
        """The folder for temporary files and caches of the CLIs of one principal; `whose` is its
        id. It is made if it is missing. `session`: the id of a prewarmed session, which has no
        principal yet; it shares its folder with no other session. Raises OSError."""
        digest = hashlib.sha256(whose.encode()).hexdigest()[:32]
        name = f"{AHEAD}{session}" if session else digest
        group = self.user.gid if self.user else None
        with closing(own_folder(self.scratch, None, group, PASSAGE)) as base:
            if self.user:
                os.close(give_folder(name, base, self.user.uid, self.user.gid))
            else:
                os.close(own_folder(name, base))
        return os.path.join(self.scratch, name)

    def variables(self, temporary: str | None = None) -> dict[str, str]:
        """The CLI's environment, with that folder for temporary files. Variables that the CLI has
        already stay unchanged."""
        own = Path(temporary or self.temporary_folder())
        caches = {name: str(own / folder) for name, folder in CACHES.items()} if self.walls else {}
        homes = dict(found for one in self.homes for found in one.variables.items())
        if self.walls:
            caches |= self.private.variables(str(own))
        return {**caches, **self.environment, **homes, "TMPDIR": str(own)}

    @property
    def walls(self) -> bool:
        """Whether rules of the bridge limit the CLI."""
        return self.profile in ("landlock", "bwrap")

    def rules(
        self, cwd: str, folder: str | None = None, temporary: str | None = None
    ) -> dict[str, Any]:
        """Those of a session in `cwd`. `folder`: its attachments; `temporary`: see variables()."""
        rules: dict[str, Any] = {"profile": self.profile, "limits": {"core": 0, **self.limits}}
        if self.user:
            rules |= {"uid": self.user.uid, "gid": self.user.gid}
        if self.profile == "external":
            return rules | {"wrapper": list(self.wrapper)}
        if not self.walls:
            return rules
        rules["limits"] |= _PRIORITY
        by_landlock = self.profile == "landlock"
        shared = [SHARED_MEMORY] if by_landlock else []  # bubblewrap makes one of its own
        own = temporary or self.temporary_folder()
        rules["write"] = [cwd, own, *shared, *map(self.path, self.writes)]
        rules["write"] += [path for home in self.homes for path in home.writes]
        own_folders = [path for home in self.homes for path in home.folders]
        own_folders += [folder] if folder else []
        if self.known:
            homes = (path.rstrip("/") for home in self.homes for path in home.writes)
            fresh = {one: _identity(one) for one in (own, *own_folders, *homes)}
            rules["same"] = {cwd: None, **fresh, **self.known}
        rules["show"] = [*own_folders, *self.private.visible()]
        rules["hide"] = self._hidden([one.rstrip("/") for one in rules["write"]])
        if by_landlock and os.geteuid() == 0 and not self.user and os.stat(cwd).st_uid != 0:
            rules["capabilities"] = [_DAC_OVERRIDE]
        rules["scope"] = not by_landlock or self.abi >= SCOPES_SINCE
        by_path = by_landlock and self.abi >= SOCKETS_SINCE  # Landlock tells sockets by path
        rules["unix"] = True if self.sockets else None if by_path else False
        rules["system_v"] = self.system_v
        if self.ports is not None:
            rules["connect"] = list(self.ports)
        return rules

    def _hidden(self, writes: Sequence[str]) -> list[str]:
        """The paths to hide from an agent that may write to `writes`."""
        open_ = {*writes, *self.private.reads}
        above = [] if any(is_inside(self.scratch, one) for one in open_) else [self.scratch]
        own = (one for one in (*self.hidden, *above) if one not in open_)  # also what others have
        return [*self.private.hidden(self.elsewhere(), writes), *own]

    @property
    def left_open(self) -> tuple[str, ...]:
        """The gaps of the boundary on this machine, by name, for the operator."""
        if not self.walls:
            return ()
        by_landlock = self.profile == "landlock"
        scoped = not by_landlock or self.abi >= SCOPES_SINCE
        names = [] if self.ports is not None else ["TCP to any port (BRIDGE_SANDBOX_PORTS)"]
        names += ["UDP"]
        names += ["UNIX sockets of services (BRIDGE_SANDBOX_UNIX_SOCKETS)"] if self.sockets else []
        names += ["System V memory (BRIDGE_SANDBOX_SYSTEM_V)"] * (self.system_v and by_landlock)
        names += [] if scoped else ["signals to this user's processes (Linux 6.12)"]
        if by_landlock:
            names += [f"{SHARED_MEMORY}, shared by all agents"]
            names += ["names of files that change, also in hidden folders (inotify)"]
        names += ["locks on files that it can read (flock)"]
        return tuple(names)

    def settled(self, workspaces: Iterable[str]) -> Sandbox:
        """A copy with resolved paths, for an agent that may work below these real `workspaces`. If
        an agent replaces one of them later, its sessions are refused."""
        writes = tuple(map(self._real, self.writes))
        known = {one.rstrip("/"): _identity(one) for one in (*writes, *workspaces)}
        return replace(self, writes=writes, known=known)

    def _real(self, written: str) -> str:
        path = self.path(written)
        end = "/" if path.endswith("/") else ""
        return os.path.realpath(path) + end if path.startswith("/") else path

    @property
    def paths(self) -> tuple[str, ...]:
        """The writable paths besides the workspace and the agent's own folders."""
        return tuple(map(self.path, self.writes))

    def path(self, written: str) -> str:
        """A path that is written with `~` or a variable of the CLI, resolved."""
        return resolve(written, self.environment)

    def check(self, binary: str, workspace: str, runner: Sequence[str] = ("", "")) -> None:
        """Raises ConfigurationError if this machine does not support the boundary, or if the CLI
        could not work in it. `runner`: the command of a program that runs the CLI: an interpreter,
        and at last a file."""
        words = (binary, workspace if self.user else "", runner[0], runner[-1])
        trial = ["/bin/sh", "-c", _TRY, "sh", *words]
        command = [*self.command(workspace), *trial]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CHECK_WITHIN, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"BRIDGE_SANDBOX={self.profile}: {error}") from None
        if done.returncode:
            problem = launch_refusal(done.returncode, done.stderr) or done.stderr.strip()
            problem = problem or f"exit status {done.returncode}"
            raise ConfigurationError(f"BRIDGE_SANDBOX={self.profile} is not available: {problem}")

    def close(self) -> None:
        """Remove temporary folders after the end of the CLIs."""
        if self.temporary:
            for path in (self.scratch, *(os.path.dirname(one.folder) for one in self.homes)):
                with closing(open_folder(os.path.dirname(path))) as parent:
                    remove(os.path.basename(path), parent)


def _identity(path: str) -> list[int] | None:
    """Device and inode of a folder. A file may be replaced by its owner, as editors do."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        return [found.st_dev, found.st_ino] if stat.S_ISDIR(found.st_mode) else None
    return None


_WORDS = {"nofile": "open files", "fsize": "bytes a file", "nproc": "processes"}


def launch_refusal(code: int | None, stderr: str) -> str | None:
    """The reason why the sandbox did not start a CLI; None for any other exit."""
    if code != confine.REFUSED or not stderr.startswith(confine.NOT_STARTED):
        return None
    return stderr.removeprefix(confine.NOT_STARTED).strip()


def best() -> str:
    """The profile of `auto` on this machine."""
    scope = landlock.abi() >= SCOPES_SINCE
    return "none" if confine.problem({"profile": "landlock", "scope": scope}) else "landlock"


def make_scratch(folder: Path | None, agent_id: str, user: User | None) -> str:
    """Where each principal's CLIs of an agent have a folder for temporary files: in the server's
    own, where the CLIs may outlive it, else a new one. Only the server can write in it itself."""
    path = _place(folder, "scratch", agent_id, user)
    with closing(own_folder(path, None, user.gid if user else None, PASSAGE)) as base:
        ended = [name for name in os.listdir(base) if name.startswith(AHEAD)]
        for name in ended:
            if not (folder and (folder / "sessions" / name.removeprefix(AHEAD)).exists()):
                remove(name, base)
    return os.path.realpath(path)


def make_homes(
    wanted: Iterable[Home],
    environment: Mapping[str, str],
    folder: Path | None,
    agent_id: str,
    user: User | None,
) -> tuple[PrivateHome, ...]:
    """The private folders of an agent: in the server's own, or in a new one."""
    wanted = tuple(wanted)
    if not wanted:
        return ()
    path = _place(folder, "homes", agent_id, user)
    path.mkdir(mode=0o700, exist_ok=True)
    open_to_owner(path)
    if user:
        let_through(path, user)
    owner = (user.uid, user.gid) if user else None
    for name in os.listdir(path):
        _, dot, session = name.rpartition(".")
        if dot and not (folder and (folder / "sessions" / session).exists()):
            with closing(open_folder(path)) as parent:
                remove(name, parent)
    return private_homes(wanted, environment, path.resolve(), owner)


def _place(folder: Path | None, kind: str, agent_id: str, user: User | None) -> Path:
    """The place of an agent's folder: in the server's own, or a new one. Its parent exists."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="coding-agent-bridge-"))
    parent = folder.resolve() / kind
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    open_to_owner(parent)
    if user:
        let_through(folder, user)
        let_through(parent, user)
    return parent / agent_id


def let_through(folder: Path, user: User) -> None:
    """Let the user reach its own entries by name, without a list of the others."""
    with closing(open_folder(folder.resolve())) as fd:
        keep_own(fd, user.gid, PASSAGE)


def find_user(wanted: str) -> User:
    """BRIDGE_SANDBOX_USER. Raises ConfigurationError."""
    if os.geteuid() != 0:
        text = "only a server that runs as root can run CLIs as another user"
        raise ConfigurationError(f"BRIDGE_SANDBOX_USER={wanted}: {text}; unset it.")
    try:
        found = pwd.getpwuid(int(wanted)) if wanted.isdigit() else pwd.getpwnam(wanted)
    except (KeyError, OverflowError):
        raise ConfigurationError(f"BRIDGE_SANDBOX_USER: unknown user {wanted}.") from None
    if found.pw_uid == 0:
        raise ConfigurationError(f"BRIDGE_SANDBOX_USER={wanted} is root; take another user.")
    return User(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir)


def ports(words: Iterable[str]) -> tuple[int, ...] | None:
    """BRIDGE_SANDBOX_PORTS. Raises ConfigurationError."""
    found = []
    for word in words:
        if not word.isdigit() or int(word) > 65535:
            raise ConfigurationError(f"BRIDGE_SANDBOX_PORTS: {word!r} is not a port (0 to 65535).")
        found.append(int(word))
    return tuple(found) or None
