"""A running server: settings in, sockets out, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path

from aiohttp import web

from bridge import __version__, cgroup
from bridge.app import Http, Service, make_app
from bridge.choice import Choice, choose_all, make_root, make_service
from bridge.context import SessionPool
from bridge.errors import ConfigurationError, LaunchError
from bridge.identity import identify_by, needs_token
from bridge.monitor import Monitor
from bridge.process import (
    AgentProcess,
    Hooks,
    LongLine,
    Start,
    kill_descendants,
    reap_orphans,
)
from bridge.push import Push
from bridge.settings import Loaded, Settings
from bridge.state import State, open_state
from bridge.store.push_queue import SqliteQueue
from bridge.store.tasks import Stored
from bridge.timers import Limits, Runner
from bridge.transports.operation import encode_notification
from bridge.watchdog import Watchdog

log = logging.getLogger(__name__)

VERSION_WITHIN = 5.0  # seconds that a CLI gets to print its version
CLOSE_WITHIN = 5.0  # seconds that connections get to end once all tasks have


async def serve(loaded: Loaded) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit status."""
    settings = loaded.settings
    configure_logging(settings.log_level)
    for warning in loaded.warnings:
        log.warning(warning)
    choices = choose_all(loaded)
    try:
        sockets = bind(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        text = f"cannot listen on {where}: {error.strerror}; choose another with --port"
        print(f"coding-agent-bridge: {text}", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as unused:
        for one in sockets:
            unused.callback(one.close)
        versions = {choice.id: await _version(choice) for choice in choices}
        pool = SessionPool(settings.bridge_max_sessions)
        state = await _open_state(settings)
        push = _push(settings, state.folder)
        services = [make_service(one, pool, push, versions[one.id], state) for one in choices]
        root = make_root(choices, services, push, versions[choices[0].id])
        await _go_on(settings, services, state, push)
        unused.pop_all()
    monitor = Monitor()
    for service in services:
        monitor.add(service.id, service.manager)
    watchdog = Watchdog()
    stop = asyncio.Event()
    _handle_signals(stop, services)
    app = _app(settings, services, root, monitor, watchdog)
    runner = Runner(app, limits(settings), shutdown_timeout=CLOSE_WITHIN)
    await runner.setup()
    try:
        sites = [web.SockSite(runner, one) for one in sockets]
        for site in sites:
            await site.start()
        text = banner(settings, choices, versions, _address(runner), state.folder)
        print(text, file=sys.stderr, flush=True)
        await stop.wait()
        log.info("stopping")
        for site in sites:
            await site.stop()
        drain, keep = settings.bridge_drain_ms / 1000, settings.bridge_on_stop == "keep"
        await asyncio.gather(*(service.manager.close(drain, keep) for service in services))
        monitor.close()
        return 0
    finally:
        await runner.cleanup()
        await push.close()
        await state.close()
        watchdog.close()
        kept = [marker for service in services for marker in service.manager.kept]
        kill_descendants(kept)
        state.tidy(marker.removeprefix(state.markers) for marker in kept)
        reap_orphans()


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on all addresses of `host`. Raises OSError: before anything is begun, so that a
    taken port is all that a second server has to say."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
    return [socket.create_server(one, family=family, backlog=128) for family, one in addresses]


async def _open_state(settings: Settings) -> State:
    """What an earlier server has left, where there is a folder for it."""
    folder = settings.state_folder
    try:
        return await open_state(folder if settings.bridge_store == "durable" else None)
    except ConfigurationError as error:
        if settings.bridge_state_dir:
            raise
        log.warning("tasks will not survive a restart", extra={"reason": str(error)})
        return await open_state(None)


def _push(settings: Settings, folder: Path | None) -> Push:
    queue = SqliteQueue(folder / "push" if folder else None)
    allow_private = settings.bridge_push_allow_private
    return Push(queue, encode_notification, allow_private=allow_private)


async def _load(services: list[Service], state: State) -> list[Stored]:
    try:
        return [await service.store.load() for service in services]
    except sqlite3.DatabaseError as error:
        if not await state.renew(error):
            raise
        return [await service.store.load() for service in services]


async def _go_on(settings: Settings, services: list[Service], state: State, push: Push) -> None:
    """Take up what the last server has left: tasks, agents that live on, notifications."""
    stored = await _load(services, state)
    reattach = settings.bridge_on_restart == "reattach"
    kept: set[str] = set()
    for service, one in zip(services, stored, strict=True):
        kept |= service.manager.restore(one, reattach)
    state.sweep(kept)  # before anything that was begun just now gets its turn
    records = [record for service in services for record in service.store.all()]
    await push.start({record.task.id for record in records})
    for record in records:
        await push.watch(record)


def _app(
    settings: Settings,
    services: list[Service],
    root: Service,
    monitor: Monitor,
    watchdog: Watchdog,
) -> web.Application:
    return make_app(
        root,
        services,
        started=time.time(),
        monitor=monitor,
        watchdog=watchdog,
        http=Http(
            settings.public_url,
            identify_by(settings),
            settings.bridge_max_body_bytes,
            (settings.host, *settings.bridge_allowed_hosts),
            settings.bridge_allowed_origins,
        ),
    )


def limits(settings: Settings) -> Limits:
    """What connections keep to."""
    return Limits(
        settings.bridge_max_connections,
        settings.bridge_max_connections_per_peer,
        settings.bridge_header_timeout_ms / 1000,
        settings.bridge_body_timeout_ms / 1000,
        settings.bridge_stall_timeout_ms / 1000,
    )


# --- the process -------------------------------------------------------------------------------


def _handle_signals(stop: asyncio.Event, services: list[Service]) -> None:
    """The first SIGTERM or SIGINT drains, the second one leaves nothing to wait for."""
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set():
            for service in services:
                service.manager.kill()
            kill_descendants()
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    loop.add_signal_handler(signal.SIGCHLD, reap_orphans)


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def banner(
    settings: Settings,
    choices: list[Choice],
    versions: dict[str, str],
    address: str,
    folder: Path | None = None,
) -> str:
    """What the operator sees: what is served, where, and how to try it."""
    auth = " -H 'Authorization: Bearer <token>'" if needs_token(settings) else ""
    message = (
        '{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":'
        '{"messageId":"1","role":"ROLE_USER","parts":[{"text":"What is in this directory?"}]}}}'
    )
    lines = [f"coding-agent-bridge {__version__}"]
    for choice in choices:
        lines += [f"  note       {note}" for note in choice.notes]
        lines.append(f"  agent      {choice.id}: {choice.runs} {versions[choice.id]}".rstrip())
        lines.append(f"  workspace  {choice.settings.workspaces.default}")
    groups = cgroup.home()
    lines += [
        f"  state      {folder or 'memory: nothing survives a restart'}",
        f"  ending by  {f'control groups in {groups}' if groups else 'signals to all descendants'}",
        f"  endpoint   {address}/a2a/jsonrpc",
        *(f"             {address}/agents/{choice.id}/a2a/jsonrpc" for choice in choices[1:]),
        f"  card       {address}/.well-known/agent-card.json",
        f"  try it     curl -N {address}/a2a/jsonrpc -H 'Content-Type: application/json' \\",
        f"               -H 'A2A-Version: 1.0'{auth} -d '{message}'",
    ]
    return "\n".join(lines)


async def _version(choice: Choice) -> str:
    """What the CLI prints for --version, if it prints it in time."""
    if not choice.adapter.binary:
        return ""
    printed: list[bytes | LongLine] = []
    with contextlib.suppress(LaunchError, TimeoutError):
        argv = (choice.config.binary, "--version")
        start = Start(argv, choice.config.env, os.getcwd(), stdin=False)
        process = await AgentProcess.spawn(start, Hooks(printed.extend), line_limit=200)
        try:
            await asyncio.wait_for(process.wait(), VERSION_WITHIN)
        finally:
            await process.stop()
    return printed[0].decode(errors="replace") if printed and isinstance(printed[0], bytes) else ""


# --- logs --------------------------------------------------------------------------------------

_RECORD_MEMBERS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class KeyValueFormatter(logging.Formatter):
    """One line a record: time, level, message, then key=value pairs with escaped values."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {k: v for k, v in vars(record).items() if k not in _RECORD_MEMBERS}
        if record.exc_info:
            extra["exception"] = self.formatException(record.exc_info)
        pairs = "".join(f" {name}={str(value)!r}" for name, value in extra.items())
        head = f"{self.formatTime(record)} {record.levelname.lower()} {record.name}"
        return f"{head} {record.getMessage()!r}{pairs}"


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("aiohttp").setLevel(max(logging.getLevelName(level), logging.WARNING))
