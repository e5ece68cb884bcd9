"""The can_use_tool requests of Claude Code, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge.adapter.fields import Json, as_dict, as_list, as_string
from bridge.task.answers import is_word
from bridge.task.events import Answer, Option, Question, QuestionWithdrawn

from ._claude_turn import Turn
from ._tools import choice

ALLOW = Option("allow", "Allow", "allow_once")
ALWAYS = Option("allow_always", "Always allow in this session", "allow_always")
DENY = Option("deny", "Deny", "reject_once")
APPROVE = Option("approve", "Approve the plan", "allow_once")
REVISE = Option("revise", "Send the plan back", "reject_once")


@dataclass(slots=True)
class _Request:
    """A request with open questions."""

    id: str
    input: Json
    suggestions: list[Json]
    asks: dict[str, str] = field(default_factory=dict)  # question id → the text of the question
    answers: dict[str, str] = field(default_factory=dict)


class ClaudeQuestions:
    """The open requests. `respond` sends a control_response; `turn` returns the present turn."""

    def __init__(self, respond: Callable[[Json], None], *, turn: Callable[[], Turn]) -> None:
        self._respond = respond
        self._turn = turn
        self._open: dict[str, _Request] = {}

    def request(self, event: Json) -> Iterator[Question]:
        """A control_request of the CLI."""
        request_id, request = as_string(event["request_id"]), event["request"]
        if request.get("subtype") != "can_use_tool":
            self.refuse(event, f"The bridge does not serve {request.get('subtype')}.")
            return
        suggestions = as_list(request.get("permission_suggestions"))
        suggestions = [suggestion for suggestion in suggestions if isinstance(suggestion, dict)]
        pending = _Request(request_id, as_dict(request.get("input")), suggestions)
        questions = list(self._questions(pending, request))
        pending.asks |= {question.id: question.text for question in questions}
        self._open[request_id] = pending
        yield from questions

    def refuse(self, event: Json, text: str) -> None:
        """Answer a control_request with an error."""
        self._respond({"subtype": "error", "request_id": event.get("request_id"), "error": text})

    def withdraw(self, event: Json) -> Iterator[QuestionWithdrawn]:
        """A control_cancel_request of the CLI."""
        request = self._open.pop(event["request_id"], None)
        for question_id in request.asks if request else ():
            yield QuestionWithdrawn(question_id)

    def answer(self, question: Question, answer: Answer) -> None:
        request = next((r for r in self._open.values() if question.id in r.asks), None)
        if request is None:
            return  # withdrawn meanwhile
        if question.kind in ("choice", "text"):
            chosen = ", ".join(option.name for option in answer.options)
            request.answers[request.asks.pop(question.id)] = chosen or answer.text
            if request.asks:
                return
            response: Json = {
                "behavior": "allow",
                "updatedInput": {**request.input, "answers": request.answers},
            }
        else:
            response = _decision(request, answer)
        del self._open[request.id]
        self._respond({"subtype": "success", "request_id": request.id, "response": response})

    def _questions(self, pending: _Request, request: Json) -> Iterator[Question]:
        tool = request.get("tool_name", "")
        asked = pending.input.get("questions")
        if tool == "AskUserQuestion" and isinstance(asked, list) and asked:
            for number, one in enumerate(asked):
                labels = [str(option.get("label")) for option in one.get("options") or ()]
                yield choice(
                    f"{pending.id}/{number}" if number else pending.id,
                    one.get("question"),
                    zip(labels, labels, strict=True),
                    subject={"header": one.get("header"), "options": one.get("options")},
                    free_text=True,
                    multiple=bool(one.get("multiSelect")),
                )
            return
        subject = {"toolCallId": request.get("tool_use_id"), "name": tool, "input": pending.input}
        if tool == "ExitPlanMode":
            known = self._turn().tool_input(request.get("tool_use_id") or "")
            plan = pending.input.get("plan") or known.get("plan", "")
            text = f"Claude Code has a plan and asks to begin:\n\n{plan}"
            options = (APPROVE, REVISE)
            yield Question(pending.id, "plan", text, options, subject, free_text=True)
            return
        may = (ALLOW, ALWAYS, DENY) if pending.suggestions else (ALLOW, DENY)
        yield Question(pending.id, "permission", _wish(tool, request), may, subject)


def _wish(tool: str, request: Json) -> str:
    """The text of a permission question."""
    arguments = request.get("input") or {}
    named = (arguments.get(name) for name in ("command", "file_path", "url", "path"))
    what = next(filter(None, named), None)
    text = f"Claude Code asks to use {tool}"
    text += f": {what}" if what else f" with {orjson.dumps(arguments).decode()}"
    reason = request.get("decision_reason")
    return f"{text}\n({reason})" if reason else text


def _decision(request: _Request, answer: Answer) -> Json:
    option = answer.option
    if option is None or option.kind.startswith("reject"):
        plain = option and (answer.text in (option.id, option.name) or is_word(answer.text))
        said = "" if plain else answer.text
        return {"behavior": "deny", "message": f"The user said no. {said}".strip()}
    response: dict[str, Any] = {"behavior": "allow", "updatedInput": request.input}
    if option.kind == "allow_always":
        # For this session only: the CLI suggests to write rules into the project's settings.
        response["updatedPermissions"] = [
            {**suggestion, "destination": "session"} for suggestion in request.suggestions
        ]
    return response
