"""A running server: settings in, sockets out, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from bridge import __version__
from bridge.auth.authentication import Identity
from bridge.auth.quotas import Quotas
from bridge.errors import ConfigurationError
from bridge.process import cgroup
from bridge.process.agent_process import (
    keep_private,
    kill_descendants,
    reap_orphans,
)
from bridge.process.spawn import libraries
from bridge.push.configs import SqliteQueue
from bridge.push.notifier import Push
from bridge.sandbox.profile import Sandbox
from bridge.server.app import Http, Identify, Service, Watched, make_app
from bridge.server.assemble import (
    Choice,
    check_trusted,
    choose_all,
    make_root,
    make_sandbox,
    make_service,
)
from bridge.server.cli_info import check_logins, version_of
from bridge.server.extras import token_issuer
from bridge.server.local_peer import watch
from bridge.server.monitor import Monitor
from bridge.server.settings import Loaded, Settings
from bridge.server.state_dir import NO_STATE, State, open_state
from bridge.server.token_file import open_token
from bridge.session.pool import SessionPool
from bridge.session.redaction import NO_SECRETS, Secrets
from bridge.store.tasks import Stored
from bridge.telemetry.gc_tuning import collect_seldom
from bridge.telemetry.watchdog import Watchdog
from bridge.transports.connection_limits import ConnectionLimits, LimitedRunner
from bridge.transports.operation import encode_notification

log = logging.getLogger(__name__)

NO_WALLS = (
    "this kernel has no Landlock (Linux 6.2), so that agents can do whatever this user can; "
    "BRIDGE_SANDBOX=bwrap or external keeps them in, none says that it is meant so"
)
BANNER_WAITS = 0.5  # seconds, for the rest of what the CLIs say of themselves
ANYBODY = "not asked for: every program and user of this machine is the operator, but for agents"
OPEN = "none: agents can do what this user can"
CLOSE_WITHIN = 5.0  # seconds that connections get to end once all tasks have


async def serve(loaded: Loaded) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain. Returns the exit status."""
    settings, secrets = loaded.settings, loaded.secrets
    _prepare(loaded)
    choices = choose_all(loaded)
    identify = Identity(settings.auth, token_issuer(settings))
    sockets = _listen(settings)
    if not sockets:
        return 1
    with contextlib.ExitStack() as unused:
        for listener in sockets:
            unused.callback(listener.close)
        pool = make_pool(settings)
        state = await _open_state(settings, secrets, unused)
        push = _push(settings, state.folder)
        sandboxes = await _sandboxes(choices, state)
        unused.callback(_close, sandboxes)
        logins = asyncio.create_task(check_logins(choices, sandboxes))
        unused.callback(logins.cancel)
        versions = {one.id: await version_of(one, sandboxes[one.id]) for one in choices}
        services = [
            make_service(one, pool, push, versions[one.id], state, sandboxes[one.id])
            for one in choices
        ]
        root = make_root(choices, services, push, versions[choices[0].id])
        _trust_operator(settings, identify, state, sandboxes)
        await _go_on(settings, services, state, push)
        unused.pop_all()
    monitor = _monitor(services, pool)
    watchdog, stop = Watchdog(), asyncio.Event()
    _handle_signals(stop, services, sandboxes)
    app = _app(settings, identify, services, root, monitor, (watchdog, state.audit), pool)
    runner = LimitedRunner(app, limits(settings), shutdown_timeout=CLOSE_WITHIN)
    await runner.setup()
    try:
        sites = [runner.site(one) for one in sockets]
        await asyncio.gather(*(site.start() for site in sites))
        collect_seldom()
        address, notes = state.announce(_address(runner)), await _so_far(logins)
        _print(banner(settings, choices, versions, address, state, sandboxes, notes))
        await stop.wait()
        log.info("stopping")
        await asyncio.gather(*(site.stop() for site in sites))
        await _end_tasks(settings, services)
        monitor.close()
        return 0
    finally:
        logins.cancel()
        await runner.cleanup()
        await push.close()
        await state.close()
        watchdog.close()
        _end_the_rest(services, state)
        await asyncio.to_thread(_close, sandboxes)


def _prepare(loaded: Loaded) -> None:
    configure_logging(loaded.settings.log_level, loaded.secrets)
    keep_private()
    _ignore_for_itself()
    for warning in loaded.warnings:
        log.warning(warning)


