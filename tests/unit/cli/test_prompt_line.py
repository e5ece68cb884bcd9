"""The history and the completion of the line for messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.cli.client.keyboard import Key
from bridge.cli.client.prompt_line import History, PromptLine


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "source").mkdir(parents=True)
    for name in ("setup.py", "source/main.py", "source/maine.md", ".hidden", "two\nlines"):
        (made / name).touch()
    return made


def completed(text: str, directory: Path | None) -> tuple[str, list[str]]:
    """The text after Tab, and the offered completions."""
    line = PromptLine(None, str(directory) if directory else None)
    line.press(Key("paste", text))
    line.press(Key("tab"))
    return line.text, list(line.choices)


@pytest.mark.parametrize(
    ("text", "after", "choices"),
    [
        ("read @se", "read @setup.py", []),
        ("read @s", "read @s", ["setup.py", "source/"]),
        ("@so", "@source/", []),
        ("@source/", "@source/main", ["source/main.py", "source/maine.md"]),
        ("@.h", "@.hidden", []),
        ("@tw", "@tw", []),
        ("a@se", "a@se", []),
        ("@nothing/x", "@nothing/x", []),
        ("/c", "/cancel", []),
        ("/", "/", ["/cancel", "/help", "/outputs", "/quit"]),
        ("see /c", "see /c", []),
    ],
)
def test_tab_completes_paths_and_commands(
    directory: Path, text: str, after: str, choices: list[str]
) -> None:
    assert completed(text, directory) == (after, choices)


def test_without_a_local_directory_no_path_is_completed(directory: Path) -> None:
    assert completed("@se", None) == ("@se", [])


def test_a_history_belongs_to_its_directory(tmp_path: Path) -> None:
    for text in ("one", "two\nrows"):
        line = PromptLine(History(tmp_path / "history", "/a"))
        line.press(Key("paste", text))
        line.take()
    again = PromptLine(History(tmp_path / "history", "/a"))
    again.press(Key("up"))
    assert again.text == "two\nrows"
    other = PromptLine(History(tmp_path / "history", "/b"))
    other.press(Key("up"))
    assert other.text == ""


def test_a_history_is_short_and_private_and_a_broken_one_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    history = History(folder, "/a")
    for number in range(300):
        history.add(str(number))
    (file,) = folder.iterdir()
    assert history.read() == [str(number) for number in range(100, 300)]
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    file.write_bytes(b'"one"\n{"broken\n')
    assert history.read() == []
    history.add("two")
    assert history.read() == ["two"]
    target = tmp_path / "target"
    target.write_text('"secret"\n')
    file.unlink()
    file.symlink_to(target)
    assert history.read() == []
    history.add("three")
    assert target.read_text() == '"secret"\n' and history.read() == ["three"]
