"""The run of one command of the client, from its options to its exit status."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from bridge.cli.client import account, download, tasks
from bridge.cli.client.failures import report
from bridge.cli.client.session import CommandSession
from bridge.client import config
from bridge.client.failure import INTERNAL, NOT_A_TERMINAL, ClientError
from bridge.client.local_server import LocalServer

Handler = Callable[[CommandSession], Coroutine[Any, Any, int]]


def on_terminal(session: CommandSession) -> bool:
    """Whether a person reads and types: both at one terminal, which can move its cursor."""
    plain = session.json or getattr(session.options, "quiet", False) or not session.waits
    return (
        sys.stdin.isatty() and sys.stdout.isatty() and not config.is_dumb_terminal() and not plain
    )


async def _send(session: CommandSession) -> int:
    from bridge.cli.client.sending import send

    return await send(session)


async def _run(session: CommandSession) -> int:
    return await (_keys()["run"] if on_terminal(session) else _send)(session)


async def _answer(session: CommandSession) -> int:
    options = session.options
    by_keys = options.option is None and options.text is None and on_terminal(session)
    if by_keys:
        return await _keys()["answer"](session)
    from bridge.cli.client.sending import answer

    return await answer(session)


async def _list(session: CommandSession) -> int:
    draws = session.options.watch and on_terminal(session)
    return await (_keys()["watch"] if draws else tasks.list_tasks)(session)


async def _attach(session: CommandSession) -> int:
    return await (_keys()["attach"] if on_terminal(session) else tasks.subscribe)(session)


async def _chat(session: CommandSession) -> int:
    if not on_terminal(session):
        hint = session.command("send", "TEXT")
        raise ClientError(NOT_A_TERMINAL, "chat requires a terminal", hint=hint)
    return await _keys()["chat"](session)


async def _export(session: CommandSession) -> int:
    from bridge.cli.client.export import export

    return await export(session)


async def _start_server(directory: str) -> LocalServer:
    from bridge.cli.starter import Starter

    return await Starter(directory).start()


def _keys() -> Mapping[str, Handler]:
    """The commands that draw. Their library takes long to import."""
    from bridge.cli.client import attach, interactive, watch

    return {
        "run": interactive.run,
        "answer": interactive.answer,
        "watch": watch.watch,
        "attach": attach.attach,
        "chat": attach.chat,
    }


HANDLERS: Mapping[str, Handler] = {
    "send": _send,
    "run": _run,
    "answer": _answer,
    "wait": tasks.wait,
    "attach": _attach,
    "chat": _chat,
    "agents": account.agents,
    "card get": account.card,
    "task get": tasks.get,
    "task cancel": tasks.cancel,
    "task list": _list,
    "task subscribe": tasks.subscribe,
    "task download": download.download,
    "task export": _export,
    "task push-config create": tasks.push_config,
    "task push-config get": tasks.push_config,
    "task push-config list": tasks.push_config,
    "task push-config delete": tasks.push_config,
    "auth login": account.login,
    "auth logout": account.logout,
    "auth status": account.status,
    "config show": account.show_config,
}


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit status. A command that a signal has interrupted ends by
    that signal."""
    as_json = options.output == "json"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that it cannot write becomes `?`
            stream.reconfigure(errors="replace")
    try:
        session = CommandSession(options, _start_server)
        as_json = session.json
        status = asyncio.run(session.run(HANDLERS[options.command]))
    except ClientError as error:
        return report(error, as_json)
    except BrokenPipeError:  # the reader of the output has exited
        raise
    except Exception as error:
        if options.debug:
            raise
        text = f"unexpected {type(error).__name__}: {error}"
        hint = "repeat the command with --debug"
        return report(ClientError(INTERNAL, text, hint=hint), as_json)
    if session.signal is not None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            sys.stdout.flush()
        signal.signal(session.signal, signal.SIG_DFL)
        os.kill(os.getpid(), session.signal)
    return status
