"""`task list --watch` at a terminal: the table of tasks, and the question of the selected one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.cli.client import attach
from bridge.cli.client.card import COUNTS_AFTER, Line, QuestionCard, Show
from bridge.cli.client.keyboard import Key
from bridge.cli.client.messages import new_message
from bridge.cli.client.screen import Screen
from bridge.cli.client.sending import metadata_of
from bridge.cli.client.session import CommandSession, trace
from bridge.cli.client.task_table import Details, ordered, table, today
from bridge.cli.client.tasks import list_params
from bridge.client import bindings
from bridge.client.agent import RemoteAgent
from bridge.client.failure import ClientError
from bridge.client.follow import Follower, params_of
from bridge.client.questions import ChosenAnswer, Leave, OpenQuestion, answer_parts, question_of
from bridge.client.shapes import TERMINAL, Json, state_of

_KEYS = "↑ ↓ select  Enter attach  c cancel  q leave"


@dataclass(frozen=True, slots=True)
class AttachTask:
    task: Json


@dataclass(frozen=True, slots=True)
class CancelTask:
    task: Json


@dataclass(frozen=True, slots=True)
class AnswerTask:
    task: Json
    question: OpenQuestion
    answer: ChosenAnswer


Work = Leave | AttachTask | CancelTask | AnswerTask | Show


class TaskWatch:
    def __init__(self, session: CommandSession, agent: RemoteAgent, screen: Screen) -> None:
        self.tasks: list[Json] = []
        self.details = Details()
        self._work: asyncio.Queue[Work] = asyncio.Queue()  # of the keys
        self._session = session
        self._agent = agent
        self._screen = screen
        self._selected = ""  # the id of a task
        self._since = 0.0  # the time of the selection
        self._card: QuestionCard | None = None
        self._canceling = False  # a second press cancels
        self._note = ""
        screen.region = self._region

    @property
    def selected(self) -> Json | None:
        return next((one for one in self.tasks if one.get("id") == self._selected), None)

    def show(self, tasks: Sequence[Json]) -> None:
        """Show another state of the list. The selected task stays selected."""
        self.tasks = ordered(tasks)
        if self.selected is None:
            self._select(0)
        self._show_question()

    async def until_left(self) -> Leave | AttachTask:
        """Follow the list, and do the work of the keys. Raises ClientError."""
        while True:
            page = await self._agent.call(bindings.LIST, list_params(self._session))
            self.show(page.get("tasks") or [])
            self._screen.draw()
            await self.details.read(self._agent, self.tasks)
            self._screen.draw()
            with contextlib.suppress(TimeoutError):
                seconds = self._session.value("poll_interval")
                work = await asyncio.wait_for(self._work.get(), seconds)
                if isinstance(work, Leave | AttachTask):
                    return work
                await self._do(work)

    async def _do(self, work: CancelTask | AnswerTask | Show) -> None:
        try:
            match work:
                case Show(text):
                    with self._session.deaf():
                        await self._screen.page(text)
                    self._card = None  # it is drawn again
                case CancelTask(task):
                    await self._agent.call(bindings.CANCEL, {"id": task["id"]})
                case AnswerTask(task, question, answer):
                    parts = answer_parts(question, answer.chosen, answer.text)
                    message = new_message(parts, task["id"], task.get("contextId"), None)
                    metadata = metadata_of(self._session, self._agent, {})
                    await Follower(self._agent).start(params_of(message, metadata))
        except (ClientError, OSError) as error:
            self._note = f"not done: {error}"

    def press(self, key: Key) -> None:
        now = asyncio.get_running_loop().time()
        canceling, self._canceling, task = self._canceling, False, self.selected
        if task and self._card and self._card.wants(key.name):
            action = self._card.press(key, now)
            if isinstance(action, ChosenAnswer):
                self._work.put_nowait(AnswerTask(task, self._card.question, action))
            elif action:
                self._work.put_nowait(action)
        elif key.name in ("q", "end"):
            self._work.put_nowait(Leave())
        elif key.name in ("up", "down", "k", "j"):
            self._move(-1 if key.name in ("up", "k") else 1)
        elif task and key.alone and now - self._since >= COUNTS_AFTER:
            self._act(key.name, task, canceling)  # earlier, it may be meant for another task
        self._screen.draw()

    def _act(self, name: str, task: Json, canceling: bool) -> None:
        """Do the work of a key for the selected task."""
        if name == "enter":
            self._work.put_nowait(AttachTask(task))
        elif name == "c" and canceling:
            self._note = ""
            self._work.put_nowait(CancelTask(task))
        elif name == "c" and state_of(task) not in TERMINAL:
            self._note, self._canceling = "press c again to cancel the task", True
            self._since = asyncio.get_running_loop().time()

    def _move(self, step: int) -> None:
        if not self.tasks:
            return
        places = [place for place, one in enumerate(self.tasks) if one.get("id") == self._selected]
        self._select(min(max((places[0] if places else 0) + step, 0), len(self.tasks) - 1))
        self._show_question()

    def _select(self, place: int) -> None:
        self._selected = str(self.tasks[place].get("id")) if self.tasks else ""
        self._since = asyncio.get_running_loop().time()
        self._card, self._canceling, self._note = None, False, ""

    def _show_question(self) -> None:
        """A card for the open question of the selected task, unless it is shown already."""
        asked = question_of(self.selected or {})
        if asked is None:
            self._card = None
        elif self._card is None or self._card.question != asked:
            now = asyncio.get_running_loop().time()
            name = str(self._agent.card.content.get("name") or "the agent")
            self._card = QuestionCard(asked, name, None, now)

    # --- the screen -----------------------------------------------------------------------------

    def _region(self, width: int, height: int) -> list[Line]:
        title, *rows = table(self.tasks, self.details, today(), width - 2) or ["No tasks"]
        card = self._card.lines(self._screen.wrap, width, height // 2) if self._card else []
        room = max(1, height - len(card) - 3)
        places = [place for place, one in enumerate(self.tasks) if one.get("id") == self._selected]
        first = max(0, min((places[0] if places else 0) - room // 2, len(rows) - room))
        shown: list[Line] = [(f"  {title}", "bold")]
        for place, row in list(enumerate(rows))[first : first + room]:
            chosen = place in places
            shown.append((f"→ {row}" if chosen else f"  {row}", "reverse" if chosen else ""))
        keys = f"{_KEYS}  · {self._note}" if self._note else _KEYS
        return [*shown, *card, (keys[:width], "dim")]


async def watch(session: CommandSession) -> int:
    """Draw the list of tasks again when it changes, until `q` or Ctrl-C."""
    async with session.connect() as agent:
        screen = Screen()
        view = TaskWatch(session, agent, screen)
        while True:
            with screen.open(view.press):
                work = await view.until_left()
            if isinstance(work, Leave):
                return 0
            await attach.join(session, agent, str(work.task.get("contextId")), work.task["id"])
            session.on_interrupt, session.notice = None, trace
