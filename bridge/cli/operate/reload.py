"""The command `reload`."""

from __future__ import annotations

import sys
from typing import Any

from bridge.cli.operate.local import ask, problem_of
from bridge.client.failure import ClientError
from bridge.task.text import one_line

KINDS = ("added", "removed", "changed", "needs_restart")


def reload(url: str | None) -> int:
    """Let the server read its configuration again, and print the changes. Returns the exit status:
    0, or 1 if the server keeps its present configuration, or none runs."""
    try:
        status, answer = ask("POST", "/admin/reload", url)
    except ClientError as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 1
    if status != 200:
        text = one_line(problem_of(status, answer))
        print(f"coding-agent-bridge: not reloaded: {text}", file=sys.stderr)
        return 1
    print("\n".join(lines_of(answer)))
    return 0


def lines_of(changes: dict[str, Any]) -> list[str]:
    """A line for each kind of change; one line if nothing has changed."""
    lines = [
        f"{kind.replace('_', ' ')}: {one_line(', '.join(changes[kind]))}"
        for kind in KINDS
        if changes.get(kind)
    ]
    return lines or ["nothing has changed"]
