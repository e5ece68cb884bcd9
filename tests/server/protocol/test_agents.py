"""Several agents on one server, from a TOML file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.errors import ConfigurationError
from bridge.server.agents.configured import configure_agents
from bridge.server.settings.load import load
from tests.support.agent import PROGRAM
from tests.support.agents import CARD, TWO, Write, agents, get, of
from tests.support.cases import each
from tests.support.client import RpcError, artifact_text, facts, said, state
from tests.support.liveness import listening
from tests.support.rest import Rest
from tests.support.served import serving

# --- addresses ---------------------------------------------------------------------------------


async def test_each_agent_has_a_card_of_its_own(write: Write) -> None:
    async with agents(write(TWO)) as server:
        first = await get(server, f"/agents/first{CARD}")
        second = await get(server, f"/agents/Second-2_x{CARD}")
    assert first["description"] == "The first"
    assert first["skills"][0]["id"] == "code"
    assert second["name"] == "Number two"
    assert [skill["id"] for skill in second["skills"]] == ["s"]
    for name, card in (("first", first), ("Second-2_x", second)):
        assert {one["url"] for one in card["supportedInterfaces"]} == {
            f"{server.url}/agents/{name}/a2a/jsonrpc",
            f"{server.url}/agents/{name}/a2a/rest",
        }


async def test_agents_have_names_of_their_own_by_default(write: Write) -> None:
    """A client that knows several cards distinguishes the agents by their names."""
    tables = "".join(f"[agents.{name}]\n" for name in ("first", "second", "jsonl"))
    async with agents(write(tables)) as server:
        cards = [
            await get(server, f"/agents/{name}{CARD}") for name in ("first", "second", "jsonl")
        ]
        root = await get(server, CARD)
    names = [card["name"] for card in cards]
    assert len(set(names)) == 3
    assert "first" in names[0] and "second" in names[1] and "jsonl" not in names[2]
    skills = [skill["name"] for skill in root["skills"]]
    assert len(set(skills)) == len(skills)


async def test_each_agent_answers_where_its_card_says_over_every_binding(write: Write) -> None:
    async with agents(write(TWO)) as server:
        for name, folder in (("first", "one"), ("Second-2_x", "two")):
            card = await get(server, f"/agents/{name}{CARD}")
            rest_url = card["supportedInterfaces"][1]["url"]
            for version in ("1.0", "0.3"):
                task = await of(server, name, version).send("cwd")
                assert Path(artifact_text(task)).name == folder
            rest = Rest(server.http, rest_url)
            assert Path(artifact_text(await rest.send("cwd"))).name == folder
            body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "cwd"}]}}
            items = [item async for item in rest.items("POST", "/message:stream", body)]
            assert state(items[-1]) == "completed"


async def test_the_first_agent_answers_at_the_root(write: Write) -> None:
    async with agents(write(TWO)) as server:
        root = await get(server, CARD)
        assert root["description"] == "The first"
        assert root["url"] == f"{server.url}/a2a/jsonrpc"
        task = await server.client().send("cwd")
        assert Path(artifact_text(task)).name == "one"
        assert await of(server, "first").get(task["id"]) == task
        rest = Rest(server.http, server.url)
        assert (await rest.get(f"/tasks/{task['id']}")).body == task


async def test_all_agents_are_listed_with_their_addresses(write: Write) -> None:
    async with agents(write(TWO)) as server:
        listed = (await get(server, "/agents"))["agents"]
        assert [(one["id"], one["default"]) for one in listed] == [
            ("first", True),
            ("Second-2_x", False),
        ]
        for one in listed:
            card = await get(server, one["card"].removeprefix(server.url))
            assert (card["name"], card["url"]) == (one["name"], one["url"])
            assert card["description"] == one["description"]


async def test_health_counts_the_tasks_of_each_agent(write: Write) -> None:
    async with agents(write(TWO)) as server:
        task = await of(server, "Second-2_x").send("ask q What?")
        health = await get(server, "/health")
        assert {name: one["tasks"] for name, one in health["agents"].items()} == {
            "first": 0,
            "Second-2_x": 1,
        }
        await of(server, "Second-2_x").cancel(task["id"])


async def test_one_agent_without_a_name_has_an_address_too(workspace: Path) -> None:
    async with serving(workspace) as server:
        (listed,) = (await get(server, "/agents"))["agents"]
        assert (listed["id"], listed["default"]) == ("jsonl", True)
        assert artifact_text(await of(server, "jsonl").send("text here")) == "here"


async def test_an_unknown_agent_is_not_found(write: Write) -> None:
    async with agents(write(TWO)) as server:
        for path in ("/agents/third", f"/agents/third{CARD}", "/agents/FIRST/a2a/jsonrpc"):
            async with server.http.post(server.url + path, json={}) as response:
                assert response.status == 404
        async with server.http.get(f"{server.url}/agents/third{CARD}") as response:
            assert response.status == 404


# --- what is kept apart, and what is shared ----------------------------------------------------


async def test_the_tasks_of_one_agent_are_unknown_to_the_other(write: Write) -> None:
    async with agents(write(TWO)) as server:
        task = await of(server, "Second-2_x").send("ask q What?")
        other = of(server, "first")
        for method, params in (
            ("GetTask", {"id": task["id"]}),
            ("CancelTask", {"id": task["id"]}),
            ("SubscribeToTask", {"id": task["id"]}),
            ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}),
            ("SendMessage", {"message": other.message("this", taskId=task["id"])}),
        ):
            with pytest.raises(RpcError) as raised:
                await other.call(method, params)
            assert raised.value.code == -32001, method
        listed = await other.call("ListTasks", {})
        assert listed["totalSize"] == 0
        canceled = await of(server, "Second-2_x").cancel(task["id"])
        assert state(canceled) == "canceled"


async def test_a_context_of_one_agent_is_none_of_the_other(write: Write) -> None:
    async with agents(write(TWO)) as server:
        for name in ("first", "Second-2_x"):
            task = await of(server, name).send("turn", contextId="shared")
            assert (task["contextId"], artifact_text(task)) == ("shared", "1")


async def test_sessions_are_shared_by_all_agents(write: Write) -> None:
    path = write("BRIDGE_MAX_SESSIONS = 1" + TWO)
    async with agents(path) as server, listening() as live:
        first, second = of(server, "first"), of(server, "Second-2_x")
        running = await first.send_now(f"wait {live.path} a\nask q What?")
        await live.pid("a")
        waiting = await second.send_now(f"wait {live.path} b")
        assert state(await second.get(waiting["id"])) == "submitted"
        await live.release("a")
        assert not live.has("b")  # a question keeps the place
        await first.cancel(running["id"])
        await live.gone("a")
        async with asyncio.timeout(10), second.subscribe(waiting["id"]) as items:
            await anext(items)
            await live.release("b")
            assert state([item async for item in items][-1]) == "completed"


async def test_settings_of_an_agent_are_its_own(write: Write) -> None:
    text = """
    AGENT_MODELS = "a b"

    [agents.late]
    timeout_ms = 300

    [agents.strict]
    when_busy = "reject"
    models = ["c"]
    thoughts = "always"
    card = "0.3"

    [agents.plain]
    agent_args = ["-I", "-S", "PROGRAM", "extra"]
    bridge_max_tasks = 1
    """.replace("PROGRAM", PROGRAM)
    async with agents(write(text)) as server, listening() as live:
        strict, plain = of(server, "strict"), of(server, "plain")
        late = await of(server, "late").send(f"wait {live.path} late")
        assert (state(late), late["metadata"]["bridge"]["reason"]) == ("failed", "timeout")
        busy = await strict.send_now(f"wait {live.path} busy")
        with pytest.raises(RpcError, match="already working"):
            await strict.send("done", contextId=busy["contextId"])
        await strict.cancel(busy["id"])
        assert "protocolVersion" in await get(server, f"/agents/strict{CARD}")
        assert "supportedInterfaces" not in await get(server, f"/agents/strict{CARD}")
        assert "supportedInterfaces" in await get(server, f"/agents/plain{CARD}")
        for client, model in ((strict, "a"), (plain, "c")):
            with pytest.raises(RpcError, match="Possible for"):
                await client.send("done", metadata={"bridge": {"model": model}})
        for client, seen in ((strict, True), (plain, False)):
            items = await client.collect("thought hm\ndone")
            told = [facts(item) for item in items]
            assert ("thought" in [fact.get("type") for fact in told]) is seen
        first = await plain.send("done")
        await plain.send("done")
        with pytest.raises(RpcError, match="Task not found: it has expired or never existed"):
            await plain.get(first["id"])


async def test_one_agent_that_cannot_start_does_not_matter_to_the_other(
    write: Write, tmp_path: Path
) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    text = f"""
    [agents.good]
    [agents.broken]
    binary = "{program}"
    """
    async with agents(write(text)) as server:
        failed = await of(server, "broken").send("done")
        assert (state(failed), failed["metadata"]["bridge"]["reason"]) == ("failed", "launch")
        assert said(failed).startswith("The agent could not be started")
        assert state(await of(server, "good").send("done")) == "completed"


# --- files that are wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[agents.'']", "AGENTS"),
        ("[agents.'a b']", "AGENTS"),
        ("[agents.'a/b']", "AGENTS"),
        ("[agents.'.hidden']", "AGENTS"),
        ("[agents.ü]".replace("ü", "'ü'"), "AGENTS"),
        (f"[agents.{'x' * 129}]", "AGENTS"),
        ("agents = 5", "AGENTS"),
        ("agents = ['a']", "AGENTS"),
        ("[agents]\na = 5", "AGENTS"),
        ("[agents.a]\nmodle = 'x'", r"\[agents.a\] unknown setting modle. Did you mean model\?"),
        ("[agents.a]\nworkspce = '/'", r"\[agents.a\] unknown setting workspce"),
        ("[agents.a]\nport = 1", r"\[agents.a\] port is a setting of the whole server"),
        ("[agents.a]\nhost = '::1'", "of the whole server"),
        ("[agents.a]\nagents = {}", "of the whole server"),
        ("[agents.a]\ntoken = 'x'", "of the whole server"),
        ("[agents.a]\nmax_sessions = 1", "of the whole server"),
        ("[agents.a]\ntimeout_ms = 'soon'", "AGENT_TIMEOUT_MS"),
        ("[agents.a]\nskills = 'code'", "AGENT_SKILLS"),
        ("[agents.a]\nskills = [{id = 'x'}]", "AGENT_SKILLS"),
        ("[agents.a]\nmodel = '-x'", "AGENT_MODEL"),
        ("[agents.a]\nworkspace = '/no/such/folder'", "is not a directory"),
        ("[agents.a]\nadapter = 'jsnl'", r"unknown adapter 'jsnl'.* Did you mean jsonl\?"),
        ("[agents.a]\nadapter = 'codex-exec'", "codex-exec was withdrawn. Use codex, "),
        ("[agents.a]\nbinary = '/no/such/program'", "was not found"),
        ("[agent.a]\nmodel = 'x'", r"unknown setting agent. Did you mean agents\?"),
    ],
    ids=str,
)
def test_the_error_for_an_invalid_file_suggests_a_name(
    write: Write, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        configure_agents(load({"config_file": str(write(text))}))


def test_names_of_an_agents_settings_may_be_upper_case_as_elsewhere_in_the_file(
    write: Write,
) -> None:
    path = write("[agents.a]\nAGENT_MODEL = 'x'\nBRIDGE_CARD = '0.3'")
    (agent,) = configure_agents(load({"config_file": str(path)}))
    assert (agent.settings.agent.model, agent.settings.agent.card) == ("x", "0.3")


@pytest.mark.parametrize(
    "setting",
    [
        *("public_url = 'http://x'", "log_level = 'DEBUG'", "config_file = 'x'", "state_dir = 'x'"),
        *("push_allow_private = true", "max_body_bytes = 2000", "drain_ms = 1"),
    ],
)
def test_a_setting_of_the_server_is_not_a_setting_of_an_agent(write: Write, setting: str) -> None:
    with pytest.raises(ConfigurationError, match="of the whole server"):
        load({"config_file": str(write(f"[agents.a]\n{setting}"))})


def test_the_first_agent_of_the_file_comes_first_and_the_rest_as_written(write: Write) -> None:
    path = write("[agents.c]\n[agents.a]\n[agents.b]")
    assert [one.id for one in configure_agents(load({"config_file": str(path)}))] == ["c", "a", "b"]


@each("path", ["tasks", "a2a/jsonrpc", "a2a/rest/tasks", "nothing"])
async def test_an_unknown_agent_is_answered_with_the_known_ones(write: Write, path: str) -> None:
    async with agents(write("[agents.first]\n[agents.second]\n")) as server:
        url = f"{server.url}/agents/frist/{path}"
        async with server.http.get(url) as answer:
            assert answer.status == 404
            text = (await answer.json())["error"]["message"]
        assert text == "No agent frist. Agents: first, second. Did you mean first?"


async def test_clients_without_credentials_learn_no_agents(write: Write) -> None:
    """Also at the addresses of cards, which need none."""
    config = f'BRIDGE_AUTH = "token"\n[tokens.a]\nhash = "sha256:{"0" * 64}"\n[agents.first]\n'
    async with agents(write(config)) as server:
        for path in ("tasks", ".well-known/agent-card.json", "a2a/jsonrpc"):
            async with server.http.get(f"{server.url}/agents/frist/{path}") as answer:
                assert answer.status in (401, 404) and "first" not in await answer.text()
