"""The options of clients in `metadata.bridge`, their limits, and requests for busy contexts; with
the tolerated deviations of 0.3 clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.adapter import AgentConfig, SessionOptions, SessionStart
from bridge.errors import InvalidParams
from bridge.runtime.extension import read_options
from bridge.server import registry
from tests.support.cases import each
from tests.support.client import Client, Json, RpcError, artifact_text, state, states, task_id
from tests.support.liveness import Liveness, listening
from tests.support.rest import Rest, message
from tests.support.served import Server, serving

ClaudeCode = registry.load("claude-code")
Jsonl = registry.load("jsonl")
EXTENSION = "urn:coding-agent-bridge:v1"
MODELS = ("opus", "sonnet")


def read(*metadata: Json | None, models: tuple[str, ...] = MODELS) -> Any:
    return read_options(*metadata, adapter=ClaudeCode, models=models)


def choose(**bridge: Any) -> Json:
    """The metadata that make these choices."""
    return {"metadata": {"bridge": bridge}}


async def refused(client: Client, code: int = -32602, **members: Any) -> RpcError:
    """The error that a message is answered with."""
    with pytest.raises(RpcError) as raised:
        await client.send("done", **members)
    assert raised.value.code == code
    return raised.value


# --- what is read ------------------------------------------------------------------------------


def test_every_member_is_read() -> None:
    chosen: Json = {"cwd": "x", "model": "opus", "mode": "plan", "budgetUsd": 2.5, "thoughts": True}
    options = read({"bridge": chosen})
    assert options.session == SessionOptions("opus", "plan", 2.5)
    assert (options.cwd, options.thoughts) == ("x", True)


@each("metadata", [None, {}, {"bridge": {}}, {"bridge": None}, {"other": 1}])
def test_nothing_need_be_chosen(metadata: Json | None) -> None:
    options = read(metadata)
    assert options.session == SessionOptions()
    assert (options.cwd, options.thoughts) == (None, None)


def test_a_null_and_an_unknown_member_choose_nothing() -> None:
    given = dict.fromkeys(("cwd", "model", "mode", "budgetUsd", "thoughts"))
    assert read({"bridge": {**given, "temperature": 2}}).session == SessionOptions()


def test_the_message_counts_before_the_request_member_by_member() -> None:
    options = read(
        {"bridge": {"model": "opus", "cwd": None}},
        {"bridge": {"model": "sonnet", "mode": "plan", "cwd": "x"}},
    )
    assert (options.session.model, options.session.mode, options.cwd) == ("opus", "plan", "x")


@each(
    ("metadata", "cwd"),
    [
        (({"cwd": "a"}, None), "a"),
        (({"cwd": "a", "bridge": {"cwd": "b"}}, None), "b"),
        (({"cwd": "a"}, {"bridge": {"cwd": "b"}}), "a"),
        ((None, {"cwd": "b"}), "b"),
        (({"cwd": ""}, {"cwd": "b"}), "b"),
    ],
)
def test_the_directory_may_also_stand_beside_the_bridge(metadata: Any, cwd: str) -> None:
    assert read(*metadata).cwd == cwd


WRONG: dict[str, list[Any]] = {
    "model": [5, True, [], {}, "", "haiku", "--model=opus", "Opus", "x" * 5000],
    "mode": [5, True, [], "", "bypassPermissions", "dontAsk", "Plan", "x" * 5000],
    "budgetUsd": [0, -1, "5", True, [], {}],
    "thoughts": [1, 0, "true", [], {}],
}


@each(
    ("name", "value"),
    [(name, value) for name, values in WRONG.items() for value in values],
    ids=lambda value: str(value)[:20],
)
def test_a_value_that_is_not_available_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidParams, match=f"metadata.bridge.{name}") as raised:
        read({"bridge": {name: value}})
    assert raised.value.fields[0][0] == f"metadata.bridge.{name}"


@each("bridge", ["opus", 5, [], [{"model": "opus"}], True, False, ""])
def test_metadata_of_the_bridge_that_are_not_an_object_are_refused(bridge: Any) -> None:
    with pytest.raises(InvalidParams, match=r"metadata\.bridge"):
        read({"bridge": bridge})


def test_the_error_lists_the_valid_values() -> None:
    with pytest.raises(InvalidParams, match="opus, sonnet"):
        read({"bridge": {"model": "haiku"}})
    with pytest.raises(InvalidParams, match="default, plan, acceptEdits"):
        read({"bridge": {"mode": "bypassPermissions"}})
    with pytest.raises(InvalidParams, match="allows no choice"):
        read({"bridge": {"model": "opus"}}, models=())


@each("choice", [{"mode": "plan"}, {"budgetUsd": 1}, {"model": "opus"}])
def test_an_agent_that_has_no_such_choice_refuses_it(choice: Json) -> None:
    with pytest.raises(InvalidParams):
        read_options({"bridge": choice}, adapter=Jsonl, models=())


def test_no_mode_that_may_be_chosen_switches_permissions_off() -> None:
    for name in registry.names():
        assert not {"bypassPermissions", "dontAsk", "auto"} & set(registry.load(name).modes)


# --- the command line --------------------------------------------------------------------------


def argv(options: SessionOptions, **config: Any) -> list[str]:
    start = SessionStart("/workspace", "11111111-2222-3333-4444-555555555555", options=options)
    return list(ClaudeCode(AgentConfig("/bin/claude", **config), start).launch().argv)


def test_choices_are_one_argument_each_beside_those_that_are_always_there() -> None:
    plain = argv(SessionOptions())
    chosen = argv(SessionOptions("opus", "plan", 2.5))
    more = [argument for argument in chosen if argument not in plain]
    assert more == ["--model=opus", "--permission-mode=plan", "--max-budget-usd=2.5"]
    assert [argument for argument in chosen if argument in plain] == plain


def test_the_clients_model_takes_the_place_of_the_operators() -> None:
    assert "--model=sonnet" in argv(SessionOptions(), model="sonnet")
    chosen = argv(SessionOptions(model="opus"), model="sonnet")
    assert [one for one in chosen if one.startswith("--model")] == ["--model=opus"]


@each(
    ("budget", "written"),
    [
        *((1, "1"), (0.5, "0.5"), (12.34, "12.34")),
        pytest.param(12.345678, "12.345678"),
        pytest.param(1234567.0, "1234567"),
    ],
)
def test_a_budget_reaches_the_cli_unchanged(budget: float, written: str) -> None:
    options = read({"bridge": {"budgetUsd": budget}}).session
    assert f"--max-budget-usd={written}" in argv(options)


@asynccontextmanager
async def recording_argv(workspace: Path, **settings: Any) -> AsyncIterator[tuple[Server, Path]]:
    """Claude Code's adapter with a program that writes down its arguments and ends."""
    program, written = workspace.parent / "claude", workspace.parent / "argv"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {written}\nexit 1\n")
    program.chmod(0o755)
    more: Json = {"agent_adapter": "claude-code", "agent_binary": str(program), "agent_args": ()}
    async with serving(workspace, **{**more, **settings}) as server:
        yield server, written


