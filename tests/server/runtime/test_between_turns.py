"""A CLI that acts between two turns, through the whole server: its requests are refused and written
down, it is told to stop, and the next message of its conversation works."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.acp_agent import PROGRAM as ACP
from tests.support.bridge_process import bridge, scripted
from tests.support.client import Client, Json, artifact_text, context_id, state
from tests.support.liveness import listening, until
from tests.support.served import Server, serving

WITHIN = 60.0
QUESTION = {"type": "question", "id": "late", "text": "May I?"}
DONE = "line " + json.dumps({"type": "done"})


def records(caplog: pytest.LogCaptureFixture) -> list[Any]:
    found = [record.__dict__ for record in caplog.records]
    return [one for one in found if one.get("event") == "session.unasked"]


async def goes_on(server: Server, first: Json) -> None:
    """The next message of the conversation has an answer of its own, and nothing else in it."""
    async with asyncio.timeout(WITHIN):
        task = await server.client().send("text mine", contextId=context_id(first))
    assert (state(task), artifact_text(task)) == ("completed", "mine")


def unasked(server: Server) -> Json:
    return dict(server.managers[0].sessions.unasked)


async def test_a_question_between_turns_is_refused_and_logged(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(workspace) as server:
        script = f"text first\n{DONE}\nask late May I?\ntext FOREIGN"
        first = await server.client().send(script)
        assert (state(first), artifact_text(first)) == ("completed", "first")
        await until(lambda: any(one["act"] == "stopped" for one in records(caplog)))
        await goes_on(server, first)
        assert unasked(server)["request"] >= 1
    (refused, stopped, *_) = records(caplog)
    assert (refused["kind"], refused["act"]) == ("request", "refused")
    assert stopped["act"] == "stopped"
    assert refused["context"] == context_id(first)


async def test_a_tool_between_turns_is_in_the_audit_log(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    call = {"type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "rm x"}}
    path = workspace.parent / "state/audit.jsonl"

    def found() -> list[Json]:
        lines = map(json.loads, path.read_text().splitlines())
        return [one for one in lines if one["what"] == "unasked"]

    async with bridge(workspace, **scripted(workspace)) as server:
        task = await Client(http, server.url).send(f"{DONE}\nline {json.dumps(call)}")
        await until(found)
        assert "session.unasked" in server.log
    (line, *_) = found()
    assert (line["kind"], line["act"], line["tool"]) == ("output", "ignored", "Bash")
    assert line["input"] == {"command": "rm x"}
    assert (line["context"], line["task"]) == (context_id(task), None)


async def test_the_program_gets_the_refusal(workspace: Path) -> None:
    """It waits for the answer, and then writes it down."""
    path = workspace / "answered"
    code = (
        f"import sys; open({str(path)!r}, 'w').write(sys.stdin.readline() + sys.stdin.readline())"
    )
    ask = json.dumps({**QUESTION, "text": "Who?"})
    program = workspace / "program.py"
    program.write_text(
        "import json, sys\n"
        "sys.stdin.readline()\n"
        f"print(json.dumps({{'type': 'done'}}))\nprint({ask!r}, flush=True)\n{code}\n"
    )
    async with serving(workspace, str(program)) as server:
        assert state(await server.client().send("go")) == "completed"
        await until(path.exists)
        await until(path.read_text)
    answer, cancel = map(json.loads, path.read_text().splitlines())
    assert (answer["type"], answer["questionId"]) == ("answer", "late")
    assert cancel["type"] == "cancel"


async def test_text_between_turns_is_logged_and_does_not_reach_the_next_task(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(workspace) as server:
        first = await server.client().send(f"text first\n{DONE}\ntext FOREIGN\ntext FOREIGN")
        await until(lambda: records(caplog))
        await goes_on(server, first)
        assert unasked(server) == {"output": 1}
    (record,) = records(caplog)
    assert (record["act"], record["tool"]) == ("ignored", "Text")


@pytest.mark.parametrize("work", ["permit rm", "ask elicitation/create {}", "ask x/new {}"])
async def test_an_agent_of_acp_that_asks_between_turns_gets_an_answer(
    workspace: Path, caplog: pytest.LogCaptureFixture, work: str
) -> None:
    caplog.set_level(logging.WARNING)
    options = {"capabilities": {"loadSession": True}}
    settings: Json = {
        "agent_adapter": "acp",
        "agent_binary": sys.executable,
        "agent_args": ("-I", "-S", ACP, json.dumps({**options, "sessions": str(workspace / "s")})),
    }
    async with serving(workspace, **settings) as server, listening() as live:
        late = [f"wait {live.path} a", work, "text FOREIGN"]
        script = "\n".join(["text first", *(f"after {one}" for one in late)])
        first = await server.client().send(script)
        assert (state(first), artifact_text(first)) == ("completed", "first")
        await live.release("a")
        await until(lambda: [one for one in records(caplog) if one["act"] == "refused"])
        await goes_on(server, first)


async def test_a_session_that_works_on_is_ended(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ignores that it is told. The grace takes two seconds."""
    caplog.set_level(logging.INFO)
    call = json.dumps({"type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "x"}})
    work = "\n".join([f"line {call}", "pause 0.3"] * 40)
    async with serving(workspace) as server:
        first = await server.client().send(f"text first\n{DONE}\n{work}")
        await until(lambda: any(one["act"] == "ended" for one in records(caplog)))
        await until(
            lambda: any(one.__dict__.get("event") == "session.ended" for one in caplog.records)
        )
        await goes_on(server, first)
