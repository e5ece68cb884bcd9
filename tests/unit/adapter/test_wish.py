"""A person approves only the action that the question shows: the text of a permission names the
whole action, in the dialect of every CLI, and the operator's rules see all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bridge.adapter.diff import changes_in
from bridge.task.events import Option, Question, ToolCall
from bridge.task.render import status_message
from bridge.task.rules.approval_policy import Decision, Rule, decide
from bridge.task.state import StatusUpdate, Task
from bridge.task.subject import numbered, text_of
from bridge.task.text import MESSAGE_CHARS
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.permissions import (
    STRUCTURED,
    acp,
    acp_begun,
    acp_permission,
    acp_update,
    aider,
    claude,
    codex,
    codex_begun,
    codex_item,
    codex_mcp,
    generic,
    jsonl,
    jsonl_without_input,
)
from tests.support.recordings import RECORDINGS, Play, name_of, rows_of

Json = dict[str, Any]
NOW = datetime(2026, 1, 2, tzinfo=UTC)
CUT = "more characters are not shown)"
TRANSCRIPTS = sorted((CHECKOUT / "tests" / "transcripts").glob("*/**/*.events.json"))


# --- each member is shown ------------------------------------------------------------------------

HOSTILE: dict[str, Json] = {
    "a member behind the obvious one": {"url": "https://x.test", "method": "DELETE"},
    "behind a path": {"path": "/w/notes.md", "action": "delete", "recursive": True},
    "behind a command": {"command": "ls", "stdin": "rm -rf /", "env": {"PATH": "./evil"}},
    "behind a long one": {"aaa": "x" * 50_000, "zzz": "DELETE", "mid": ["y" * 20_000, "PURGE"]},
    "behind many": {**{f"a{n:03}": "x" * 500 for n in range(30)}, "zz": "DELETE"},
    "nested": {"steps": [{"do": "read"}, {"do": "wipe", "what": {"disk": ["sda", "sdb"]}}]},
    "values that look like members": {"text": "hello\ncwd: /safe\nmethod: GET", "cwd": "/"},
    "controls": {"command": "echo \x1b[8mrm\x1b[0m \u202erm\u200b \x07 a\u2028b", "to": "x"},
    "numbers and nothing": {"n": 7, "no": False, "none": None, "empty": "", "list": [], "x": 1.5},
    "names": {"a\nmethod: GET": "POST", "b\u202e": "PUT"},
}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list) and value:
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    else:
        yield value


def unseen(value: Any, text: str) -> list[str]:
    """The lines of a value's leaves that the text does not have."""
    found = []
    for leaf in leaves(value):
        said = leaf if isinstance(leaf, str) else "" if leaf in ([], {}, None) else json.dumps(leaf)
        for line in said.split("\n"):
            if line.startswith("@@ -"):  # its numbers stand before the lines
                continue
            header = line[:4] in ("--- ", "+++ ", "Inde", "====")  # of a diff
            shown = line[4:].removeprefix("x: ").strip("=") if header else line.strip()
            words = "".join(one if one.isprintable() else "\ufffd" for one in shown)
            cut = len(words) > 40 and words[:40] in text and CUT in text
            if words not in text and not cut:
                found.append(words[:80])
    return found


@each("name", HOSTILE)
@each("dialect", STRUCTURED)
def test_the_text_alone_names_each_member_of_the_input(dialect: str, name: str) -> None:
    given = HOSTILE[name]
    asked = STRUCTURED[dialect](given)
    text = asked.text
    assert unseen(given, text) == []
    assert len(text) <= MESSAGE_CHARS
    assert "\\n" not in text and "\\u" not in text
    headline = text.partition("\n")[0]
    for member, value in given.items():
        name = member.replace("\n", "\ufffd").replace("\u202e", "\ufffd")
        assert name in text or unseen(value, headline) == [] or value is None


@each("dialect", STRUCTURED)
def test_no_value_can_pretend_to_be_another_member(dialect: str) -> None:
    asked = STRUCTURED[dialect](HOSTILE["values that look like members"])
    assert "\ncwd: /\n" in f"{asked.text}\n"
    assert "\ncwd: /safe" not in asked.text
    assert "\n  cwd: /safe" in asked.text


