"""What Codex asks its client, from the request to its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from bridge.events import AgentEvent, Answer, Option, Question, QuestionWithdrawn, Status
from bridge.question import is_word
from bridge.rpc import Peer, Request
from bridge.shapes import as_dict, as_list, as_string, as_word

from ._codex_items import changes_of
from ._forms import ACCEPT, DECLINE, form, member_question, visited

Json = Mapping[str, Any]
Said = Iterable[AgentEvent]

ALLOW = Option("accept", "Allow", "allow_once")
ALWAYS = Option("acceptForSession", "Always allow in this session", "allow_always")
DENY = Option("decline", "Deny", "reject_once")


@dataclass(slots=True)
class _Asked:
    """A request of Codex until all of its questions are answered. `reply` makes the result of the
    answers by question id, `refused` is the result if there will be none."""

    request: Request
    questions: dict[str, Question]
    reply: Callable[[Mapping[str, Answer]], Json]
    refused: Json
    answers: dict[str, Answer] = field(default_factory=dict)


class Questions:
    """The requests that are open. `may_ask` says whether there is somebody to ask, `item` is the
    thread item with an id, empty where there is none; `cwd` goes without saying. With `force`
    nobody is asked for permission.
    """

    def __init__(
        self,
        peer: Peer[AgentEvent],
        force: bool,
        cwd: str,
        may_ask: Callable[[], bool],
        item: Callable[[str], Json],
    ) -> None:
        peer.requests |= {
            "item/commandExecution/requestApproval": self._command_approval,
            "item/fileChange/requestApproval": self._change_approval,
            "item/permissions/requestApproval": self._permissions_approval,
            "item/tool/requestUserInput": self._user_input,
            "mcpServer/elicitation/request": self._elicitation,
        }
        peer.notifications["serverRequest/resolved"] = self._resolved
        self._peer = peer
        self._force = force
        self._cwd = cwd
        self._may_ask = may_ask
        self._item = item
        self._asked: list[_Asked] = []
        self._numbers = 0

    def answer(self, question: Question, answer: Answer) -> str:
        """Give Codex the answer. Returns the words of a refusal: a decision has no room for any."""
        asked = next((one for one in self._asked if question.id in one.questions), None)
        if asked is None:
            return ""  # withdrawn meanwhile
        asked.answers[question.id] = answer
        if len(asked.answers) == len(asked.questions):
            self._asked.remove(asked)
            self._peer.answer(asked.request, asked.reply(asked.answers))
        return _own_words(question, answer)

    def drop(self) -> None:
        """Forget them: Codex will."""
        self._asked.clear()

    def close(self) -> None:
        """Nobody asks any more."""
        self._asked.clear()
        self._may_ask, self._item = lambda: False, lambda id_: {}

    def refuse(self) -> None:
        """There is nobody to ask any more."""
        asked, self._asked = self._asked, []
        for one in asked:
            self._peer.answer(one.request, one.refused)

    def _ask(
        self,
        request: Request,
        questions: Sequence[Question],
        reply: Callable[[Mapping[str, Answer]], Json],
        refused: Json,
    ) -> Said:
        """Ask the client. Nobody can be asked between turns, or after a cancel."""
        if not questions or not self._may_ask():
            self._peer.answer(request, refused)
            return ()
        by_id = {question.id: question for question in questions}
        self._asked.append(_Asked(request, by_id, reply, refused))
        return questions

    def _ask_permission(
        self,
        request: Request,
        text: str,
        subject: Json,
        result: Callable[[str], Json],
        options: tuple[Option, ...] = (ALLOW, ALWAYS, DENY),
    ) -> Said:
        """`result` makes the answer of the option's id."""
        if self._force:
            self._peer.answer(request, result(ALLOW.id))
            return ()
        reason = as_word(request.params.get("reason"))
        text += f"\n({reason})" if reason else ""
        subject = {"toolCallId": as_word(request.params.get("itemId")), **subject}
        question = Question(self._next_id(), "permission", text, options, subject)
        reply = lambda answers: result(_chosen(answers))  # noqa: E731
        return self._ask(request, [question], reply, result(DENY.id))

    def _next_id(self) -> str:
        self._numbers += 1
        return f"question-{self._numbers}"

    def _resolved(self, params: Json) -> Iterator[AgentEvent]:
        """The request is settled. If we did not do that, nobody needs to any more."""
        for one in [one for one in self._asked if one.request.id == params["requestId"]]:
            self._asked.remove(one)
            yield from (
                QuestionWithdrawn(name) for name in one.questions if name not in one.answers
            )

    def _command_approval(self, request: Request) -> Said:
        params = request.params
        asked = {"command": params.get("command"), "cwd": params.get("cwd")}
        text = f"Codex asks to {_command_wish(params)}"
        if params.get("cwd") not in (None, self._cwd):
            text += f"\nin {params['cwd']}"
        return self._ask_permission(
            request, text, {"name": "exec_command", "input": asked}, _decision
        )

    def _change_approval(self, request: Request) -> Said:
        """The request has no diff: it came with the item."""
        item = self._item(as_string(request.params["itemId"]))
        root = request.params.get("grantRoot")
        text = (
            f"Codex asks to write to {root} from now on" if root else "Codex asks to change files"
        )
        text += "".join(f"\n{change.diff or change.path}" for change in changes_of(item))
        subject = {"name": "apply_patch", "input": {"changes": as_list(item.get("changes"))}}
        return self._ask_permission(request, text, subject, _decision)

    def _permissions_approval(self, request: Request) -> Said:
        wanted = as_dict(request.params["permissions"])
        wanted = {name: value for name, value in wanted.items() if value is not None}
        text = "Codex asks to be allowed more:"
        text += "".join(f"\n{name}: {_plain(value)}" for name, value in wanted.items())
        subject = {"name": "request_permissions", "input": wanted}
        return self._ask_permission(request, text, subject, partial(_grant, wanted))

    def _user_input(self, request: Request) -> Said:
        asked = {self._next_id(): as_dict(one) for one in request.params["questions"]}
        questions = [_choice(question_id, one) for question_id, one in asked.items()]
        return self._ask(request, questions, partial(_answers, asked), {"answers": {}})

    def _elicitation(self, request: Request) -> Said:
        """Of an MCP server: a form has a question per member, an address is to be visited. An
        empty form asks for permission, to run a tool if `_meta` says so."""
        params = request.params
        message = as_word(params.get("message")) or ""
        match params.get("mode"):
            case "url":
                text = f"{message}\n{as_string(params['url'])}".strip()
                question = Question(self._next_id(), "auth", text, (ACCEPT, DECLINE))
                return self._ask(request, [question], visited, {"action": "cancel"})
            case "form":
                members = as_dict(as_dict(params["requestedSchema"]).get("properties"))
                if not members:
                    return self._mcp_permission(request, message)
                asked = {self._next_id(): (name, as_dict(one)) for name, one in members.items()}
                questions = [
                    member_question(question_id, name, schema, message, members)
                    for question_id, (name, schema) in asked.items()
                ]
                return self._ask(request, questions, partial(form, asked), {"action": "cancel"})
        self._peer.answer(request, {"action": "decline"})
        text = f"The bridge cannot show what {params.get('serverName')} asks for: {message}"
        return [Status(text, {"type": "declined", "mode": as_word(params.get("mode"))})]

    def _mcp_permission(self, request: Request, message: str) -> Said:
        meta, server = as_dict(request.params.get("_meta")), request.params.get("serverName")
        given = meta.get("tool_params")
        subject = {"name": f"{server}.{meta.get('tool_name')}", "input": given}
        text = f"{message or f'{server} asks to go on'}" + (f"\n{_plain(given)}" if given else "")
        # `always` would be written down for other sessions, too.
        lasting = (ALWAYS,) if "session" in as_list(meta.get("persist")) else ()
        return self._ask_permission(request, text, subject, _mcp_result, (ALLOW, *lasting, DENY))


