"""The numbers of changed lines, and files that must not be compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.adapter.diff import unified_diff
from bridge.workspace.line_numbers import numbered_in

OLD, NEW = "line 7\nline 8", "line 7\nnew"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    (made / "src").mkdir(parents=True)
    (made / "src/a.py").write_text(
        "".join(["first\n", *(f"line {number}\n" for number in range(1, 10))])
    )
    return made


def edit(path: Path | str, old: str = OLD, new: str = NEW) -> str:
    return unified_diff(str(path), old, new, context=len(old), part=True)


def test_an_edit_has_the_numbers_of_its_file(directory: Path) -> None:
    for path in (directory / "src/a.py", "src/a.py"):
        diff = edit(path)
        assert "\n@@ -1,2 +1,2 @@\n" in diff
        assert numbered_in(diff, str(directory)) == diff.replace("-1,2 +1,2", "-8,2 +8,2")
    inside = edit("src/a.py", "ine 3", "INE 3")
    assert "@@ -4,1 +4,1 @@" in numbered_in(inside, str(directory))


@pytest.mark.parametrize("old", ["line ", "absent", ""])
def test_a_text_that_stands_there_never_or_twice_keeps_its_numbers(
    directory: Path, old: str
) -> None:
    diff = edit("src/a.py", old, "x")
    assert numbered_in(diff, str(directory)) == diff


def test_no_file_outside_of_the_directory_is_read(directory: Path) -> None:
    outside = directory.parent / "secret"
    outside.write_text("\n\nline 7\nline 8\n")
    (directory / "link").symlink_to(outside)
    (directory / "folder").symlink_to(directory.parent)
    for path in (outside, "../secret", "link", "folder/secret", "src/../../secret", "/", "."):
        diff = edit(path)
        assert numbered_in(diff, str(directory)) == diff, path
    moved = directory.parent / "moved"
    moved.symlink_to(directory)
    assert numbered_in(edit("src/a.py"), str(moved)) == edit("src/a.py")


def test_other_files_and_other_diffs_stay_as_they_are(directory: Path) -> None:
    os.mkfifo(directory / "pipe")
    (directory / "large").write_text("x" * 2_000_000 + OLD)
    (directory / "bytes").write_bytes(b"\xff\n" + OLD.encode())
    for path in ("pipe", "large", "bytes", "src", "missing", "a\0b", "x" * 5000, "d/" * 100):
        assert numbered_in(edit(path), str(directory)) == edit(path), path
    new_file = unified_diff("src/a.py", "", OLD)
    two_hunks = edit("src/a.py") + "@@ -9,1 +9,1 @@\n-line 9\n+x\n"
    for diff in (new_file, two_hunks, "", "no diff", edit("src/a.py").replace("-1,2", "-4,2")):
        assert numbered_in(diff, str(directory)) == diff
