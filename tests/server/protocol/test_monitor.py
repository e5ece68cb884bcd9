"""The monitor: the state of all tasks for operators, without the texts of clients and agents."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp

from bridge.auth.credentials import new_token
from tests.support.client import Client
from tests.support.monitored import changes, serving


async def test_the_feed_tells_every_change_of_state(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    async with serving(workspace) as server:
        client = Client(http, server.url)
        async with http.get(f"{server.url}/monitor/events") as feed:
            task = await client.send("ask one Which secret?")
            await client.send("blue", taskId=task["id"])
            told = await changes(feed, 3)
        assert [one["state"] for one in told] == ["input-required", "working", "completed"]
        assert {one["id"] for one in told} == {task["id"]}
        assert told[0]["waitsFor"] == "text" and told[2]["waitsFor"] is None
        assert "secret" not in json.dumps(told)


async def test_a_principal_reads_the_changes_of_its_own_tasks(
    workspace: Path, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    tokens, table = {}, ""
    for name in ("anna", "bert"):
        tokens[name], _, entry = new_token(name).partition("\n\n")
        table += f'{entry}scopes = ["run", "read"]\n'
    config = tmp_path / "config.toml"
    config.write_text(table)
    async with serving(workspace, "operator" * 4, CONFIG_FILE=str(config)) as server:
        clients = {
            name: Client(http, server.url, headers={"Authorization": f"Bearer {token}"})
            for name, token in {**tokens, "local": "operator" * 4}.items()
        }
        anna = clients["anna"].headers
        async with http.get(f"{server.url}/monitor/events", headers=anna) as feed:
            ids = {name: (await one.send("text hello"))["id"] for name, one in clients.items()}
            last = await clients["anna"].send("text again")
            told = await changes(feed, 4)
        assert [one["id"] for one in told] == [ids["anna"]] * 2 + [last["id"]] * 2
        owned = f"{server.url}/monitor/tasks?owner=self"
        async with http.get(owned, headers=clients["local"].headers) as answer:
            assert [one["id"] for one in (await answer.json())["tasks"]] == [ids["local"]]


async def test_a_reader_that_comes_back_gets_the_missed_updates(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    async with serving(workspace) as server:
        await Client(http, server.url).send("text a")
        headers = {"Last-Event-ID": "1"}
        async with http.get(f"{server.url}/monitor/events", headers=headers) as feed:
            assert [one["state"] for one in await changes(feed, 1)] == ["completed"]


async def test_the_end_of_the_server_ends_the_feed(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    async with serving(workspace) as server:
        async with http.get(f"{server.url}/monitor/events") as feed:
            assert await server.stop() == 0
            assert await changes(feed, 1) == []


async def test_agents_and_tasks_are_listed(workspace: Path, http: aiohttp.ClientSession) -> None:
    async with serving(workspace) as server:
        client = Client(http, server.url)
        done = await client.send("text a")
        asked = await client.send("ask one Which?", contextId="c")
        async with http.get(f"{server.url}/monitor/agents") as response:
            (agent,) = (await response.json())["agents"]
        assert agent["id"] == "jsonl"
        assert agent["tasks"] == {"completed": 1, "input-required": 1}
        expected = {
            "": {done["id"], asked["id"]},
            "?state=completed": {done["id"]},
            "?contextId=c": {asked["id"]},
            "?agent=jsonl&state=failed": set(),
            "?agent=other": set(),
        }
        for query, ids in expected.items():
            async with http.get(f"{server.url}/monitor/tasks{query}") as response:
                listed = (await response.json())["tasks"]
                assert {task["id"] for task in listed} == ids
                assert {task["cwd"] for task in listed} <= {str(workspace)}
        async with http.get(f"{server.url}/monitor/tasks?state=odd") as response:
            assert response.status == 400
            assert "completed" in (await response.json())["error"]


async def test_the_monitor_needs_the_token(workspace: Path, http: aiohttp.ClientSession) -> None:
    token = "a-token-of-16-or-more"
    async with serving(workspace, token) as server:
        for path in ("agents", "tasks", "events"):
            async with http.get(f"{server.url}/monitor/{path}") as response:
                assert response.status == 401
        headers = {"Authorization": f"Bearer {token}"}
        async with http.get(f"{server.url}/monitor/agents", headers=headers) as response:
            assert response.status == 200
