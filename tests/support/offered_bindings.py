"""The settings of a server that offers several bindings to one principal, and what its clients
need."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bridge.auth.principal import digest
from bridge.client.credentials import UNIX, CredentialStore
from tests.support.bindings import piped
from tests.support.numbered_streams import BINDINGS, Reach
from tests.support.redis_broker import RedisCaller, broker_server
from tests.support.stdio_server import child

NAME, TOKEN = "alice", "x" * 20
LISTENING = tuple(name for name in BINDINGS if name != "redis" or shutil.which("redis-server"))
"""The bindings of a server that listens, as far as this machine can offer them."""
PRINCIPAL = f"""[tokens.{NAME}]
hash = "sha256:{digest(TOKEN).hex()}"
redis = REDIS
scopes = ["run", "read", "cancel", "approve", "metrics"]
running = 0
tasks = 0
starts_per_minute = 0
streams = 0
"""


@asynccontextmanager
async def offered(
    root: Path, names: Collection[str], reach: Reach
) -> AsyncIterator[dict[str, str]]:
    """The settings of servers with the folder `root/workspace`. `reach` gets all but the URL."""
    async with AsyncExitStack() as stack:
        file, socket = root / "bridge.toml", root / "run" / "socket"
        file.write_text(PRINCIPAL.replace("REDIS", str("redis" in names).lower()))
        env = {"CONFIG_FILE": str(file), "BRIDGE_AUTH": "token"}
        reach.headers["Authorization"] = f"Bearer {TOKEN}"
        if "grpc" in names:
            env["BRIDGE_GRPC_PORT"] = "0"
        if "websocket" in names:
            env["BRIDGE_WEBSOCKET"] = "true"
        if {"unix", "proxy"} & {*names}:
            socket.parent.mkdir(mode=0o700)
            reach.socket = socket
            env["BRIDGE_UNIX_SOCKET"] = str(socket)
        if "proxy" in names:
            await _begin_proxy(stack, root, reach)
        if "redis" in names:
            broker = stack.enter_context(broker_server())
            reach.redis = RedisCaller(await stack.enter_async_context(broker.client()), NAME)
            env |= {"BRIDGE_REDIS_URL": broker.url, "BRIDGE_REDIS_CLAIM_MS": "1000"}
        yield env


async def _begin_proxy(stack: AsyncExitStack, root: Path, reach: Reach) -> None:
    """A proxy with the token of the principal. It stays over all restarts of the server."""
    address = f"{UNIX}{reach.socket}"
    stored = CredentialStore(root / "home/.config/coding-agent-bridge/credentials.json")
    await asyncio.to_thread(stored.save, {address: TOKEN})
    log = stack.enter_context((root / "proxy.log").open("wb"))
    arguments = (root / "workspace", "--url", address)
    process = await stack.enter_async_context(child(*arguments, stderr=log.fileno()))
    reach.pipes = piped(process)
    stack.push_async_callback(reach.pipes.close)
