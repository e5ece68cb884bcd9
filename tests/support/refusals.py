"""Servers that refuse to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.bridge_process import environment
from tests.support.forked_command import run_forked


def refused(workspace: Path, *arguments: str, **env: Any) -> str:
    """The log of a server with the same arguments as those of `bridge`, which refuses to start.
    Its status is that of wrong settings, and the log has no traceback."""
    home, variables = environment(workspace, env)
    done = run_forked(arguments, cwd=home, env=variables)
    assert done.returncode == 2, f"exit status {done.returncode}:\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr
