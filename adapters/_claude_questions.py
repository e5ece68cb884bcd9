"""The can_use_tool requests of Claude Code, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string
from bridge.adapter.jsonrpc import Id, Request
from bridge.task.events import Answer, Option, Question

from ._asking import Asking, own_words
from ._claude_turn import ClaudeTurn
from ._tools import choice

ALLOW = Option("allow", "Allow", "allow_once")
ALWAYS = Option("allow_always", "Always allow in this session", "allow_always")
DENY = Option("deny", "Deny", "reject_once")
APPROVE = Option("approve", "Approve the plan", "allow_once")
REVISE = Option("revise", "Send the plan back", "reject_once")
NO_TASK = "No task is running, so no client can answer."
DENIED: Json = {"behavior": "deny", "message": "The user said no."}


class ClaudeQuestions(Asking):
    """`respond` sends a control_response; `turn` returns the present turn."""

    def __init__(self, respond: Callable[[Json], None], *, turn: Callable[[], ClaudeTurn]) -> None:
        super().__init__(self._succeed)
        self._respond = respond
        self._turn = turn

    def _succeed(self, request: Request, result: Json) -> None:
        self._respond({"subtype": "success", "request_id": request.id, "response": result})

    def refuse(self, event: Json, text: str) -> None:
        """Answer a control_request with an error."""
        self._respond({"subtype": "error", "request_id": event.get("request_id"), "error": text})

    def request(self, event: Json) -> Sequence[Question]:
        """A control_request of the CLI."""
        request = Request(as_string(event["request_id"]), "can_use_tool", event["request"])
        if request.params.get("subtype") != request.method:
            self.refuse(event, f"The bridge does not serve {request.params.get('subtype')}.")
            return ()
        given = as_dict(request.params.get("input"))
        asked = given.get("questions")
        if request.params.get("tool_name") == "AskUserQuestion" and asked and as_list(asked):
            questions = [_choice(request.id, *one) for one in enumerate(asked)]
            texts = {one.id: one.text for one in questions}
            return self.ask(request, questions, partial(_chosen, given, texts), cancelled=DENIED)
        suggestions = as_list(request.params.get("permission_suggestions"))
        suggestions = [one for one in suggestions if isinstance(one, dict)]
        question = self._question(request, given, bool(suggestions))
        reply = partial(_decision, given, suggestions)
        return self.ask(request, [question], reply, cancelled=DENIED)

    def deny(self, event: Json) -> None:
        """Answer a control_request that no task can answer."""
        if as_dict(event.get("request")).get("subtype") == "can_use_tool":
            denied = {**DENIED, "message": NO_TASK, "interrupt": True}
            facts = {"request_id": event.get("request_id"), "response": denied}
            self._respond({"subtype": "success", **facts})
        else:
            self.refuse(event, NO_TASK)

    def withdraw(self, event: Json) -> Said:
        """A control_cancel_request of the CLI."""
        asked = self.take(event["request_id"])
        return asked.withdrawn() if asked else ()

    def _question(self, request: Request, given: Json, lasting: bool) -> Question:
        """The question for a permission; `lasting`: it can be granted for the session."""
        question_id, params = str(request.id), request.params
        tool, tool_id = params.get("tool_name", ""), params.get("tool_use_id")
        subject = {"toolCallId": tool_id, "name": tool, "input": given}
        if tool == "ExitPlanMode":
            plan = given.get("plan") or self._turn().tool_input(tool_id or "").get("plan", "")
            text = f"Claude Code has a plan and asks to begin:\n\n{plan}"
            options = (APPROVE, REVISE)
            return Question(question_id, "plan", text, options, subject, free_text=True)
        may = (ALLOW, ALWAYS, DENY) if lasting else (ALLOW, DENY)
        return Question(question_id, "permission", _wish(tool, params), may, subject)


def _choice(request_id: Id, number: int, asked: Json) -> Question:
    """One of the questions of AskUserQuestion."""
    labels = [str(option.get("label")) for option in asked.get("options") or ()]
    return choice(
        f"{request_id}/{number}" if number else str(request_id),
        asked.get("question"),
        zip(labels, labels, strict=True),
        subject={"header": asked.get("header"), "options": asked.get("options")},
        free_text=True,
        multiple=bool(asked.get("multiSelect")),
    )


def _chosen(given: Json, texts: Mapping[str, str], answers: Mapping[str, Answer]) -> Json:
    chosen = {
        texts[question_id]: ", ".join(option.name for option in answer.options) or answer.text
        for question_id, answer in answers.items()
    }
    return {"behavior": "allow", "updatedInput": {**given, "answers": chosen}}


def _wish(tool: str, request: Json) -> str:
    """The text of a permission question."""
    arguments = request.get("input") or {}
    named = (arguments.get(name) for name in ("command", "file_path", "url", "path"))
    what = next(filter(None, named), None)
    text = f"Claude Code asks to use {tool}"
    text += f": {what}" if what else f" with {orjson.dumps(arguments).decode()}"
    reason = request.get("decision_reason")
    return f"{text}\n({reason})" if reason else text


def _decision(given: Json, suggestions: list[Json], answers: Mapping[str, Answer]) -> Json:
    (answer,) = answers.values()
    option = answer.option
    if option is None or option.kind.startswith("reject"):
        return {**DENIED, "message": f"{DENIED['message']} {own_words(answer)}".strip()}
    response: dict[str, Any] = {"behavior": "allow", "updatedInput": given}
    if option.kind == "allow_always":
        # For this session only: the CLI suggests to write rules into the project's settings.
        response["updatedPermissions"] = [
            {**suggestion, "destination": "session"} for suggestion in suggestions
        ]
    return response