INVISIBLE = "\x00\x1b\x9b\r\u00ad\u061c\u180e\u200b\u200c\u200d\u200e\u2028\u202e\u2060\u2066\u3164"
INVISIBLE += "\ufeff\ufff9\U000e0041\u115f\u034f"


@each("letter", INVISIBLE)
@each("dialect", STRUCTURED)
def test_a_character_that_nobody_sees_becomes_a_mark(dialect: str, letter: str) -> None:
    text = STRUCTURED[dialect]({"command": f"git{letter} status"}).text
    assert letter not in text
    assert "git\ufffd status" in text


def test_the_room_is_shared_and_short_values_are_whole() -> None:
    given = {"a": "x" * 100_000, "b": "y" * 100_000, "c": "short one", "d": "z" * 300}
    for limit in (500, 3_000, MESSAGE_CHARS):
        text = text_of({"title": "It asks", "input": given}, limit)
        assert len(text) <= limit
        assert "c: short one" in text
        assert text.count(CUT) >= 2
    assert "z" * 300 in text_of({"title": "It asks", "input": given}, 3_000)


def test_members_that_do_not_fit_are_counted() -> None:
    given = {f"member{number}": "x" for number in range(100)}
    text = text_of({"title": "It asks", "input": given}, 500)
    assert len(text) <= 500
    shown = text.count("member")
    assert f"… ({101 - shown} more members are not shown)" in text
    huge = text_of({"title": "It asks", "input": ["x"] * 100_000})
    assert "more members are not shown" in huge


# --- recordings ----------------------------------------------------------------------------------


def requested(line: str) -> Json | None:
    """The request for a permission in a recorded line, as the CLI wrote it."""
    said = json.loads(line) if line.startswith("{") else {}
    params = said.get("params") or said.get("request") or {}
    if said.get("method") == "session/request_permission":
        call: Json = params["toolCall"]
        texts = [one.get("content", {}).get("text") for one in call.get("content") or ()]
        diffs = [one.get("newText") for one in call.get("content") or ()]
        return {"input": call.get("rawInput"), "title": call.get("title"), "t": texts, "d": diffs}
    if params.get("subtype") == "can_use_tool" and "questions" not in params["input"]:
        return {"input": params["input"], "reason": params.get("decision_reason")}
    if str(said.get("method")).endswith("commandExecution/requestApproval"):
        return {name: params.get(name) for name in ("command", "cwd", "reason")}
    return None


@each("path", RECORDINGS, ids=name_of)
def test_the_permissions_of_a_recording_name_the_whole_action(path: Path) -> None:
    play = Play()
    for row in rows_of(path):
        events = play.row(row)
        wanted = requested(row["line"]) if "line" in row else None
        asked = [event for event in events if isinstance(event, Question)]
        if wanted and asked:
            facts = {name: one for name, one in wanted.items() if one not in NO_ACTION}
            assert unseen(facts, asked[-1].text) == []
        for question in asked:
            assert '{"' not in question.text


# OpenHands asks with one title for all actions; the question has the waiting action.
NO_ACTION = (None, [None], "Confirm Agent Actions")


