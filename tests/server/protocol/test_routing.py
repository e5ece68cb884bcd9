"""Several agents at one address: which of them a message is for (bridge/runtime/router.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigurationError
from bridge.server.agents.configured import configure_agents
from bridge.server.settings.load import load
from tests.support.agents import CARD, TWO, Write, agents, get, of
from tests.support.client import Client, Json, RpcError, artifact_text, context_id, states, task_id
from tests.support.served import Server

PROFILES = """
[profiles.complex]
agent = "Second-2_x"
model = "big"
keywords = ["refactor", "design review"]

[profiles.routine]
model = "small"
keywords = ["typo"]
"""


def bridge(**wishes: Any) -> Json:
    return {"bridge": wishes}


async def folder(client: Client, text: str = "cwd", **members: Any) -> str:
    """The name of the folder that the answering agent works in: `one` is the default agent's."""
    return Path(artifact_text(await client.send(text, **members))).name


def model(server: Server, task: Json) -> str | None:
    """The model of the conversation."""
    found = {one.id: one.lease.start for two in server.managers for one in two.contexts}
    return found[context_id(task)].options.model


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, "one"),
        (bridge(agent="first"), "one"),
        (bridge(agent="Second-2_x"), "two"),
        (bridge(skill="s"), "two"),
        (bridge(skill="Second-2_x"), "two"),
        (bridge(skill="code"), "one"),
        ({"skillId": "s"}, "two"),
        (bridge(profile="complex"), "two"),
        (bridge(profile="routine"), "one"),
        (bridge(profile="complex", agent="first"), "one"),
    ],
)
async def test_a_message_can_name_its_agent(
    write: Write, version: str, metadata: Json, expected: str
) -> None:
    async with agents(write(TWO + PROFILES.replace('model = "big"', ""))) as server:
        assert await folder(server.client(version), metadata=metadata) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text please Refactor\ncwd", "two"),
        ("text a Design Review\ncwd", "two"),
        ("text refactoring\ncwd", "one"),
        ("text a typo, and a refactor\ncwd", "two"),
        ("text a typo\ncwd", "one"),
    ],
)
async def test_keywords_choose_where_the_client_does_not(
    write: Write, text: str, expected: str
) -> None:
    async with agents(write(TWO + PROFILES)) as server:
        said = artifact_text(await server.client().send(text))
        assert said.endswith(f"/{expected}")
        # Whoever has been chosen by name stays chosen.
        said = artifact_text(await server.client().send(text, metadata=bridge(agent="first")))
        assert said.endswith("/one")


async def test_a_conversation_stays_where_it_began(write: Write) -> None:
    async with agents(write(TWO + PROFILES)) as server:
        client = server.client()
        first = await client.send("text hi", metadata=bridge(agent="Second-2_x"))
        context = context_id(first)
        assert await folder(client, contextId=context) == "two"
        assert await folder(client, "text no typo\ncwd", contextId=context) == "two"
        with pytest.raises(RpcError) as refused:
            await client.send("cwd", contextId=context, metadata=bridge(agent="first"))
        assert refused.value.code == -32602
        assert "Second-2_x" in str(refused.value)
        asked = await client.send("ask q Who?\ncwd", contextId=context)
        done = await client.collect("me", taskId=task_id(asked))
        assert states(done)[-1] == "completed"


async def test_the_profiles_model_is_the_conversations(write: Write) -> None:
    models = 'AGENT_MODELS = ["other"]\n'
    async with agents(write(models + TWO + PROFILES)) as server:
        client = server.client()
        task = await client.send("text hi", metadata=bridge(profile="complex"))
        again: Any = {"contextId": context_id(task)}
        await client.send("text hi", metadata=bridge(profile="complex"), **again)
        await client.send("text hi", metadata=bridge(model="big"), **again)
        assert model(server, task) == "big"
        await client.send("text no typo", **again)  # a word of the message changes nothing
        assert model(server, task) == "big"
        for wish, found in (({"model": "other"}, "other"), ({"profile": "routine"}, "small")):
            await client.send("text hi", metadata=bridge(**wish), **again)
            assert model(server, task) == found
        with pytest.raises(RpcError, match="other, big, small"):
            await client.send("text hi", metadata=bridge(model="huge"), **again)


