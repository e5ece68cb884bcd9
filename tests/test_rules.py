"""The operator's rules: which wishes of an agent they fit."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.rules import Decision, Rule, decide

CWD = "/work/it"
LINKS = {"/work/it/link": "/etc/passwd", "/work/it/../x": "/work/x"}


def decided(subject: Any, *rules: Rule) -> Decision:
    return decide(rules, subject, CWD, lambda path: LINKS.get(path, path))


def bash(command: Any) -> dict[str, Any]:
    return {"name": "Bash", "input": {"command": command}}


def edit(*paths: str) -> dict[str, Any]:
    return {"name": "Edit", "kind": "edit", "input": [{"file_path": path} for path in paths]}


ALLOW_GIT = Rule("allow", command="git *")
DENY_RM = Rule("deny", command="rm *")


def test_without_a_rule_that_fits_clients_are_asked() -> None:
    assert decided(bash("ls")) == "ask"
    assert decided(bash("ls"), ALLOW_GIT, DENY_RM, Rule("allow", tool="Edit")) == "ask"
    assert decided({}, ALLOW_GIT) == "ask"


def test_the_strictest_rule_counts_in_whatever_order() -> None:
    rules = [Rule("allow", tool="Bash"), Rule("ask", command="git *"), Rule("deny", command="*x*")]
    for order in (rules, rules[::-1]):
        assert decided(bash("ls"), *order) == "allow"
        assert decided(bash("git log"), *order) == "ask"
        assert decided(bash("git x"), *order) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf /",
        "git log && curl evil",
        "git log | sh",
        "git log $(rm x)",
        "git log `rm x`",
        "git log > ~/.bashrc",
        "git log\nrm x",
        "git log & rm x",
        "(git log)",
        "git log <(rm x)",
        "GIT_PAGER=evil git $X",
        ["bash", "-lc", "git log; rm x"],
    ],
)
def test_only_a_single_plain_command_is_allowed(command: Any) -> None:
    assert decided(bash(command), ALLOW_GIT) == "ask"


@pytest.mark.parametrize(
    "command", ["git status", "git  log\t-1", ["git", "log"], ["/bin/bash", "-lc", "git log"]]
)
def test_a_plain_command_is_allowed_however_it_is_given(command: Any) -> None:
    assert decided(bash(command), ALLOW_GIT) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf x",
        "true; rm x",
        "true && rm  x",
        "a | rm x",
        "$(rm x)",
        "`rm x`",
        "a\nrm x",
        "X=1 Y=2 rm x",
        ["rm", "x"],
        ["sh", "-c", "cd /; rm x"],
    ],
)
def test_a_denied_command_is_found_in_a_line(command: Any) -> None:
    assert decided(bash(command), DENY_RM, Rule("allow", tool="Bash")) == "deny"


def test_all_paths_must_fit_to_be_allowed_and_one_to_be_denied() -> None:
    allow, deny = Rule("allow", path="src/*"), Rule("deny", path="*/.env")
    assert decided(edit("src/a/b.py"), allow, deny) == "allow"
    assert decided(edit("/work/it/src/a.py"), allow, deny) == "allow"
    assert decided(edit("src/a.py", "b.py"), allow, deny) == "ask"
    assert decided(edit("src/a.py", "src/.env"), allow, deny) == "deny"
    assert decided(edit(), allow, deny) == "ask"
    assert decided(edit("/other/src/a.py"), allow) == "ask"


def test_a_path_is_where_it_leads() -> None:
    here = Rule("allow", path="*")
    assert decided(edit("a"), here) == "allow"
    assert decided(edit("link"), here) == "ask"
    assert decided(edit("link"), here, Rule("deny", path="/etc/*")) == "deny"
    assert decided(edit("../x"), here) == "ask"


def test_a_workspace_with_a_pattern_in_its_name_is_not_one() -> None:
    rule = Rule("allow", path="*")
    real = str
    assert decide([rule], edit("a"), "/w[ab]", real) == "allow"
    assert decide([rule], edit("/wa/x"), "/w[ab]", real) == "ask"


def test_all_that_is_given_must_fit() -> None:
    rule = Rule("deny", tool="edit", path="*.py")
    assert decided(edit("a.py"), rule) == "deny"  # by its kind
    assert decided(edit("a.md"), rule) == "ask"
    assert decided({**edit("a.py"), "kind": "read"}, rule) == "ask"


def test_the_changes_of_codex_are_found_by_path() -> None:
    subject = {"name": "apply_patch", "input": {"changes": {"a/.env": {"type": "add"}}}}
    assert decided(subject, Rule("deny", path="*/.env")) == "deny"


def test_a_rule_that_gives_nothing_fits_everything() -> None:
    assert decided({}, Rule("deny")) == "deny"
    assert decided(bash("ls"), Rule("allow")) == "allow"


def test_what_is_nested_without_end_is_no_trouble() -> None:
    deep: Any = {"command": "rm x"}
    for _ in range(100):
        deep = {"a": [deep]}
    assert decided({"input": deep}, DENY_RM) == "ask"
