"""The bridge recognises denials of the sandbox in the output of a CLI that failed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bridge.adapter import ExitStatus, explain_exit
from bridge.sandbox.denied import explain
from tests.support.client import state
from tests.support.sandboxed import needs_landlock, shell
from tests.support.unprivileged import unprivileged

# Of shells and of the languages that CLIs are written in; PATH stands for the path.
WORDS = {
    "bash": "bash: line 1: PATH: Permission denied",
    "dash": "sh: 1: cannot create PATH: Permission denied",
    "coreutils": "touch: cannot touch 'PATH': Read-only file system",
    "node": "Error: EACCES: permission denied, open 'PATH'\n    at async open (node:fs)",
    "node, uncaught": (
        "node:internal/errors: EPERM: operation not permitted\n{\n  errno: -1,\n  code: 'EPERM',\n"
        "  path: 'PATH'\n}"
    ),
    "python": "PermissionError: [Errno 13] Permission denied: 'PATH'",
    "go": "open PATH: permission denied",
    "rust": 'Error: cannot write "PATH"\n\nCaused by: Permission denied (os error 13), "PATH"',
}


@pytest.fixture
def rules(workspace: Path) -> dict[str, Any]:
    hidden = workspace.parent / "hidden"
    hidden.mkdir()
    return {"profile": "landlock", "write": [str(workspace)], "hide": [str(hidden)]}


def explained(words: str, rules: dict[str, Any], ended: bool = True) -> str | None:
    found = explain(words, rules, ended)
    return found and found[0]


@pytest.mark.parametrize("words", WORDS.values(), ids=list(WORDS))
def test_a_path_that_may_not_be_written_names_the_setting(
    words: str, rules: dict[str, Any], workspace: Path
) -> None:
    path = str(workspace.parent / "new folder" / "file") if "'" in words else f"{workspace}-2/x"
    found = explain(words.replace("PATH", path), rules, ended=False)
    assert found and "landlock" in found[0] and "BRIDGE_SANDBOX_WRITE" in found[0]
    assert found[1] == path


@pytest.mark.parametrize("words", WORDS.values(), ids=list(WORDS))
def test_a_hidden_path_names_the_other_one(words: str, rules: dict[str, Any]) -> None:
    text = explained(words.replace("PATH", f"{rules['hide'][0]}/id"), rules)
    assert text and "BRIDGE_SANDBOX_READ" in text


def test_a_value_that_is_not_a_matter_of_the_sandbox_is_not_blamed_on_it(
    rules: dict[str, Any], workspace: Path
) -> None:
    inside = f"open {workspace}/file: permission denied"
    for words in (inside, "it is late", "HTTP 500 from https://example.org/denied"):
        assert explained(words, rules) is None
    with unprivileged():  # the server could not write there either
        assert explained("open /etc/hosts: permission denied", rules) is None
    assert explained(inside, {"profile": "external"}) is None
    assert explained("the key was refused: permission denied", rules, ended=False) is None


def test_an_error_without_a_path_names_the_sandbox_where_the_cli_ended(
    rules: dict[str, Any],
) -> None:
    text = explained("Error: Permission denied (os error 13)", rules)
    assert text and "may have refused" in text and "BRIDGE_SANDBOX_WRITE" in text


def test_the_last_line_of_a_cli_is_kept() -> None:
    last = f"Error: {'x' * 3000} at the end"
    text, _, details = explain_exit("It", ExitStatus(1, "noise\n" * 1000 + last + "\n"))
    assert text.endswith(last) and details["stderr"] == last
    text, _, details = explain_exit("It", ExitStatus(1, "\n".join(f"line {n}" for n in range(999))))
    assert details["stderr"].startswith("line ") and details["stderr"].endswith("line 998")
    assert "Its last words: line " in text


@needs_landlock
async def test_a_cli_that_ends_because_of_the_sandbox_says_so(workspace: Path) -> None:
    home = workspace.parent / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("the key")
    assert os.access(home, os.W_OK)
    async with shell(workspace) as client:
        task = await client.send("echo x > ~/outside || exit 3")
        text = task["status"]["message"]["parts"][0]["text"]
        assert state(task) == "failed"
        assert "(landlock)" in text and "BRIDGE_SANDBOX_WRITE" in text and "outside" in text
        task = await client.send("cat ~/.ssh/id || exit 3")
        text = task["status"]["message"]["parts"][0]["text"]
        assert "BRIDGE_SANDBOX_READ" in text
