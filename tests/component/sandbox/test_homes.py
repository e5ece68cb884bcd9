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
from bridge.sandbox.profile import Sandbox, make_homes, make_scratch
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


# --- a top for each session ----------------------------------------------------------------------


@pytest.fixture
def kimi(tmp_path: Path) -> tuple[Sandbox, Path]:
    """Its sandbox, and the operator's folder with settings."""
    settings = tmp_path / "operator/.kimi-code"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text("operator's")
    environment = {"HOME": str(tmp_path / "operator")}
    homes = make_homes(registry.load("kimi").homes, environment, tmp_path / "state", "a", None)
    scratch = make_scratch(tmp_path / "state", "a", None)
    return Sandbox("landlock", environment, scratch, homes=homes), settings


def top(sandbox: Sandbox) -> Path:
    return Path(sandbox.variables()["KIMI_CODE_HOME"])


def test_what_a_session_writes_at_the_top_reaches_no_other_session(
    kimi: tuple[Sandbox, Path],
) -> None:
    sandbox, settings = kimi
    first, second = sandbox.of("one"), sandbox.of("two")
    first.prepare("/")
    for name in ("config.toml", "mcp.json"):  # a CLI replaces files
        (top(first) / "draft").write_text("the agent's")
        (top(first) / "draft").replace(top(first) / name)
    second.prepare("/")
    assert (top(second) / "config.toml").read_text() == "operator's"
    assert not (top(second) / "mcp.json").exists()
    assert (settings / "config.toml").read_text() == "operator's"
    writes, others = (one.rules("/")["write"] for one in (second, first))
    assert f"{top(second)}/" in writes
    assert f"{top(second)}/" not in others
    assert f"{Path(sandbox.homes[0].folder)}/" not in writes


def test_a_conversation_lasts_longer_than_the_top_of_its_session(
    kimi: tuple[Sandbox, Path],
) -> None:
    first, second = kimi[0].of("one"), kimi[0].of("two")
    first.prepare("/")
    (top(first) / "session_index.jsonl").write_text("a conversation")
    lasting = (top(first) / "session_index.jsonl").resolve()
    assert f"{lasting.parent}/" in first.rules("/")["write"]
    (top(first) / "sessions/x.jsonl").write_text("its messages")
    (top(first) / "other").touch()
    gone = top(first)
    first.clear()
    assert not gone.exists()
    second.prepare("/")
    assert (top(second) / "session_index.jsonl").read_text() == "a conversation"
    assert (top(second) / "sessions/x.jsonl").read_text() == "its messages"
    assert not (top(second) / "other").exists()
    assert kimi[1].exists()


def test_a_session_that_outlives_its_server_keeps_its_top(
    kimi: tuple[Sandbox, Path], tmp_path: Path
) -> None:
    """The next server removes those of the other sessions."""
    alive, ended = kimi[0].of("alive"), kimi[0].of("ended")
    for one in (alive, ended):
        one.prepare("/")
        (top(one) / "mine").touch()
    (tmp_path / "state/sessions/alive").mkdir(parents=True)
    homes = registry.load("kimi").homes
    make_homes(homes, kimi[0].environment, tmp_path / "state", "a", None)
    alive.prepare("/")
    assert (top(alive) / "mine").exists()
    assert not top(ended).exists()
