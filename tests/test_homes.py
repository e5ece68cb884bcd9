"""The private folders of CLIs, of which the agent chooses as much as it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters._homes import CLAUDE
from bridge.homes import PrivateHome, private_homes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of an operator with a key, and with two conversations."""
    home = tmp_path / "operator"
    for path in (".ssh/key", ".claude/projects/p/one.jsonl", ".claude/projects/p/two.jsonl"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    return home


def private(home: Path, folder: Path) -> PrivateHome:
    (made,) = private_homes([CLAUDE], {"HOME": str(home)}, folder)
    made.refresh("/")
    return made


@pytest.mark.parametrize(
    "name", ["../../../.ssh", "*", "**", ".", "o?e", "[ot]*", "one/../two", "-x", "", "x" * 300]
)
def test_an_id_that_is_a_path_or_a_pattern_copies_nothing(
    home: Path, tmp_path: Path, name: str
) -> None:
    """The id of a conversation is what the CLI has called it."""
    folder = tmp_path / "state/homes/agent"
    folder.mkdir(parents=True)
    made = private(home, folder)
    made.adopt(name)
    left = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert left == []
    made.adopt("one")
    assert (Path(made.folder) / "projects/p/one.jsonl").read_text().endswith("one.jsonl")
    assert not (Path(made.folder) / "projects/p/two.jsonl").exists()
