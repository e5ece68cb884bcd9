"""A server that is the first process of a PID namespace, as in a container."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.support.sandboxed import needs_root

SHOW = """
import os, sys
from bridge.errors import ConfigurationError
from bridge.server.settings.load import load
try:
    found = load({})
    print(found.settings.auth.token, *found.warnings, sep="\\n")
except ConfigurationError as error:
    print(f"refused: {error}")
"""


def loaded(folder: Path, *, first: bool = True, **env: str) -> str:
    """The token and the warnings of a program that loads its settings. `first`: as PID 1."""
    (folder / "workspace").mkdir(exist_ok=True)
    base = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "HOME": str(folder),
        "HOST": "0.0.0.0",
        "AGENT_REPO_PATH": str(folder / "workspace"),
        "BRIDGE_STATE_DIR": str(folder / "state"),
        "BRIDGE_TOKEN_FILE": str(folder / "state/token"),
    }
    namespace = [shutil.which("unshare") or "unshare", "--fork", "--pid"] if first else []
    done = subprocess.run(
        [*namespace, sys.executable, "-c", SHOW],
        env={**base, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
def test_the_first_start_makes_a_token_and_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "state/token"
    token, *warnings = loaded(tmp_path).splitlines()
    assert token == file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert warnings == [f"made a token for clients; it is in the file {file}"]
    assert token not in warnings[0]
    assert loaded(tmp_path).splitlines() == [token]  # the next start keeps it


@needs_root
@pytest.mark.parametrize("place", ["other/token", "state/mine"])
def test_no_other_file_is_made(tmp_path: Path, place: str) -> None:
    assert "cannot read" in loaded(tmp_path, BRIDGE_TOKEN_FILE=str(tmp_path / place))
    assert not (tmp_path / place).exists()
    assert not (tmp_path / "state/token").exists()


def test_outside_of_a_container_the_file_must_exist(tmp_path: Path) -> None:
    assert "cannot read" in loaded(tmp_path, first=False)


@needs_root
def test_clis_cannot_outlive_a_container(tmp_path: Path) -> None:
    refused = loaded(tmp_path, BRIDGE_ON_STOP="keep")
    assert refused.startswith("refused: BRIDGE_ON_STOP=keep has no effect")


def test_clis_may_outlive_another_server(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x" * 43)
    (tmp_path / "token").chmod(0o600)
    env = {"BRIDGE_TOKEN_FILE": str(tmp_path / "token"), "BRIDGE_ON_STOP": "keep"}
    assert loaded(tmp_path, first=False, **env).splitlines() == ["x" * 43]
