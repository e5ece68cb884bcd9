"""A workspace that is deleted or unreadable: the task fails with this reason, and the server
continues."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigurationError, WorkspaceError
from bridge.server.settings.load import load
from bridge.workspace.paths import Workspaces
from tests.support.client import artifact_text, context_id, facts, said, state
from tests.support.served import serving
from tests.support.unprivileged import unprivileged


@pytest.fixture
def locked() -> Iterator[Path]:
    """A directory that others may not read, in one that they may: pytest's own are for its user."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "locked"
        folder.mkdir()
        if os.geteuid() == 0:
            folder.chmod(0o700)
            Path(parent).chmod(0o755)
        else:
            folder.chmod(0o300)
        yield folder
        folder.chmod(0o700)


def problem(task: dict[str, Any]) -> dict[str, Any]:
    """The data of a failed task; its text contains no path of the machine."""
    assert state(task) == "failed"
    assert task["metadata"]["bridge"]["reason"] == "workspace"
    data = facts(task)
    assert data["path"] in said(task) and data["cause"] in said(task)
    assert "/tmp/" not in str(task)
    return data


@pytest.mark.parametrize("config", ["deny", "ask", "allow"])
async def test_a_deleted_default_workspace_is_named(
    workspace: Path, config: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(workspace, agent_project_config=config) as server:
        client = server.client()
        elsewhere = shutil.move(workspace, workspace.parent / "elsewhere")
        facts = problem(await client.send("text a"))
        assert facts["path"] == "the default workspace"
        assert facts["cause"] == "No such file or directory"
        assert any(str(workspace) in record.getMessage() for record in caplog.records)
        assert not any(record.exc_info for record in caplog.records)
        shutil.move(elsewhere, workspace)
        assert state(await client.send("text a")) == "completed"


async def test_the_error_has_the_client_s_name_of_a_deleted_directory(workspace: Path) -> None:
    """Also if the conversation has a live session, which would continue in the deleted
    directory."""
    (workspace / "sub/deep").mkdir(parents=True)
    async with serving(workspace) as server:
        client = server.client()
        metadata = {"bridge": {"cwd": "sub/deep"}}
        first = await client.send("text a", metadata=metadata)
        assert artifact_text(first) == "a"
        shutil.rmtree(workspace / "sub")
        (workspace / "sub").write_text("no directory")
        facts = problem(await client.send("text b", contextId=context_id(first)))
        assert (facts["path"], facts["cause"]) == ("sub/deep", "Not a directory")


def test_a_directory_that_cannot_be_read_or_entered_is_not_a_workspace(
    workspace: Path, locked: Path
) -> None:
    parent = locked.parent
    workspaces = Workspaces(str(parent), [])
    for mode in (0o311, 0o644, 0):
        locked.chmod(mode)
        with unprivileged(), pytest.raises(WorkspaceError) as caught:
            workspaces.check(str(locked))
        assert (caught.value.name, caught.value.cause) == ("locked", "Permission denied")
        assert str(locked) in str(caught.value)
    with unprivileged():
        workspaces.check(str(parent))
    elsewhere = Workspaces(str(workspace), [str(workspace.parent)])
    with pytest.raises(WorkspaceError) as caught:
        elsewhere.check(str(workspace.parent / "gone"))
    assert caught.value.name == "gone"


def test_the_server_does_not_start_on_a_workspace_that_cannot_be_read(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    with unprivileged(), pytest.raises(ConfigurationError, match="Permission denied") as caught:
        load({"agent_repo_path": str(locked)})
    assert str(locked) in str(caught.value) and "AGENT_REPO_PATH" in str(caught.value)
