"""The commands that send a message: `send` and `answer`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from bridge.cli.client.messages import message_parts, new_message
from bridge.cli.client.output import Fields, Output, show_question
from bridge.cli.client.question_policy import QuestionPolicy
from bridge.cli.client.session import CommandSession, trace
from bridge.client import bindings
from bridge.client.agent import RemoteAgent
from bridge.client.failure import (
    NOT_A_TERMINAL,
    QUESTION_CLOSED,
    ClientError,
    needs_extension,
    usage,
)
from bridge.client.follow import Follower, params_of
from bridge.client.local_server import LocalServer, is_below
from bridge.client.questions import (
    ChosenAnswer,
    Leave,
    OpenQuestion,
    answer_parts,
    closed_by,
    question_of,
)
from bridge.client.shapes import Json, short, state_of

_SHORTEST_ID = 16  # characters of a messageId that a server remembers
_CHOICES = {
    **{flag: flag for flag in ("agent", "role", "model", "mode")},
    "budget": "budgetUsd",
}


class Person(Protocol):
    """A person at a terminal."""

    @property
    def output(self) -> Output: ...

    async def ask(
        self, agent: RemoteAgent, question: OpenQuestion, task_id: str
    ) -> ChosenAnswer | Leave | None:
        """The answer. None: the question was closed elsewhere."""

    def sends(self, message: Json) -> None:
        """Called with each message of this client."""


Terminal = Callable[[CommandSession, str | None], AbstractAsyncContextManager[Person]]
"""Takes the session and the working directory of the agent, if known."""


async def send(session: CommandSession, terminal: Terminal | None = None) -> int:
    """Send a message; then wait until the task ends or asks. `terminal`: for a person."""
    options = session.options
    parts = message_parts(options.message, options.parts or ())
    given = options.message_id
    if given is not None and len(given) < _SHORTEST_ID:
        raise usage(f"--message-id must have at least {_SHORTEST_ID} characters")
    policy = QuestionPolicy(options.on_question)
    async with session.connect() as agent:
        task_id, context_id = session.value("task_id"), session.value("context_id")
        choices = choices_of(session, agent, new=not (task_id or context_id))
        message = new_message(parts, task_id, context_id, given)
        params = params_of(message, metadata_of(session, agent, choices))
        session.owns = True
        directory = choices.get("cwd")
        policy.directory = directory if agent.server else None
        session.message_id = message["messageId"] if agent.card.is_bridge else None
        try:
            if not session.waits:
                return await _start(session, agent, params, directory)
            async with _shown(session, terminal, directory) as (output, person):
                if person:
                    person.sends(message)
                return await converse(
                    session,
                    agent,
                    lambda follower: follower.send(params),
                    output=output,
                    policy=policy,
                    person=person,
                )
        except ClientError as error:
            if task_id and not error.code.startswith(("A2ACLI_", "CAB_")):
                error.hint = session.command("send", "--task-id", task_id, "--debug", "TEXT")
            raise


async def _start(
    session: CommandSession, agent: RemoteAgent, params: Json, directory: str | None
) -> int:
    """Send without waiting."""
    output = session.output(directory=directory)
    item = await session.follow(agent).start(params)
    output.item(item)
    output.finish(item, session.resume(item))
    return session.exit_status(item)


@asynccontextmanager
async def _shown(
    session: CommandSession, terminal: Terminal | None, directory: str | None
) -> AsyncIterator[tuple[Output, Person | None]]:
    if terminal is None:
        yield session.output(directory=directory), None
        return
    async with terminal(session, directory) as person:
        yield person.output, person


async def answer(session: CommandSession, terminal: Terminal | None = None) -> int:
    """Answer the open question of a task; then wait as `send` does. `terminal`: of a person that
    answers by keys."""
    options = session.options
    policy = QuestionPolicy(options.on_question)
    async with session.connect() as agent:
        task = await agent.call(bindings.GET, {"id": options.task})
        question = open_question(session, task, options.question)
        if options.option is None and options.text is None:
            if terminal:
                return await _answer_by_keys(session, agent, terminal, policy)
            show_question(Fields(sys.stderr), question)
            hint = session.resume({"task": task})
            raise ClientError(NOT_A_TERMINAL, "an OPTION or --text is necessary", hint=hint)
        chosen = [] if options.option is None else [question.choose(options.option)]
        if chosen and question.id is None:
            raise needs_extension("OPTION")
        parts = answer_parts(question, chosen, options.reason or options.text)
        message = new_message(parts, str(task["id"]), task.get("contextId"), None)
        params = params_of(message, metadata_of(session, agent, {}))
        output = AnswerOutput(session.output(), question, message)
        if not session.waits:
            return await _start(session, agent, params, None)
        try:
            return await converse(
                session,
                agent,
                lambda follower: follower.send(params),
                output=output,
                policy=policy,
            )
        except ClientError as error:
            if error.code != "UnsupportedOperationError":
                raise
            # Another answer was faster, and no other question is open.
            task = await agent.call(bindings.GET, {"id": options.task, "historyLength": 0})
            raise closed(session, task, question) from error


async def _answer_by_keys(
    session: CommandSession, agent: RemoteAgent, terminal: Terminal, policy: QuestionPolicy
) -> int:
    task_id = session.options.task
    async with terminal(session, None) as person:
        return await converse(
            session,
            agent,
            lambda follower: follower.subscribe(task_id),
            output=person.output,
            policy=policy,
            person=person,
        )


class AnswerOutput(Output):
    """`output`, as long as the answer `message` to the question decides. Another client may have
    been faster."""

    def __init__(self, output: Output, question: OpenQuestion, message: Json) -> None:
        self._output = output
        self._question = question
        self._message_id = message["messageId"]

    def item(self, item: Json) -> None:
        """Raises ClientError if another answer closed the question."""
        found = closed_by(item.get("task") or item.get("statusUpdate") or {})
        if found and (found.question_id, found.message_id) == (self._question.id, self._message_id):
            self._question = replace(self._question, id=None)  # later questions may have its id
        elif found and found.question_id == self._question.id:
            text = f"the question is closed: {found.describe(self._question.options)}"
            raise ClientError(QUESTION_CLOSED, text)
        self._output.item(item)

    def finish(self, answer: Json, resume: str) -> None:
        self._output.finish(answer, resume)


async def converse(
    session: CommandSession,
    agent: RemoteAgent,
    begin: Callable[[Follower], AsyncGenerator[Json]],
    *,
    output: Output,
    policy: QuestionPolicy,
    person: Person | None = None,
) -> int:
    """Follow the task that begins with `begin`. The policy, or else the person, answers questions;
    without an answer it ends at the question. Returns the exit status."""
    if policy.decides and not agent.card.is_bridge:
        raise needs_extension("--on-question")
    follower = session.follow(agent)
    items = begin(follower)
    while True:
        async with aclosing(items):
            async for item in items:
                output.item(item)
        last, task = follower, follower.final.get("task") or {}
        question = question_of(task)
        if question is None:
            break
        option = policy.decide(question)
        reply: ChosenAnswer | Leave | None = ChosenAnswer((option,)) if option else Leave()
        if option:
            output.note(f"{option.name}: {question.text}")
        elif person:
            reply = await person.ask(agent, question, str(task["id"]))
        if isinstance(reply, Leave):
            break
        follower = session.follow(agent)
        if reply is None:
            items = follower.subscribe(str(task["id"]), last.last_id)
            continue
        parts = answer_parts(question, reply.chosen, reply.text)
        message = new_message(parts, last.task_id, last.context_id, None)
        if person:
            person.sends(message)
        params = params_of(message, metadata_of(session, agent, {}))
        items = _answer(follower, params, last)
    output.finish(follower.final, session.resume(follower.final))
    return session.exit_status(follower.final)


async def _answer(follower: Follower, params: Json, last: Follower) -> AsyncGenerator[Json]:
    """The items after an answer. If another client was faster, those after its answer."""
    try:
        async with aclosing(follower.send(params)) as items:
            async for item in items:
                yield item
    except ClientError as error:
        if error.code != "UnsupportedOperationError" or last.task_id is None:
            raise
        async with aclosing(follower.subscribe(last.task_id, last.last_id)) as items:
            async for item in items:
                yield item


def open_question(
    session: CommandSession, task: Mapping[str, Any], wanted: str | None
) -> OpenQuestion:
    """The open question of the task. Raises ClientError if another one or none is open."""
    question = question_of(task)
    if question and wanted in (None, question.id):
        return question
    raise closed(session, task, OpenQuestion(wanted, "", ""))


def closed(session: CommandSession, task: Mapping[str, Any], question: OpenQuestion) -> ClientError:
    """The error for an answer that is too late, with the author of the first answer if known."""
    open_, found = question_of(task), closed_by(task)
    text = f"the task is {short(state_of(task))}"
    if open_:
        text = f"another question is open: {open_.id}"
    if found and question.id in (None, found.question_id):
        text = f"{found.describe(question.options)}; {text}"
    hint = session.resume({"task": task})
    return ClientError(QUESTION_CLOSED, f"the question is closed: {text}", hint=hint)


# --- the choices of a conversation ---------------------------------------------------------------


def choices_of(session: CommandSession, agent: RemoteAgent, new: bool) -> Json:
    """The choices of the conversation. `new`: the message begins it, so that the current directory
    is chosen for a local server. One with a role may be on another machine."""
    options = vars(session.options)
    chosen = {
        name: options[flag] for flag, name in _CHOICES.items() if options.get(flag) is not None
    }
    if options.get("cwd") is not None:
        chosen["cwd"] = options["cwd"]
    if chosen and not agent.card.is_bridge:
        flag = "budget" if "budgetUsd" in chosen else next(iter(chosen))
        raise needs_extension(f"--{flag}")
    new = new and "role" not in chosen
    if agent.server and agent.card.is_bridge and ("cwd" in chosen or new):
        chosen["cwd"] = directory(agent.server, chosen.get("cwd"))
    return chosen


def directory(server: LocalServer, given: str | None) -> str:
    """The working directory on this machine: without a given one, this directory or else the
    workspace of the server. Raises ClientError if no agent may work in the given one."""
    path = os.path.realpath(given or os.getcwd())
    if not any(is_below(path, root) for root in server.roots):
        if given is None and server.roots:
            trace(f"the agent works in {server.roots[0]}, the workspace of {server.url}")
            return server.roots[0]
        roots = ", ".join(server.roots)
        text = f"the agents of {server.url} may not work in {path}, but in: {roots}"
        raise usage(text, f"--cwd {server.roots[0]}" if server.roots else None)
    return path


def metadata_of(session: CommandSession, agent: RemoteAgent, choices: Json) -> Json:
    """The metadata of a request. A break of the connection never cancels a task."""
    metadata = _given_metadata(session.value("metadata"))
    if agent.card.is_bridge:
        own = metadata.get("bridge")
        given = own if isinstance(own, dict) else {}
        metadata["bridge"] = {"onDisconnect": "continue", **given, **choices}
    return metadata


def _given_metadata(text: str | None) -> Json:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise usage(f"--metadata is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise usage("--metadata must be a JSON object")
    return value
