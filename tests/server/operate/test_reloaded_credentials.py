"""Reloads of the credentials of a server in this process: pushes, and the operator's token."""

from __future__ import annotations

import json
from pathlib import Path

from aiohttp import web

from bridge.auth.principal import Token, digest
from tests.support.client import Client, state
from tests.support.liveness import Liveness
from tests.support.receivers import Receiver, accept, receiving
from tests.support.reloadable import Reloadable, reloadable

SECRET = "a-token-of-anna-123456"
ANNA = {"anna": Token(hash=f"sha256:{digest(SECRET).hex()}")}


def client(server: Reloadable) -> Client:
    return server.client(Authorization=f"Bearer {SECRET}")


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
