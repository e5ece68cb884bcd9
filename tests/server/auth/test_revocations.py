"""Credentials that become invalid: their streams and waiting requests end on every binding, and the
others lose nothing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bridge.auth.config import AuthConfig
from bridge.auth.principal import Token, digest
from bridge.errors import ConfigurationError
from tests.support.client import Client, RpcError, state, task_id
from tests.support.liveness import Liveness
from tests.support.served import Server, serving

WITHIN = 20.0  # seconds until the stream of a revoked principal has ended; mostly one
NAMES = [f"user-{number}" for number in range(10)]


def secret(name: str) -> str:
    return f"token-of-{name}-{'x' * 20}"


def token(*secrets: str, **more: Any) -> Token:
    return Token(hash=tuple(f"sha256:{digest(one).hex()}" for one in secrets), **more)


def tokens(*names: str) -> dict[str, Token]:
    return {name: token(secret(name)) for name in names}


def client(server: Server, name: str) -> Client:
    return server.client(Authorization=f"Bearer {secret(name)}")


def change(server: Server, accepted: dict[str, Token]) -> set[str]:
    return server.identity.change(AuthConfig(tokens=accepted), None, None)


async def read(
    one: Client, script: str, opened: asyncio.Semaphore, **members: Any
) -> tuple[list[Any], str, float]:
    """The items of a stream, its error, and the time of its end."""
    items: list[Any] = []
    try:
        async with one.stream(script, **members) as stream:
            async for item in stream:
                if not items:
                    opened.release()
                items.append(item)
    except RpcError as error:
        return items, str(error), time.monotonic()
    return items, "", time.monotonic()


async def test_a_waiting_send_ends_with_its_credential(workspace: Path, live: Liveness) -> None:
    async with serving(workspace, tokens=tokens("anna")) as server:
        anna = client(server, "anna")
        waiting = asyncio.create_task(anna.send(f"wait {live.path} agent"))
        await live.pid("agent")
        change(server, {})
        async with asyncio.timeout(WITHIN):
            with pytest.raises(RpcError, match="not valid any more"):
                await waiting
        await live.release("agent")


async def test_a_token_ends_an_open_stream_when_it_expires(workspace: Path, live: Liveness) -> None:
    """Takes the second that the token is valid."""
    end = datetime.now(UTC) + timedelta(seconds=1.2)
    accepted = {"anna": token(secret("anna"), expires=end), **tokens("bert")}
    opened = asyncio.Semaphore(0)
    async with serving(workspace, tokens=accepted) as server:
        script = f"text begin\nwait {live.path} agent"
        async with asyncio.timeout(10):
            _, error, _ = await read(client(server, "anna"), script, opened)
        late = datetime.now(UTC) - end
        assert "not valid any more" in error
        assert timedelta() <= late < timedelta(seconds=WITHIN)
        assert (await client(server, "anna").post({})).status == 401
        assert (await client(server, "bert").post({})).status == 200
        await live.release("agent")


async def test_a_client_rotates_its_token_under_load_without_a_refusal(workspace: Path) -> None:
    """The old token, both, the new one; requests never stop meanwhile."""
    old, new = "old-" + "x" * 30, "new-" + "y" * 30
    async with serving(workspace, tokens={"anna": token(old)}) as server:
        used, stopped, statuses = [old], asyncio.Event(), list[tuple[str, int]]()
        news = asyncio.Condition()

        async def ask() -> None:
            while not stopped.is_set():
                with_token = server.client(Authorization=f"Bearer {used[0]}")
                answer = await with_token.post({"jsonrpc": "2.0", "id": 1, "method": "ListTasks"})
                async with news:
                    statuses.append((used[0], answer.status))
                    news.notify_all()

        async def until(count: int) -> None:
            async with asyncio.timeout(10), news:
                await news.wait_for(lambda: len(statuses) >= count)

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        await until(20)
        change(server, {"anna": token(old, new)})
        await until(40)
        used[0] = new
        await until(len(statuses) + 20)  # each client has used the new token
        change(server, {"anna": token(new)})
        await until(len(statuses) + 20)
        stopped.set()
        await asyncio.gather(*asking)
        assert {status for _, status in statuses} == {200}
        assert {name for name, _ in statuses} == {old, new}
        refused = await server.client(Authorization=f"Bearer {old}").post({})
        assert refused.status == 401


async def test_a_stream_of_a_replaced_token_ends_and_that_of_the_new_one_does_not(
    workspace: Path, live: Liveness
) -> None:
    old, new = "old-" + "x" * 30, "new-" + "y" * 30
    opened = asyncio.Semaphore(0)
    async with serving(workspace, tokens={"anna": token(old, new)}) as server:
        both = [
            asyncio.create_task(
                read(
                    server.client(Authorization=f"Bearer {one}"),
                    f"text begin\nwait {live.path} {name}\ntext end",
                    opened,
                    messageId=name,
                )
            )
            for name, one in (("old", old), ("new", new))
        ]
        async with asyncio.timeout(10):
            await opened.acquire()
            await opened.acquire()
        change(server, {"anna": token(new)})
        async with asyncio.timeout(WITHIN):
            assert "not valid any more" in (await both[0])[1]
        await live.release("old")
        await live.release("new")
        async with asyncio.timeout(10):
            items, error, _ = await both[1]
        assert (error, state(items[-1])) == ("", "completed")


async def test_a_stream_that_has_lost_read_ends_and_one_with_other_quotas_does_not(
    workspace: Path, live: Liveness
) -> None:
    opened = asyncio.Semaphore(0)
    async with serving(workspace, tokens=tokens("anna", "bert")) as server:
        anna, bert = (
            asyncio.create_task(
                read(
                    client(server, name),
                    f"text begin\nwait {live.path} {name}\ntext end",
                    opened,
                )
            )
            for name in ("anna", "bert")
        )
        async with asyncio.timeout(10):
            await opened.acquire()
            await opened.acquire()
        known = tokens("anna", "bert")
        lost = replace(known["anna"], scopes=("run",))
        assert change(server, {"anna": lost, "bert": replace(known["bert"], tasks=1)}) == {"anna"}
        async with asyncio.timeout(WITHIN):
            assert "not valid any more" in (await anna)[1]
        await live.release("anna")
        await live.release("bert")
        async with asyncio.timeout(10):
            assert (await bert)[1] == ""


async def test_the_task_of_a_revoked_principal_goes_on_and_is_its_own_again(
    workspace: Path, live: Liveness
) -> None:
    settings: Any = {"bridge_on_disconnect": "cancel", "bridge_disconnect_grace_ms": 100}
    opened = asyncio.Semaphore(0)
    async with serving(workspace, tokens=tokens("anna"), **settings) as server:
        anna = client(server, "anna")
        reading = asyncio.create_task(
            read(anna, f"text begin\nwait {live.path} agent\ntext end", opened)
        )
        async with asyncio.timeout(10):
            await opened.acquire()
        change(server, {})
        items, error, _ = await reading
        assert error
        handle = await server.managers[0].find(task_id(items[0]))
        assert handle
        with pytest.raises(TimeoutError):  # no cancel after the grace
            await asyncio.wait_for(handle.log.changed(), 0.3)
        await live.release("agent")
        async with asyncio.timeout(10):
            while not handle.log.closed:
                await handle.log.changed()
        change(server, tokens("anna"))
        assert state(await anna.get(task_id(items[0]))) == "completed"


async def test_invalid_credentials_change_nothing(workspace: Path) -> None:
    async with serving(workspace, tokens=tokens("anna")) as server:
        with pytest.raises(ConfigurationError):
            change(server, {"anna": Token(hash="sha256:12"), **tokens("bert")})
        assert (await client(server, "anna").post({})).status == 200
        assert (await client(server, "bert").post({})).status == 401
