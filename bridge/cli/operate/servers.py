"""The commands `servers` and `stop`: the servers of this user on this machine."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from bridge.cli.operate.local import ask
from bridge.client import config
from bridge.client.failure import NO_SERVER, ClientError
from bridge.client.local_server import LocalServer, choose, covering, running
from bridge.task.text import one_line

STOPS_WITHIN = 60.0  # seconds; BRIDGE_DRAIN_MS is 5 s by default


def servers(*, as_json: bool) -> int:
    """Print a row for each running server. Returns the exit status 0."""
    found = [_row(one) for one in running(config.description_files())]
    if as_json:
        print(json.dumps({"servers": found}))
        return 0
    if not found:
        print("no server of this user runs")
        return 0
    head = ("ROOT", "AGENTS", "PID", "SINCE", "TASKS", "URL")
    rows = [head, *(_cells(one) for one in found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())
    return 0


def _row(server: LocalServer) -> dict[str, Any]:
    """The facts about a server. `tasks` is None if it does not answer."""
    tasks = None
    with suppress(ClientError):
        _, answer = ask("GET", "/health", server.url)
        tasks = sum(one["tasks"] for one in answer.get("agents", {}).values())
    return {
        "url": server.url,
        "pid": server.pid,
        "roots": server.roots,
        "agents": server.agents,
        "started": server.started,
        "tasks": tasks,
        "untilIdle": server.until_idle,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Those of the table, each on one line."""
    tasks = "?" if row["tasks"] is None else str(row["tasks"])
    roots, agents = (one_line(", ".join(row[name])) for name in ("roots", "agents"))
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started"]))
    return roots, agents, str(row["pid"]), since, tasks, one_line(row["url"])


def stop(root: str | None, *, every: bool) -> int:
    """Stop the server for a directory, or all servers, as SIGTERM does. Returns the exit status: 0,
    or 1 if one has not ended. Raises ClientError."""
    found = running(config.description_files())
    if not every:
        found = [_chosen(found, root)]
    ended = [_stop(one) for one in found]
    return 0 if all(ended) else 1


def _chosen(found: Sequence[LocalServer], root: str | None) -> LocalServer:
    if root is None:
        return choose(found, os.getcwd())
    best = covering(found, root)
    if not best:
        raise ClientError(NO_SERVER, f"no server of this user is for {root}")
    return choose(best, root)


def _stop(server: LocalServer) -> bool:
    """Send SIGTERM, and wait for the end."""
    if not hasattr(os, "pidfd_open"):
        raise ClientError(NO_SERVER, "stop needs Linux", hint=f"kill {server.pid}")
    with suppress(ProcessLookupError), closing(_Process(server.pid)) as process:
        if server in running(config.description_files()):  # the pid is still its own
            process.terminate()
            if not process.ends(STOPS_WITHIN):
                text = f"the server at {server.url} (pid {server.pid}) waits for its tasks"
                print(f"coding-agent-bridge: {text}", file=sys.stderr)
                return False
    print(f"stopped {server.url} (pid {server.pid}, {', '.join(server.roots)})")
    return True


class _Process:
    """A process that is not mistaken for a later one with its pid. Raises ProcessLookupError."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def terminate(self) -> None:
        signal.pidfd_send_signal(self._fd, signal.SIGTERM)

    def ends(self, within: float) -> bool:
        return bool(select.select([self._fd], [], [], within)[0])

    def close(self) -> None:
        os.close(self._fd)