async def test_options_of_the_client_reach_the_cli(workspace: Path) -> None:
    async with recording_argv(workspace, agent_models=MODELS) as (server, written):
        bridge = {"model": "opus", "mode": "acceptEdits", "budgetUsd": 3}
        assert state(await server.client().send("hi", **choose(**bridge))) == "failed"
    arguments = written.read_text().splitlines()
    for wanted in ("--model=opus", "--permission-mode=acceptEdits", "--max-budget-usd=3"):
        assert arguments.count(wanted) == 1


async def test_no_other_part_of_a_request_is_in_the_command_line(workspace: Path) -> None:
    mark = "--marker"
    wild: Json = {
        "messageId": mark,
        "contextId": "marker",
        "referenceTaskIds": [mark],
        "extensions": [mark],
        "metadata": {"bridge": {"args": [mark], "binary": mark, "env": mark, mark: mark}, mark: 1},
        "parts": [{"text": mark, "filename": mark, "metadata": {mark: mark}}, {"data": mark}],
    }
    async with recording_argv(workspace, agent_args=("--own",)) as (server, written):
        rest = Rest(server.http, server.url)
        body = {"message": {**message(mark), **wild}, "metadata": {mark: mark}, mark: mark}
        headers = {"A2A-Extensions": mark, "X-Marker": mark}
        assert (await rest.post(f"/message:send?{mark}={mark}", body, **headers)).status == 200
    arguments = written.read_text()
    assert "marker" not in arguments
    session = [one for one in arguments.splitlines() if one.startswith("--session-id=")]
    assert arguments.splitlines() == ["--own", *argv(SessionOptions())[1:-1], *session]


