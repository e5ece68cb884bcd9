"""The tools `delegate` and `wait`: a task begins, and a call waits for its news."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from bridge.a2a.requests import SendParams
from bridge.auth.principal import Principal, authorize
from bridge.errors import Forbidden, InvalidParams, RequestError, TaskNotFound
from bridge.runtime.router import Router
from bridge.store.handle import TaskHandle, durable
from bridge.task.events import Question
from bridge.task.message import Message, Part, Role, TextPart, UrlPart
from bridge.telemetry.observation import observed
from bridge.transports.mcp.calls import Call, note_task
from bridge.transports.mcp.forms import Form
from bridge.transports.mcp.keys import Marks, message_id
from bridge.transports.mcp.news import read_news
from bridge.transports.mcp.questions import OpenQuestions
from bridge.transports.mcp.results import Json, View, task_result
from bridge.transports.mcp.waiting import reporting, wait_until

log = logging.getLogger(__name__)

WAIT = 45  # seconds; the shortest known limit of a call is 60 s
PERSON = 600.0  # seconds that a person has to fill in a form
GATHER = 1.0  # seconds of further news that a waiting call collects after the first
MOST_LOCKS = 1000
WRITTEN = "written"
"""The mark of a task whose handle was written to a connection."""
Created = Callable[[TaskHandle, Call], Awaitable[Json]]
"""The result that makes a call a task of the extension."""


class Delegation:
    """`created` encodes a new task for clients that declare the extension. `most_depth`: how many
    agents may delegate to each other. `cancel_after`: seconds in which a canceled call may
    return."""

    def __init__(
        self,
        router: Router,
        marks: Marks,
        questions: OpenQuestions,
        *,
        created: Created,
        most_depth: int,
        cancel_after: float,
    ) -> None:
        self._router = router
        self._marks = marks
        self._questions = questions
        self._created = created
        self._most_depth = most_depth
        self._cancel_after = cancel_after
        self._calls: Counter[str] = Counter()  # that wait for a task
        self._locks: dict[str, asyncio.Lock] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closing = False

    def close(self) -> None:
        """The server ends: canceled calls cancel no task from now on."""
        self._closing = True
        for timer in self._leaving.values():
            timer.cancel()
        self._leaving.clear()

    # --- delegate --------------------------------------------------------------------------------

    async def delegate(self, call: Call, arguments: Mapping[str, Any]) -> Json:
        """Begin a task, or continue the call that this one repeats. Raises RequestError."""
        authorize(call.principal, "run")
        self._router.quotas.check_stream(call.principal.id)
        call = replace(call, depth=max(call.depth, await self._depth(call)))
        if call.depth >= self._most_depth:
            text = f"{call.depth} agents have delegated already, which is the limit."
            raise Forbidden(text)
        handle = await self._handle(call, arguments)
        try:
            with self._attending(handle.task.id):
                # The client knows the task from now on.
                await self._router.get(handle.task.id, call.principal)
                await durable(None, handle)
                found = await self._result(handle, call, arguments)
        except asyncio.CancelledError:
            self._leave(handle, call.principal)
            raise
        call.response.on_end = lambda written: self._end(handle, call, written)
        return found

    async def _depth(self, call: Call) -> int:
        """The number of agents that delegated before, by the process that sends the call."""
        marker = await call.caller()
        if marker is None:
            return 0
        handle = self._router.working(marker) if marker else None
        if handle is None:  # an agent hides its parents, or its session has ended
            return self._most_depth
        for depth in range(self._most_depth - 1, 0, -1):
            if await self._marks.has(handle, _depth_mark(depth)):
                return depth + 1
        return 1

    async def _handle(self, call: Call, arguments: Mapping[str, Any]) -> TaskHandle:
        """The task of the call: the one of an earlier equal call, or a new one."""
        if call.state is not None:
            return await self._router.get(task_in(call.state), call.principal)
        if call.key is not None:
            return await self._send(
                call, arguments, message_id(call.principal.id, call.client, call.key)
            )
        same = {"client": call.client, "cwd": call.cwd, "arguments": arguments}
        async with self._lock(call.principal, same):
            before = await self._marks.same_call(call.principal.id, same)
            with suppress(TaskNotFound):  # it was removed meanwhile
                handle = await self._router.get(before, call.principal) if before else None
                if handle and not await self._marks.has(handle, WRITTEN):
                    return handle
            handle = await self._send(call, arguments, message_id(secrets.token_hex()))
            self._marks.note_call(handle, same, before)
            return handle

    def _lock(self, principal: Principal, same: Mapping[str, Any]) -> asyncio.Lock:
        """Equal calls without a key wait until the task of the first one exists."""
        name = message_id(principal.id, json.dumps(same, sort_keys=True))
        if len(self._locks) >= MOST_LOCKS:
            self._locks = {one: lock for one, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(name, asyncio.Lock())

    async def _send(self, call: Call, arguments: Mapping[str, Any], identity: str) -> TaskHandle:
        cwd = arguments.get("cwd") or call.cwd
        names = ("agent", "role", "model", "mode")
        wishes = {name: arguments[name] for name in names if name in arguments}
        if "cwd" in arguments or (cwd and "context_id" not in arguments):
            wishes["cwd"] = cwd
        message = Message(
            identity,
            Role.USER,
            (TextPart(arguments["prompt"]), *_files(arguments.get("files", ()), cwd)),
            context_id=arguments.get("context_id"),
            metadata={"bridge": wishes} if wishes else None,
        )
        params = SendParams(message, blocking=False, retries=True, purpose="begin")
        observed().subject.waits = not call.tasks
        handle = (await self._router.send(params, call.principal)).handle
        note_task(handle, identity)
        if call.depth:
            self._marks.set(handle, _depth_mark(call.depth))
        return handle

    async def _result(self, handle: TaskHandle, call: Call, arguments: Mapping[str, Any]) -> Json:
        if not call.tasks:
            return await self._follow(handle, call, arguments.get("wait_seconds", WAIT), None)
        if wait := arguments.get("wait_seconds", 0):
            deadline = asyncio.get_running_loop().time() + wait
            async with reporting(self._router, handle, call):
                # The client gets the form of a question only when it polls the task.
                await wait_until(handle, lambda: handle.task.question is not None, deadline)
        if handle.log.closed:
            return await self.final(handle, call)
        return await self._created(handle, call)

    # --- calls that were canceled ----------------------------------------------------------------

    def _end(self, handle: TaskHandle, call: Call, written: bool) -> None:
        """The response has ended. On a legacy connection, a closed stream cancels nothing."""
        if written:
            self._marks.set(handle, WRITTEN)
        elif call.modern:
            self._leave(handle, call.principal)

    @contextmanager
    def _attending(self, task_id: str) -> Iterator[None]:
        """The context of a call that waits for the task."""
        self._stay(task_id)
        self._calls[task_id] += 1
        try:
            yield
        finally:
            self._calls[task_id] -= 1
            if not self._calls[task_id]:
                del self._calls[task_id]

    def _leave(self, handle: TaskHandle, principal: Principal) -> None:
        """The call was canceled before its handle was written: cancel the task, unless the call
        returns. A task that has asked a question is known to a person."""
        task = handle.task
        if self._closing or task.state.terminal or task.asked or self._calls[task.id]:
            return
        loop = asyncio.get_running_loop()
        self._stay(task.id)
        self._leaving[task.id] = loop.call_later(
            self._cancel_after, self._abandon, handle, principal
        )

    def _stay(self, task_id: str) -> None:
        timer = self._leaving.pop(task_id, None)
        if timer:
            timer.cancel()

    def _abandon(self, handle: TaskHandle, principal: Principal) -> None:
        del self._leaving[handle.task.id]
        canceling = asyncio.create_task(self._cancel(handle, principal))
        self._background.add(canceling)
        canceling.add_done_callback(self._background.discard)

    async def _cancel(self, handle: TaskHandle, principal: Principal) -> None:
        if await self._marks.has(handle, WRITTEN):  # another call has returned the handle
            return
        log.info("the call that began a task was canceled", extra={"task": handle.task.id})
        with suppress(RequestError):  # it has ended
            await self._router.cancel(handle.task.id, principal)

    # --- calls that wait -------------------------------------------------------------------------

    async def wait(self, call: Call, arguments: Mapping[str, Any]) -> Json:
        """Wait for news of a task. Raises RequestError."""
        self._router.quotas.check_stream(call.principal.id)
        handle = await self._router.get(arguments["task_id"], call.principal)
        seconds = arguments.get("wait_seconds", WAIT)
        return await self._follow(handle, call, seconds, arguments.get("after", 0))

    async def _follow(
        self, handle: TaskHandle, call: Call, seconds: float, after: int | None
    ) -> Json:
        """Wait up to `seconds` for an update after number `after`, or for a question if `after` is
        None, or for the end. A client with forms gets a form for a question first; the time of the
        person does not count."""
        await self._questions.take(handle, call)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds

        def has_news(asked: Question | None) -> bool:
            question = handle.task.question
            news = handle.log.visible > after if after is not None else question is not None
            return news or question is not asked or handle.log.closed

        async with reporting(self._router, handle, call):
            while not handle.log.closed:
                await durable(None, handle)
                found = await self._questions.form(handle, call)
                if found and call.elicit:
                    began = loop.time()
                    await self._elicit(handle, call, *found)
                    deadline += loop.time() - began
                    continue
                if found:
                    return _input_required(handle, *found)
                condition = partial(has_news, handle.task.question)
                if condition() or not await wait_until(handle, condition, deadline):
                    break
                gathered = min(deadline, loop.time() + GATHER)
                await wait_until(handle, lambda: handle.task.question is not None, gathered)
        return await self.show(handle, call, after)

    async def _elicit(self, handle: TaskHandle, call: Call, key: str, form: Form) -> None:
        """Ask the person on the stream of the call. The form ends when the question is closed."""
        assert call.elicit
        question = handle.task.question
        deadline = asyncio.get_running_loop().time() + PERSON
        asking = asyncio.ensure_future(call.elicit(form.params()))
        closing = asyncio.ensure_future(
            wait_until(handle, lambda: handle.task.question is not question, deadline)
        )
        try:
            await asyncio.wait((asking, closing), return_when=asyncio.FIRST_COMPLETED)
            answered = asking.done() and not asking.exception()
            response = asking.result() if answered else {"action": "cancel"}
            await self._questions.take(handle, replace(call, answers={key: response}))
        finally:
            for one in (asking, closing):
                one.cancel()

    async def show(self, handle: TaskHandle, call: Call, after: int | None) -> Json:
        """The task with its updates after number `after`; None: those of an unfinished task."""
        await durable(None, handle)
        newest = handle.log.visible
        ended = handle.task.state.terminal
        old = handle.back is not None and not after  # the end of it is enough, and quick to read
        news = (
            () if old or (ended and after is None) else await read_news(handle, after or 0, newest)
        )
        return task_result(
            View(
                handle=handle,
                task=await handle.whole(),
                news=news,
                after=newest,
                answered_by=self._questions.answered_by(handle.task.question, call.principal),
            )
        )

    async def final(self, handle: TaskHandle, call: Call) -> Json:
        """The result of a call whose task has ended."""
        return await self.show(handle, call, None)


def _depth_mark(depth: int) -> str:
    """The mark of a task that an agent has delegated."""
    return f"depth-{depth}"


def task_in(state: str) -> str:
    """The id of the task in the requestState of a call, which the library has checked."""
    return str(json.loads(state)["task"])


def _input_required(handle: TaskHandle, key: str, form: Form) -> Json:
    question = handle.task.question
    state = {"task": handle.task.id, "question": question.id if question else ""}
    return {
        "resultType": "input_required",
        "inputRequests": {key: {"method": "elicitation/create", "params": form.params()}},
        "requestState": json.dumps(state),
    }


def _files(paths: Sequence[str], cwd: str | None) -> Sequence[Part]:
    """The files as parts that name them."""
    found = [PurePosixPath(cwd or "") / path for path in paths]
    if not all(path.is_absolute() for path in found):
        raise InvalidParams("Pass an absolute cwd, or absolute paths in files.")
    return [UrlPart(path.as_uri()) for path in found]
