"""The inputs of an adapter, as a store keeps them. After a restart, a new adapter gets them."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.adapter.contract import SessionOptions
from bridge.task.events import Answer, Question
from bridge.task.message import Message


@dataclass(frozen=True, slots=True)
class AdapterInput:
    """An input that an adapter got when the CLI had written `position` bytes of output. `kind` is
    the adapter's method: `greet`; `prompt` or `steer` with a message; `answer` to a question;
    `stop_unasked`. `options`: of a prompt.

    The members are a schema: a new one needs a default (bridge/store/serialization.py)."""

    kind: str
    position: int
    message: Message | None = None
    question: Question | None = None
    answer: Answer | None = None
    options: SessionOptions | None = None
