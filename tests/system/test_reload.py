"""Changes of the configuration of a real server without a restart. A start of a server takes about
a second, so that the tests share few of them."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.support.agent import PROGRAM
from tests.support.client import Client, artifact_text, state, streamed_text, task_id
from tests.support.configured import configured, made
from tests.support.liveness import Liveness

TWENTY = 20
FROM_THE_BEGIN = {"Last-Event-ID": "0"}


async def test_tokens_come_and_go_by_the_commands(workspace: Path, live: Liveness) -> None:
    """Make, reload, use, list and revoke a token; about 0.4 s for each command, and a start."""
    async with configured(workspace, "") as one:
        code, table, secret = await one.command("token", "ci", "--expires", "90d")
        assert code == 0 and "expires = 2" in table and secret.strip() not in table
        client = one.client(secret.strip())
        assert (await client.post({})).status == 401
        one.file.write_text(table)
        code, out, err = await one.command("reload")
        assert (code, out, err) == (0, "added: tokens.ci\n", "")
        task = await client.send_now(f"wait {live.path} agent")
        await live.pid("agent")
        code, out, _ = await one.command("token", "list")
        row = out.splitlines()[1].split()
        assert row[0] == "ci" and "sha256" not in out and secret.strip() not in out
        assert row[1] == "run,read,cancel,approve" and row[3].startswith("2")  # the day of use
        assert (await one.command("token", "revoke", "ci"))[0] == 1  # its table is there still
        one.file.write_text("")
        code, out, _ = await one.command("token", "revoke", "ci", "--cancel")
        assert (code, out) == (0, "ci has no access\ncanceled tasks: 1\n")
        assert (await client.post({})).status == 401
        await live.gone("agent")
        code, _, err = await one.command("token", "ci")
        assert code == 0 and "1 tasks of an earlier principal ci" in err
        operator = Client(one.http, one.server.url, headers=one.server.credentials)
        assert state(await operator.get(task["id"])) == "canceled"


async def test_a_broken_source_changes_nothing(workspace: Path) -> None:
    anna, table = made("anna")
    bert, other = made("bert")
    async with configured(workspace, table) as one:
        broken = {
            "not TOML": "[tokens",
            "a wrong hash": table.replace(table[table.index("sha256") : -3], "sha256:12") + other,
            "an unknown setting": other + "unknown = 1\n",
            "a wrong value": 'log_level = "LOUD"\n' + other,
            "an unknown agent": other + '[agents.x]\nadapter = "none-such"\n',
        }
        one.file.write_text(broken["not TOML"])
        one.server.process.send_signal(signal.SIGHUP)
        await one.server.logged("the configuration was not reloaded")
        for text in broken.values():
            one.file.write_text(text)
            status, answer = await one.reload()
            assert status == 409 and answer["error"]
            assert (await one.client(anna).post({})).status == 200
            assert (await one.client(bert).post({})).status == 401
        code, out, err = await one.command("reload")
        assert (code, out) == (1, "") and "not reloaded" in err
        one.file.write_text(table + other)
        status, answer = await one.reload()
        assert (status, answer["added"]) == (200, ["tokens.bert"])
        assert (await one.client(bert).post({})).status == 200
        for who in (anna, bert):  # they are no administrators
            url, headers = f"{one.server.url}/admin/reload", one.client(who).headers
            async with one.http.post(url, headers=headers) as refused:
                assert refused.status == 403


@pytest.mark.parametrize(
    ("signals", "streams"), [(20, 4), pytest.param(100, TWENTY, marks=pytest.mark.soak)]
)
async def test_signals_disturb_no_stream(
    workspace: Path, live: Liveness, signals: int, streams: int
) -> None:
    """Tasks stream while the server gets SIGHUP again and again, each after the reload before;
    takes over a second."""
    script = "\n".join(f"text {number} " for number in range(200))
    anna, table = made("anna", "running = 20")
    async with configured(workspace, table, BRIDGE_MAX_SESSIONS="20") as one:
        client = one.client(anna)
        tasks = [
            asyncio.create_task(
                client.collect(f"wait {live.path} n{number}\n{script}", messageId=f"m-{number}")
            )
            for number in range(streams)
        ]
        for number in range(streams):
            await live.pid(f"n{number}")
        for number in range(signals):
            one.server.process.send_signal(signal.SIGHUP)
            if number % 5 == 0 and number // 5 < streams:
                await live.release(f"n{number // 5}")
            await one.server.logged("the configuration was reloaded", number + 1)
        async with asyncio.timeout(40):
            found = await asyncio.gather(*tasks)
        for items in found:
            again = Client(one.http, one.server.url, headers={**client.headers, **FROM_THE_BEGIN})
            async with again.subscribe(task_id(items[0])) as whole:
                log = [item async for item in whole]
            assert items[1:] == log[-len(items[1:]) :] and state(log[-1]) == "completed"
            assert streamed_text(items) == "".join(f"{number} " for number in range(200))
        status, answer = await one.reload()
        assert status == 200 and not any(answer.values())
        assert one.server.process.returncode is None


def program_table(name: str, workspace: Path, more: str = "") -> str:
    folder = workspace.parent / name
    folder.mkdir(exist_ok=True)
    return (
        f'[agents.{name}]\nadapter = "jsonl"\nbinary = "{sys.executable}"\n'
        f'args = ["-I", "-S", "{PROGRAM}"]\nworkspace = "{folder}"\n{more}\n'
    )


async def test_agents_come_change_and_go_while_turns_run(workspace: Path, live: Liveness) -> None:
    """One server for all steps, and several CLIs; takes over a second."""
    first, second = program_table("first", workspace), program_table("second", workspace)
    async with configured(workspace, first, BRIDGE_GRPC_PORT="0", BRIDGE_DRAIN_MS="20000") as one:
        url, http, headers = one.server.url, one.http, one.server.credentials

        def at(agent: str) -> Client:
            return Client(http, f"{url}/agents/{agent}", headers=headers)

        assert (await at("second").post({})).status == 404
        running = asyncio.create_task(
            at("first").collect(f"wait {live.path} first\ntext done", contextId="c")
        )
        await live.pid("first")
        one.file.write_text(first + second)
        status, answer = await one.reload()
        assert (status, answer["added"]) == (200, ["agents.second"])
        assert artifact_text(await at("second").send("text hello")) == "hello"
        async with http.get(f"{url}/agents/second/.well-known/agent-card.json") as card:
            assert card.status == 200
            tag = card.headers["ETag"]
        asked = {"message": at("first").message("text routed", messageId="m-9")}
        asked["message"]["metadata"] = {"bridge": {"agent": "second"}}
        root = Client(http, url, headers=headers)
        assert artifact_text((await root.call("SendMessage", asked))["task"]) == "routed"
        async with http.get(f"{url}/agents", headers=headers) as listed:
            ids = [agent["id"] for agent in (await listed.json())["agents"]]
        assert ids == ["first", "second"]

        one.file.write_text(first + program_table("second", workspace, 'name = "Renamed"'))
        status, answer = await one.reload()
        assert (status, answer["changed"]) == (200, ["agents.second"])
        async with http.get(f"{url}/agents/second/.well-known/agent-card.json") as card:
            assert (await card.json())["name"] == "Renamed" and card.headers["ETag"] != tag

        ending = await at("second").send_now(f"wait {live.path} second\ntext late", messageId="m-e")
        await live.pid("second")
        one.file.write_text(first)
        status, answer = await one.reload()
        assert (status, answer["removed"]) == (200, ["agents.second"])
        assert (await at("second").post({})).status == 404
        async with root.subscribe(ending["id"]) as items:  # the drain lets it end
            await anext(items)
            await live.release("second")
            assert state([item async for item in items][-1]) == "completed"
        await live.gone("second")

        await live.release("first")
        async with asyncio.timeout(20):
            assert streamed_text(await running) == "done"
        one.file.write_text(second)
        status, answer = await one.reload()
        assert status == 409 and "default agent" in answer["error"]