# --- directories -------------------------------------------------------------------------------


@pytest.fixture
def service(workspace: Path) -> Path:
    path = workspace / "service"
    path.mkdir()
    return path


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize(
    "metadata",
    [{"bridge": {"cwd": "service"}}, {"cwd": "service"}, {"bridge": {"cwd": "service/../service"}}],
    ids=str,
)
async def test_an_agent_works_where_the_client_said(
    workspace: Path, service: Path, version: str, metadata: Json
) -> None:
    async with serving(workspace) as server:
        client = server.client(version)
        task = await client.send("cwd", metadata=metadata)
        assert artifact_text(task) == str(service)
        again = await client.send("cwd\nturn", contextId=task["contextId"])
        assert artifact_text(again) == f"{service}2"
        absolute = await client.send("cwd", **choose(cwd=str(service)))
        assert artifact_text(absolute) == str(service)


async def test_the_requests_own_metadata_choose_as_well(workspace: Path, service: Path) -> None:
    async with serving(workspace) as server:
        client = server.client()
        params = {"message": client.message("cwd"), "metadata": {"bridge": {"cwd": "service"}}}
        sent = await client.call("SendMessage", params)
        assert artifact_text(sent["task"]) == str(service)


@pytest.mark.parametrize("cwd", ["/", "..", "service/../..", "~", "none", "file", 5, True, [], {}])
async def test_a_directory_that_is_not_available_is_refused(
    workspace: Path, service: Path, cwd: Any
) -> None:
    (workspace / "file").write_text("")
    async with serving(workspace) as server:
        error = await refused(server.client(), **choose(cwd=cwd))
        assert "metadata.bridge.cwd" in str(error)
        assert str(workspace) not in json.dumps(error.error)


