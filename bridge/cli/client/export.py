"""`task export`: a task or a whole conversation as one document, task by task."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import IO

from bridge.cli.client.markdown import TaskMarkdown, Told, span
from bridge.cli.client.output import safe_json
from bridge.cli.client.session import CommandSession, trace
from bridge.client import bindings
from bridge.client.agent import RemoteAgent
from bridge.client.conversation import find_all
from bridge.client.failure import ClientError, usage
from bridge.client.shapes import Json

_TOLD_WITHIN = 30.0  # seconds to read the stream of a task


async def export(session: CommandSession) -> int:
    """Write the tasks. A file appears when it is complete, with the mode 0600."""
    options = session.options
    if options.file in ("json", "text", "markdown"):
        hint = session.command("task", "export", options.task, "--format", "json")
        raise usage(f"-o names a file here: write ./{options.file} for that name", hint)
    as_json = (options.format or session.value("output")) == "json"
    async with session.connect() as agent:
        context_id, ids = await find_all(agent, options.task)
        document = _json if as_json else _markdown
        with _target(options.file) as target:
            async for piece in document(agent, context_id, ids):
                target.write(piece.encode("utf-8", "replace"))
    return 0


async def _json(agent: RemoteAgent, context_id: str, ids: Sequence[str]) -> AsyncIterator[str]:
    yield f'{{"contextId": {safe_json(context_id)}, "tasks": ['
    gap = "\n"
    async for task in _tasks(agent, ids):
        yield gap + safe_json(task)
        gap = ",\n"
    yield "\n]}\n"


async def _markdown(agent: RemoteAgent, context_id: str, ids: Sequence[str]) -> AsyncIterator[str]:
    yield f"# Conversation {span(context_id)}\n"
    async for task in _tasks(agent, ids):
        yield f"\n{TaskMarkdown(task, await _told(agent, task)).text()}"


async def _tasks(agent: RemoteAgent, ids: Sequence[str]) -> AsyncIterator[Json]:
    """The whole tasks. One that the server has removed since the list is left out."""
    for task_id in ids:
        try:
            task: Json = await agent.call(bindings.GET, {"id": task_id})
        except ClientError as error:
            if error.code != "TaskNotFoundError" or len(ids) == 1:
                raise
            trace(f"the server has removed the task {task_id}; it is left out")
            continue
        yield task


async def _told(agent: RemoteAgent, task: Json) -> Told:
    """The times and the answers in the stream of a task, as far as the server keeps it."""
    told = Told()
    if agent.card.is_bridge and agent.streams:
        # Without them the document is still complete.
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(_TOLD_WITHIN):
                await _read(agent, task, told)
    told.note(task)
    return told


async def _read(agent: RemoteAgent, task: Json, told: Told) -> None:
    """Read the stream up to the status of `task`."""
    events = agent.stream(bindings.SUBSCRIBE, {"id": task["id"]}, "0")
    async with aclosing(events):
        async for _, item in events:
            update = item.get("statusUpdate")
            if update:
                told.note(update)
                if update.get("status") == task.get("status"):
                    return


@contextmanager
def _target(name: str) -> Iterator[IO[bytes]]:
    """The stream to write to. A file gets its name at the end. Raises ClientError."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    other = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if os.path.lexists(path) and not S_ISREG(os.lstat(path).st_mode):
            raise usage(f"{path} is not a file")
        with open(os.open(other, flags, 0o600), "wb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.rename(other, path)
            except BaseException:
                os.unlink(other)
                raise
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror}") from None
