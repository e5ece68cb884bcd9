"""A running server: settings in, sockets out, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from bridge import __version__, player, recording, registry
from bridge.a2a.card import Card, Skill
from bridge.adapter import Adapter, AgentConfig, SessionStart
from bridge.app import make_app
from bridge.context import Agent
from bridge.errors import ConfigurationError, LaunchError
from bridge.manager import TaskManager
from bridge.process import AgentProcess, LongLine, reap_orphans
from bridge.session import Limits
from bridge.settings import Loaded, Settings, nearest
from bridge.store.memory import MemoryStore

log = logging.getLogger(__name__)

VERSION_WITHIN = 5.0  # seconds that a CLI gets to print its version
CLOSE_WITHIN = 5.0  # seconds that connections get to end once all tasks have
REPLAY = "replay"
SKILLS = (
    Skill(
        "code",
        "Coding",
        "Reads, writes and runs code in a workspace: implement, fix, refactor, test, explain.",
        ("code", "edit", "refactor", "test", "debug", "review"),
        ("Add a test for the date parser and fix what it finds.", "Explain how login works."),
    ),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The agent that is served. `runs` and `notes` tell the operator what was chosen and why."""

    adapter: type[Adapter]
    make: Callable[[AgentConfig, SessionStart], Adapter]
    config: AgentConfig
    runs: str
    notes: tuple[str, ...] = ()


async def serve(loaded: Loaded) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit status."""
    settings = loaded.settings
    configure_logging(settings.log_level)
    for warning in loaded.warnings:
        log.warning(warning)
    choice = choose(loaded)
    manager = make_manager(settings, choice)
    stop = asyncio.Event()
    _handle_signals(stop, manager)
    runner = web.AppRunner(
        _app(settings, choice, manager), access_log=None, shutdown_timeout=CLOSE_WITHIN
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            text = f"cannot listen on {where}: {error.strerror}; choose another with --port"
            print(f"coding-agent-bridge: {text}", file=sys.stderr)
            return 1
        print(await banner(settings, choice, _address(runner)), file=sys.stderr, flush=True)
        await stop.wait()
        log.info("stopping", extra=manager.figures())
        await site.stop()
        await manager.close(settings.bridge_drain_ms / 1000)
        return 0
    finally:
        await runner.cleanup()
        reap_orphans()


# --- what is served ----------------------------------------------------------------------------


def choose(loaded: Loaded) -> Choice:
    """The agent that the settings ask for. Raises ConfigurationError."""
    settings = loaded.settings
    name, notes = (settings.agent_adapter, ()) if settings.agent_adapter else _first_found()
    if name == REPLAY:
        return _replay(settings, notes)
    try:
        adapter = registry.load(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{nearest(name, registry.names())}") from None
    wanted = settings.binary(adapter.binary_setting) or adapter.binary
    if not wanted:
        raise ConfigurationError(f"The adapter {name} needs AGENT_BINARY, the program to run.")
    binary = shutil.which(os.path.expanduser(wanted))
    if binary is None:
        raise ConfigurationError(
            f"{wanted} was not found, or is not executable. Install {adapter.title}, or set "
            f"{adapter.binary_setting} to its path."
        )
    config = AgentConfig(
        os.path.abspath(binary),
        settings.agent_args,
        settings.agent_model,
        settings.agent_force,
        settings.child_environment(adapter.environment, loaded.dotenv),
        os.geteuid() == 0,
    )
    objection = adapter.objection(config)
    if objection:
        raise ConfigurationError(objection)
    return Choice(adapter, adapter, config, config.binary, notes)


def _first_found() -> tuple[str, tuple[str, ...]]:
    for adapter in registry.with_binary():
        if shutil.which(adapter.binary):
            return adapter.name, (f"{adapter.binary} is the first known CLI on PATH",)
    return REPLAY, (
        "no coding-agent CLI was found on PATH, so a recording is played",
        f"choose another with AGENT_ADAPTER: {', '.join(registry.names())}",
    )


def _replay(settings: Settings, notes: tuple[str, ...]) -> Choice:
    adapter = registry.load(REPLAY)
    path = os.path.abspath(settings.bridge_replay_file or recording.EXAMPLE)
    dialect = registry.load(recording.dialect(path))
    speed = str(settings.bridge_replay_speed)
    config = AgentConfig(sys.executable, ("-I", str(Path(player.__file__)), path, speed))
    make = functools.partial(adapter, dialect=dialect)  # type: ignore[call-arg]
    return Choice(adapter, make, config, f"{path} ({dialect.title})", notes)


def make_manager(settings: Settings, choice: Choice) -> TaskManager:
    limits = Limits(
        turn=settings.agent_timeout_ms / 1000,
        silence=settings.agent_idle_exit_ms / 1000,
        line=settings.bridge_max_line_bytes,
        term_grace=settings.bridge_stop_grace_ms / 1000,
    )
    idle = settings.bridge_session_idle_ms / 1000
    return TaskManager(
        Agent(choice.make, choice.config, choice.config.env, limits, idle),
        choice.adapter,
        settings.workspaces,
        MemoryStore(settings.bridge_max_tasks),
        max_sessions=settings.bridge_max_sessions,
        show_thoughts=settings.bridge_thoughts,
    )


def _app(settings: Settings, choice: Choice, manager: TaskManager) -> web.Application:
    return make_app(
        manager,
        lambda request: make_card(settings, choice, request),
        card_versions=settings.bridge_card,
        token=settings.bridge_token,
        max_body_bytes=settings.bridge_max_body_bytes,
        stream_on_question=settings.bridge_stream_on_question,
    )


def make_card(settings: Settings, choice: Choice, request: web.Request) -> Card:
    """The address in it is the operator's word, else the one the client itself used."""
    base = settings.public_url or f"{request.scheme}://{request.host}"
    return Card(
        name=f"{choice.adapter.title} (coding-agent-bridge)",
        description=f"{choice.adapter.title} as an A2A agent: delegate coding tasks, watch them, "
        "answer its questions, stop it.",
        version=__version__,
        url=f"{base.rstrip('/')}/a2a/jsonrpc",
        skills=SKILLS,
        input_modes=tuple(choice.adapter.input_modes),
        output_modes=("text/plain", "application/json"),
        bearer=settings.bridge_token is not None,
    )


# --- the process -------------------------------------------------------------------------------


def _handle_signals(stop: asyncio.Event, manager: TaskManager) -> None:
    """The first SIGTERM or SIGINT drains, the second one leaves nothing to wait for."""
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set():
            manager.kill()
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    loop.add_signal_handler(signal.SIGCHLD, reap_orphans)


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def banner(settings: Settings, choice: Choice, address: str) -> str:
    """What the operator sees: what is served, where, and how to try it."""
    version = await _version(choice)
    auth = " -H 'Authorization: Bearer <token>'" if settings.bridge_token else ""
    message = (
        '{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":'
        '{"messageId":"1","role":"ROLE_USER","parts":[{"text":"What is in this directory?"}]}}}'
    )
    lines = [
        f"coding-agent-bridge {__version__}",
        *(f"  note       {note}" for note in choice.notes),
        f"  agent      {choice.adapter.name}: {choice.runs} {version}".rstrip(),
        f"  workspace  {settings.workspaces.default}",
        f"  endpoint   {address}/a2a/jsonrpc",
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
        process = await AgentProcess.spawn(
            (choice.config.binary, "--version"),
            choice.config.env,
            os.getcwd(),
            stdin=False,
            on_lines=printed.extend,
            on_exit=lambda code: None,
            line_limit=200,
        )
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
