"""The run of one command of the client, from its options to its exit status."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from bridge.cli.client import account, download, sending, tasks
from bridge.cli.client.failures import report
from bridge.cli.client.session import Session
from bridge.client.failure import ClientError

HANDLERS: Mapping[str, Callable[[Session], Coroutine[Any, Any, int]]] = {
    "send": sending.send,
    "answer": sending.answer,
    "wait": tasks.wait,
    "agents": account.agents,
    "card get": account.card,
    "task get": tasks.get,
    "task cancel": tasks.cancel,
    "task list": tasks.list_tasks,
    "task subscribe": tasks.subscribe,
    "task download": download.download,
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
    try:
        session = Session(options)
        as_json = session.json
        status = asyncio.run(session.run(HANDLERS[options.command]))
    except ClientError as error:
        return report(error, as_json)
    if session.signal is not None:
        sys.stdout.flush()
        signal.signal(session.signal, signal.SIG_DFL)
        os.kill(os.getpid(), session.signal)
    return status
