"""The life of one server: start, signals, drain and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from bridge import __version__
from bridge.auth.authentication import Identity
from bridge.errors import ConfigurationError, Unavailable
from bridge.process import held_ports
from bridge.process.process_tree import keep_private, kill_descendants, reap_orphans
from bridge.server.agents.configured import configure_agents
from bridge.server.app.sites import ServedAgent
from bridge.server.banner import Listening, announce, banner
from bridge.server.extras import token_issuer
from bridge.server.lifecycle.idle import idle
from bridge.server.lifecycle.parts import Parts, assemble, restore, trust_operator
from bridge.server.lifecycle.site import CLOSE_TIMEOUT, Site, make_site
from bridge.server.operate.log_output import log_as
from bridge.server.operate.ports import Ports
from bridge.server.operate.signals import end_handling, handle_signals, ignore_without_inheriting
from bridge.server.operate.sockets import address_of, listen_tcp
from bridge.server.operate.systemd import ALONE, Supervisor, SystemdService
from bridge.server.settings.load import Loaded
from bridge.server.settings.root import Settings
from bridge.telemetry.gc_tuning import collect_seldom
from bridge.telemetry.tracing.requests import NO_ADDRESS
from bridge.telemetry.watchdog import Watchdog

log = logging.getLogger(__name__)

LOGIN_WAIT = 0.5  # seconds that the banner waits for the login status of the CLIs


class OnlyClient(Protocol):
    """The client of a server without a listener."""

    async def begin(self, root: ServedAgent, agents: Sequence[ServedAgent]) -> None:
        """Serve it from now on. Raises ConfigurationError."""

    async def left(self) -> None:
        """Return when the client needs this server no more."""

    async def end(self, within: float) -> int:
        """Give it the last answers, for this time in seconds. Returns the exit status."""


async def serve(
    loaded: Loaded,
    service: SystemdService = ALONE,
    read: Callable[[], Loaded] | None = None,
    client: OnlyClient | None = None,
    *,
    until_idle: float | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain. `service`: its settings are in `loaded`. `read`
    reads the settings again for a reload. With `client`, the server does not listen, and ends with
    this client. `until_idle`: the server also ends when nothing has used it for so many seconds.
    Returns the exit status."""
    settings = loaded.settings
    log_as(loaded)
    keep_private()
    ignore_without_inheriting()
    for warning in loaded.warnings:
        log.warning(warning)
    agents = configure_agents(loaded)
    identity = Identity(settings.auth.config, token_issuer(settings))
    with contextlib.ExitStack() as unused:
        ports = Ports(settings.store_folder)
        unused.callback(ports.close)
        sockets = [] if client else listen_tcp(settings, service.sockets, ports)
        if sockets is None:
            return 1
        for listener in sockets:
            unused.callback(listener.close)
        parts = await assemble(
            agents, loaded, unused, service=service, identity=identity, ports=ports
        )
        trust_operator(settings, identity, parts)
        facts = {"version": __version__, "schema": parts.state.store.schema}
        log.log(_level(settings), "starting", extra={"event": "server.starting", **facts})
        try:
            await restore(settings, parts)
        except Unavailable as error:  # a database that has gone since it was opened
            raise ConfigurationError(f"cannot restore the tasks: {error}") from error
        unused.pop_all()
    try:
        if client:
            return await _run_for(client, settings, parts)
        read = read or (lambda: loaded)
        return await _run(
            loaded, parts, identity=identity, sockets=sockets, read=read, until_idle=until_idle
        )
    finally:
        end_handling()