@pytest.mark.parametrize("metadata", [{}, bridge(thoughts=True)])
async def test_a_keyword_chooses_the_model_of_a_new_conversation_only(
    write: Write, metadata: Json
) -> None:
    one = TWO.partition("[agents.Second")[0] + PROFILES.replace('agent = "Second-2_x"', "")
    async with agents(write(one)) as server:
        client = server.client()
        begun = await client.send("text a typo", contextId="begun", metadata=metadata)
        assert model(server, begun) == "small"
        for text in ("text please refactor", "text hi"):
            await client.send(text, contextId="begun", metadata=metadata)
            assert model(server, begun) == "small"
        plain = await client.send("text hi")
        await client.send("text a typo", contextId=context_id(plain))
        assert model(server, plain) is None


@pytest.mark.parametrize(
    ("metadata", "about"),
    [
        (bridge(agent="frist"), "No agent frist. Agents: first, Second-2_x. Did you mean first?"),
        (bridge(skill="x"), "No skill x. Skills: first, Second-2_x, code, s."),
        (bridge(profile="x"), "No profile x. Profiles: none."),
        (bridge(agent=1), "not a string"),
        (bridge(agent=["first"]), "not a string"),
    ],
)
async def test_an_unknown_principal(write: Write, metadata: Json, about: str) -> None:
    async with agents(write(TWO)) as server:
        with pytest.raises(RpcError) as refused:
            await server.client().send("cwd", metadata=metadata)
        assert refused.value.code == -32602
        assert about in str(refused.value)
        assert (await get(server, "/health"))["agents"]["first"]["contexts"] == 0


async def test_at_its_own_address_an_agent_is_alone(write: Write) -> None:
    async with agents(write(TWO + PROFILES)) as server:
        first = of(server, "first")
        assert await folder(first, "text refactor\ncwd", metadata=bridge(agent="first")) == "one"
        for wish in ({"agent": "Second-2_x"}, {"skill": "s"}, {"profile": "complex"}):
            with pytest.raises(RpcError, match=r"No (agent|skill|profile) "):
                await first.send("cwd", metadata=bridge(**wish))


async def test_the_root_has_the_tasks_of_all(write: Write) -> None:
    async with agents(write(TWO)) as server:
        client = server.client()
        mine = await client.send("text a")
        other = await client.send("text b", metadata=bridge(agent="Second-2_x"))
        assert await client.get(task_id(other)) == other
        listed = await client.call("ListTasks", {"pageSize": 1})
        assert [task["id"] for task in listed["tasks"]] == [task_id(other)]
        assert listed["totalSize"] == 2
        more = await client.call("ListTasks", {"pageToken": listed["nextPageToken"]})
        assert [task["id"] for task in more["tasks"]] == [task_id(mine)]
        await _runs_and_is_canceled(server)


async def _runs_and_is_canceled(server: Server) -> None:
    client = server.client()
    asked = await client.send("ask q Who?", metadata=bridge(agent="Second-2_x"))
    async with client.subscribe(task_id(asked)) as items:
        canceled = await client.cancel(task_id(asked))
        updates = [item async for item in items]
    assert states([canceled]) == ["canceled"]
    assert states(updates)[-1] == "canceled"
    with pytest.raises(RpcError) as unknown:
        await of(server, "first").get(task_id(asked))
    assert unknown.value.code == -32001


async def test_the_card_at_the_root_names_the_others_as_skills(write: Write) -> None:
    async with agents(write(TWO)) as server:
        skills = (await get(server, CARD))["skills"]
        assert [skill["id"] for skill in skills] == ["code", "Second-2_x"]
        assert skills[1]["name"] == "Number two"
        alone = (await get(server, f"/agents/first{CARD}"))["skills"]
        assert [skill["id"] for skill in alone] == ["code"]


@pytest.mark.parametrize(
    ("profile", "about"),
    [
        ('agent = "frist"', r"\[profiles.complex\] unknown agent frist. Did you mean first"),
        ("agents = 1", "PROFILES.complex.agents: "),
        ("keywords = 1", "PROFILES.complex.keywords: "),
    ],
)
async def test_a_profile_that_cannot_be(write: Write, profile: str, about: str) -> None:
    path = write(f"{TWO}\n[profiles.complex]\n{profile}")
    with pytest.raises(ConfigurationError, match=about):
        configure_agents(load({"config_file": str(path)}))
