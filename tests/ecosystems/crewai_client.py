"""CrewAI: a crew of one agent, whose model delegates each prompt and reads the answer."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

# CrewAI writes files in the home folder, and calls servers of its makers.
os.environ["HOME"] = os.environ["XDG_DATA_HOME"] = os.getcwd()
os.environ["CREWAI_TRACING_ENABLED"] = "false"
for service in ("CREWAI_DISABLE_TELEMETRY", "CREWAI_DISABLE_VERSION_CHECK"):
    os.environ[service] = "true"

from crewai import Crew, Task  # noqa: E402
from crewai.llms.base_llm import BaseLLM  # noqa: E402
from driver import coder, drive  # noqa: E402

CONVERSATION = "PREVIOUS_A2A_CONVERSATION"
TRIES_AGAIN = 0.2  # seconds


class Delegates(BaseLLM):
    """A model that delegates each prompt. `tell` takes the messages of the conversation with the
    remote agent, and returns the next prompt."""

    tell: Callable[[list[Any]], str]

    def call(self, messages: Any, *_: Any, **__: Any) -> str:
        told = messages[-1]["content"].partition(f"<{CONVERSATION}>")[2]
        conversation = told.partition(f"</{CONVERSATION}>")[0]
        said = [json.loads(message) for message in conversation.split("\n\n") if message.strip()]
        return json.dumps({"message": self.tell(said), "is_a2a": True})


class Run:
    """A run of the crew, which lasts until it is stopped or its turns are used up."""

    def __init__(self) -> None:
        self.prompts: asyncio.Queue[str] = asyncio.Queue()
        self.shown: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        agent = coder(model=Delegates(model="scripted", tell=self._tell))
        task = Task(description="Delegate.", expected_output="An answer.", agent=agent)
        crew = Crew(agents=[agent], tasks=[task])
        self.ended = asyncio.ensure_future(crew.akickoff())

    async def stop(self) -> None:
        """CrewAI takes the first cancel for a lost connection, and asks for the task."""
        while not self.ended.done():
            self.ended.cancel()
            await asyncio.wait([self.ended], timeout=TRIES_AGAIN)

    def _tell(self, said: list[Any]) -> str:
        """Its model runs in a thread."""
        return asyncio.run_coroutine_threadsafe(self._next(said), self._loop).result()

    async def _next(self, said: list[Any]) -> str:
        if said:
            self.shown.put_nowait(answer(said))
        return await self.prompts.get()


class Conversation:
    """The run that is under way; the next one follows a run that has ended."""

    def __init__(self) -> None:
        self._run: Run | None = None

    async def say(self, prompt: str) -> str:
        """What its model is shown of the agent: each message since the delegation, with the
        metadata."""
        if self._run is None or self._run.ended.done():
            self._run = Run()
        run = self._run
        run.prompts.put_nowait(prompt)
        shown = asyncio.ensure_future(run.shown.get())
        try:
            await asyncio.wait([shown, run.ended], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await run.stop()
            raise
        return shown.result() if shown.done() else str(run.ended.result())


def answer(said: list[Any]) -> str:
    """The messages of the agent since the last one to it."""
    last = max(number for number, message in enumerate(said) if message["role"] == "user")
    lines = []
    for message in said[last + 1 :]:
        lines += [part["text"].removesuffix("\n") for part in message["parts"]]
        lines += [json.dumps(message["metadata"])] if "metadata" in message else []
    return "\n".join(lines)


drive(Conversation().say)
