"""Questions without an answer of a client: the operator's rules, and timeouts. And the audit log of
questions, answers and commands."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.adapter import unasked
from bridge.task.events import Status
from bridge.task.rules.approval_policy import Rule
from bridge.task.state import Task
from bridge.telemetry.audit import Audit
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, Json, artifact_text, facts, said, state, states, task_id
from tests.support.liveness import listening
from tests.support.served import serving

WITHIN = 60.0


def lines(*said: Json) -> str:
    return "\n".join(f"line {json.dumps(one)}" for one in said)


OPTIONS = [
    {"id": "y", "name": "Yes", "kind": "allow_once"},
    {"id": "n", "name": "No", "kind": "reject_once"},
]


def permit(question_id: str, subject: Json, options: list[Json] = OPTIONS) -> Json:
    """A question that a program asks without waiting for the answer."""
    about = {"id": question_id, "text": f"May I {question_id}?", "data": subject}
    return {"type": "question", **about, "options": options}


def bash(command: str) -> Json:
    return {"name": "Bash", "input": {"command": command}}


RULES = (
    Rule("allow", tool="Bash", command="git *"),
    Rule("deny", command="rm *"),
    Rule("deny", path="/etc/*"),
)


# --- rules ---------------------------------------------------------------------------------------


async def test_requests_that_a_rule_decides_are_shown_and_not_asked(workspace: Path) -> None:
    async with serving(workspace, rules=RULES) as server:
        client = server.client()
        first = lines(permit("a", bash("git log"))) + "\nanswers 1"
        second = lines(permit("b", bash("cd / && rm x"))) + "\nanswers 1"
        items = await client.collect(f"{first}\n{second}")
        task = await client.get(task_id(items[0]))
    assert "input-required" not in states(items)
    assert artifact_text(task) == '["a", "Yes", "y"]\n\n["b", "No", "n"]'
    told = [said(item) for item in items if "rule" in said(item)]
    assert told == [
        "Allowed by a rule of the operator: May I a? command: git log",
        "Denied by a rule of the operator: May I b? command: cd / && rm x",
    ]
    decided = [one for item in items if (one := facts(item)).get("type") == "decision"]
    assert [(one["decision"], one["by"]) for one in decided] == [
        ("allow", "rule"),
        ("deny", "rule"),
    ]


async def test_a_client_is_asked_where_no_rule_fits(workspace: Path) -> None:
    async with serving(workspace, rules=RULES) as server:
        client = server.client()
        script = lines(permit("a", bash("git log; ls"))) + "\nanswers 1"
        asked = await client.send(script)
        assert state(asked) == "input-required"
        assert artifact_text(await client.send("no", taskId=asked["id"])) == '["a", "no", "n"]'


async def test_a_path_is_followed_to_where_it_leads(workspace: Path) -> None:
    (workspace / "innocent").symlink_to("/etc/passwd")
    subject = {"name": "Edit", "input": {"file_path": "innocent"}}
    async with serving(workspace, rules=RULES) as server:
        task = await server.client().send(lines(permit("a", subject)) + "\nanswers 1")
    assert artifact_text(task) == '["a", "No", "n"]'


async def test_a_request_without_a_deny_option_is_denied_by_text(workspace: Path) -> None:
    only = [{"id": "y", "name": "Yes", "kind": "allow_once"}]
    async with serving(workspace, rules=RULES) as server:
        script = lines(permit("a", bash("rm x"), only)) + "\nanswers 1"
        assert artifact_text(await server.client().send(script)) == '["a", "no", null]'


async def test_several_questions_at_once_are_each_decided(workspace: Path) -> None:
    asks = [permit(str(n), bash("git log" if n % 2 else "rm x")) for n in range(6)]
    asks.insert(3, permit("c", bash("make")))
    async with serving(workspace, rules=RULES) as server:
        client = server.client()
        asked = await client.send(lines(*asks) + "\nanswers 7")
        assert said(asked).startswith("May I c?")
        task = await client.send("yes", taskId=asked["id"])
    answers = json.loads("[" + artifact_text(task).replace("][", "],[") + "]")
    assert dict((one, option) for one, _, option in answers) == {
        **{str(n): "y" if n % 2 else "n" for n in range(6)},
        "c": "y",
    }


# --- nobody there --------------------------------------------------------------------------------


async def test_a_permission_that_is_not_given_is_denied(workspace: Path) -> None:
    async with serving(workspace, bridge_question_timeout_ms=100) as server:
        client = server.client()
        asked = await client.send("permit a May I?")
        items = await ended(client, asked["id"])
        task = await client.get(asked["id"])
    assert artifact_text(task) == 'answered ["a", "Do not", "no"]'
    (note,) = [said(item) for item in items if "No answer" in said(item)]
    assert note == (
        "No answer arrived within 0.1 s (BRIDGE_QUESTION_TIMEOUT_MS); the request was denied."
    )


async def test_further_output_does_not_extend_the_time_of_a_question(
    workspace: Path,
) -> None:
    """The agent prints text at each request for its state, more often than the timeout."""
    async with serving(workspace, bridge_question_timeout_ms=300) as server, listening() as live:
        client = server.client()
        words = "\n".join(f"wait {live.path} w{n}\nstatus {n}" for n in range(50))
        task = await client.send_now(f"{lines(permit('a', {}))}\n{words}\nanswers 1")
        async with asyncio.timeout(WITHIN):
            for number in range(50):
                await live.pid(f"w{number}")
                if state(await client.get(task["id"])) == "working":
                    break
                await asyncio.sleep(0.02)
                await live.release(f"w{number}")
            else:
                raise AssertionError("the question is still open after a second")
        await client.cancel(task["id"])


async def test_a_turn_that_needs_an_answer_ends_without_one(workspace: Path) -> None:
    async with serving(workspace, bridge_question_timeout_ms=100) as server:
        client = server.client()
        script = lines({"type": "question", "id": "q", "text": "Name?", "kind": "text"})
        asked = await client.send(f"{script}\nanswers 1")
        await ended(client, asked["id"])
        task = await client.get(asked["id"])
    assert state(task) == "failed"
    assert "cannot continue without an answer" in said(task)


def chosen(asked: Json, option: str) -> list[Json]:
    return [{"data": {"questionId": facts(asked)["questionId"], "optionId": option}}]


async def test_an_answer_in_time_is_the_only_one(workspace: Path) -> None:
    """The second question has its own time, which begins when it is asked."""
    async with serving(workspace, bridge_question_timeout_ms=60_000) as server:
        client = server.client()
        script = lines(permit("a", {}), permit("b", {})) + "\nanswers 2"
        asked = await client.send(script)
        again = await client.send("yes", taskId=asked["id"])
        assert said(again).startswith("May I b?")
        task = await client.send(chosen(again, "n"), taskId=asked["id"])
    assert artifact_text(task) == '["a", "yes", "y"]["b", "", "n"]'


async def test_a_second_yes_does_not_answer_a_question_that_no_client_has_read(
    workspace: Path,
) -> None:
    async with serving(workspace) as server:
        client = server.client()
        asked = await client.send(lines(permit("a", {}), permit("b", {})) + "\nanswers 2")
        for _ in range(2):
            again = await client.send("yes", taskId=asked["id"])
        assert state(again) == "input-required"
        assert "nothing was decided" in said(again) and "May I b?" in said(again)
        asking_again = 0
        async with asyncio.timeout(WITHIN):  # who repeats the word is heard after 700 ms
            while state(again) == "input-required":
                again = await client.send("no", taskId=asked["id"])
                asking_again += 1
        assert asking_again > 1
    assert artifact_text(again) == '["a", "yes", "y"]["b", "no", "n"]'


@pytest.mark.parametrize("answer", ["because I say so", "y es", [{"data": {"optionId": "y"}}]])
async def test_an_answer_that_is_not_a_bare_word_is_heard_at_once(
    workspace: Path, answer: Any
) -> None:
    question = {"type": "question", "id": "q", "text": "Why?", "freeText": True}
    question["options"] = [{"id": "y", "name": "y", "kind": "choice"}]
    async with serving(workspace) as server:
        client = server.client()
        asked = await client.send(lines(permit("a", {}), question) + "\nanswers 2")
        assert state(await client.send("yes", taskId=asked["id"])) == "input-required"
        assert state(await client.send(answer, taskId=asked["id"])) == "completed"


async def test_an_answer_for_another_question_is_none(workspace: Path) -> None:
    """A prior approval never covers a later request."""
    async with serving(workspace) as server:
        client = server.client()
        asked = await client.send(lines(permit("a", {}), permit("b", {})) + "\nanswers 2")
        yes = chosen(asked, "y")
        again = await client.send(yes, taskId=asked["id"])
        assert said(again).startswith("May I b?")
        twice = await client.send(yes, taskId=asked["id"], messageId="once more")
        assert state(twice) == "input-required" and "May I b?" in said(twice)
        task = await client.send(chosen(again, "n"), taskId=asked["id"])
    assert artifact_text(task) == '["a", "", "y"]["b", "", "n"]'


async def test_the_time_of_a_question_continues_after_a_restart(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    settings = scripted(workspace)
    async with bridge(workspace, **settings, BRIDGE_ON_STOP="keep") as server:
        asked = await Client(http, server.url).send("permit a May I?")
        assert state(asked) == "input-required"
    async with bridge(workspace, **settings, BRIDGE_QUESTION_TIMEOUT_MS="500") as server:
        client = Client(http, server.url)
        await ended(client, asked["id"])
        assert "Do not" in artifact_text(await client.get(asked["id"]))


# --- the audit log -------------------------------------------------------------------------------


async def test_the_audit_log_has_the_client_the_decision_and_the_command(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    settings = scripted(workspace) | {"A_SECRET": "canary-0123456789"}
    run = {
        "type": "tool_call",
        "id": "1",
        "name": "Bash",
        "input": {"command": "x canary-0123456789"},
    }
    async with bridge(workspace, **settings) as server:
        client = Client(http, server.url)
        asked = await client.send(f"{lines(run)}\npermit a May I?")
        await client.send("yes", taskId=asked["id"])
        running = await client.send("permit b May I?")
        await client.cancel(running["id"])
    path = workspace.parent / "state" / "audit.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = [json.loads(line) for line in path.read_text().splitlines()]
    of = {
        task["id"]: [one for one in written if one["task"] == task["id"]]
        for task in (asked, running)
    }
    whats = [[one["what"] for one in of[task["id"]]] for task in (asked, running)]
    assert whats == [
        ["task", "tool", "asked", "answered", "ended"],
        ["task", "asked", "cancel", "ended"],
    ]
    begun, tool, question, answer, end = of[asked["id"]]
    assert {one["principal"] for one in written} == {"local"}
    assert begun["cwd"] == str(workspace) and begun["agent"] == "jsonl"
    assert tool["input"] == {"command": "x [redacted]"}
    assert question["question"] == answer["question"] == f"{asked['id'][:8]}-1"
    assert (answer["options"], answer["text"]) == (["yes"], "yes")
    assert end["state"] == "completed" and of[running["id"]][-1]["state"] == "canceled"
    assert "canary" not in path.read_text() and "canary" not in server.log


async def test_an_audit_log_is_never_rewritten(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    path = workspace.parent / "elsewhere.jsonl"
    settings = scripted(workspace) | {"BRIDGE_AUDIT_FILE": str(path)}
    seen = b""
    for _ in range(2):
        async with bridge(workspace, **settings) as server:
            await Client(http, server.url).send("done")
        now = path.read_bytes()
        assert now.startswith(seen) and len(now) > len(seen)
        seen = now


def test_an_incomplete_audit_line_is_completed_and_reported(tmp_path: Path) -> None:
    """A limit for the size of files has the effect of a full disk."""
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    task = Task("t", "c", datetime(2026, 1, 2, tzinfo=UTC))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        audit.note("first", task, "local")
        assert audit.problem == "the audit log cannot be written: a line was cut"
        audit.note("second", task, "local")
        assert audit.problem
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    audit.note("third", task, "local")
    assert audit.problem is None
    audit.note("fourth", task, "local")
    audit.close()
    cut, *whole = path.read_text().splitlines()
    assert len(cut) == 50
    assert [json.loads(line)["what"] for line in whole] == ["third", "fourth"]


@pytest.mark.parametrize("kind", ["symlink", "missing folder"])
async def test_an_audit_log_that_cannot_be_is_a_refusal(workspace: Path, kind: str) -> None:
    path = workspace.parent / ("audit" if kind == "symlink" else "no/audit")
    if kind == "symlink":
        path.symlink_to(workspace / "target")  # where agents write
    settings = scripted(workspace) | {"BRIDGE_AUDIT_FILE": str(path)}
    async with bridge(workspace, ready=False, **settings) as server:
        assert await server.ended() == 2
    reason = "can be changed by agents" if kind == "symlink" else "cannot write"
    assert "BRIDGE_AUDIT_FILE: " in server.log and reason in server.log
    assert not (workspace / "target").exists()


async def test_rules_are_read_from_the_configuration(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    config = workspace.parent / "config.toml"
    config.write_text('[[rules]]\ndecision = "deny"\ncommand = "rm *"\n')
    settings = scripted(workspace) | {"CONFIG_FILE": str(config)}
    async with bridge(workspace, **settings) as server:
        task = await Client(http, server.url).send(lines(permit("a", bash("rm x"))) + "\nanswers 1")
        assert artifact_text(task) == '["a", "No", "n"]'
    config.write_text('[[rules]]\ndecision = "permit"\nfile = "x"\n')
    async with bridge(workspace, ready=False, **settings) as server:
        assert await server.ended() == 2
    assert "RULES.0.decision" in server.log and "RULES.0.file" in server.log


# --- helpers -------------------------------------------------------------------------------------


async def ended(client: Client, task: str) -> list[Json]:
    """The items of a subscriber until the end of the task."""
    async with asyncio.timeout(WITHIN):
        async with client.subscribe(task) as items:
            return [item async for item in items]


def test_a_request_of_another_turn_is_in_the_audit_log(tmp_path: Path) -> None:
    """The CLI had begun that turn by itself, just before it got the prompt of the task."""
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    task = Task("t", "c", datetime.now(UTC), owner="anna")
    audit.events(
        task, [unasked("request", "Bash", {"command": "rm x"}), Status("x", {"type": "y"})]
    )
    audit.close()
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["what"], line["task"], line["principal"]) == ("unasked", "t", "anna")
    facts = {"kind": "request", "tool": "Bash", "act": "refused", "input": {"command": "rm x"}}
    assert {name: line[name] for name in facts} == facts
