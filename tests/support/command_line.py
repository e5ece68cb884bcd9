"""`python -m bridge` as a command that ends by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import CHECKOUT
from tests.support.agent import PROGRAM

WITHIN = 60.0  # seconds; on a quiet machine it ends within one
WITHOUT = """
import sys
sys.modules[{!r}] = None
from bridge.__main__ import main
sys.exit(main())
"""


def agent(folder: Path, name: str = "agent", program: str = PROGRAM) -> str:
    """Write a program that needs no arguments of an interpreter. Returns its path."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {program} "$@"\n')
    path.chmod(0o755)
    return str(path)


def run(
    *arguments: str, cwd: Path, without: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end. `without`: a library that it cannot import."""
    program = ("-c", WITHOUT.format(without)) if without else ("-m", "bridge")
    base = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, *program, *arguments],
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


def refusal_without(library: str, folder: Path, **settings: str) -> str:
    """The line with which a server with these settings refuses to start, because this library
    cannot be imported."""
    quick = {"AGENT_ADAPTER": "replay", "BRIDGE_SANDBOX": "none"}
    return refusal(run("--port", "0", cwd=folder, without=library, **quick, **settings))
