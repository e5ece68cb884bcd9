"""Fixtures of the tests of the protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.agent import PROGRAM
from tests.support.agents import Write


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a CONFIG_FILE with agents that run tests/support/agent.py by default."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def written(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(
            f"""
            AGENT_ADAPTER = "jsonl"
            AGENT_BINARY = "{sys.executable}"
            AGENT_ARGS = ["-I", "-S", "{PROGRAM}"]
            AGENT_REPO_PATH = "{tmp_path}/one"
            {text.replace("FOLDER", str(tmp_path))}
            """
        )
        return path

    return written
