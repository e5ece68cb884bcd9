"""The private folders of CLIs, of which the agent chooses as much as it can."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from bridge.adapter import Adapter
from bridge.files.folders import closing, open_folder, remove
from bridge.sandbox.homes import PrivateHome, private_homes
from bridge.sandbox.profile import Sandbox, make_scratch
from bridge.server import registry
from bridge.store.sqlite.database import private_directory
from tests.support.unprivileged import unprivileged


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of an operator with a key, and with two conversations."""
    home = tmp_path / "operator"
    for path in (".ssh/key", ".claude/projects/p/one.jsonl", ".claude/projects/p/two.jsonl"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    return home


def private(home: Path, folder: Path, adapter: type[Adapter] | None = None) -> PrivateHome:
    homes = (adapter or registry.load("claude-code")).homes
    (made,) = private_homes(homes, {"HOME": str(home)}, folder)
    made.refresh("/")
    return made


@pytest.mark.parametrize(
    "name", ["../../../.ssh", "*", "**", ".", "o?e", "[ot]*", "one/../two", "-x", "", "x" * 300]
)
def test_an_id_that_is_a_path_or_a_pattern_copies_nothing(
    home: Path, tmp_path: Path, name: str
) -> None:
    """The id of a conversation is the one that the CLI chose."""
    folder = tmp_path / "state/homes/agent"
    folder.mkdir(parents=True)
    made = private(home, folder)
    made.adopt(name)
    left = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert left == []
    made.adopt("one")
    assert (Path(made.folder) / "projects/p/one.jsonl").read_text().endswith("one.jsonl")
    assert not (Path(made.folder) / "projects/p/two.jsonl").exists()


def nested(folder: Path, depth: int) -> None:
    """Deeper than Python's recursion and the usual number of descriptors."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("x", dir_fd=fd)
        below = os.open("x", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.symlink("/", "link", dir_fd=fd)
    os.close(fd)


def test_no_folder_of_an_agent_is_too_deep_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "scratch/kept").mkdir(parents=True)
    nested(tmp_path / "scratch", 1500)
    (tmp_path / "beside").touch()
    (tmp_path / "scratch/out").symlink_to(tmp_path)
    with closing(open_folder(tmp_path)) as parent:
        remove("scratch", parent)
        remove("missing", parent)
    assert [path.name for path in tmp_path.iterdir()] == ["beside"]


@pytest.mark.parametrize("name", ["projects.json", "projects.json.new"])
def test_an_index_changed_by_an_agent_prevents_no_start(
    home: Path, tmp_path: Path, name: str
) -> None:
    made = private(home, tmp_path, registry.load("gemini"))
    planted = Path(made.folder, "registry", name)
    planted.unlink(missing_ok=True)
    planted.mkdir()
    (planted / "out").symlink_to(home)
    made.refresh("/workspace")
    assert "/workspace" in json.loads(Path(made.folder, "projects.json").read_text())["projects"]
    assert (home / ".ssh/key").exists()


def test_a_mode_that_an_agent_changes_keeps_no_session_from_starting(tmp_path: Path) -> None:
    """As a user with restricted modes: an agent can change the modes of all files of its user."""
    gemini = registry.load("gemini")  # which that user may not read, in a checkout of root's home
    with unprivileged(), tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        base = Path(place)
        private_directory(base / "state")
        (base / "state/id").touch()
        made = private(base / "operator", base, gemini)
        scratch = make_scratch(base / "state", "agent", None)
        sandbox = Sandbox("landlock", {}, scratch, homes=(made,))
        own = sandbox.temporary_folder()
        folder = Path(made.folder)
        for path in (folder / "registry", folder, Path(own), Path(scratch), base / "state/scratch"):
            path.chmod(0)
        private_directory(base / "state")
        assert make_scratch(base / "state", "agent", None) == scratch
        sandbox.prepare("/workspace")
        assert sandbox.temporary_folder() == own
        assert "/workspace" in (folder / "projects.json").read_text()
        (base / "state").chmod(0)
        private_directory(base / "state")
        assert (base / "state").stat().st_mode & 0o777 == 0o700
