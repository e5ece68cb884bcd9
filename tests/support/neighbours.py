"""A scripted model and a collector of traces in the network of a machine (tests/support/debian.py):
a process of its own, because a process has one network. It serves until its input ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests import CHECKOUT
from tests.support.collector import collecting
from tests.support.debian import Machine
from tests.support.model_server import ModelServer
from tests.support.real_claude_code import variables

WITHIN = 60.0  # seconds for its end


class Neighbours:
    """`model`: variables of a Claude Code that talks only to the scripted model. `collector`: those
    of a server that sends its traces to the collector. After the end: `conversations` has the
    messages of each request to the model, `spans` the names of the spans."""

    def __init__(self, model: dict[str, str], collector: dict[str, str]) -> None:
        self.model = model
        self.collector = collector
        self.conversations: list[list[dict[str, Any]]] = []
        self.spans: list[str] = []


@contextmanager
def neighbours(machine: Machine) -> Iterator[Neighbours]:
    """They end with the block, and before the machine."""
    line = [*machine.network, sys.executable, "-m", __name__]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT
    ) as process:
        try:
            assert process.stdout
            found = Neighbours(**json.loads(process.stdout.readline()))
            yield found
            output, _ = process.communicate(timeout=WITHIN)
            found.conversations, found.spans = json.loads(output)
        finally:
            process.kill()


async def _serve() -> None:
    async with ModelServer() as model, collecting() as collector:
        print(json.dumps({"model": variables(model), "collector": collector.env}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        conversations = [body["messages"] for body in model.requests]
        print(json.dumps([conversations, [span.name for span in collector.spans]]))


if __name__ == "__main__":
    asyncio.run(_serve())
