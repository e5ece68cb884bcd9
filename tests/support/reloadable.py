"""The whole server in this process, as lifecycle/serve.py makes it, and reloads of its settings."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from bridge.auth.authentication import Identity
from bridge.process.process_tree import reap_orphans
from bridge.process.spawn import KeptPorts, hold
from bridge.server.agents.configured import configure_agents
from bridge.server.extras import token_issuer
from bridge.server.lifecycle.parts import Parts, assemble, restore, trust_operator
from bridge.server.lifecycle.site import Site, make_site
from bridge.server.operate.log_output import log_as
from bridge.server.operate.ports import Ports
from bridge.server.operate.reload import Changes
from bridge.server.operate.sockets import listen_tcp
from bridge.server.operate.systemd import ALONE
from bridge.server.settings.constants import Constants
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from tests.support.agent import PROGRAM
from tests.support.client import Client
from tests.support.constants import taken


class Reloadable:
    """`settings`: those that the next reload reads. `url`: of its TCP port."""

    def __init__(self, settings: Settings, parts: Parts, http: ClientSession) -> None:
        self.settings = settings
        self.parts = parts
        self.http = http
        self.url = ""
        self.site: Site

    def read(self) -> Loaded:
        return Loaded(self.settings, {}, [])

    async def reload(self, **changes: Any) -> Changes:
        """Reload with these changes of the present settings. Raises ConfigurationError."""
        before = self.settings
        self.settings = before.updated(changes)
        try:
            return await self.site.reloader.reload()
        except BaseException:
            self.settings = before
            raise

    def client(self, **headers: str) -> Client:
        """`headers`: with _ in place of -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return Client(self.http, self.url, headers=sent)

    @property
    def operator(self) -> dict[str, str]:
        """The header with the operator's token."""
        operator = self.parts.state.operator
        assert operator
        return {"Authorization": f"Bearer {operator.value}"}


@asynccontextmanager
async def reloadable(
    workspace: Path, *, keep: bool = False, **settings: Any
) -> AsyncIterator[Reloadable]:
    """A server with these settings, a state folder beside the workspace, and
    tests/support/agent.py as its CLI. Its log goes to stderr. `keep`: the open tasks stay for
    another server."""
    reap_orphans()  # of servers that other tests ended by force
    defaults = {
        "agent_adapter": "jsonl",
        "agent_binary": sys.executable,
        "agent_args": ("-I", "-S", PROGRAM),
        "agent_repo_path": str(workspace),
        "bridge_state_dir": str(workspace.parent / "state"),
        "bridge_sandbox": "none",
        "bridge_stop_grace_ms": 1000,
        "bridge_push_allow_private": True,
        "bridge_drain_ms": 0,
        "host": "127.0.0.1",
        "port": "0",
    }
    constants, given = taken({**defaults, **settings})
    chosen = Settings(constants=Constants(**constants)).updated(given)
    loaded = Loaded(chosen, {}, [])
    identity = Identity(chosen.auth.config, token_issuer(chosen))
    with _own_log(), ExitStack() as unused:
        log_as(loaded)
        agents = configure_agents(loaded)
        ports = Ports(chosen.store_folder)
        parts = await assemble(
            agents, loaded, unused, service=ALONE, identity=identity, ports=ports
        )
        trust_operator(chosen, identity, parts)
        await restore(chosen, parts)
        async with ClientSession(timeout=ClientTimeout(30), read_bufsize=2**25) as http:
            server = Reloadable(chosen, parts, http)
            site = server.site = make_site(loaded, parts, identity, server.read)
            await site.runner.setup()
            sockets = listen_tcp(chosen, ALONE.sockets, ports) or []
            for listening in (*sockets, *([parts.unix.listening] if parts.unix else [])):
                await site.runner.site(listening).start()
            port = next(one[1] for one in site.runner.addresses if not isinstance(one, str))
            server.url = f"http://127.0.0.1:{port}"
            fleet, readiness = parts.fleet, site.pages.readiness
            await parts.grpc.serve(
                fleet.root, fleet.served, server.url, identity, lambda: readiness.ready
            )
            readiness.phase = "serving"
            try:
                yield server
            finally:
                await _close(parts, site, keep)


async def _close(parts: Parts, site: Site, keep: bool) -> None:
    site.reloader.close()
    site.pages.close()
    parts.logins.cancel()
    await asyncio.gather(*(one.close(0, keep) for one in [*parts.fleet.managers.values()]))
    await parts.fleet.close()
    site.monitor.close()
    await parts.grpc.stop(0.5)
    await site.runner.cleanup()
    await parts.push.close()
    await parts.state.close()
    site.watchdog.close()
    await asyncio.to_thread(parts.fleet.close_sandboxes)
    parts.ports.close()
    hold(KeptPorts())  # the launcher of the tests lives on


@contextmanager
def _own_log() -> Iterator[None]:
    """The server configures the log of the process; afterwards it is as before."""
    root, aiohttp = logging.getLogger(), logging.getLogger("aiohttp")
    before = root.handlers[:], root.level, aiohttp.level, sys.unraisablehook
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:], hook = before[0], before[3]
        sys.unraisablehook = hook
        root.setLevel(before[1])
        aiohttp.setLevel(before[2])