async def test_a_link_out_of_the_workspace_leads_nowhere(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (workspace / "link").symlink_to(tmp_path / "elsewhere")
    async with serving(workspace) as server:
        await refused(server.client(), **choose(cwd="link"))
    roots = (str(tmp_path / "elsewhere"),)
    async with serving(workspace, agent_allowed_repo_roots=roots) as server:
        task = await server.client().send("cwd", **choose(cwd="link"))
        assert artifact_text(task) == roots[0]


# --- options that a context keeps ----------------------------------------------------------------


async def test_another_place_or_budget_in_a_known_context_is_refused(
    workspace: Path, service: Path
) -> None:
    async with recording_argv(workspace, agent_models=MODELS) as (server, _):
        client = server.client()
        first: Json = {"cwd": "service", "model": "opus", "mode": "plan", "budgetUsd": 1}
        context = (await client.send("hi", **choose(**first)))["contextId"]
        for name, other in {"cwd": ".", "budgetUsd": 2}.items():
            error = await refused(client, contextId=context, **choose(**{name: other}))
            assert "begin a new context" in str(error)
            assert state(await client.send("hi", contextId=context, **choose(**first))) == "failed"
        assert state(await client.send("hi", contextId=context)) == "failed"


async def test_another_mode_or_model_reaches_the_next_process(workspace: Path) -> None:
    async with recording_argv(workspace, agent_models=MODELS) as (server, argv):
        context = (await server.client().send("hi"))["contextId"]
        for choice, flag in ({"model": "opus"}, "--model=opus"), ({"mode": "plan"}, "plan"):
            await server.client().send("hi", contextId=context, **choose(**choice))
            assert flag in argv.read_text()
            await refused(
                server.client(), contextId=context, **choose(**dict.fromkeys(choice, "x"))
            )


async def test_a_refused_choice_leaves_no_context_and_no_task(workspace: Path) -> None:
    async with serving(workspace) as server:
        await refused(server.client(), contextId="mine", **choose(model="opus"))
        await refused(server.client(), contextId="mine", **choose(cwd="none"))
        assert server.managers[0].figures() == {"tasks": 0, "contexts": 0}
        assert artifact_text(await server.client().send("turn", contextId="mine")) == "1"


# --- thoughts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["always", "request"])
@pytest.mark.parametrize("client", [True, False, None])
async def test_thoughts_are_only_for_clients_that_request_them(
    workspace: Path, operator: str, client: bool | None
) -> None:
    async with serving(workspace, bridge_thoughts=operator) as server:
        wanted = {} if client is None else choose(thoughts=client)
        items = await server.client().collect("thought hm\ntext x", **wanted)
        seen = "hm" in json.dumps(items[1:])
        assert seen is (operator == "always" if client is None else client)
        other = await server.client().collect(
            "thought hm\ntext x", contextId=task_context(items), **choose(thoughts=not seen)
        )
        assert ("hm" in json.dumps(other[1:])) is not seen  # it belongs to the task alone


def task_context(items: list[Json]) -> str:
    return str(items[0]["task"]["contextId"])


# --- the extension's headers -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["A2A-Extensions", "X-A2A-Extensions"])
@pytest.mark.parametrize("asked", [EXTENSION, f"urn:x, {EXTENSION}", f"{EXTENSION},urn:x"])
async def test_the_extension_is_confirmed_under_the_name_that_asked(
    workspace: Path, name: str, asked: str
) -> None:
    other = {"A2A-Extensions": "X-A2A-Extensions"}.get(name, "A2A-Extensions")
    async with serving(workspace) as server:
        for version, method in (("1.0", "SendMessage"), ("0.3", "message/stream")):
            client = server.client(version)
            params = {"message": client.message("done")}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            response = await client.post(body, **{name: asked})
            assert response.headers[name] == EXTENSION
            assert other not in response.headers
        rest = Rest(server.http, server.url)
        for path in ("/message:send", "/message:stream"):
            answer = await rest.post(path, {"message": message("done")}, **{name: asked})
            assert answer.headers[name] == EXTENSION
            assert other not in answer.headers


@pytest.mark.parametrize("asked", ["", "urn:x", f"{EXTENSION}0", f"x{EXTENSION}"])
async def test_an_unknown_extension_is_not_confirmed(workspace: Path, asked: str) -> None:
    async with serving(workspace) as server:
        rest = Rest(server.http, server.url)
        answer = await rest.get("/tasks", **{"A2A-Extensions": asked})
        assert (answer.status, answer.headers.get("A2A-Extensions")) == (200, None)


async def test_choices_count_without_the_header(workspace: Path, service: Path) -> None:
    async with serving(workspace) as server:
        task = await server.client().send("cwd", **choose(cwd="service"))
        assert artifact_text(task) == str(service)


# --- contexts that work ------------------------------------------------------------------------


async def ended(client: Client, waiting: str, after: Callable[[], Any]) -> Json:
    """The task as it is at its end, which comes some time after `after` was done."""
    async with asyncio.timeout(15), client.subscribe(waiting) as items:
        await anext(items)
        await after()
        _ = [item async for item in items]
    return await client.get(waiting)


async def test_messages_to_a_context_that_works_wait_their_turn(workspace: Path) -> None:
    async with serving(workspace) as server, listening() as live:
        client = server.client()
        first = await client.send_now(f"wait {live.path} a\nturn")
        await live.pid("a")
        more = [await client.send_now("turn", contextId=first["contextId"]) for _ in range(3)]
        assert [state(await client.get(task["id"])) for task in more] == ["submitted"] * 3
        await ended(client, more[-1]["id"], lambda: live.release("a"))
        answers = [artifact_text(await client.get(task["id"])) for task in (first, *more)]
        assert answers == ["1", "2", "3", "4"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_context_that_works_refuses_messages_if_the_operator_says_so(
    workspace: Path, version: str
) -> None:
    async with serving(workspace, bridge_when_busy="reject") as server, listening() as live:
        client = server.client(version)
        first = await client.send_now(f"wait {live.path} a")
        context = first["contextId"]
        await live.pid("a")
        assert "already working" in str(await refused(client, -32004, contextId=context))
        assert state(await client.send("done")) == "completed"  # another context
        await ended(client, first["id"], lambda: live.release("a"))
        assert state(await client.send("done", contextId=context)) == "completed"


async def test_a_question_is_answered_where_messages_are_refused(workspace: Path) -> None:
    async with serving(workspace, bridge_when_busy="reject") as server:
        client = server.client()
        asked = await client.send("permit q May I?")
        answered = await client.send("yes", contextId=asked["contextId"])
        assert (state(answered), answered["id"]) == ("completed", asked["id"])


async def test_only_so_many_tasks_of_a_context_may_wait(workspace: Path) -> None:
    settings: Json = {"bridge_max_tasks_per_context": 2}
    async with serving(workspace, **settings) as server, listening() as live:
        client = server.client()
        context = (await begin(client, live))["contextId"]
        waiting = [await client.send_now("done", contextId=context) for _ in range(2)]
        error = await refused(client, -32004, contextId=context)
        assert "tasks of this context are waiting already" in str(error)
        listed = await client.call("ListTasks", {"contextId": context})
        assert listed["totalSize"] == 3  # nothing is left of the one that was refused
        await ended(client, waiting[-1]["id"], lambda: live.release("a"))
        assert state(await client.send("done", contextId=context)) == "completed"


async def test_a_task_that_waited_and_was_canceled_makes_room(workspace: Path) -> None:
    settings: Json = {"bridge_max_tasks_per_context": 1}
    async with serving(workspace, **settings) as server, listening() as live:
        client = server.client()
        first = await begin(client, live)
        context = first["contextId"]
        waiting = await client.send_now("done", contextId=context)
        await client.cancel(waiting["id"])
        next_one = await client.send_now("text next", contextId=context)
        done = await ended(client, next_one["id"], lambda: live.release("a"))
        assert artifact_text(done) == "next"


async def begin(client: Client, live: Liveness) -> Json:
    """A task that works until the test releases `a`."""
    task = await client.send_now(f"wait {live.path} a")
    await live.pid("a")
    return task


# --- answers by context --------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_context_is_enough_to_answer(workspace: Path, version: str) -> None:
    async with serving(workspace) as server:
        client = server.client(version)
        asked = await client.send("permit q May I?\ntext done")
        answered = await client.send("yes", contextId=asked["contextId"])
        assert answered["id"] == asked["id"]
        assert artifact_text(answered) == 'answered ["q", "yes", "yes"]done'


async def test_over_a_stream_too(workspace: Path) -> None:
    async with serving(workspace) as server:
        client = server.client("0.3")
        asked = await client.send("ask q What?")
        items = await client.collect("this", contextId=asked["contextId"])
        assert {task_id(item) for item in items} == {asked["id"]}
        assert states(items)[-1] == "completed"


async def test_a_queued_task_does_not_get_the_answer(workspace: Path) -> None:
    async with serving(workspace) as server, listening() as live:
        client = server.client()
        asks = await client.send_now(f"wait {live.path} a\nask q What?")
        await live.pid("a")
        behind = await client.send_now("text next", contextId=asks["contextId"])
        await live.release("a")
        async with client.subscribe(asks["id"]) as items:
            async for item in items:
                if state(item) == "input-required":
                    break
        answered = await client.send("this", contextId=asks["contextId"])
        assert (answered["id"], state(answered)) == (asks["id"], "completed")
        async with asyncio.timeout(15):
            while state(behind) != "completed":
                behind = await client.get(behind["id"])
        assert artifact_text(behind) == "next"


async def test_a_context_that_asks_nothing_takes_the_next_task(workspace: Path) -> None:
    async with serving(workspace) as server:
        client = server.client("0.3")
        first = await client.send("turn")
        second = await client.send("turn", contextId=first["contextId"])
        assert (artifact_text(second), second["id"] != first["id"]) == ("2", True)


# --- 0.3: parts without a kind -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"text": "prompt"}, "text"),
        ({"type": "text", "text": "prompt"}, "text"),
        ({"file": {"bytes": "AAAA", "name": "x"}}, "file"),
        ({"file": {"uri": "https://example.org/x"}}, "file"),
        ({"data": {"a": 1}}, "data"),
    ],
    ids=str,
)
async def test_the_kind_of_a_part_may_be_guessed(workspace: Path, part: Json, kind: str) -> None:
    async with serving(workspace) as server:
        task = await server.client("0.3").send([part])
        assert task["history"][0]["parts"][0]["kind"] == kind


@pytest.mark.parametrize(
    "part",
    [
        *({}, {"kind": None}, {"kind": ""}, {"kind": "video"}, {"text": "a", "data": {}}),
        *(
            {"text": "a", "file": {"bytes": "AAAA"}},
            {"text": None},
            {"unknown": 1},
            {"kind": "file"},
        ),
        *({"kind": "text", "data": {}}, {"data": 5}, {"file": {}}, {"text": 5}),
    ],
    ids=str,
)
async def test_ambiguous_parts_are_refused(workspace: Path, part: Json) -> None:
    async with serving(workspace) as server:
        with pytest.raises(RpcError) as raised:
            await server.client("0.3").send([part])
        assert raised.value.code == -32602
        field = raised.value.error["data"][1]["fieldViolations"][0]["field"]
        assert field.startswith("message.parts.0")
