"""The requests of Codex to its client, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string, as_word
from bridge.adapter.jsonrpc import Peer, Request
from bridge.adapter.wish import headline, permission, subject_of
from bridge.task.events import AgentEvent, Answer, FileChange, Option, Question, Status
from bridge.task.subject import leaves

from ._asking import Asking, own_words
from ._codex_items import changes_of
from ._codex_turn import CodexTurn
from ._tools import choice, labelled

ALLOW = Option("accept", "Allow", "allow_once")
ALWAYS = Option("acceptForSession", "Always allow in this session", "allow_always")
DENY = Option("decline", "Deny", "reject_once")
_ENVELOPE = frozenset(
    "kind threadId turnId itemId approvalId startedAtMs environmentId reason availableDecisions "
    "commandActions proposedExecpolicyAmendment proposedNetworkPolicyAmendments".split()
)
"""Members of an approval that do not belong to the action. `commandActions` is Codex's reading of
the command."""


class CodexQuestions(Asking):
    """With `force`, permissions are granted without a question."""

    def __init__(
        self, peer: Peer[AgentEvent], *, turn: Callable[[], CodexTurn | None], force: bool
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
        subject: Json,
        *,
        result: Callable[[str], Json],
        options: tuple[Option, ...],
    ) -> Said:
        """`result` makes the answer from the id of the chosen option."""
        if self._force and self.may_ask():
            self._peer.answer(request, result(ALLOW.id))
            return ()
        question = permission(self.next_id(), subject, options)
        reply = lambda answers: result(_chosen(answers))  # noqa: E731
        return self.ask(request, [question], reply, cancelled=result(DENY.id))

    def _resolved(self, params: Json) -> Said:
        """The request has an answer. If it is not the client's, the questions are withdrawn."""
        asked = self.take(params["requestId"])
        return asked.withdrawn() if asked else ()

    def _command_approval(self, request: Request) -> Said:
        given = _given(request.params)
        title = f"Codex asks to {_command_wish(request.params)}"
        subject = _subject(request, "exec_command", title, given)
        network = given.get("networkApprovalContext")
        options = _options("this host" if network else "this command in this directory")
        return self._ask_permission(request, subject, result=_decision, options=options)

    def _change_approval(self, request: Request) -> Said:
        """The request has no diff; the item has."""
        turn, item_id = self._turn(), as_string(request.params["itemId"])
        item = turn.item(item_id) if turn else {}
        root = request.params.get("grantRoot")
        title = (
            f"Codex asks to write to {root} from now on" if root else "Codex asks to change files"
        )
        given = _given(request.params) | {"changes": as_list(item.get("changes"))}
        subject = _subject(request, "apply_patch", title, given, tuple(changes_of(item)))
        reach = f"each file below {root}" if root else "further changes of these files"
        return self._ask_permission(request, subject, result=_decision, options=_options(reach))

    def _permissions_approval(self, request: Request) -> Said:
        wanted = as_dict(request.params["permissions"])
        wanted = {name: value for name, value in wanted.items() if value is not None}
        others = {
            name: one for name, one in _given(request.params).items() if name != "permissions"
        }
        title = "Codex asks to be allowed more"
        subject = _subject(request, "request_permissions", title, others | wanted)
        options = _options("these permissions")
        return self._ask_permission(
            request, subject, result=partial(_grant, wanted), options=options
        )

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
                return self.visit(request, message, as_string(params["url"]))
            case "form":
                if as_dict(params["requestedSchema"]).get("properties"):
                    return self.fill_in(request, message, params["requestedSchema"])
                return self._mcp_permission(request, message)
        self._peer.answer(request, {"action": "decline"})
        text = f"The bridge cannot show the request of {params.get('serverName')}: {message}"
        return [Status(text, {"type": "declined", "mode": as_word(params.get("mode"))})]

    def _mcp_permission(self, request: Request, message: str) -> Said:
        meta, server = as_dict(request.params.get("_meta")), request.params.get("serverName")
        hidden = ("tool_params", "persist", "codex_approval_kind", "tool_name")
        others = {name: one for name, one in meta.items() if name not in hidden}
        note = "\n".join(f"{name}: {value}" for name, _, value in leaves(others)) if others else ""
        tool = f"{server}.{meta.get('tool_name')}"
        title = message or f"{server} asks to continue"
        title = f"{title}\nTool: {tool}" if meta.get("tool_name") else title
        subject = subject_of(tool, title, meta.get("tool_params"), note=note)
        allow, always, deny = _options("this tool")
        # `always` would be stored for other sessions, too.
        lasting = (always,) if "session" in as_list(meta.get("persist")) else ()
        return self._ask_permission(
            request, subject, result=_mcp_result, options=(allow, *lasting, deny)
        )


# --- answers -------------------------------------------------------------------------------------


def _chosen(answers: Mapping[str, Answer]) -> str:
    (answer,) = answers.values()
    return answer.option.id if answer.option else DENY.id


def _given(params: Json) -> dict[str, Any]:
    """All members of an approval that belong to the action."""
    return {n: one for n, one in params.items() if n not in _ENVELOPE and one is not None}


def _subject(
    request: Request, tool: str, title: str, given: Json, changes: Sequence[FileChange] = ()
) -> Json:
    call_id, reason = (as_word(request.params.get(name)) for name in ("itemId", "reason"))
    return subject_of(tool, title, given, call_id=call_id, note=reason or "", changes=changes)


def _options(reach: str) -> tuple[Option, Option, Option]:
    text = f"no more questions in this conversation about {reach}"
    return ALLOW, replace(ALWAYS, description=text), DENY


def _command_wish(params: Json) -> str:
    command, network = as_word(params.get("command")), as_dict(params.get("networkApprovalContext"))
    what = headline("run", params) if command else "run a command"
    if network:
        return f"reach {network.get('protocol')}://{network.get('host')}, in order to {what}"
    if params.get("kind") == "writeStdin":
        return f"write to the input of a command that it was allowed to {what}"
    return what


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
    text = str(asked.get("question") or asked.get("header") or "")
    secret = asked.get("isSecret") is True
    text += "\n(Codex treats the answer as a secret.)" if secret else ""
    return choice(
        question_id,
        text,
        map(labelled, as_list(asked.get("options"))),
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
