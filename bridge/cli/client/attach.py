"""`attach` and `chat` at a terminal: the tasks of a conversation, and a line for messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from bridge.cli.client.card import Line
from bridge.cli.client.interactive import TerminalPerson, ticking
from bridge.cli.client.keyboard import Key
from bridge.cli.client.messages import new_message
from bridge.cli.client.output import show_question
from bridge.cli.client.prompt_line import COMMANDS, KEYS, History, PromptLine
from bridge.cli.client.question_policy import QuestionPolicy
from bridge.cli.client.screen import Screen
from bridge.cli.client.sending import choices_of, converse, metadata_of
from bridge.cli.client.session import CommandSession
from bridge.cli.client.transcript import ConversationTranscript
from bridge.client import bindings, config
from bridge.client.agent import RemoteAgent
from bridge.client.conversation import Conversation, find
from bridge.client.failure import ClientError, needs_extension, usage
from bridge.client.follow import Follower, params_of, until_closed
from bridge.client.questions import ChosenAnswer, Leave, OpenQuestion, text_of
from bridge.client.shapes import INTERRUPTED, TERMINAL, Json, state_of

_HISTORY = 100  # messages of a task
_LONGEST_LINE = 8  # rows of the text that is typed
_MARK = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"


class Participant(TerminalPerson):
    """A person in a conversation. `lines`: messages that wait to be sent. `left`: set when the
    person leaves. `busy`: a task is followed now. `answered`: the person has answered."""

    def __init__(self, session: CommandSession, screen: Screen, line: PromptLine | None) -> None:
        super().__init__(session, screen, ConversationTranscript(screen))
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self.left = asyncio.Event()
        self.busy = False
        self.answered = False
        self._line: PromptLine | None = line

    def begin(self) -> None:
        """Show another task from now on."""
        self.output.fields.close()
        self.output = ConversationTranscript(
            self._screen,
            self._session.value("verbose"),
            self.output.directory,
            own=self.output.own,
        )

    def press(self, key: Key) -> None:
        if key.name == "end":
            self.left.set()
        elif self._card is not None:
            super().press(key)
        elif key.name == "outputs":
            self.page_outputs()
        elif self._line is not None and key.name == "enter":
            text = "" if self._line.breaks() else self._line.take()
            if text in COMMANDS:
                self._obey(text)
            elif text:
                self.lines.put_nowait(text)
        elif self._line is not None:
            self._line.press(key)
        self._screen.draw()

    async def ask(
        self, agent: RemoteAgent, question: OpenQuestion, task_id: str
    ) -> ChosenAnswer | Leave | None:
        if self._line is None:
            show_question(self.output.fields, question)
            await until_closed(agent, task_id, question)
            return None
        reply = await super().ask(agent, question, task_id)
        self.answered = isinstance(reply, ChosenAnswer)
        if isinstance(reply, Leave):
            self.left.set()
        return reply

    def _obey(self, command: str) -> None:
        """Run a command of the client."""
        match command:
            case "/quit":
                self.left.set()
            case "/outputs":
                self.page_outputs()
            case "/cancel" if self.busy and self._session.on_interrupt:
                self._session.on_interrupt()
            case "/cancel":
                self.note("no task is running")
            case _:
                for name, meaning in (COMMANDS | KEYS).items():
                    self.note(f"{name:10}{meaning}")

    def show_message(self, text: str, author: str | None = None) -> None:
        self.output.fields.close()
        self._screen.print(f"{author} {_MARK} {text}" if author else f"{_MARK} {text}", "bold")

    def note(self, text: str, style: str = "dim") -> None:
        self.output.fields.close()
        self._screen.print(f"· {text}", style)

    def _region(self, width: int, height: int) -> list[Line]:
        below = super()._region(width, height)
        if self._card is not None or self._line is None:
            return below
        first, *others = self._screen.wrap(self._line.shown, width - 2)
        typed = [f"{_MARK} {first}", *(f"  {one}" for one in others)]
        choices = self._screen.wrap("  ".join(self._line.choices), width - 2) if self._line else []
        return [
            *((one, "bold") for one in typed[-_LONGEST_LINE:]),
            *((f"  {one}", "dim") for one in choices[:_LONGEST_LINE] if one),
            *below,
        ]

    def _footer(self, width: int) -> str:
        text = "Ready" if not self.busy else super()._footer(width)
        what = "read-only · Ctrl-D leaves" if self._line is None else "/help · Ctrl-D leaves"
        return f"{text} · {what}"[:width]


class Attachment:
    """A person and a conversation. `choices`: of the first message of a new conversation."""

    def __init__(
        self,
        session: CommandSession,
        agent: RemoteAgent,
        conversation: Conversation,
        person: Participant,
        choices: Mapping[str, Any],
    ) -> None:
        self._session = session
        self._agent = agent
        self._conversation = conversation
        self._person = person
        self._choices = dict(choices)
        self._shown: set[str] = set()  # the messages of other clients
        self._task_id: str | None = None  # of the task that is followed now
        self._canceling: asyncio.Task[None] | None = None

    async def run(self, task_id: str | None = None, after: str | None = None) -> None:
        """Show the conversation until the person leaves. `after`: begin with this event of the task
        `task_id`. Raises ClientError."""
        await self._until_left(self._attend(task_id, after))

    def interrupt(self) -> None:
        """Cancel the running task. With none running, or the second time, leave."""
        if self._task_id is None or self._canceling or self._session.options.read_only:
            self._person.left.set()
            return
        self._person.note("canceling the task; press Ctrl-C again to leave")
        self._canceling = asyncio.create_task(self._cancel(self._task_id))

    async def _until_left(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, the sending of lines and the watch of other clients until the person leaves,
        or one of them fails."""
        works = (work, self._send_lines(), self._conversation.watch(), self._person.left.wait())
        running = [asyncio.create_task(one) for one in works]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for one in done:
            one.result()

    # --- tasks ----------------------------------------------------------------------------------

    async def _attend(self, task_id: str | None, after: str | None) -> None:
        past = await self._conversation.past()
        if task_id is not None and after is not None:
            await self._follow(task_id, after)
            self._conversation.add(task_id)
        else:
            for task in past:
                await self._show_past(task)
            if task_id is not None:  # the server may list no tasks
                self._conversation.add(task_id)
        while True:
            next_id = await self._conversation.begun()
            if next_id != task_id or after is None:
                await self._follow(next_id)

    async def _show_past(self, task: Json) -> None:
        whole = await self._with_history(task["id"])
        self._person.begin()
        self._show_messages(whole)
        self._person.output.item({"task": whole})
        self._person.output.finish({"task": whole}, "")

    async def _follow(self, task_id: str, after: str | None = None) -> None:
        """Show a task until it has ended, with its questions."""
        person = self._person
        person.begin()
        self._task_id, person.busy = task_id, True
        self._show_messages(await self._with_history(task_id))
        try:
            while not await self._follow_to_end(task_id, after):
                pass
        finally:
            self._task_id, self._canceling, person.busy = None, None, False

    async def _follow_to_end(self, task_id: str, after: str | None) -> bool:
        """Follow a task. Returns False if the server refused an answer of the person. Raises
        ClientError."""
        self._person.answered = False
        try:
            await converse(
                self._session,
                self._agent,
                lambda follower: self._updates(follower, task_id, after),
                output=self._person.output,
                policy=QuestionPolicy("stop"),
                person=self._person,
            )
        except ClientError as error:
            if not self._person.answered:
                raise
            self._person.note(f"not sent: {error}", "red")
            return False
        return True

    async def _updates(
        self, follower: Follower, task_id: str, after: str | None
    ) -> AsyncGenerator[Json]:
        """The items of a task. A message that joined its turn is shown first."""
        async with aclosing(follower.subscribe(task_id, after)) as items:
            async for item in items:
                found = item.get("task") or item.get("statusUpdate") or {}
                bridge = (found.get("metadata") or {}).get("bridge") or {}
                if bridge.get("steered"):
                    self._show_messages(await self._with_history(task_id))
                yield item

    async def _with_history(self, task_id: str) -> Json:
        params = {"id": task_id, "historyLength": _HISTORY}
        task: Json = await self._agent.call(bindings.GET, params)
        return task

    def _show_messages(self, task: Json) -> None:
        """Show the messages of users that are not shown yet."""
        owner = self._conversation.owners.get(task["id"])
        for message in task.get("history") or ():
            identity, text = str(message.get("messageId")), text_of(message.get("parts") or ())
            known = identity in self._shown or identity in self._person.output.own
            if message.get("role") == "ROLE_USER" and not known:
                self._shown.add(identity)
                if text:
                    self._person.show_message(text, owner)

    async def _cancel(self, task_id: str) -> None:
        try:
            await self._agent.call(bindings.CANCEL, {"id": task_id})
        except ClientError as error:
            self._person.note(f"the task could not be canceled: {error}", "red")

    # --- messages -------------------------------------------------------------------------------

    async def _send_lines(self) -> None:
        while True:
            text = await self._person.lines.get()
            self._person.show_message(text)
            try:
                await self._send(text)
            except ClientError as error:
                self._person.note(f"not sent: {error}", "red")

    async def _send(self, text: str) -> None:
        """Send a line. At a question it is an answer. Raises ClientError."""
        conversation, follower = self._conversation, self._session.follower
        running = self._task_id
        asks = running and follower and follower.snapshot.state in INTERRUPTED
        message = new_message(
            [{"text": text}], running if asks else None, conversation.context_id, None
        )
        self._person.sends(message)
        metadata = metadata_of(self._session, self._agent, self._choices)
        item = await Follower(self._agent).start(params_of(message, metadata))
        self._choices = {}
        answer = item.get("task") or item.get("message") or {}
        conversation.context_id = conversation.context_id or answer.get("contextId")
        if "message" in item:
            self._person.output.finish(item, "")
        elif "task" in item:
            conversation.add(answer["id"])
            if running is not None and state_of(answer) not in TERMINAL:
                joined = "it joins the running turn" if answer["id"] == running else "it is queued"
                self._person.note("it answers the question" if asks else joined)


