"""The requests of an ACP agent to its client, and their answers; Cursor has methods of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bridge.adapter.fields import Json, Said, as_dict, as_string, as_word
from bridge.adapter.jsonrpc import Peer, Request
from bridge.adapter.wish import begins, permission, plan_question, subject_of
from bridge.task.events import AgentEvent, Answer, Option, OptionKind

from ._acp_agent import AcpAgent
from ._acp_tools import announce, merged, subject, waiting
from ._acp_turn import AcpTurn
from ._asking import Asking
from ._tools import choice, labelled, plan

REQUEST_CANCELLED = -32800
CANCELLED: Json = {"outcome": {"outcome": "cancelled"}}


class AcpQuestions(Asking):
    """With the agent's config.force, permissions are granted without a question."""

    def __init__(
        self, peer: Peer[AgentEvent], agent: AcpAgent, *, turn: Callable[[], AcpTurn | None]
    ) -> None:
        super().__init__(peer.answer)
        self._peer = peer
        self._turn = turn
        peer.requests |= {
            "session/request_permission": self._permission,
            "elicitation/create": self._elicitation,
            "cursor/ask_question": self._cursor_question,
            "cursor/create_plan": self._cursor_plan,
            "cursor/update_todos": self._cursor_todos,
            "cursor/task": self._acknowledge,
            "cursor/generate_image": self._acknowledge,
        }
        peer.notifications |= {
            "$/cancel_request": self._withdraw,
            "cursor/update_todos": lambda params: [plan(params["todos"])],
        }
        self._agent = agent

    def may_ask(self) -> bool:
        turn = self._turn()
        return turn is not None and not turn.interrupted

    def _withdraw(self, params: Json) -> Said:
        """The agent cancels its request (ACP v1, Cancellation)."""
        asked = self.take(params["requestId"])
        if asked is None:
            return ()
        self._peer.refuse(asked.request, REQUEST_CANCELLED, "Request cancelled")
        return asked.withdrawn()

    def _permission(self, request: Request) -> Said:
        """ACP v1, Tool Calls: Requesting Permission."""
        params, turn = request.params, self._turn()
        tools = turn.tools if turn else {}
        tool = merged(tools, params["toolCall"])
        if self._agent.asks_about_all:
            tool = waiting(tools, tool)
        options = [self._option(one) for one in params["options"]]
        options = [one for one in options if one.id not in self._agent.lasting]
        allowed = (
            _of_kind(options, "allow_once", "allow_always") if self._agent.config.force else None
        )
        yield from announce(tool)
        if allowed and self.may_ask():
            self._peer.answer(request, _selected(allowed))
            return
        question = permission(self.next_id(), subject(self._agent.title, tool), options)
        yield from self.ask(
            request, [question] if options else [], self._decision, cancelled=CANCELLED
        )

    def _option(self, one: Json) -> Option:
        kinds = ("allow_once", "allow_always", "reject_once", "reject_always")
        kind, option_id = one.get("kind"), as_string(one["optionId"])
        name = str(one.get("name") or option_id)
        said = as_word(one.get("description")) or as_word(
            as_dict(one.get("_meta")).get("description")
        )
        if kind == "allow_always" and not said:
            said = f"{self._agent.title} decides which later requests this covers"
        return Option(option_id, name, kind if kind in kinds else "choice", said or "")

    def _decision(self, answers: Mapping[str, Answer]) -> Json:
        (answer,) = answers.values()
        if answer.option is None:
            return CANCELLED
        turn = self._turn()
        if turn and answer.option.kind.startswith("reject"):
            turn.refused = True
        return _selected(answer.option)

    def _elicitation(self, request: Request) -> Said:
        """ACP v1, Elicitation."""
        params, message = request.params, str(request.params.get("message") or "")
        if params.get("mode") == "url":
            return self.visit(request, message, as_string(params["url"]))
        return self.fill_in(request, message, params["requestedSchema"])

    def _cursor_question(self, request: Request) -> Said:
        """{questions: [{id, prompt, options: [{id, label}], allowMultiple}]}."""
        title = request.params.get("title")
        asked = {self.next_id(): as_dict(one) for one in request.params["questions"]}
        questions = [
            choice(
                question_id,
                one.get("prompt") or title,
                [labelled(option, as_string(option["id"])) for option in one["options"]],
                multiple=one.get("allowMultiple") is True,
            )
            for question_id, one in asked.items()
        ]
        return self.ask(request, questions, partial(_chosen, asked), cancelled=CANCELLED)

    def _cursor_plan(self, request: Request) -> Said:
        """{name, overview, plan}."""
        shown = str(request.params.get("plan") or request.params.get("overview") or "")
        options = (
            Option("accepted", "Approve the plan", "allow_once"),
            Option("rejected", "Send the plan back", "reject_once"),
        )
        subject = subject_of("create_plan", begins(self._agent.title), request.params)
        question = plan_question(self.next_id(), subject, shown, options)
        return self.ask(request, [question], _verdict, cancelled=CANCELLED)

    def _cursor_todos(self, request: Request) -> Said:
        self._peer.answer(request, {})
        return [plan(request.params["todos"])]

    def _acknowledge(self, request: Request) -> Said:
        self._peer.answer(request, {})
        return ()


# --- permissions ---------------------------------------------------------------------------------


def _of_kind(options: Sequence[Option], *kinds: OptionKind) -> Option | None:
    return next((one for kind in kinds for one in options if one.kind == kind), None)


def _selected(option: Option) -> Json:
    return {"outcome": {"outcome": "selected", "optionId": option.id}}


# --- Cursor --------------------------------------------------------------------------------------


def _chosen(asked: Mapping[str, Json], answers: Mapping[str, Answer]) -> Json:
    chosen = [
        {"questionId": asked[one].get("id"), "selectedOptionIds": [o.id for o in answer.options]}
        for one, answer in answers.items()
    ]
    return {"outcome": {"outcome": "answered", "answers": chosen}}


def _verdict(answers: Mapping[str, Answer]) -> Json:
    (answer,) = answers.values()
    return {"outcome": {"outcome": answer.option.id if answer.option else "rejected"}}