async def _run(
    loaded: Loaded,
    parts: Parts,
    *,
    identity: Identity,
    sockets: Sequence[socket.socket],
    read: Callable[[], Loaded],
    until_idle: float | None,
) -> int:
    stop = asyncio.Event()
    site = make_site(loaded, parts, identity, read)
    handle_signals(stop, partial(_kill, parts), site.reloader.request)
    unused = contextlib.ExitStack()
    systemd = unused.enter_context(Supervisor(parts.service.supervision, parts.pool.figures))
    site.reloader.announced = systemd.reloading
    try:
        address = address_of(sockets, parts.unix, identity)
        listening = await _listen(parts, site, sockets)
        if parts.shared.tracing:
            parts.shared.tracing.requests.place = _where(site.runner.addresses)
        await _open(parts, site, identity, address)
        home = loaded.settings.state_home
        unused.callback(
            announce(
                parts.fleet.agents, address, parts.state, home, until_idle=until_idle is not None
            )
        )
        if until_idle is not None:
            waiting = asyncio.create_task(idle(partial(_busy, parts, site), until_idle))
            waiting.add_done_callback(lambda _: stop.set())
            unused.callback(waiting.cancel)
        if loaded.settings.server.log_format == "text":
            await _print_banner(parts, address)
        level = _level(loaded.settings)
        log.log(level, "ready", extra={"event": "server.ready", **_place(parts, address)})
        systemd.ready()
        await _first_of(stop, parts.node.ended)
        site.pages.readiness.phase = "draining"
        open_tasks = sum(one.manager.figures()["tasks"] for one in parts.fleet.served)
        log.info("stopping", extra={"event": "server.draining", "open_tasks": open_tasks})
        systemd.stopping()
        parts.grpc.drain()
        await parts.redis.drain()
        await asyncio.gather(*(one.stop() for one in listening))
        if not _keeps(site.reloader.loaded.settings, parts):
            parts.ports.refuse()
        if parts.cooperation:
            await parts.cooperation.close()
        await _drain(site.reloader.loaded.settings, parts)
        site.monitor.close()
        return parts.node.status
    finally:
        unused.close()
        await _close_all(parts, site)


def _busy(parts: Parts, site: Site) -> bool:
    """Whether a task has not ended, or a client is connected."""
    server = site.runner.server
    open_tasks = sum(one.manager.figures()["tasks"] for one in parts.fleet.served)
    return bool(open_tasks or (server and server.connections))


async def _run_for(client: OnlyClient, settings: Settings, parts: Parts) -> int:
    """Serve one client, without a listener."""
    watchdog, stop, fleet = Watchdog(), asyncio.Event(), parts.fleet
    handle_signals(stop, partial(_kill, parts), lambda: None)
    leaving: asyncio.Task[None] | None = None
    try:
        collect_seldom()
        await client.begin(fleet.root, fleet.served)
        leaving = asyncio.create_task(client.left())
        leaving.add_done_callback(lambda _: stop.set())
        await _first_of(stop, parts.node.ended)
        log.info("stopping")
        if parts.cooperation:
            await parts.cooperation.close()
        await _drain(settings, parts)
        return await client.end(CLOSE_TIMEOUT) or parts.node.status
    finally:
        if leaving:
            leaving.cancel()
        parts.logins.cancel()
        await _release(parts, watchdog)


async def _listen(
    parts: Parts, site: Site, sockets: Sequence[socket.socket]
) -> Sequence[web.SockSite]:
    """Accept connections from now on."""
    await site.runner.setup()
    sites = [site.runner.site(one) for one in (*sockets, *_unix(parts))]
    await asyncio.gather(*(one.start() for one in sites))
    collect_seldom()
    return sites


async def _open(parts: Parts, site: Site, identity: Identity, address: Listening) -> None:
    """Serve the bindings with listeners of their own; the server is ready then."""
    readiness = site.pages.readiness
    await parts.grpc.serve(
        parts.fleet.root, parts.fleet.served, address.base, identity, lambda: readiness.ready
    )
    parts.redis.start(parts.fleet.root, address.base, parts.pool.quotas)
    readiness.phase = "serving"


def _unix(parts: Parts) -> list[socket.socket]:
    return [parts.unix.listening] if parts.unix else []


