"""The update of the CLIs that the tests drive: one bad package stops no other, and what changed is
said in a few words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.npm_lock import trim
from tests.support.recorded_changes import differences
from tests.support.update_clis import Package, Source, chosen, packages, raised

Json = dict[str, Any]
SAID = "npm error 404 Not found"


def folder_of(path: Path) -> Path:
    pinned = {"dependencies": {"a": "1"}, "pythonDependencies": {"b": "2"}}
    (path / "package.json").write_text(json.dumps(pinned))
    (path / "package-lock.json").write_text("the lock")
    return path


def fails(*_: object) -> Any:
    raise subprocess.CalledProcessError(1, "npm", stderr=f"{SAID}\nnpm error A complete log\n")


def installs(folder: Path, package: str, version: str) -> None:
    (folder / "package-lock.json").write_text("another lock")


def versions(folder: Path) -> dict[str, str]:
    return {package.name: package.version for package in packages([folder])}


def test_a_package_is_raised(tmp_path: Path) -> None:
    first, _ = packages([folder_of(tmp_path)])
    assert first == Package("a", "1", "dependencies", tmp_path)
    assert raised(first, Source(lambda _: "3", installs)) == ("a: 1 → 3", True)
    assert versions(tmp_path) == {"a": "3", "b": "2"}
    assert (tmp_path / "package-lock.json").read_text() == "another lock"


def test_the_newest_version_is_not_installed_again(tmp_path: Path) -> None:
    first, _ = packages([folder_of(tmp_path)])
    assert raised(first, Source(lambda _: "1", fails)) == ("a: 1 is the newest", False)


@pytest.mark.parametrize("broken", ["newest", "install"])
def test_a_package_that_cannot_be_had_keeps_its_version(tmp_path: Path, broken: str) -> None:
    def half(folder: Path, package: str, version: str) -> None:
        installs(folder, package, version)
        fails()

    _, second = packages([folder_of(tmp_path)])
    source = Source(fails if broken == "newest" else lambda _: "3", half)
    said = f"b: stays at 2: {SAID}"
    assert raised(second, source) == (said, False)
    assert versions(tmp_path) == {"a": "1", "b": "2"}
    assert (tmp_path / "package-lock.json").read_text() == "the lock"


def test_a_package_that_is_not_pinned_is_refused(tmp_path: Path) -> None:
    known = list(packages([folder_of(tmp_path)]))
    assert chosen([], known) == known
    assert chosen(["b"], known) == known[1:]
    with pytest.raises(SystemExit, match="c is no package of the CLIs; there are: a, b"):
        chosen(["b", "c"], known)


def test_every_pinned_package_can_be_raised() -> None:
    names = [package.name for package in packages()]
    assert {"@openai/codex", "@qwen-code/qwen-code", "aider-chat"} <= set(names)
    assert len(names) == len(set(names))


def test_a_lock_has_no_optional_package_that_is_missing() -> None:
    """npm ci refuses the lock otherwise."""
    optional = {"beside": "1", "inner": "1", "missing": "1"}
    lock = {
        "packages": {
            "": {"optionalDependencies": {"a": "1"}},
            "node_modules/a": {"optionalDependencies": optional},
            "node_modules/a/node_modules/inner": {"optionalDependencies": {"beside": "1"}},
            "node_modules/beside": {"optionalDependencies": {"gone": "1"}, "version": "1"},
        }
    }
    trimmed = json.loads(trim(json.dumps(lock)))["packages"]
    assert trimmed == {
        "": {"optionalDependencies": {"a": "1"}},
        "node_modules/a": {"optionalDependencies": {"beside": "1", "inner": "1"}},
        "node_modules/a/node_modules/inner": {"optionalDependencies": {"beside": "1"}},
        "node_modules/beside": {"version": "1"},
    }
    assert json.loads(trim(json.dumps({"packages": trimmed})))["packages"] == trimmed


def recording(folder: Path, *rows: Json) -> Path:
    folder.mkdir()
    (folder / "allowed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def update(kind: str) -> str:
    return json.dumps({"method": "session/update", "params": {"update": {"sessionUpdate": kind}}})


def test_what_differs_between_two_recordings_is_said(tmp_path: Path) -> None:
    call = ["ToolCall", {"name": "run 12345"}]
    asked = ["Question", {"options": [{"id": "allow"}]}]
    old = recording(
        tmp_path / "old",
        {"launch": {"argv": ["--acp", "--session=1b4e28ba-2fa1-11d2-883f-0016d3cca427"]}},
        {"line": update("plan"), "events": [call]},
    )
    new = recording(
        tmp_path / "new",
        {"launch": {"argv": ["--acp", "--new", "--session=1b4e28ba-2fa1-11d2-883f-0016d3cca428"]}},
        {"line": update("notice"), "events": [["ToolCall", {"name": "run 23456"}], asked]},
        {"line": "no JSON"},
    )
    assert list(differences(old, new)) == [
        "allowed: argv +--new; events +Question; "
        "lines +session/update/notice -session/update/plan; options +allow"
    ]
    assert list(differences(new, new)) == []


def test_what_differs_in_all_sessions_is_said_once(tmp_path: Path) -> None:
    for name in ("allowed", "denied"):
        for folder, argv in (("old", []), ("new", ["--acp", f"--{name}"])):
            (tmp_path / folder).mkdir(exist_ok=True)
            row = json.dumps({"launch": {"argv": argv}})
            (tmp_path / folder / f"{name}.jsonl").write_text(row + "\n")
    assert list(differences(tmp_path / "old", tmp_path / "new")) == [
        "all sessions: argv +--acp",
        "allowed: argv +--allowed",
        "denied: argv +--denied",
    ]
