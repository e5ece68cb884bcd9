"""`python -m bridge` as a command that ends by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import CHECKOUT
from tests.support.agent import PROGRAM

WITHIN = 60.0  # seconds; on a quiet machine it ends within one


def agent(folder: Path, name: str = "agent", program: str = PROGRAM) -> str:
    """Write a program that needs no arguments of an interpreter. Returns its path."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {program} "$@"\n')
    path.chmod(0o755)
    return str(path)


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    base = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, "-m", "bridge", *arguments],
        cwd=cwd,
        env={**base, "HOME": f"{cwd}-home", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )


def refusal(done: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """The line that the command writes when it refuses to start."""
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("coding-agent-bridge: "), done.stderr
    return lines[0].removeprefix("coding-agent-bridge: ")