def _where(addresses: Sequence[Any]) -> tuple[str, int]:
    """The address and the port of the first TCP listener; NO_ADDRESS without one. Paths of Unix
    sockets are texts."""
    tcp = (one for one in addresses if not isinstance(one, str))
    name = next(tcp, NO_ADDRESS)
    return str(name[0]), int(name[1])


def _place(parts: Parts, address: Listening) -> dict[str, Any]:
    """The members of the line that tells how to reach the server. A token is named by its path."""
    operator = parts.state.operator
    return {
        "version": __version__,
        "address": address.url,
        "socket": address.path,
        "grpc": parts.grpc.address,
        "agents": [one.id for one in parts.fleet.agents],
        "state": parts.state.place,
        "token": operator.path if operator else None,
    }


def _level(settings: Settings) -> int:
    """That of lines that repeat the banner: a person who reads it needs none of them."""
    reads = settings.server.log_format == "text" and sys.stderr.isatty()
    return logging.DEBUG if reads else logging.INFO


async def _print_banner(parts: Parts, address: Listening) -> None:
    """Includes the warnings of the login checks that end in time; the log has all of them."""
    done, _ = await asyncio.wait([parts.logins], timeout=LOGIN_WAIT)
    text = banner(
        parts.fleet.agents,
        versions=parts.fleet.versions,
        address=address,
        state=parts.state,
        sandboxes=parts.fleet.sandboxes,
        notes=parts.logins.result() if done else (),
        more=[*parts.grpc.lines, *await parts.redis.lines()],
    )
    if sys.stderr.isatty():
        text += "\n  stop       Ctrl-C"
    with contextlib.suppress(OSError):  # the reader of the pipe may have exited: `… 2>&1 | head`
        print(text, file=sys.stderr, flush=True)


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


async def _drain(settings: Settings, parts: Parts) -> None:
    """Wait for the tasks; then end the others, or keep them for the next server (BRIDGE_ON_STOP).
    After a fence they belong to another server."""
    drain = 0.0 if parts.node.ended.is_set() else settings.server.drain_ms / 1000
    keep = _keeps(settings, parts)
    await asyncio.gather(*(one.manager.close(drain, keep) for one in parts.fleet.served))
    await parts.fleet.close()


def _keeps(settings: Settings, parts: Parts) -> bool:
    return settings.server.on_stop == "keep" and not parts.node.ended.is_set()


async def _close_all(parts: Parts, site: Site) -> None:
    site.reloader.close()
    site.pages.close()
    parts.logins.cancel()
    await parts.grpc.stop(CLOSE_TIMEOUT)
    await parts.redis.stop(CLOSE_TIMEOUT)
    await site.runner.cleanup()
    await _release(parts, site.watchdog)


async def _release(parts: Parts, watchdog: Watchdog) -> None:
    await parts.push.close()
    if parts.shared.tracing:
        await parts.shared.tracing.close()
    await parts.state.close()
    if parts.unix:
        parts.unix.close()
    parts.ports.close()
    watchdog.close()
    _kill_leftovers(parts)
    await asyncio.to_thread(parts.fleet.close_sandboxes)
    log.info("stopped", extra={"event": "server.stopped"})


def _kill_leftovers(parts: Parts) -> None:
    """Kill all remaining processes of agents, except those that the next server takes over."""
    state = parts.state
    kept = [marker for one in parts.fleet.served for marker in one.manager.kept]
    kill_descendants(kept)
    state.tidy(marker.removeprefix(state.markers) for marker in kept)
    if state.folder and not kept:
        held_ports.tidy(state.folder)
    reap_orphans()


def _kill(parts: Parts, number: int) -> None:
    """End the process at once, after a second signal."""
    for one in parts.fleet.served:
        one.manager.kill()
    kill_descendants()
    parts.fleet.close_sandboxes()
    os._exit(128 + number)