# --- answers -------------------------------------------------------------------------------------


def _chosen(answers: Mapping[str, Answer]) -> str:
    (answer,) = answers.values()
    return answer.option.id if answer.option else DENY.id


def _own_words(question: Question, answer: Answer) -> str:
    """What the client said besides no."""
    option = answer.option
    if question.kind != "permission" or option is None or option.kind != "reject_once":
        return ""
    plain = answer.text in (option.id, option.name) or is_word(answer.text)
    return "" if plain else answer.text.strip()


def _command_wish(params: Json) -> str:
    command, network = as_word(params.get("command")), as_dict(params.get("networkApprovalContext"))
    what = f"run: {command}" if command else "run a command"
    if network:
        what = f"reach {network.get('protocol')}://{network.get('host')}, in order to {what}"
    elif params.get("kind") == "writeStdin":
        what = f"write to the input of what it was allowed to {what}"
    more = params.get("additionalPermissions")
    return f"{what}\nwith more permissions: {_plain(more)}" if more else what


def _decision(option: str) -> Json:
    return {"decision": option}


def _grant(wanted: Json, option: str) -> Json:
    scope = "session" if option == ALWAYS.id else "turn"
    return {"permissions": {} if option == DENY.id else wanted, "scope": scope}


def _mcp_result(option: str) -> Json:
    if option == DENY.id:
        return {"action": "decline"}
    accepted: dict[str, Any] = {"action": "accept", "content": {}}
    return {**accepted, "_meta": {"persist": "session"}} if option == ALWAYS.id else accepted


def _choice(question_id: str, asked: Json) -> Question:
    labels = [str(as_dict(one).get("label")) for one in as_list(asked.get("options"))]
    text = str(asked.get("question") or asked.get("header") or "")
    secret = asked.get("isSecret") is True
    text += "\n(Codex takes the answer for a secret.)" if secret else ""
    return Question(
        question_id,
        "choice" if labels else "text",
        text,
        tuple(Option(label, label) for label in labels),
        {name: asked.get(name) for name in ("header", "options", "isSecret")},
        free_text=asked.get("isOther") is True or not labels,
    )


def _answers(asked: Mapping[str, Json], answers: Mapping[str, Answer]) -> Json:
    given = {
        str(asked[question_id].get("id")): {
            "answers": [option.name for option in answer.options] or [answer.text]
        }
        for question_id, answer in answers.items()
    }
    return {"answers": given}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
