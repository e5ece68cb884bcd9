"""What an agent's CLI may reach: the rules for bridge/confine.py, which is put in front of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge import confine
from bridge.errors import ConfigurationError

PROGRAM = (sys.executable, "-I", "-S", str(Path(confine.__file__)))
CHECK_WITHIN = 20.0  # seconds
SCOPES_SINCE = 6  # ABI of Landlock
HIDDEN = ("~/.ssh", "~/.gnupg", "~/.aws", "~/.netrc")
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The boundary of one agent's CLIs, on top of which they may write in their workspace, in the
    folder of their attachments and in `scratch`, which is their TMPDIR.

    `writes`, `hidden`: further paths; `~` and `${NAME:-default}` are the CLI's. `ports`: the remote
    TCP ports that it may connect to; None for all. `wrapper`: the command of "external".
    """

    profile: str
    environment: Mapping[str, str]
    scratch: str
    writes: tuple[str, ...] = ()
    hidden: tuple[str, ...] = HIDDEN
    ports: tuple[int, ...] | None = None
    wrapper: tuple[str, ...] = ()

    def command(self, cwd: str, folder: str | None = None) -> tuple[str, ...]:
        """What comes before the CLI's own command."""
        return (*PROGRAM, json.dumps(self.rules(cwd, folder)), "--")

    def rules(self, cwd: str, folder: str | None = None) -> dict[str, Any]:
        rules: dict[str, Any] = {"profile": self.profile, "limits": {"core": 0}}
        if self.profile == "external":
            return rules | {"wrapper": list(self.wrapper)}
        private = [folder] if folder else []
        rules["write"] = [cwd, self.scratch, *private, *map(self._path, self.writes)]
        inside = [one.rstrip("/") for one in rules["write"]]
        hidden = map(self._path, self.hidden)
        rules["hide"] = [one for one in hidden if os.path.exists(one) and one not in inside]
        rules["scope"] = self.profile != "landlock" or confine.landlock_abi() >= SCOPES_SINCE
        if self.ports is not None:
            rules["connect"] = list(self.ports)
        return rules

    def _path(self, written: str) -> str:
        env = self.environment
        path = _VARIABLE.sub(lambda found: env.get(found[1]) or found[2], written)
        home = env.get("HOME", "")
        return f"{home}{path[1:]}" if path.startswith("~") else path

    def check(self) -> None:
        """Raises ConfigurationError where there is no such boundary on this machine."""
        command = [*self.command(self.scratch), "/bin/true"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=CHECK_WITHIN, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"BRIDGE_SANDBOX={self.profile}: {error}") from None
        if done.returncode:
            problem = done.stderr.strip() or f"exit status {done.returncode}"
            raise ConfigurationError(f"BRIDGE_SANDBOX={self.profile} cannot be had: {problem}")


def make_scratch(folder: Path | None, agent_id: str) -> str:
    """A folder for temporary files that only the agent's CLIs have: in the server's own, where the
    CLIs may outlive it, else a new one."""
    if folder is None:
        return tempfile.mkdtemp(prefix="coding-agent-bridge-")
    path = folder / "tmp" / agent_id
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(path)


def ports(words: Iterable[str]) -> tuple[int, ...] | None:
    """BRIDGE_SANDBOX_PORTS. Raises ConfigurationError."""
    found = []
    for word in words:
        if not word.isdigit() or int(word) > 65535:
            raise ConfigurationError(f"BRIDGE_SANDBOX_PORTS: {word!r} is no port.")
        found.append(int(word))
    return tuple(found) or None
