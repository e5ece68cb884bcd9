"""The real Claude Code, on a scripted model, through the real server: what it asks the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientTimeout

from tests.support.client import (
    Client,
    Json,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    task_id,
)
from tests.support.real_claude_code import (
    STREAMS,
    VERSIONS,
    RealClaudeCode,
    answer,
    ask,
    ask_user,
    bash,
    claude_code,
    question,
    script,
    session_id,
    streams,
    tool,
    tool_results,
    write,
    written,
)

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=STREAMS)
async def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealClaudeCode]:
    folder = tmp_path_factory.mktemp("claude")
    async with claude_code(folder, **streams(request.param, folder)) as server:
        yield server


@pytest.fixture
def path(real: RealClaudeCode, request: pytest.FixtureRequest) -> Path:
    """A file for this test alone."""
    return real.workspace / f"{request.node.name}.txt"


def told(real: RealClaudeCode, word: str) -> list[str]:
    """What the model was last told of its tool calls, in the conversation about `word`."""
    return tool_results(real.requests(word)[-1])


# --- permissions -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_allowed_tool_runs(real: RealClaudeCode, version: str, path: Path) -> None:
    client = real.shared(version)
    items = await client.collect(script("Write it.", write(path), "Done."))
    assert states(items) == ["submitted", "working", "input-required"]
    question = facts(items[-1])
    assert said(items[-1]).startswith(f"Claude Code asks to use Write: {path}\n")
    assert [option["id"] for option in question["options"]] == ["allow", "allow_always", "deny"]
    assert question["subject"]["input"]["content"] == "written"
    assert written(path) is None
    task = await answer(client, items[0], "allow")
    assert (state(task), artifact_text(task)) == ("completed", "Done.")
    assert written(path) == "written"


async def test_the_answer_may_be_a_data_part(real: RealClaudeCode, path: Path) -> None:
    client = real.shared()
    task = await ask(client, script("Write it.", write(path), "Done."))
    choice = {"questionId": facts(task)["questionId"], "optionId": "allow"}
    assert state(await answer(client, task, [{"data": choice}])) == "completed"
    assert written(path) == "written"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_denied_tool_does_not_run_and_the_turn_goes_on(
    real: RealClaudeCode, version: str, path: Path
) -> None:
    client = real.shared(version)
    task = await ask(client, script("Write it.", write(path), "Then not."))
    task = await answer(client, task, "deny")
    assert (state(task), artifact_text(task)) == ("completed", "Then not.")
    assert written(path) is None
    assert told(real, path.name)[-1] == "The user said no."


async def test_the_model_sees_why_it_was_denied(real: RealClaudeCode, path: Path) -> None:
    client = real.shared("0.3")
    task = await ask(client, script("Write it.", write(path), "Then not."))
    assert state(await answer(client, task, "no, put it into the docs folder")) == "completed"
    assert told(real, path.name)[-1] == "The user said no. put it into the docs folder"
    assert written(path) is None


async def test_what_is_always_allowed_is_not_asked_again(real: RealClaudeCode, path: Path) -> None:
    client = real.client()
    other = path.with_suffix(".second")
    third = path.with_suffix(".third")
    text = script("Write both.", write(path), write(other), "Done.")
    task = await answer(client, await ask(client, text), "always")
    assert state(task) == "completed"
    assert written(path) == "written"
    assert written(other) == "written"
    next_turn = script("One more.", write(third), "Done.")
    task = await client.send(next_turn, contextId=context_id(task))
    assert state(task) == "completed", "it holds for the session"
    assert written(third) == "written"
    task = await ask(client, script("Elsewhere.", write(third.with_suffix(".4")), "Done."))
    await client.cancel(task_id(task))
    assert not list(real.workspace.glob(".claude/*")), "nothing was written into the project"


async def test_a_value_that_is_not_understood_is_asked_again(
    real: RealClaudeCode, path: Path
) -> None:
    client = real.shared("0.3")
    task = await ask(client, script("Write it.", write(path), "Done."))
    again = await answer(client, task, "perhaps tomorrow")
    assert state(again) == "input-required"
    assert "none of the possible answers" in said(again)
    assert facts(again)["questionId"] == facts(task)["questionId"]
    assert written(path) is None
    assert state(await answer(client, task, "yes")) == "completed"
    assert written(path) == "written"


@pytest.mark.parametrize("version", VERSIONS)
async def test_parallel_tools_are_asked_one_after_the_other(
    real: RealClaudeCode, version: str, path: Path
) -> None:
    client = real.shared(version)
    paths = [path.with_suffix(f".{n}") for n in range(3)]
    calls = [["Write", {"file_path": str(p), "content": "x"}] for p in paths]
    task = await ask(client, script("Write all.", {"tools": calls}, "Done."))
    asked = []
    for word in ("allow", "deny", "allow"):
        assert state(task) == "input-required"
        asked.append(facts(task)["subject"]["input"]["file_path"])
        task = await answer(client, task, word)
    assert asked == [str(p) for p in paths]
    assert (state(task), artifact_text(task)) == ("completed", "Done.")
    assert [written(p) for p in paths] == ["x", None, "x"]


@pytest.mark.soak
async def test_no_limit_counts_while_a_question_is_open(tmp_path: Path) -> None:
    """The question is open for a minute: there is a heartbeat each 3 s."""
    limits = {"AGENT_TIMEOUT_MS": "5000", "AGENT_IDLE_EXIT_MS": "5000"}
    async with claude_code(tmp_path, **limits) as real:
        client = real.client()
        path = real.workspace / "late.txt"
        task = await ask(client, script("Write it.", write(path), "Done."))
        await _heartbeats(client, task, 20)
        assert state(await client.get(task_id(task))) == "input-required"
        assert state(await answer(client, task, "allow")) == "completed"
        assert written(path) == "written"


async def _heartbeats(client: Client, task: Json, count: int) -> None:
    """Follow the silent task until so many heartbeats have come."""
    params = {"id": task_id(task)}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": params}
    url, headers = f"{client.url}/a2a/jsonrpc", {"A2A-Version": "1.0"}
    post = client.session.post(url, json=body, headers=headers, timeout=ClientTimeout(90))
    async with asyncio.timeout(90), post as stream:
        while count:
            line = await stream.content.readline()
            assert line, "the stream ended"
            count -= line.startswith(b":")


# --- questions to the user ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "said_back", "understood"),
    [
        ("1.0", "SQLite", "SQLite"),
        ("0.3", "sqlite.", "SQLite"),
        ("1.0", "Whatever is fastest", "Whatever is fastest"),
        ("0.3", "no", "no"),
    ],
)
async def test_a_question_is_answered_with_a_label_or_in_own_words(
    real: RealClaudeCode, version: str, said_back: str, understood: str
) -> None:
    client = real.shared(version)
    text = f"Which database for {version}?"
    task = await ask(client, script("Go.", ask_user(question(text, "SQLite", "Postgres")), "Done."))
    assert said(task) == (
        f"{text}\n- SQLite: It is SQLite\n- Postgres: It is Postgres\n"
        'Reply with exactly one of: "SQLite", "Postgres". Or reply in your own words.'
    )
    assert facts(task)["freeText"] is True
    task = await answer(client, task, said_back)
    assert (state(task), artifact_text(task)) == ("completed", "Done.")
    result = told(real, text)[-1]
    assert f'"{text}"="{understood}"' in result


@pytest.mark.parametrize("version", VERSIONS)
async def test_several_options_may_be_chosen(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    text = f"Which colours for {version}?"
    asked = ask_user(question(text, "Red", "Green", "Blue", multiple=True))
    task = await ask(client, script("Go.", asked, "Done."))
    assert facts(task)["multiple"] is True
    assert state(await answer(client, task, "red, Blue")) == "completed"
    assert f'"{text}"="Red, Blue"' in told(real, text)[0]


async def test_two_questions_of_one_request_are_asked_one_after_the_other(
    real: RealClaudeCode,
) -> None:
    client = real.client("0.3")
    asked = ask_user(question("Size?", "Small", "Large"), question("Shape?", "Round", "Flat"))
    task = await ask(client, script("Go.", asked, "Done."))
    assert said(task).startswith("Size?")
    second = await answer(client, task, "Large")
    assert state(second) == "input-required"
    assert said(second).startswith("Shape?")
    assert facts(second)["questionId"] != facts(task)["questionId"]
    assert state(await answer(client, second, "Flat")) == "completed"
    (result,) = told(real, "Size?")
    assert '"Size?"="Large"' in result
    assert '"Shape?"="Flat"' in result


# --- plans -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_approved_plan_is_carried_out(real: RealClaudeCode, version: str) -> None:
    client = real.client(version)
    plan = tool("ExitPlanMode", plan="# Plan\n\n1. Measure\n2. Cut")
    task = await ask(client, script("Plan it.", tool("EnterPlanMode"), plan, bash("pwd"), "Done."))
    assert "# Plan\n\n1. Measure\n2. Cut" in said(task)
    assert facts(task)["kind"] == "plan"
    task = await answer(client, task, "yes")
    assert (state(task), artifact_text(task)) == ("completed", "Done.")


async def test_a_plan_that_is_sent_back_is_revised(tmp_path: Path) -> None:
    async with claude_code(tmp_path, AGENT_ARGS="--permission-mode plan") as real:
        client = real.client()
        first, second = (tool("ExitPlanMode", plan=text) for text in ("Cut twice", "Measure, cut"))
        task = await ask(client, script("Plan it.", first, second, "Done."))
        assert task["metadata"]["bridge"]["mode"] == "plan"
        assert "Cut twice" in said(task)
        revised = await answer(client, task, "Measure before you cut")
        assert state(revised) == "input-required"
        assert "Measure, cut" in said(revised)
        assert "Measure before you cut" in told(real, "Plan it.")[0]
        assert state(await answer(client, revised, "Approve the plan")) == "completed"


def mode(task: Json) -> str:
    return str(task["metadata"]["bridge"]["mode"])


async def test_an_approved_plan_and_a_later_choice_outlive_process_and_server(
    tmp_path: Path,
) -> None:
    """Over a second: it starts the CLI four times."""
    state_dir = str(tmp_path / "state")
    async with claude_code(
        tmp_path, BRIDGE_STATE_DIR=state_dir, BRIDGE_SESSION_IDLE_MS="1", AGENT_MODELS="haiku,opus"
    ) as real:
        plan = tool("ExitPlanMode", plan="Cut")
        wishes: Json = {"metadata": {"bridge": {"mode": "plan"}}}
        asked = await real.client().send(script("Plan it.", plan, "Done."), **wishes)
        assert (state(asked), mode(asked)) == ("input-required", "plan")
        done = await answer(real.client(), asked, "yes")
        assert (state(done), mode(done)) == ("completed", "default")
        same: Json = {"contextId": context_id(asked)}
        assert mode(await real.client().send(script("Next.", "Done."), **same)) == "default"
        wishes = {"metadata": {"bridge": {"mode": "acceptEdits", "model": "haiku"}}}
        later = await real.client().send(script("Next.", "Done."), **same, **wishes)
        assert mode(later) == "acceptEdits"
        await real.kill()
        await real.restart()
        last = await real.client().send(script("Next.", tool("EnterPlanMode"), "Done."), **same)
        assert mode(last) == "plan"
        assert "haiku" in last["metadata"]["bridge"]["model"]
        last = await real.client().send(script("Next.", "Done."), **same)
        assert (mode(last), "haiku" in last["metadata"]["bridge"]["model"]) == ("plan", True)


async def test_the_running_cli_takes_another_mode_and_model(tmp_path: Path) -> None:
    async with claude_code(tmp_path, AGENT_MODELS="haiku,opus") as real:
        first = await real.client().send(script("Say.", "Done."))
        wishes: Json = {"metadata": {"bridge": {"mode": "acceptEdits", "model": "haiku"}}}
        same: Json = {"contextId": context_id(first)}
        (process,) = real.agents(session_id(first))
        later = await real.client().send(script("Say.", "Done."), **same, **wishes)
        assert (state(later), mode(later)) == ("completed", "acceptEdits")
        assert "haiku" in later["metadata"]["bridge"]["model"]
        assert "haiku" in real.model.requests[-1]["model"]
        assert real.agents(session_id(first)) == [process]


# --- without questions -------------------------------------------------------------------------


async def test_with_force_nothing_is_asked(tmp_path: Path) -> None:
    async with claude_code(tmp_path, AGENT_FORCE="true", IS_SANDBOX="1") as real:
        path = real.workspace / "forced.txt"
        command = bash('python3 -c \'open("shell.txt", "w")\'')
        task = await real.client("0.3").send(script("Go.", write(path), command, "Done."))
        assert (state(task), artifact_text(task)) == ("completed", "Done.")
        assert written(path) == "written"
        assert (real.workspace / "shell.txt").exists()
