"""Reloads of the credentials of a server in this process: pushes, and the operator's token."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web

from bridge.auth.principal import Grant, Token, digest
from tests.support.client import Client, Json, state
from tests.support.liveness import Liveness
from tests.support.receivers import Receiver, accept, receiving
from tests.support.reloadable import Reloadable, reloadable

SECRET, BOSS, OTHER = "a-token-of-anna-123456", "a-token-of-the-boss-1", "a-token-of-bert-12345"


def hashed(secret: str) -> str:
    return f"sha256:{digest(secret).hex()}"


ANNA = {"anna": Token(hash=hashed(SECRET))}
ADMIN = {"boss": Token(hash=hashed(BOSS), scopes=("admin",))}


def client(server: Reloadable) -> Client:
    return server.client(Authorization=f"Bearer {SECRET}")


async def asked(server: Reloadable, method: str, path: str, secret: str = BOSS) -> tuple[int, Json]:
    header = {"Authorization": f"Bearer {secret}"}
    async with server.http.request(method, server.url + path, headers=header) as answer:
        return answer.status, await answer.json()


async def unavailable(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def test_pushes_of_a_revoked_principal_stop(workspace: Path, live: Liveness) -> None:
    """The queued one is a dead letter, and the others come after the name has come back."""
    their, rest = Receiver(unavailable), {"bert": Token(hash=f"sha256:{'0' * 64}")}
    async with receiving(their), reloadable(workspace, tokens=ANNA) as server:
        script = f"wait {live.path} one\ntext middle\nwait {live.path} two\ntext end"
        task = await client(server).send_now(script)
        await live.pid("one")
        params = {"taskId": task["id"], "url": their.url}
        await client(server).call("CreateTaskPushNotificationConfig", params)
        await live.release("one")
        await their.got(1)
        await live.pid("two")
        assert (await server.reload(tokens=rest)).removed == ("tokens.anna",)
        (dead, *_) = await server.parts.state.store.push_failures(task["id"])
        assert dead.error == "revoked"
        their.behaviours = [accept]
        (handle,) = server.parts.fleet.managers["jsonl"].open_tasks
        await live.release("two")
        async for _ in handle.log.follow(0, 3600.0):
            pass
        before = len(their.requests)
        await server.reload(tokens={**ANNA, **rest})
        assert state(await client(server).get(task["id"])) == "completed"
        bodies = await their.got(before + 1)
        assert not any(b"COMPLETED" in body for body in bodies[:before])


async def test_a_new_operator_token_and_a_new_audit_file(workspace: Path) -> None:
    async with reloadable(workspace, tokens=ANNA) as server:
        operator = server.parts.state.operator
        assert operator
        folder, before = workspace.parent / "state", operator.value
        audit, file = folder / "audit.jsonl", folder / "token"
        await client(server).send("text one")
        old = audit.rename(audit.with_name("audit.jsonl.1"))
        await client(server).send("text two", messageId="m-2")
        file.unlink()
        await server.reload()
        await client(server).send("text three", messageId="m-3")
        early, late = old.read_text().splitlines(), audit.read_text().splitlines()
        lines = [json.loads(line) for line in (*early, *late)]
        began = [line for line in lines if line.get("message")]
        assert [line["message"] for line in began] == ["m-1", "m-2", "m-3"]
        assert {line["via"] for line in began} == {"jsonrpc"}
        assert "m-3" in late[0] and "m-2" not in "".join(late)
        assert audit.stat().st_mode & 0o777 == 0o600
        after = file.read_text().strip()
        assert after != before
        tokens = [server.client(Authorization=f"Bearer {one}") for one in (before, after)]
        asked = [await one.post({}) for one in tokens]
        # This process is that of the server: its own token is known and refused.
        assert [answer.status for answer in asked] == [401, 403]


async def test_pushes_stop_when_the_token_expires(workspace: Path, live: Liveness) -> None:
    """Without another reload; takes the second that the token is valid."""
    their = Receiver(unavailable)
    async with receiving(their), reloadable(workspace, tokens=ANNA) as server:
        task = await client(server).send_now(f"text begin\nwait {live.path} one")
        await live.pid("one")
        params = {"taskId": task["id"], "url": their.url}
        await client(server).call("CreateTaskPushNotificationConfig", params)
        end = datetime.now(UTC) + timedelta(seconds=1)
        await server.reload(tokens={"anna": Token(hash=hashed(SECRET), expires=end)})
        await live.release("one")
        await their.got(1)
        store = server.parts.state.store
        async with asyncio.timeout(20):
            while not await store.push_failures(task["id"]):
                pass
        dead = await store.push_failures(task["id"])
        assert {one.error for one in dead} == {"revoked"} and time.time() > end.timestamp()


async def test_administrators_see_the_tokens_and_end_the_tasks_of_one_principal(
    workspace: Path, live: Liveness
) -> None:
    end = datetime.now(UTC) - timedelta(days=1)
    old = {"old": Token(hash=hashed("another-token-123"), expires=end)}
    bert = {"bert": Token(hash=hashed(OTHER), expires=datetime.now(UTC) + timedelta(days=1))}
    users = {"nobody": Grant(scopes=("read",))}
    known = {**ANNA, **ADMIN, **old, **bert}
    async with reloadable(workspace, tokens=known, unix_users=users) as server:
        his = server.client(Authorization=f"Bearer {OTHER}")
        kept = await his.send_now(f"wait {live.path} his")
        mine = await client(server).send_now(f"wait {live.path} hers")
        await live.pid("his")
        await live.pid("hers")
        status, found = await asked(server, "GET", "/admin/tokens")
        assert status == 200
        listed = {one.pop("name"): one for one in found["tokens"]}
        today = datetime.now(UTC).date().isoformat()
        assert {name: one["lastUse"] for name, one in listed.items()} == {
            **{"anna": today, "boss": today, "bert": today, "old": None, "nobody": None}
        }
        assert [name for name, one in listed.items() if one["expired"]] == ["old"]
        assert listed["bert"]["expires"] and listed["anna"]["expires"] is None
        assert listed["nobody"]["table"] == "unix_users" and listed["boss"]["scopes"] == ["admin"]
        assert "sha256" not in json.dumps(found)
        assert await asked(server, "GET", "/admin/tokens/anna") == (
            200,
            {"name": "anna", "configured": True, "tasks": 1},
        )
        unknown = {"name": "x", "configured": False, "tasks": 0}
        assert await asked(server, "GET", "/admin/tokens/x") == (200, unknown)
        done = await asked(server, "POST", "/admin/tokens/anna/cancel")
        assert done == (200, {"name": "anna", "canceled": 1})
        again = await asked(server, "POST", "/admin/tokens/anna/cancel")
        assert again == (200, {"name": "anna", "canceled": 0})
        assert state(await client(server).get(mine["id"])) == "canceled"
        assert state(await his.get(kept["id"])) == "working"
        for method, path in (("GET", ""), ("GET", "/anna"), ("POST", "/anna/cancel")):
            assert (await asked(server, method, f"/admin/tokens{path}", SECRET))[0] == 403
        assert (await asked(server, "POST", "/admin/reload", SECRET))[0] == 403
        await live.release("his")
