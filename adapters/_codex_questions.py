"""The requests of Codex to its client, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string, as_word
from bridge.adapter.jsonrpc import Peer, Request
from bridge.task.events import AgentEvent, Answer, Option, Question, Status

from ._asking import Asking, own_words
from ._codex_items import changes_of
from ._codex_turn import CodexTurn
from ._tools import choice

ALLOW = Option("accept", "Allow", "allow_once")
ALWAYS = Option("acceptForSession", "Always allow in this session", "allow_always")
DENY = Option("decline", "Deny", "reject_once")


class CodexQuestions(Asking):
    """`cwd` is not named in questions. With `force`, permissions are granted without a question."""

    def __init__(
        self, peer: Peer[AgentEvent], *, turn: Callable[[], CodexTurn | None], force: bool, cwd: str
    ) -> None:
        super().__init__(peer.answer)
        self._peer = peer
        self._turn = turn
        peer.requests |= {
            "item/commandExecution/requestApproval": self._command_approval,
            "item/fileChange/requestApproval": self._change_approval,
            "item/permissions/requestApproval": self._permissions_approval,
            "item/tool/requestUserInput": self._user_input,
            "mcpServer/elicitation/request": self._elicitation,
        }
        peer.notifications["serverRequest/resolved"] = self._resolved
        self._force = force
        self._cwd = cwd

    def may_ask(self) -> bool:
        turn = self._turn()
        return turn is not None and not turn.interrupted

    def pass_answer(self, question: Question, answer: Answer) -> str:
        """Pass on the answer. Returns the client's text besides a denial of a permission: a
        decision of Codex has no member for it."""
        denied = answer.option and answer.option.kind == "reject_once"
        wanted = self.answer(question, answer) and question.kind == "permission"
        return own_words(answer) if wanted and denied else ""

    def _ask_permission(
        self,
        request: Request,
        text: str,
        subject: Json,
        *,
        result: Callable[[str], Json],
        options: tuple[Option, ...] = (ALLOW, ALWAYS, DENY),
    ) -> Said:
        """`result` makes the answer from the id of the chosen option."""
        if self._force and self.may_ask():
            self._peer.answer(request, result(ALLOW.id))
            return ()
        reason = as_word(request.params.get("reason"))
        text += f"\n({reason})" if reason else ""
        subject = {"toolCallId": as_word(request.params.get("itemId")), **subject}
        question = Question(self.next_id(), "permission", text, options, subject)
        reply = lambda answers: result(_chosen(answers))  # noqa: E731
        return self.ask(request, [question], reply, cancelled=result(DENY.id))

    def _resolved(self, params: Json) -> Said:
        """The request has an answer. If it is not the client's, the questions are withdrawn."""
        asked = self.take(params["requestId"])
        return asked.withdrawn() if asked else ()

    def _command_approval(self, request: Request) -> Said:
        params = request.params
        asked = {"command": params.get("command"), "cwd": params.get("cwd")}
        text = f"Codex asks to {_command_wish(params)}"
        if params.get("cwd") not in (None, self._cwd):
            text += f"\nin {params['cwd']}"
        return self._ask_permission(
            request, text, {"name": "exec_command", "input": asked}, result=_decision
        )

    def _change_approval(self, request: Request) -> Said:
        """The request has no diff; the item has."""
        turn, item_id = self._turn(), as_string(request.params["itemId"])
        item = turn.item(item_id) if turn else {}
        root = request.params.get("grantRoot")
        text = (
            f"Codex asks to write to {root} from now on" if root else "Codex asks to change files"
        )
        text += "".join(f"\n{change.diff or change.path}" for change in changes_of(item))
        subject = {"name": "apply_patch", "input": {"changes": as_list(item.get("changes"))}}
        return self._ask_permission(request, text, subject, result=_decision)

    def _permissions_approval(self, request: Request) -> Said:
        wanted = as_dict(request.params["permissions"])
        wanted = {name: value for name, value in wanted.items() if value is not None}
        text = "Codex asks to be allowed more:"
        text += "".join(f"\n{name}: {_plain(value)}" for name, value in wanted.items())
        subject = {"name": "request_permissions", "input": wanted}
        return self._ask_permission(request, text, subject, result=partial(_grant, wanted))

    def _user_input(self, request: Request) -> Said:
        asked = {self.next_id(): as_dict(one) for one in request.params["questions"]}
        questions = [_choice(question_id, one) for question_id, one in asked.items()]
        return self.ask(request, questions, partial(_answers, asked), cancelled={"answers": {}})

    def _elicitation(self, request: Request) -> Said:
        """A request of an MCP server. An empty form asks for a permission."""
        params = request.params
        message = as_word(params.get("message")) or ""
        match params.get("mode"):
            case "url":
                return self.visit(request, message)
            case "form":
                if as_dict(params["requestedSchema"]).get("properties"):
                    return self.fill_in(request, message)
                return self._mcp_permission(request, message)
        self._peer.answer(request, {"action": "decline"})
        text = f"The bridge cannot show the request of {params.get('serverName')}: {message}"
        return [Status(text, {"type": "declined", "mode": as_word(params.get("mode"))})]

    def _mcp_permission(self, request: Request, message: str) -> Said:
        meta, server = as_dict(request.params.get("_meta")), request.params.get("serverName")
        given = meta.get("tool_params")
        subject = {"name": f"{server}.{meta.get('tool_name')}", "input": given}
        text = f"{message or f'{server} asks to continue'}" + (
            f"\n{_plain(given)}" if given else ""
        )
        # `always` would be stored for other sessions, too.
        lasting = (ALWAYS,) if "session" in as_list(meta.get("persist")) else ()
        options = (ALLOW, *lasting, DENY)
        return self._ask_permission(request, text, subject, result=_mcp_result, options=options)


# --- answers -------------------------------------------------------------------------------------


def _chosen(answers: Mapping[str, Answer]) -> str:
    (answer,) = answers.values()
    return answer.option.id if answer.option else DENY.id


def _command_wish(params: Json) -> str:
    command, network = as_word(params.get("command")), as_dict(params.get("networkApprovalContext"))
    what = f"run: {command}" if command else "run a command"
    if network:
        what = f"reach {network.get('protocol')}://{network.get('host')}, in order to {what}"
    elif params.get("kind") == "writeStdin":
        what = f"write to the input of a command that it was allowed to {what}"
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
    text += "\n(Codex treats the answer as a secret.)" if secret else ""
    return choice(
        question_id,
        text,
        zip(labels, labels, strict=True),
        subject={name: asked.get(name) for name in ("header", "options", "isSecret")},
        free_text=asked.get("isOther") is True,
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
