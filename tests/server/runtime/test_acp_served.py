"""Agents that speak ACP behind the whole server, with tests/support/acp_agent.py as the agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.acp_served import again, agent, closed
from tests.support.client import (
    Json,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
)
from tests.support.liveness import listening
from tests.support.served import Server


def reason(task: Json) -> str:
    return str(task["metadata"]["bridge"]["reason"])


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("options", [{}, {"bare": True, "ids": "string"}])
async def test_a_turn_is_streamed(workspace: Path, version: str, options: Json) -> None:
    async with agent(workspace, options) as server:
        script = "thought hm\ntext Hello\ntext  there\nstop end_turn"
        items = await server.client(version).collect(script)
    assert streamed_text(items) == "Hello there"
    assert states(items)[-1] == "completed"


@pytest.mark.parametrize(
    ("words", "chosen"), [("yes", "option-0"), ("always", "option-1"), ("no", "option-2")]
)
@pytest.mark.parametrize("ids", ["number", "string"])
async def test_a_permission_is_asked_for_and_answered_by_its_kind(
    workspace: Path, ids: str, words: str, chosen: str
) -> None:
    async with agent(workspace, {"ids": ids}) as server:
        task = await server.client().send("permit rm\npermit mv\ntext end")
        for title in ("rm", "mv"):
            assert state(task) == "input-required"
            assert "asks for permission: " + title in said(task)
            assert [one["kind"] for one in facts(task)["options"]] == [
                "allow_once",
                "allow_always",
                "reject_once",
            ]
            task = await again(server, task, words)
    outcome = json.dumps({"outcome": "selected", "optionId": chosen})
    assert (state(task), artifact_text(task)) == ("completed", f"{outcome}{outcome}end")


async def test_turns_of_a_context_are_one_session_of_one_process(workspace: Path) -> None:
    async with agent(workspace) as server:
        first = await server.client().send("pid\ntold session/new")
        second = await again(server, first, "pid\nturn")
    pid = artifact_text(second).removesuffix("2")
    new = {"cwd": str(workspace), "mcpServers": []}
    assert artifact_text(first) == pid + json.dumps(new)
    assert first["metadata"]["bridge"]["sessionId"] == f"session-{pid}"
    assert first["metadata"]["bridge"]["cliVersion"] == "1.2.3"


async def test_a_cancel_reaches_the_agent_and_leaves_no_process(workspace: Path) -> None:
    async with agent(workspace) as server, listening() as live:
        client = server.client()
        task = await client.send_now(f"spawn {live.path} child\nspawn {live.path} b\nhold")
        await live.pid("child")
        await live.pid("b")
        assert state(await client.cancel(task_id(task))) == "canceled"
        await live.gone("child", "b")


async def test_a_cancel_while_a_permission_is_open_leaves_nothing(workspace: Path) -> None:
    async with agent(workspace) as server, listening() as live:
        client = server.client()
        task = await client.send(f"spawn {live.path} child\npermit rm\ntext never")
        assert state(task) == "input-required"
        assert state(await client.cancel(task_id(task))) == "canceled"
        await live.gone("child")


@pytest.mark.parametrize("capability", ["load", "resume"])
async def test_a_conversation_continues_in_another_process(
    workspace: Path, tmp_path: Path, capability: str
) -> None:
    old = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "OLD"}}
    capabilities: Json = {"loadSession": True}
    if capability == "resume":
        capabilities["sessionCapabilities"] = {"resume": {}}
    options = {
        "capabilities": capabilities,
        "sessions": str(tmp_path / "sessions"),
        "history": [old, old],
    }
    async with agent(workspace, options) as server:
        first = await server.client().send("pid")
        await server.client().cancel(task_id(await again_now(server, first, "hold")))
        second = await again(server, first, f"text new\ntold session/{capability}")
    told = {"cwd": str(workspace), "mcpServers": [], "sessionId": f"session-{artifact_text(first)}"}
    assert artifact_text(second) == "new" + json.dumps(told)


async def again_now(server: Server, task: Json, text: str) -> Json:
    return await server.client().send_now(text, contextId=context_id(task))


async def test_a_lost_conversation_is_reported_once(workspace: Path, tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    options = {"capabilities": {"loadSession": True}, "sessions": str(path)}
    async with agent(workspace, options) as server:
        first = await server.client().send("text x\nstop end_turn")
        await server.client().cancel(task_id(await again_now(server, first, "hold")))
        path.write_text("")
        lost = await again(server, first, "text not run")
        assert (state(lost), reason(lost)) == ("failed", "session-lost")
        fresh = await again(server, first, "text fresh")
    assert artifact_text(fresh) == "fresh"


async def test_a_login_that_is_missing_fails_the_task_until_it_is_there(
    workspace: Path, tmp_path: Path
) -> None:
    login = tmp_path / "login"
    methods = [{"id": "x", "name": "Login", "description": "Run `agent login`"}]
    options = {"login": str(login), "auth_methods": methods}
    async with agent(workspace, options) as server:
        task = await server.client().send("text x")
        assert (state(task), reason(task)) == ("failed", "auth")
        assert "Run `agent login`" in said(task)
        login.touch()
        assert artifact_text(await again(server, task, "text x")) == "x"


async def test_a_preset_logs_in_with_the_key_of_the_environment(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    methods = [{"id": "gemini-api-key", "name": "Key"}]
    options = {"login": str(tmp_path / "login"), "auth_methods": methods}
    async with agent(workspace, options, "gemini") as server:
        task = await server.client().send("told authenticate")
    assert json.loads(artifact_text(task)) == {"methodId": "gemini-api-key"}


async def test_a_mode_of_the_client_is_set_in_the_words_of_the_agent(workspace: Path) -> None:
    modes = {"currentModeId": "build", "availableModes": [{"id": "build"}, {"id": "plan"}]}
    async with agent(workspace, {"modes": modes}, "opencode") as server:
        metadata = {"bridge": {"mode": "plan"}}
        task = await server.client().send("told session/set_mode", metadata=metadata)
    assert json.loads(artifact_text(task))["modeId"] == "plan"
    assert task["metadata"]["bridge"]["mode"] == "plan"


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("error -32000 log in", "auth"),
        ("error -32603 broken", "agent-error"),
        ("stop refusal", "refusal"),
        ("stop max_tokens", "max-tokens"),
    ],
)
async def test_a_turn_that_fails_leaves_the_session_for_the_next(
    workspace: Path, script: str, word: str
) -> None:
    async with agent(workspace) as server:
        first = await server.client().send("pid")
        task = await again(server, first, f"text x\n{script}")
        assert (state(task), reason(task)) == ("failed", word)
        assert artifact_text(await again(server, first, "pid")) == artifact_text(first)


async def test_a_form_is_two_questions_and_one_answer(workspace: Path) -> None:
    properties = {"name": {"type": "string"}, "sure": {"type": "boolean"}}
    params = {"mode": "form", "message": "M", "requestedSchema": {"properties": properties}}
    async with agent(workspace) as server:
        task = await server.client().send(f"ask elicitation/create {json.dumps(params)}")
        for words in ("Ann", "yes"):
            assert state(task) == "input-required"
            task = await again(server, task, words)
    content = {"name": "Ann", "sure": True}
    assert json.loads(artifact_text(task)) == {"result": {"action": "accept", "content": content}}


async def test_an_option_that_was_not_offered_is_refused_and_the_turn_continues(
    workspace: Path,
) -> None:
    async with agent(workspace) as server:
        task = await server.client().send(
            'ask fs/read_text_file {"path": "/etc/passwd"}\ntext  end'
        )
    answer, _, end = artifact_text(task).rpartition(" ")
    assert (json.loads(answer)["error"]["code"], end) == (-32601, "end")


async def test_lines_that_are_not_messages_are_shown(workspace: Path) -> None:
    async with agent(workspace) as server:
        items = await server.client().collect("line Update available!\ntext x")
    assert any(said(item) == "Update available!" for item in items)
    assert streamed_text(items) == "x"


async def test_the_operator_may_allow_everything(workspace: Path) -> None:
    async with agent(workspace, agent_force=True) as server:
        task = await server.client().send("permit rm")
    assert json.loads(artifact_text(task))["optionId"] == "option-0"


# --- after a cancel ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["load", "resume"])
async def test_a_conversation_continues_after_a_cancel(
    workspace: Path, tmp_path: Path, method: str
) -> None:
    """The agent ends its turn, and writes the conversation down only then."""
    resumes: Json = {"sessionCapabilities": {"resume": {}}}
    options = {
        "sessions": str(tmp_path / "sessions"),
        "journal": "late",
        "capabilities": {"loadSession": True} if method == "load" else resumes,
    }
    async with agent(workspace, options) as server:
        client = server.client()
        cancelled: list[Json] = []
        async with client.stream("text a\nhold") as stream:
            async for item in stream:
                if "artifactUpdate" in item and not cancelled:
                    cancelled.append(await client.cancel(task_id(item)))
        (task,) = cancelled
        assert state(task) == "canceled"
        after = await client.send(f"told session/{method}\nturn", contextId=context_id(task))
        assert state(after) == "completed"
        assert artifact_text(after).endswith("}1")  # another process, with the same conversation
        assert task["metadata"]["bridge"]["sessionId"] in artifact_text(after)


@pytest.mark.parametrize("way", ["error", "exit"])
async def test_a_conversation_that_cannot_be_loaded_is_followed_by_a_new_one(
    workspace: Path, tmp_path: Path, way: str
) -> None:
    options = {
        "sessions": str(tmp_path / "sessions"),
        "capabilities": {"loadSession": True},
        "load": way,
    }
    async with agent(workspace, options, bridge_session_idle_ms=1) as server:
        client = server.client()
        first = await client.send("text a")
        await closed(server)
        failed = await client.send("text b", contextId=context_id(first))
        text = failed["status"]["message"]["parts"][0]["text"]
        assert (state(failed), reason(failed)) == ("failed", "session-lost")
        assert "the journal cannot be read" in text and "new conversation" in text
        after = await client.send("text c", contextId=context_id(first))
        assert (state(after), artifact_text(after)) == ("completed", "c")


# --- updates with the end of a turn --------------------------------------------------------------


async def test_what_comes_just_behind_the_answer_belongs_to_the_turn(workspace: Path) -> None:
    cost = {"sessionUpdate": "usage_update", "cost": {"amount": 0.5, "currency": "USD"}}
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "T", "status": "completed"}
    script = "\n".join(
        (
            "text one ",
            "after text two ",
            f"after update {json.dumps(cost)}",
            f"after update {json.dumps(call)}",
            "after text three",
        )
    )
    async with agent(workspace) as server:
        for _ in range(3):
            items = await server.client().collect(script)
            assert streamed_text(items) == "one two \n\nthree"
            assert states(items)[-1] == "completed"
            task = await server.client().get(task_id(items[0]))
            assert said(task) == "three"
            assert task["metadata"]["usage"]["costUsd"] == 0.5
            assert [facts(one).get("type") for one in items].count("tool_result") == 1
        again_ = await server.client().send("text next", contextId=context_id(items[0]))
        assert artifact_text(again_) == "next"


async def test_an_agent_that_goes_on_without_a_pause_ends_its_turn(workspace: Path) -> None:
    """Half a second: the longest wait for a pause."""
    async with agent(workspace) as server:
        first = await server.client().send("text a\nafter babble")
        assert (state(first), artifact_text(first)[:2]) == ("completed", "ax")
        second = await server.client().send("text b", contextId=context_id(first))
        assert artifact_text(second).endswith("b")


async def test_a_permission_behind_the_answer_is_refused(workspace: Path) -> None:
    async with agent(workspace) as server:
        task = await server.client().send("text a\nafter permit x")
        assert (state(task), artifact_text(task).partition("{")[0]) == ("completed", "a")


@pytest.mark.parametrize("offers", [{}, {"modes": {"currentModeId": "a", "availableModes": []}}])
async def test_history_behind_the_answer_to_a_load_is_no_answer(
    workspace: Path, tmp_path: Path, offers: Json
) -> None:
    content = {"type": "text", "text": "old"}
    old = [
        {"sessionUpdate": f"{who}_message_chunk", "content": content} for who in ("user", "agent")
    ]
    options = {
        "sessions": str(tmp_path / "sessions"),
        "capabilities": {"loadSession": True},
        "history": old,
        "late": old * 20,
        **offers,
    }
    async with agent(workspace, options, bridge_session_idle_ms=1) as server:
        first = await server.client().send("text a")
        await closed(server)
        after = await again(server, first, "text new")
        assert (state(after), artifact_text(after)) == ("completed", "new")


# --- what an agent does on its own, or forgets ----------------------------------------------------


@pytest.mark.parametrize("tool", [False, True])
async def test_a_cancel_says_that_gemini_forgets_the_turn(workspace: Path, tool: bool) -> None:
    """While its model answers; it remembers a turn that is cancelled in a tool."""
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "x", "status": "in_progress"}
    async with agent(workspace, adapter="gemini") as server, listening() as live:
        client = server.client()
        began = f"update {json.dumps(call)}\n" if tool else ""
        task = await client.send_now(f"{began}text a\nspawn {live.path} a\nhold")
        await live.pid("a")
        canceled = await client.cancel(task_id(task))
        assert state(canceled) == "canceled"
        assert ("does not remember this turn" in said(canceled)) is not tool
        await live.gone("a")


async def test_a_goal_of_kimi_ends_its_process_with_the_task(
    workspace: Path, tmp_path: Path
) -> None:
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "CreateGoal"}
    can = {"loadSession": True, "sessionCapabilities": {"close": {}}}
    options = {"capabilities": can, "sessions": str(tmp_path / "sessions")}
    async with agent(workspace, options, "kimi") as server, listening() as live:
        script = f"spawn {live.path} a\nupdate {json.dumps({**call, 'status': 'completed'})}\npid"
        first = await server.client().send(script)
        assert state(first) == "completed"
        await live.gone("a")
        second = await again(server, first, "pid")
    assert state(second) == "completed"
    assert artifact_text(second) != artifact_text(first)
