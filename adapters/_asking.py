"""The requests of an agent to its client. The adapter answers a request when the client has
answered all its questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bridge.adapter.fields import Json, as_dict
from bridge.adapter.jsonrpc import Id, Request
from bridge.adapter.question_ids import QuestionIds
from bridge.task.answers import is_word
from bridge.task.events import Answer, Question, QuestionWithdrawn

from ._forms import ACCEPT, CONFIRM, DECLINE, confirmed, form, members_of, permitted

CANCEL: Json = {"action": "cancel"}
"""The result of an elicitation without an answer."""


def own_words(answer: Answer) -> str:
    """The client's text besides the option that it chose."""
    option = answer.option
    plain = option and (answer.text in (option.id, option.name) or is_word(answer.text))
    return "" if plain else answer.text.strip()


@dataclass(slots=True)
class Asked:
    """A request with open questions. `reply` makes the result from the answers by question id,
    `cancelled` is the result without answers."""

    request: Request
    questions: dict[str, Question]
    reply: Callable[[Mapping[str, Answer]], Json]
    cancelled: Json
    answers: dict[str, Answer] = field(default_factory=dict)

    def withdrawn(self) -> Iterator[QuestionWithdrawn]:
        """Events for its unanswered questions."""
        return (QuestionWithdrawn(name) for name in self.questions if name not in self.answers)


class Asking(QuestionIds):
    """The open requests of an agent. `reply` sends the result of one."""

    def __init__(self, reply: Callable[[Request, Json], None]) -> None:
        super().__init__()
        self._reply = reply
        self._open: list[Asked] = []

    def may_ask(self) -> bool:
        """Whether the client can be asked now; else a request is cancelled at once."""
        return True

    def ask(
        self,
        request: Request,
        questions: Sequence[Question],
        reply: Callable[[Mapping[str, Answer]], Json],
        *,
        cancelled: Json,
    ) -> Sequence[Question]:
        """The questions, if they can be asked; else the agent gets the result `cancelled`."""
        if not questions or not self.may_ask():
            self._reply(request, cancelled)
            return ()
        by_id = {question.id: question for question in questions}
        self._open.append(Asked(request, by_id, reply, cancelled))
        return questions

    def visit(self, request: Request, message: str, url: str) -> Sequence[Question]:
        """Elicitation (ACP, MCP) of mode `url`: asks whether the client has visited an address."""
        text = f"{message}\n{url}".strip()
        question = Question(self.next_id(), "auth", text, (ACCEPT, DECLINE), {"url": url})
        return self.ask(request, [question], confirmed, cancelled=CANCEL)

    def fill_in(self, request: Request, message: str, schema: Any) -> Sequence[Question]:
        """Elicitation of mode `form`: a question for each member. Without members, it is a request
        for a permission."""
        members = members_of(as_dict(schema))
        if not members:
            text = message or "The agent asks to continue."
            question = Question(self.next_id(), "permission", text, (CONFIRM, DECLINE))
            return self.ask(request, [question], permitted, cancelled=CANCEL)
        asked = {self.next_id(): member for member in members}
        alone, name = len(asked) == 1, next(iter(asked))
        questions = [
            member.question(question_id, name, message, alone=alone)
            for question_id, member in asked.items()
        ]
        return self.ask(request, questions, partial(form, asked), cancelled=CANCEL)

    def answer(self, question: Question, answer: Answer) -> bool:
        """False if the question was withdrawn meanwhile."""
        asked = next((one for one in self._open if question.id in one.questions), None)
        if asked is None:
            return False
        asked.answers[question.id] = answer
        refused = answer.option is not None and answer.option.kind.startswith("reject")
        if len(asked.answers) == len(asked.questions) or (question.form and refused):
            self._open.remove(asked)
            self._reply(asked.request, asked.reply(asked.answers))
        return True

    def take(self, request_id: Id) -> Asked | None:
        """Remove an open request. The caller answers it, if it needs an answer."""
        asked = next((one for one in self._open if one.request.id == request_id), None)
        if asked:
            self._open.remove(asked)
        return asked

    def cancel(self) -> None:
        """Answer all open requests as cancelled."""
        asked, self._open = self._open, []
        for one in asked:
            self._reply(one.request, one.cancelled)

    def drop(self) -> None:
        """Remove all open requests without an answer."""
        self._open.clear()
