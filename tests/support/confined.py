"""Programs under bridge/sandbox/confine.py, and the paths that the real CLIs must write there."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.sandbox import confine
from bridge.sandbox.landlock import abi
from tests.support import programs

LAUNCHER = (sys.executable, "-I", "-S", str(Path(confine.__file__)))

# What each adapter's CLI changes besides its workspace and TMPDIR; a folder that ends in / is made.
# The variable, where one is named, says where it is instead.
NEEDS: Mapping[str, Sequence[str]] = {
    "claude-code": ("${CLAUDE_CONFIG_DIR:-~/.claude}/", "~/.claude.json"),
    "claude-agent-acp": ("${CLAUDE_CONFIG_DIR:-~/.claude}/", "~/.claude.json"),
    "codex": ("${CODEX_HOME:-~/.codex}/",),
    "codex-acp": ("${CODEX_HOME:-~/.codex}/",),
    "droid": ("~/.factory/",),
    "cline": ("~/.cline/",),
    "copilot": ("~/.copilot/", "~/.cache/copilot/"),
    "gemini": ("~/.gemini/", "/dev/pts"),
    "qwen": ("~/.qwen/", "/dev/pts"),
    "opencode": (
        "~/.config/opencode/",
        "~/.local/share/opencode/",
        "~/.local/state/opencode/",
        "~/.cache/opencode/",
    ),
    "kilo": (
        "~/.config/kilo/",
        "~/.local/share/kilo/",
        "~/.local/state/kilo/",
        "~/.local/state/kilo-sandbox-policy/",
        "~/.cache/kilo/",
    ),
    "kimi": ("~/.kimi-code/",),
    "vibe": ("~/.vibe/",),
    "grok": ("~/.grok/",),
    "hermes": ("~/.hermes/",),
    "openhands": ("~/.openhands/", "/dev/pts"),
    "deepagents": ("~/.deepagents/",),
    "aider": ("~/.aider/", "/dev/pts"),
}
# They talk to themselves over a TCP port of their own, which nobody knows beforehand.
ANY_PORT = ("opencode", "kilo")


def needs(name: str, home: Path) -> list[str]:
    """NEEDS of an adapter where no variable is set."""
    plain = [
        one.replace("${CLAUDE_CONFIG_DIR:-", "").replace("${CODEX_HOME:-", "")
        for one in NEEDS[name]
    ]
    return [one.replace("}", "").replace("~", str(home)) for one in plain]


def command(rules: Mapping[str, Any], *argv: str) -> list[str]:
    return [*LAUNCHER, json.dumps(rules), "--", *argv]


def script(path: Path, rules: Mapping[str, Any], *argv: str) -> Path:
    """A program that is `argv` under these rules, for AGENT_BINARY."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command(rules, *argv))} "$@"\n')
    path.chmod(0o700)
    return path


# --- what this machine has ----------------------------------------------------------------------

ABI = abi()
landlock = pytest.mark.skipif(ABI < 6, reason=f"Landlock's ABI here is {ABI}, and 6 is needed")


def bwrap_works() -> bool:
    """Installed, and not forbidden to make namespaces."""
    argv = command({"profile": "bwrap", "scope": False}, "/bin/true")
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def without_bwrap() -> str | None:
    """Why tests with bwrap are skipped."""
    if programs.first_of("bwrap") is None:
        return programs.missing("bwrap")
    return None if bwrap_works() else "bwrap may not make namespaces here"


bwrap = pytest.mark.skipif(bool(without_bwrap()), reason=without_bwrap() or "")
CONFINED = [
    pytest.param("landlock", marks=landlock),
    pytest.param("bwrap", marks=[landlock, bwrap]),
]
PROFILES = [pytest.param("none"), *CONFINED]