@each("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_question_shows_json_or_a_bare_path(path: Path) -> None:
    for entry in json.loads(path.read_text("utf-8")):
        if entry.get("event") == "Question" and entry["kind"] in ("permission", "plan"):
            text, subject = entry["text"], entry["subject"]
            assert '{"' not in text
            assert "\\n" not in text or "\\n" in "".join(map(str, leaves(subject["input"])))
            assert unseen(subject["input"], text) == []
            if subject.get("path") and "command" not in subject:
                assert subject["changes"], text


# --- changes -------------------------------------------------------------------------------------

EDITS: dict[str, tuple[str, Json, str]] = {
    "Edit": (
        "Edit",
        {"file_path": "/w/a", "old_string": "one\n", "new_string": "two\n"},
        "--- /w/a\n+++ /w/a\n@@ -1,1 +1,1 @@\n-one\n+two\n",
    ),
    "Write": (
        "Write",
        {"file_path": "/w/a", "content": "one\n"},
        "--- /dev/null\n+++ /w/a\n@@ -0,0 +1,1 @@\n+one\n",
    ),
    "MultiEdit": (
        "MultiEdit",
        {"file_path": "/w/a", "edits": [{"old_string": "x\n", "new_string": ""}]},
        "--- /w/a\n+++ /w/a\n@@ -1,1 +0,0 @@\n-x\n",
    ),
    "NotebookEdit": (
        "NotebookEdit",
        {"notebook_path": "/w/n.ipynb", "cell_id": "c7", "new_source": "run()\n"},
        "--- /dev/null\n+++ /w/n.ipynb\n@@ -0,0 +1,1 @@\n+run()\n",
    ),
    "other spellings": (
        "str_replace_editor",
        {"filePath": "/w/a", "oldString": "one\n", "newString": "two\n"},
        "--- /w/a\n+++ /w/a\n@@ -1,1 +1,1 @@\n-one\n+two\n",
    ),
}


@each("name", EDITS)
def test_an_edit_is_shown_as_a_diff(name: str) -> None:
    tool, given, diff = EDITS[name]
    for asked in (claude(given, tool), acp(given, tool, kind="edit")):
        assert asked.subject and asked.subject["changes"] == [diff]
        assert numbered(diff) in asked.text
        assert unseen(given, asked.text) == []


def test_a_diff_cannot_contain_lines_of_its_own() -> None:
    """A line of a file ends with a newline only, and the diff of an agent has lines of a diff."""
    asked = claude({"file_path": "/w/a", "content": "x\r\u2028cwd: /\x0bb\n"}, "Write")
    assert "\n    1 +x\ufffd\ufffdcwd: /\ufffdb" in asked.text
    forged = "--- /w/a\n+++ /w/a\n@@ -1,1 +1,1 @@\n-x\n+y\ncwd: /safe\n"
    asked = acp({"fileName": "/w/a", "diff": forged}, "edit", kind="edit")
    assert "\ncwd: /safe" not in asked.text
    assert "\n  cwd: /safe" in asked.text


def test_the_lines_of_a_diff_have_numbers_and_little_context() -> None:
    old = [f"line {number}\n" for number in range(1, 31)]
    new = [*old[:12], "new\n", *old[13:25], *old[26:]]
    (change,) = changes_in(
        {"path": "/w/a", "old_string": "".join(old), "new_string": "".join(new)}, writes=False
    )
    assert numbered(change).splitlines() == [
        "/w/a (+1 \N{MINUS SIGN}2)",
        "  … 9 unchanged lines",
        *(f"   {number}  line {number}" for number in (10, 11, 12)),
        "   13 -line 13",
        "   13 +new",
        *(f"   {number}  line {number}" for number in (14, 15, 16)),
        "  … 6 unchanged lines",
        *(f"   {number}  line {number}" for number in (23, 24, 25)),
        "   26 -line 26",
        *(f"   {number - 1}  line {number}" for number in (27, 28, 29)),
        "  … 1 unchanged line",
    ]


def test_a_cut_change_ends_with_a_whole_line_and_says_how_many_are_missing() -> None:
    given = {"file_path": "/w/a", "content": "".join(f"{n:050}\n" for n in range(1_000))}
    asked = claude(given, "Write")
    *shown, last = asked.text.splitlines()
    assert len(asked.text) <= MESSAGE_CHARS
    missing = re.fullmatch(r"  … \((\d+) more lines are not shown\)", last)
    assert missing and sum("+0" in line for line in shown) + int(missing[1]) == 1_000


def test_a_deleted_file_is_named_so() -> None:
    diff = "--- /w/a\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"
    assert numbered(diff) == "/w/a (deleted, +0 \N{MINUS SIGN}2)\n    1 -x\n    2 -y"


def test_the_files_of_an_acp_request_are_named_besides_its_input() -> None:
    diff = {"type": "diff", "path": "/workspace/in/.env", "oldText": "a\n", "newText": "b\n"}
    asked = acp({"mode": "fast"}, kind="edit", content=[diff], locations=[{"path": "/w/other"}])
    assert "/workspace/in/.env" in asked.text and "/w/other" in asked.text
    assert decided(asked, Rule("deny", path="*/.env"), Rule("allow", tool="*")) == "deny"


# --- the words that came with the request --------------------------------------------------------


def test_the_words_of_a_request_are_shown() -> None:
    content = [{"type": "content", "content": {"type": "text", "text": "rm -rf /\nfor good"}}]
    assert "(rm -rf /\n  for good)" in acp(None, "Bash", content=content).text
    link = {"type": "content", "content": {"type": "resource_link", "uri": "file:///w/x"}}
    assert "file:///w/x" in acp(None, "Read", content=[link]).text
    more = {"decision_reason": "a rule", "description": "tidies up", "blocked_path": "/etc"}
    text = claude({"command": "rm x"}, "Bash", **more).text
    assert all(words in text for words in more.values())
    plan = {"plan": "1. look", "allowedPrompts": [{"tool": "Bash", "prompt": "run anything"}]}
    asked = claude(plan, "ExitPlanMode")
    assert "run anything" in asked.text and asked.text.endswith("\n\n1. look")
    assert asked.text.count("1. look") == 1


def test_the_lines_above_a_question_of_a_terminal_belong_to_it() -> None:
    assert "rm -rf build" in generic("rm -rf build").text
    assert aider("rm -rf build").text == "aider asks: Run shell command?\ncommand: rm -rf build"
    assert aider("rm -rf build\n\nls").text.endswith("command:\n  rm -rf build\n  \n  ls")


# --- rules ---------------------------------------------------------------------------------------


def decided(question: Question, *rules: Rule) -> Decision:
    return decide(rules, question.subject or {}, "/workspace", lambda path: path)


REMOVALS: dict[str, Callable[[], Question]] = {
    "claude": lambda: claude({"command": "rm -rf x"}, "Bash"),
    "claude, mcp": lambda: claude({"opts": {"shellCommand": "rm -rf x"}}),
    "claude, unknown member": lambda: claude({"action": "rm -rf x"}),
    "claude, arguments": lambda: claude({"program": "rm", "args": ["-rf", "x"]}),
    "claude, command and arguments": lambda: claude({"command": "rm", "args": "-rf x"}),
    "claude, keys of a terminal": lambda: claude({"pane": "1", "text": "rm -rf x"}),
    "claude, words": lambda: claude({"words": ["rm", "-rf", "x"]}),
    "claude, script": lambda: claude({"script": "cd /tmp\nrm -rf x"}),
    "acp": lambda: acp({"command": "rm -rf x"}, kind="execute"),
    "acp, cmd": lambda: acp({"cmd": ["bash", "-lc", "rm -rf x"]}, kind="execute"),
    "acp, commands": lambda: acp({"commands": ["ls", "rm -rf x"]}, kind="execute"),
    "acp, title (gemini)": lambda: acp(None, "rm -rf x", kind="execute"),
    "acp, words of the request (kimi)": lambda: acp(
        None, "Bash", content=[{"type": "content", "content": {"type": "text", "text": "rm -rf x"}}]
    ),
    "codex": lambda: codex({"command": "/bin/bash -lc 'rm -rf x'", "cwd": "/workspace"}),
    "codex, stdin": lambda: codex({"kind": "writeStdin", "command": "sh", "chars": "rm -rf x"}),
    "codex, mcp": lambda: codex_mcp({"run": {"cmd": "rm -rf x"}}),
    "jsonl": lambda: jsonl({"command": "rm -rf x"}),
    "jsonl, data": lambda: jsonl_without_input({"name": "shell", "command": "rm -rf x"}),
    "generic": lambda: generic("rm -rf x"),
    "aider": lambda: aider("rm -rf x"),
}


@each("name", REMOVALS)
def test_a_denied_command_is_denied_in_every_dialect(name: str) -> None:
    asked, wide = REMOVALS[name](), Rule("allow", tool="*")
    assert decided(asked, Rule("deny", command="rm *"), wide) == "deny"
    assert decided(asked, Rule("ask", command="rm *"), wide) == "ask"
    assert decided(asked, Rule("deny", command="shutdown*"), wide) in ("allow", "ask")
    assert decided(asked, wide) == "allow"


UNKNOWN: dict[str, Callable[[], Question]] = {
    "acp, a title": lambda: acp(None, "Bash", kind="execute"),
    "acp, an empty input": lambda: acp({}, "Bash", kind="execute"),
    "acp, a folder": lambda: acp({"cwd": "/workspace"}, "Bash", kind="execute"),
    "claude, an empty input": lambda: claude({}, "Bash"),
    "claude, a remark": lambda: claude({"description": "tidies up"}, "Bash"),
    "jsonl, no input": lambda: jsonl_without_input({"name": "shell", "kind": "execute"}),
    "too deep": lambda: claude({"a": [[[[[[[["rm x"]]]]]]]]}),
    "too many": lambda: claude({"command": "ls", **{f"m{n}": "x" for n in range(300)}}),
    "too long": lambda: claude({"command": "ls", "more": "x " * 20_000}),
    "generic": lambda: generic("I clean up"),
}


@each("name", UNKNOWN)
def test_an_unknown_action_is_not_allowed_while_a_rule_could_refuse_it(name: str) -> None:
    asked, wide = UNKNOWN[name](), Rule("allow", tool="*")
    for decision in ("deny", "ask"):
        assert decided(asked, Rule(decision, command="rm *"), wide) == "ask"
        assert decided(asked, Rule(decision, command="rm *", tool="other"), wide) == "allow"
    assert decided(asked, wide) == "allow"


def test_a_path_that_is_not_shown_is_not_allowed_while_a_rule_could_refuse_it() -> None:
    asked, wide = acp({}, "Edit", kind="edit"), Rule("allow", tool="*")
    assert decided(asked, Rule("deny", path="*/.env"), wide) == "ask"
    known = acp({"path": "/workspace/a"}, "Edit", kind="edit")
    assert decided(known, Rule("deny", path="*/.env"), wide) == "allow"


def test_known_actions_without_a_command_are_allowed_by_their_tool() -> None:
    asked = claude({"url": "https://x.test", "method": "GET"})
    rules = Rule("deny", command="rm *"), Rule("allow", tool="mcp__shop__*")
    assert decided(asked, *rules) == "allow"


# --- tools are announced with their input ---------------------------------------------------------


def test_a_tool_is_announced_again_when_its_input_is_known() -> None:
    adapter = acp_begun()
    *_, first, _ = acp_permission(adapter, title="Bash", kind="execute")
    assert isinstance(first, ToolCall)
    update = {"toolCallId": "t1", "status": "in_progress", "rawInput": {"command": "rm x"}}
    (again,) = acp_update(adapter, **update)
    assert again == ToolCall("t1", first.name, {"command": "rm x"})
    assert acp_update(adapter, **update) == []
    (changed,) = acp_update(adapter, **{**update, "rawInput": {"command": "rm -rf y"}})
    assert changed == ToolCall("t1", first.name, {"command": "rm -rf y"})


def test_a_search_of_codex_is_announced_again_with_its_words() -> None:
    adapter = codex_begun()
    search = {"type": "webSearch", "id": "w", "action": None}
    begun = codex_item(adapter, "started", **search, query="")
    assert begun == [ToolCall("w", "web_search", {"query": "", "action": None})]
    ended = codex_item(adapter, "completed", **search, query="x")
    assert ended[0] == ToolCall("w", "web_search", {"query": "x", "action": None})


# --- what `always` allows -------------------------------------------------------------------------


def always(question: Question) -> Option:
    (option,) = [one for one in question.options if one.kind == "allow_always"]
    return option


@each(
    ("suggestion", "words"),
    [
        (
            {"type": "addRules", "behavior": "allow", "rules": [{"toolName": "Bash"}]},
            "every use of Bash",
        ),
        (
            {
                "type": "addRules",
                "behavior": "allow",
                "rules": [{"toolName": "Bash", "ruleContent": "pytest:*"}],
            },
            "every command that begins with `pytest`",
        ),
        (
            {
                "type": "addRules",
                "behavior": "allow",
                "rules": [{"toolName": "WebFetch", "ruleContent": "domain:x.test"}],
            },
            "WebFetch with `domain:x.test`",
        ),
        ({"type": "addDirectories", "directories": ["/etc"]}, "access to /etc"),
        ({"type": "setMode", "mode": "acceptEdits"}, "every change of a file in its directories"),
        ({"type": "setMode", "mode": "bypassPermissions"}, "mode bypassPermissions, type setMode"),
    ],
)
def test_always_says_what_it_will_allow(suggestion: Json, words: str) -> None:
    asked = claude({"command": "x"}, "Bash", permission_suggestions=[suggestion])
    described = always(asked).description
    assert described == f"no more questions in this conversation about {words}"
    task = Task("t", "c", NOW)
    (update,) = task.apply(asked, NOW)
    assert isinstance(update, StatusUpdate)
    message = status_message(task, update)
    assert message and f"- Always allow in this session: {described}" in message.text


def test_always_of_other_dialects_says_it_too() -> None:
    assert "this command" in always(codex({"command": "x"})).description
    assert "decides" in always(acp({"command": "x"})).description
