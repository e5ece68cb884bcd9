"""The open questions of tasks: the parties that may answer, their forms, and the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from bridge.a2a.requests import SendParams
from bridge.auth.principal import Principal
from bridge.errors import InvalidParams, UnsupportedOperation
from bridge.runtime.router import Router
from bridge.store.handle import TaskHandle
from bridge.task.answers import is_unread
from bridge.task.events import Question
from bridge.task.message import AnswerWay, DataPart, Message, Part, Role, TextPart
from bridge.transports.mcp.calls import Call
from bridge.transports.mcp.forms import ACTIONS, Decision, Form
from bridge.transports.mcp.keys import Marks, message_id
from bridge.transports.mcp.results import OPTIONS, link, takes_text

Approve = Literal["person", "model"]
AGAIN_AFTER = 300.0  # seconds after a canceled form
MOST_FORMS = 3  # for one question
MOST_KNOWN = 10_000  # questions whose forms are remembered; older ones are read from the store


@dataclass(slots=True)
class _Shown:
    """The forms of a question so far. `number`: of the current form; `until`: no form before."""

    number: int
    until: float = 0.0


class OpenQuestions:
    """`approve`: the party that answers permissions. `quick`: forms for permissions take a letter.
    `asker`: the agent and the project of a task, for people."""

    def __init__(
        self,
        router: Router,
        marks: Marks,
        asker: Callable[[TaskHandle], str],
        *,
        approve: Approve = "person",
        quick: bool = False,
    ) -> None:
        self._router = router
        self._marks = marks
        self._asker = asker
        self._approve = approve
        self._quick = quick
        self._shown: dict[tuple[str, str], _Shown] = {}

    def answered_by(self, question: Question | None, principal: Principal) -> str:
        """`person` or `model`: the party that may answer the question with the tool `answer`."""
        if question is None or question.kind in ("choice", "text", "plan"):
            return "model"
        trusted = self._approve == "model" and principal.may("approve")
        return "model" if question.kind == "permission" and trusted else "person"

    # --- forms ---------------------------------------------------------------------------------

    async def form(self, handle: TaskHandle, call: Call) -> tuple[str, Form] | None:
        """The form for the open question, and its key. None: this client gets no form now.
        All clients get the same key; each form has a new one."""
        question = handle.task.question
        if question is None or not call.forms or question.kind == "auth":
            return None
        if len(question.options) > OPTIONS:
            return None
        shown = await self._of(handle, question)
        if handle.task.question is not question:
            return None
        if shown.number > MOST_FORMS or time.monotonic() < shown.until:
            return None
        form = Form(
            question=question,
            task_id=handle.task.id,
            asker=self._asker(handle),
            revision=call.revision,
            quick=self._quick,
        )
        return f"{question.id}.{shown.number}", form

    async def take(self, handle: TaskHandle, call: Call) -> None:
        """Apply the client's responses to forms. Responses to other forms than the current one are
        ignored: the first answer wins. Raises RequestError."""
        found = await self.form(handle, call) if call.answers else None
        if found is None or found[0] not in call.answers:
            return
        key, form = found
        response = call.answers[key]
        if not isinstance(response, Mapping) or response.get("action") not in ACTIONS:
            raise InvalidParams(f"The response to {key} needs an action: {', '.join(ACTIONS)}.")
        outcome = form.read(response)
        if form.takes_letter and response["action"] == "accept" and _is_early(handle):
            outcome = "misfit"
        if isinstance(outcome, Decision):
            with suppress(UnsupportedOperation):  # another answer was first
                await self._send(handle, call, form.question, outcome, via="mcp-form")
        else:
            await self._withdraw(handle, form.question, again=outcome == "misfit")

    async def _of(self, handle: TaskHandle, question: Question) -> _Shown:
        """The forms so far, also those of an earlier server."""
        known = self._shown.get((handle.task.id, question.id))
        if known:
            return known
        number = 1
        while number <= MOST_FORMS and await self._marks.has(handle, f"{question.id}.{number}"):
            number += 1
        while len(self._shown) >= MOST_KNOWN:
            del self._shown[next(iter(self._shown))]
        return self._shown.setdefault((handle.task.id, question.id), _Shown(number))

    async def _withdraw(self, handle: TaskHandle, question: Question, *, again: bool) -> None:
        """Withdraw the current form. `again`: the next one may come at once."""
        shown = await self._of(handle, question)
        closed, shown.number = shown.number, shown.number + 1
        shown.until = 0.0 if again else time.monotonic() + AGAIN_AFTER
        await self._marks.keep(handle, f"{question.id}.{closed}")

    # --- answers of a model ----------------------------------------------------------------------

    async def answer(self, handle: TaskHandle, call: Call, given: Mapping[str, Any]) -> None:
        """Answer the open question with the arguments of the tool `answer`. Raises RequestError
        with one sentence for the model."""
        question = handle.task.question
        if question is None or question.id != given["question_id"]:
            if await self._marks.has(handle, _mark(given)):
                return  # the same answer again
            raise UnsupportedOperation(f"The question {given['question_id']} is not open.")
        if self.answered_by(question, call.principal) == "person":
            text = f"Only a person may answer this question: {link(handle.task.id)}"
            raise UnsupportedOperation(text)
        decision = _decision(question, given)
        await self._send(handle, call, question, decision, via="mcp")
        await self._marks.keep(handle, _mark(given))

    async def _send(
        self, handle: TaskHandle, call: Call, question: Question, decision: Decision, *, via: str
    ) -> None:
        task_id = handle.task.id
        chosen: dict[str, Any] = {"questionId": question.id}
        if len(decision.options) == 1:
            chosen["optionId"] = decision.options[0]
        elif decision.options:
            chosen["optionIds"] = list(decision.options)
        parts: list[Part] = [DataPart(chosen)]
        if decision.text:
            parts.append(TextPart(decision.text))
        identity = message_id(call.principal.id, task_id, question.id, *decision.options)
        message = Message(
            identity,
            Role.USER,
            tuple(parts),
            task_id=task_id,
            metadata={"mcp": AnswerWay(via=via, client=call.client)},
        )
        await self._router.send(
            SendParams(message, blocking=False, purpose="answer"), call.principal
        )


def _is_early(handle: TaskHandle) -> bool:
    """Whether the keys were typed before the form of the open question appeared."""
    asked = handle.task.asked_at
    return asked is not None and is_unread(datetime.now(UTC) - asked)


def _mark(given: Mapping[str, Any]) -> str:
    """The mark of an answer that was given."""
    parts = [given.get(name) for name in ("question_id", "option_id", "option_ids", "text")]
    return message_id("answer", *map(str, parts))


def _decision(question: Question, given: Mapping[str, Any]) -> Decision:
    """The arguments as a decision. Raises InvalidParams with the possible choices."""
    one, several = given.get("option_id"), given.get("option_ids", ())
    ids = tuple(dict.fromkeys((*((one,) if one else ()), *several)))
    known = [option.id for option in question.options]
    unknown = [each for each in ids if each not in known]
    if unknown or (len(ids) > 1 and not question.multiple):
        number = "one or more of" if question.multiple else "one of"
        raise InvalidParams(f"The question takes {number} these options: {', '.join(known)}.")
    text = given.get("text", "")
    if not ids and not (text.strip() and takes_text(question)):
        words = " or text" if takes_text(question) else ""
        raise InvalidParams(f"Answer with an option_id ({', '.join(known) or 'none'}){words}.")
    return Decision(ids, text if text and takes_text(question) else given.get("reason", ""))