async def attach(session: CommandSession) -> int:
    """Show a conversation, and take part in it."""
    options = session.options
    if options.after is not None and not options.after.isdigit():
        raise usage("--from is the number of an event")
    async with session.connect() as agent:
        if options.after is not None and not agent.card.is_bridge:
            raise needs_extension("--from")
        context_id, task = await find(agent, options.task)
        return await join(session, agent, context_id, task_id=task["id"])


async def chat(session: CommandSession) -> int:
    """Begin a conversation, and take part in it."""
    async with session.connect() as agent:
        return await join(session, agent, session.value("context_id"))


async def join(
    session: CommandSession, agent: RemoteAgent, context_id: str | None, task_id: str | None = None
) -> int:
    """Take part in a conversation until the person leaves. `context_id` None: the first message
    begins it; `task_id`: a task of it. Raises ClientError."""
    options = session.options
    choices = choices_of(session, agent, new=context_id is None)
    conversation = Conversation(agent, context_id, session.value("poll_interval"))
    screen = Screen(plain=options.plain)
    directory = choices.get("cwd") or (os.getcwd() if agent.server else None)
    history = History(config.state_home() / "history", directory or os.getcwd())
    line = None if options.read_only else PromptLine(history, directory)
    person = Participant(session, screen, line)
    person.output.directory = directory
    attachment = Attachment(session, agent, conversation, person, choices)
    session.on_interrupt = attachment.interrupt
    if options.message:
        person.lines.put_nowait(options.message)
    with screen.open(person.press):
        async with ticking(screen.draw):
            async with person.paging():
                await attachment.run(task_id, options.after)
            person.output.fields.close()
            if conversation.context_id:
                resume = session.command("attach", conversation.context_id)
                person.output.fields.field("Resume", resume)
    return 0
