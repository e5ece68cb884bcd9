"""The requests of Claude Code to its client, and their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string, as_word
from bridge.adapter.jsonrpc import Request
from bridge.adapter.wish import begins, headline, permission, plan_question, subject_of
from bridge.task.events import Answer, Option, Question
from bridge.task.subject import leaves, text_of

from ._asking import Asking, own_words
from ._claude_turn import ClaudeTurn
from ._tools import choice, labelled

ALLOW = Option("allow", "Allow", "allow_once")
ALWAYS = Option("allow_always", "Always allow in this session", "allow_always")
DENY = Option("deny", "Deny", "reject_once")
APPROVE = Option("approve", "Approve the plan", "allow_once")
REVISE = Option("revise", "Send the plan back", "reject_once")
NO_TASK = "No task is running, so no client can answer."
DISMISS = Option("(dismiss)", "Dismiss the dialog", "reject_once")
_OPTIONS = ("options", "choices", "buttons")
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
        params = event["request"]
        request = Request(as_string(event["request_id"]), str(params.get("subtype")), params)
        match request.method:
            case "can_use_tool":
                return self._tool(request)
            case "elicitation":
                return self._elicitation(request)
            case "request_user_dialog":
                return self._dialog(request)
        self.refuse(event, f"The bridge does not serve {request.method}.")
        return ()

    def _tool(self, request: Request) -> Sequence[Question]:
        given = as_dict(request.params.get("input"))
        asked = given.get("questions")
        if request.params.get("tool_name") == "AskUserQuestion" and asked and as_list(asked):
            questions = [_choice(self.next_id(), one) for one in asked]
            texts = {one.id: one.text for one in questions}
            return self.ask(request, questions, partial(_chosen, given, texts), cancelled=DENIED)
        suggestions = as_list(request.params.get("permission_suggestions"))
        suggestions = [one for one in suggestions if isinstance(one, dict)]
        question = self._question(request, given, suggestions)
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

    def _elicitation(self, request: Request) -> Sequence[Question]:
        """A request of an MCP server for the client."""
        params = request.params
        named = [params.get(name) for name in ("display_name", "title", "message", "description")]
        server = f"The MCP server {params.get('mcp_server_name')} asks:"
        message = "\n".join(dict.fromkeys([server, *filter(None, map(as_word, named))]))
        if params.get("mode") == "url":
            return self.visit(request, message, as_string(params["url"]))
        return self.fill_in(request, message, params.get("requested_schema"))

    def _dialog(self, request: Request) -> Sequence[Question]:
        """A dialog of the CLI. Its result depends on its kind: it is the value of the chosen
        option, or the client's words as JSON."""
        params = request.params
        kind, payload = params.get("dialog_kind"), as_dict(params.get("payload"))
        title = f"Claude Code shows the dialog {kind}"
        call_id = as_word(params.get("tool_use_id"))
        subject = subject_of(f"dialog.{kind}", title, payload, call_id=call_id)
        values = dict(_dialog_options(payload))
        options = (*(Option(one, one) for one in values), DISMISS)
        text = text_of(subject)
        question = Question(self.next_id(), "choice", text, options, subject, free_text=True)
        reply = partial(_dialog_result, values)
        return self.ask(request, [question], reply, cancelled={"behavior": "cancelled"})

    def _question(self, request: Request, given: Json, suggestions: Sequence[Json]) -> Question:
        """The question for a permission. With `suggestions` it can be granted for the session."""
        params, tool = request.params, str(request.params.get("tool_name", ""))
        tool_id = as_word(params.get("tool_use_id"))
        if tool == "ExitPlanMode":
            known = {**as_dict(self._turn().tool_input(tool_id or "")), **given}
            subject = subject_of(tool, begins("Claude Code"), known, call_id=tool_id)
            plan, options = str(known.get("plan") or ""), (APPROVE, REVISE)
            return plan_question(self.next_id(), subject, plan, options, free_text=True)
        title = headline(f"Claude Code asks to use {tool}", given)
        subject = subject_of(tool, title, given, call_id=tool_id, note=_note(params, given))
        always = replace(ALWAYS, description=_reach(suggestions))
        lasting = (always,) if suggestions else ()
        return permission(self.next_id(), subject, (ALLOW, *lasting, DENY))


def _choice(question_id: str, asked: Json) -> Question:
    """One of the questions of AskUserQuestion."""
    return choice(
        question_id,
        asked.get("question"),
        map(labelled, asked.get("options") or ()),
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


def _note(params: Json, given: Json) -> str:
    """The words that came with a permission, and the path that made it necessary."""
    blocked = as_word(params.get("blocked_path"))
    words = [params.get("decision_reason"), params.get("title"), params.get("description")]
    known = {value for value in given.values() if isinstance(value, str)}
    texts = [text for text in filter(None, map(as_word, words)) if text not in known]
    texts += [f"outside of its directories: {blocked}"] if blocked and blocked not in known else []
    return "\n".join(dict.fromkeys(texts))


def _reach(suggestions: Sequence[Json]) -> str:
    """The rules that `always` adds, in words."""
    rules = "; ".join(rule for one in suggestions for rule in _rules(one))
    return f"no more questions in this conversation about {rules}"


def _rules(suggestion: Json) -> Iterator[str]:
    behavior, kind = suggestion.get("behavior"), suggestion.get("type")
    match kind:
        case "addRules" if behavior == "allow":
            yield from map(_rule, map(as_dict, as_list(suggestion.get("rules"))))
        case "addDirectories":
            yield from (f"access to {one}" for one in as_list(suggestion.get("directories")))
        case "setMode" if suggestion.get("mode") == "acceptEdits":
            yield "every change of a file in its directories"
        case _:
            facts = {name: one for name, one in suggestion.items() if name != "destination"}
            yield ", ".join(f"{name} {value}" for name, _, value in leaves(facts))


def _rule(rule: Json) -> str:
    tool, content = rule.get("toolName"), as_word(rule.get("ruleContent"))
    if not content:
        return f"every use of {tool}"
    start = re.fullmatch(r"([^*]+?)(?::|\s)\*", content)
    if tool == "Bash" and start:
        return f"every command that begins with `{start[1]}`"
    return f"the command `{content}`" if tool == "Bash" else f"{tool} with `{content}`"


def _dialog_options(payload: Json) -> Iterator[tuple[str, Any]]:
    """The values of a dialog's options, by their names."""
    for one in next((as_list(payload.get(name)) for name in _OPTIONS if payload.get(name)), ()):
        known = as_dict(one)
        value = next((known[name] for name in ("value", "id", "key") if name in known), one)
        words = (as_word(known.get(name)) for name in ("label", "title", "name"))
        yield next(filter(None, words), str(value)), value


def _dialog_result(values: Mapping[str, Any], answers: Mapping[str, Answer]) -> Json:
    (answer,) = answers.values()
    if answer.option == DISMISS:
        return {"behavior": "cancelled"}
    if answer.option:
        return {"behavior": "completed", "result": values[answer.option.id]}
    try:
        return {"behavior": "completed", "result": orjson.loads(answer.text)}
    except orjson.JSONDecodeError:
        return {"behavior": "completed", "result": answer.text}


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
