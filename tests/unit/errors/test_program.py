"""The command lines that the program prints, which can be pasted into a shell of any directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors.program import absolute_of, command, shortest


def script(folder: Path, name: str = "cab") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_on_the_path_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(path.parent))
    assert shortest([str(path)]) == ("cab",)
    link = tmp_path / "tools/cab"
    link.parent.mkdir()
    link.symlink_to(path)
    assert shortest([str(link)]) == ("cab",)


def test_another_program_of_this_name_on_the_path_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path / "tools")
    monkeypatch.setenv("PATH", str(script(tmp_path / "bin").parent))
    assert shortest([str(path)]) == (str(path),)


def test_the_absolute_words_of_each_way_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = script(tmp_path / "bin", "coding-agent-bridge")
    python, module = str(path.with_name("python")), "/src/bridge/__main__.py"
    monkeypatch.chdir(tmp_path)
    assert absolute_of("bin/coding-agent-bridge", python) == (str(path),)
    assert absolute_of(module, python) == (str(path),)
    monkeypatch.setenv("PATH", str(path.parent))
    assert absolute_of(module, "/else/python") == (str(path),)
    monkeypatch.setenv("PATH", "/nowhere")
    assert absolute_of(module, "/else/python") == ("/else/python", "-P", "-m", "bridge")


def test_words_are_quoted_for_a_shell() -> None:
    assert command("answer", "a b").endswith(" answer 'a b'")