async def _so_far(logins: asyncio.Task[list[str]]) -> list[str]:
    """The warnings, if they are there in time for the banner; the log has them in any case."""
    done, _ = await asyncio.wait([logins], timeout=BANNER_WAITS)
    return logins.result() if done else []


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # the reader may have gone: `… 2>&1 | head`
        print(text, file=sys.stderr, flush=True)


def make_pool(settings: Settings) -> SessionPool:
    waiting = settings.bridge_max_waiting_sessions
    return SessionPool(settings.bridge_max_sessions, Quotas(settings.tokens), waiting)


async def _end_tasks(settings: Settings, services: list[Service]) -> None:
    """As the settings say, or leave them to the next server."""
    drain, keep = settings.bridge_drain_ms / 1000, settings.bridge_on_stop == "keep"
    await asyncio.gather(*(service.manager.close(drain, keep) for service in services))


def _end_the_rest(services: list[Service], state: State) -> None:
    """All that agents have left, but for those that are kept for the next server."""
    kept = [marker for service in services for marker in service.manager.kept]
    kill_descendants(kept)
    state.tidy(marker.removeprefix(state.markers) for marker in kept)
    reap_orphans()


def _listen(settings: Settings) -> list[socket.socket]:
    """Sockets where they were asked for. None, and the operator is told, if they cannot be had."""
    try:
        return bind(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        text = f"cannot listen on {where}: {error.strerror}; choose another with --port"
        print(f"coding-agent-bridge: {text}", file=sys.stderr)
        return []


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on all addresses of `host`. Raises OSError: before anything is begun, so that a
    taken port is all that a second server has to say."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
    return [socket.create_server(one, family=family, backlog=128) for family, one in addresses]


async def _open_state(settings: Settings, secrets: Secrets, unused: contextlib.ExitStack) -> State:
    """What an earlier server has left, where there is a folder for it, and the operator's token."""
    folder = settings.state_folder
    audit = settings.audit_file
    try:
        durable = folder if settings.bridge_store == "durable" else None
        state = await open_state(durable, audit, secrets.clean)
    except ConfigurationError as error:
        if settings.bridge_state_dir:
            raise
        log.warning("tasks will not survive a restart", extra={"reason": str(error)})
        state = await open_state(None, audit, secrets.clean)
    if not settings.auth.required:
        return state
    try:
        operator = open_token(state.folder, settings.state_home)
    except ConfigurationError as error:
        if settings.auth.has_tokens:
            log.warning("the operator has no token of its own", extra={"reason": str(error)})
            return state
        await state.close()
        raise
    unused.callback(operator.close)
    return replace(state, operator=operator)


def _trust_operator(
    settings: Settings,
    identify: Identity,
    state: State,
    sandboxes: Mapping[str, Sandbox | None],
) -> None:
    identify.on_refused(state.audit.refused)
    # Where no token is asked for, every connection is looked at: the search for its processes would
    # take too long, so that control groups decide for agents without walls, too.
    open_ = not settings.auth.required
    walled = open_ or all(one and one.walls for one in sandboxes.values())
    if state.operator or open_:
        token = state.operator.value if state.operator else None
        identify.trust(token, watch(state.markers, walled))


async def _sandboxes(choices: Sequence[Choice], state: State) -> dict[str, Sandbox | None]:
    """Of each agent. Raises ConfigurationError where one cannot be had."""
    made: dict[str, Sandbox | None] = {}
    try:
        for choice in choices:
            sandbox = made[choice.id] = await asyncio.to_thread(make_sandbox, choice, state)
            if choice.settings.bridge_sandbox == "auto" and not (sandbox and sandbox.walls):
                log.warning(NO_WALLS, extra={"agent": choice.id})
        check_trusted(choices, made, libraries())
    except ConfigurationError:
        _close(made)
        raise
    return made


def _close(sandboxes: Mapping[str, Sandbox | None]) -> None:
    for sandbox in filter(None, sandboxes.values()):
        sandbox.close()


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
    for service in services:
        service.manager.warm_up()


def _monitor(services: list[Service], pool: SessionPool) -> Monitor:
    monitor = Monitor(pool.figures)
    for service in services:
        monitor.add(service.id, service.manager)
    return monitor


def _app(
    settings: Settings,
    identify: Identify,
    services: list[Service],
    root: Service,
    monitor: Monitor,
    watched: Sequence[Watched],
    pool: SessionPool,
) -> web.Application:
    return make_app(
        root,
        services,
        started=time.time(),
        monitor=monitor,
        watched=watched,
        sessions=pool.figures,
        http=Http(
            settings.public_url,
            identify,
            settings.bridge_max_body_bytes,
            (settings.host, *settings.bridge_allowed_hosts),
            settings.bridge_allowed_origins,
        ),
    )


def limits(settings: Settings) -> ConnectionLimits:
    """What connections keep to."""
    return ConnectionLimits(
        settings.bridge_max_connections,
        settings.bridge_max_connections_per_peer,
        settings.bridge_header_timeout_ms / 1000,
        settings.bridge_body_timeout_ms / 1000,
        settings.bridge_stall_timeout_ms / 1000,
        settings.bridge_max_connections_per_second,
    )


# --- the process -------------------------------------------------------------------------------


def _ignore_for_itself() -> None:
    """What the server was started to ignore, as by nohup(1), it ignores in a way that its CLIs do
    not inherit: they would hear no signal then, and some of them have no other end."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def _handle_signals(
    stop: asyncio.Event, services: list[Service], sandboxes: Mapping[str, Sandbox | None]
) -> None:
    """The first signal drains, the second one leaves nothing to wait for, unless it is SIGHUP: of
    those, the end of a terminal sends several."""
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set() and number != signal.SIGHUP:
            for service in services:
                service.manager.kill()
            kill_descendants()
            _close(sandboxes)
            os._exit(128 + number)
        stop.set()

    ends = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else see _ignore_for_itself()
        ends.append(signal.SIGHUP)
    for number in ends:
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
    state: State = NO_STATE,
    sandboxes: Mapping[str, Sandbox | None] = {},
    notes: Sequence[str] = (),
) -> str:
    """What the operator sees: what is served, where, and how to try it."""
    auth = f' -H "Authorization: Bearer {_shown(state)}"' if settings.auth.required else ""
    message = (
        '{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":'
        '{"messageId":"1","role":"ROLE_USER","parts":[{"text":"What is in this directory?"}]}}}'
    )
    lines = [f"coding-agent-bridge {__version__}", *(f"  note       {note}" for note in notes)]
    for choice in choices:
        lines += [f"  note       {note}" for note in choice.notes]
        lines.append(f"  agent      {choice.id}: {choice.runs} {versions[choice.id]}".rstrip())
        lines.append(f"  workspace  {choice.settings.workspaces.default}")
        sandbox = sandboxes.get(choice.id)
        lines.append(f"  sandbox    {sandbox or OPEN}")
        if sandbox and sandbox.left_open:
            lines.append(f"  left open  {'; '.join(sandbox.left_open)}")
    groups = cgroup.home()
    lines += [
        f"  state      {state.folder or 'memory: nothing survives a restart'}",
        f"  token      {state.operator.path if state.operator else ANYBODY}",
        f"  ending by  {f'control groups in {groups}' if groups else 'signals to all descendants'}",
        f"  endpoint   {address}/a2a/jsonrpc",
        *(f"             {address}/agents/{choice.id}/a2a/jsonrpc" for choice in choices[1:]),
        f"  card       {address}/.well-known/agent-card.json",
        f"  try it     curl -N {address}/a2a/jsonrpc -H 'Content-Type: application/json' \\",
        f"               -H 'A2A-Version: 1.0'{auth} -d '{message}'",
    ]
    return "\n".join(lines)


def _shown(state: State) -> str:
    """The token of the operator, as a shell reads it."""
    return f"$(cat {shlex.quote(str(state.operator.path))})" if state.operator else "<token>"


# --- logs --------------------------------------------------------------------------------------

_RECORD_MEMBERS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class KeyValueFormatter(logging.Formatter):
    """One line a record: time, level, message, then key=value pairs with escaped values, and
    without `secrets`."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        extra = {k: v for k, v in vars(record).items() if k not in _RECORD_MEMBERS}
        if record.exc_info:
            extra["exception"] = self.formatException(record.exc_info)
        pairs = "".join(f" {name}={str(value)!r}" for name, value in extra.items())
        head = f"{self.formatTime(record)} {record.levelname.lower()} {record.name}"
        return self._secrets.clean(f"{head} {record.getMessage()!r}{pairs}")


def configure_logging(level: str, secrets: Secrets = NO_SECRETS) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("aiohttp").setLevel(max(logging.getLevelName(level), logging.WARNING))
