"""The commands of a person at a terminal: `run`, `answer` by a key, and `task list --watch`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bridge.cli.client import sending
from bridge.cli.client.card import Action, Line, QuestionCard, Show
from bridge.cli.client.keyboard import Key
from bridge.cli.client.line_editor import LineEditor
from bridge.cli.client.parser import PROGRAM
from bridge.cli.client.screen import Screen
from bridge.cli.client.session import CommandSession
from bridge.cli.client.transcript import Transcript
from bridge.client.agent import RemoteAgent
from bridge.client.follow import until_closed
from bridge.client.questions import ChosenAnswer, Leave, OpenQuestion, text_of
from bridge.client.shapes import Json

TICK = 1.0  # seconds between two drawings of the footer


class TerminalPerson:
    """The person at the terminal: sees the transcript, and answers questions by keys."""

    def __init__(self, session: CommandSession, screen: Screen, transcript: Transcript) -> None:
        self._session = session
        self._screen = screen
        self.output = transcript
        self._card: QuestionCard | None = None
        self._line: LineEditor | None = None  # for messages, in a conversation
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._paging: asyncio.Task[None] | None = None
        session.notice = lambda text: self.output.fields.line(f"{PROGRAM}: {text}")
        screen.region = self._region

    def press(self, key: Key) -> None:
        """A key of the terminal. Without a card, only the keys of the screen have a meaning."""
        if self._card is None:
            if key.name in ("o", "outputs"):
                self.page_outputs()
            return
        action = self._card.press(key, asyncio.get_running_loop().time())
        if action:
            self._actions.put_nowait(action)
        self._screen.draw()

    def page_outputs(self) -> None:
        """Show the whole outputs of the tools in the pager."""
        if self.output.outputs and (self._paging is None or self._paging.done()):
            self._paging = asyncio.create_task(self._page(self.output.outputs))

    @asynccontextmanager
    async def paging(self) -> AsyncIterator[None]:
        """Wait for the end of the pager before the screen closes. An interrupt ends it."""
        try:
            yield
            await (self._paging or asyncio.sleep(0))
        finally:
            if self._paging:
                self._paging.cancel()
                await asyncio.gather(self._paging, return_exceptions=True)

    async def _page(self, text: str) -> None:
        try:
            with self._session.deaf():
                await self._screen.page(text)
        except OSError as error:
            self._session.notice(f"the pager cannot start: {error.strerror}")

    def sends(self, message: Json) -> None:
        """Note a message of this client: its answers are shown as those of the person."""
        self.output.own[message["messageId"]] = text_of(message["parts"])

    async def ask(
        self, agent: RemoteAgent, question: OpenQuestion, task_id: str
    ) -> ChosenAnswer | Leave | None:
        """The answer of the person. None: the question was closed elsewhere."""
        closing = asyncio.create_task(until_closed(agent, task_id, question))
        name = str(agent.card.content.get("name") or "the agent")
        if self._paging:
            await self._paging
        now = asyncio.get_running_loop().time()
        directory = self.output.directory
        self._card = QuestionCard(question, name, directory, now, line=self._line)
        self._screen.discard_keys()
        self._screen.draw()
        try:
            while True:
                action = await self._action(closing)
                if not isinstance(action, Show):
                    return action
                await self._page(action.text)
                self._card.drawn = asyncio.get_running_loop().time()
        finally:
            self._card = None
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            self._screen.draw()

    async def _action(self, closing: asyncio.Task[None]) -> Action | None:
        pressed = asyncio.create_task(self._actions.get())
        await asyncio.wait({pressed, closing}, return_when=asyncio.FIRST_COMPLETED)
        if pressed.done():
            return pressed.result()
        pressed.cancel()
        return None  # the question was closed elsewhere

    def _region(self, width: int, height: int) -> list[Line]:
        footer = (self._footer(width), "reverse")
        if self._card is None:
            return [footer]
        return [*self._card.lines(self._screen.wrap, width, height - 1), footer]

    def _footer(self, width: int) -> str:
        return self.output.footer(width)


@asynccontextmanager
async def ticking(draw: Callable[[], None]) -> AsyncIterator[None]:
    """Draw once a second."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK)
            draw()

    ticks = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticks.cancel()


@asynccontextmanager
async def person_at(
    session: CommandSession, directory: str | None
) -> AsyncIterator[TerminalPerson]:
    screen = Screen(plain=session.options.plain)
    transcript = Transcript(screen, session.value("verbose"), directory)
    person = TerminalPerson(session, screen, transcript)
    with screen.open(person.press):
        async with ticking(screen.draw):
            async with person.paging():
                yield person
            person.output.fields.close()


async def run(session: CommandSession) -> int:
    """`send` for a person: the answer as it arrives, and questions answered by keys."""
    return await sending.send(session, person_at)


async def answer(session: CommandSession) -> int:
    """Show the open question of a task, and wait for a key."""
    return await sending.answer(session, person_at)
