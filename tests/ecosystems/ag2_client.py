"""AG2: turns of an Agent whose model is the remote agent. The hook for its questions shows them to
the user, and waits for the next prompt."""

from __future__ import annotations

import asyncio
from typing import Any

from ag2.events import HumanInputRequest
from driver import coder, drive


class Conversation:
    """One conversation with the agent."""

    def __init__(self) -> None:
        self._agent = coder(ask=self._hook)
        self._reply: Any = None
        self._turn: asyncio.Task[str] | None = None
        self._questions: asyncio.Queue[str] = asyncio.Queue()
        self._answers: asyncio.Queue[str] = asyncio.Queue()

    async def say(self, prompt: str) -> str:
        """The body of the reply, or the question that is asked before it."""
        if self._turn:
            self._answers.put_nowait(prompt)
        else:
            self._turn = asyncio.create_task(self._ask(prompt))
        question = asyncio.create_task(self._questions.get())
        try:
            await asyncio.wait([self._turn, question], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._turn.cancel()
            await asyncio.wait([self._turn])
        if question.done():
            return question.result()
        question.cancel()
        turn, self._turn = self._turn, None
        return await turn

    async def _ask(self, prompt: str) -> str:
        self._reply = await (self._reply or self._agent).ask(prompt)
        return self._reply.body or ""

    async def _hook(self, question: HumanInputRequest) -> str:
        self._questions.put_nowait(question.content)
        return await self._answers.get()


drive(Conversation().say)
