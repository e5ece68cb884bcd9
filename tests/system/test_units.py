"""The units of `install-service`, which systemd itself checks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.service_units import install_service, installed
from tests.support.unprivileged import NOBODY


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    env = {**os.environ, "XDG_RUNTIME_DIR": "/run"}  # `--user` requires one
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def units(reachable: Path) -> Path:
    """The units as the system gets them, with a program outside of /tmp."""
    if str(reachable).startswith("/home") or os.geteuid() in (NOBODY,):
        pytest.skip("the folder is hidden from services")
    program = installed(reachable)
    done = install_service(program, "--keep", "--to", str(reachable / "units"))
    assert (done.returncode, done.stderr) == (0, "")
    names = {
        str(path.relative_to(reachable / "units")) for path in (reachable / "units").rglob("*")
    }
    assert names >= {"coding-agent-bridge@.socket", "coding-agent-bridge@.service.d/keep.conf"}
    return reachable / "units"


@programs.needed("systemd-analyze")
def test_systemd_accepts_the_units(units: Path) -> None:
    """Without a warning, the drop-in included."""
    files = [path for path in units.iterdir() if path.is_file()]
    assert len(files) == 4
    done = analyze("verify", *files)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    user = units / "user"
    assert (
        install_service(
            units.parent / "coding-agent-bridge", "--user", "--to", str(user)
        ).returncode
        == 0
    )
    done = analyze("--user", "verify", user / "coding-agent-bridge.service")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@programs.needed("systemd-analyze")
def test_the_unit_is_hardened(units: Path) -> None:
    """systemd rates the exposure of a service from 0 to 10; without the hardening it is 8.2."""
    unit = units / "coding-agent-bridge@.service"
    done = analyze("security", "--offline=true", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout[-500:]
