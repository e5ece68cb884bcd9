"""Base classes for CLIs that are not made to be driven: process/pty_runner.py runs and reads them.

`PrintModeAdapter` is for print modes: a process per turn that prints one JSON object per line. Such
a CLI cannot ask. Its arguments say what it may do unasked, and it refuses by itself what else would
need a permission. It may end its turn with a line, with its exit, or with a line and no exit
(Cursor): the turn ends with the first of them. docs/adapters.md has an example.

`RunnerAdapter` is for other CLIs: a process per turn or per conversation, on pipes or a terminal.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import orjson

from bridge.adapter import (
    Adapter,
    AgentConfig,
    ExitStatus,
    Handlers,
    Launch,
    Prompt,
    SessionStart,
    explain_exit,
)
from bridge.adapter.fields import as_dict, as_string, output_status
from bridge.task.events import (
    SESSION_LOST,
    AgentEvent,
    Answer,
    Done,
    Failed,
    FileChange,
    PlanEntry,
    PlanStatus,
    Question,
    Started,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.text import json_object

Json = Mapping[str, Any]
Said = Iterable[AgentEvent]


class RunnerAdapter(Adapter):
    """The process of the session is the runner, in which the CLI is run: once per turn, or once and
    then spoken to. Subclasses begin with run(), and are told what is heard."""

    can_prewarm: ClassVar[bool] = False

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self.running = False
        self._next: Mapping[str, Any] | None = None  # to be run when the last one has ended

    def launch(self) -> Launch:
        return Launch(self.config.runner, self.closing())

    def closing(self) -> Mapping[str, str]:
        """Variables that keep the CLI from what the repository brings along."""
        return {}

    # --- for subclasses ------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str],
        text: str = "",
        *,
        stays_open: bool = False,
        terminal: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the CLI with `text` on its stdin. One that still runs is ended before."""
        order = {"argv": argv, "input": text, "open": stays_open, "pty": terminal, "env": env or {}}
        if self.running:
            self.stop()
            self._next = order
        else:
            self._run(order)

    def write(self, text: str) -> None:
        """To the stdin of the CLI."""
        self._order(write=text)

    def stop(self) -> None:
        """SIGTERM, and if need be SIGKILL, to the CLI; heard_exit() follows. One that waits for its
        place is not run."""
        self._next = None
        self._order(stop=True)

    def break_off(self) -> None:
        """What ^C does."""
        self._next = None
        self._order(interrupt=True)

    def _run(self, order: Mapping[str, Any]) -> None:
        self.running = True
        self._order(run=order)

    def _order(self, **order: Any) -> None:
        self.send(orjson.dumps(order) + b"\n")

    # --- what is heard -------------------------------------------------------------------------

    @abstractmethod
    def heard_line(self, text: str) -> Said:
        """A line of the CLI's stdout, without its newline."""

    def heard_tail(self, text: str) -> Said:
        """All of a line that is not complete: the CLI has paused there. It may still go on."""
        return ()

    def heard_pause(self, seconds: int) -> Said:
        """The CLI has said nothing for so long: 1, 2, 4, … seconds."""
        return ()

    @abstractmethod
    def heard_exit(self, status: ExitStatus) -> Said:
        """The CLI has ended."""

    def receive_line(self, line: bytes) -> Said:
        heard = json_object(line)
        if heard is None:
            return (output_status(line),) if line.strip() else ()
        if self._next and "exit" not in heard:
            return ()  # of a CLI that has to go
        match heard:
            case {"line": str(text)}:
                return self.heard_line(text)
            case {"tail": str(text)}:
                return self.heard_tail(text)
            case {"pause": int(seconds)}:
                return self.heard_pause(seconds)
            case {"exit": int(code)}:
                return self._exited(ExitStatus(code, as_string(heard.get("stderr", ""))))
            case {"error": str(text)}:
                self.running = heard.get("running") is True
                return [Failed(f"{self.title} cannot be run: {text}", "launch")]
        return ()

    def _exited(self, status: ExitStatus) -> Said:
        self.running = False
        order, self._next = self._next, None
        if order:
            self._run(order)
            return ()
        return self.heard_exit(status)


class PrintModeAdapter(RunnerAdapter):
    """Subclasses have arguments() and a handler for each type of line that matters. A line that has
    no handler, or that its handler cannot read, becomes a status with the line as its text."""

    handlers: ClassVar[Handlers] = {}
    """By the member `type` of the line: methods of the class, which return events."""

    ignored: ClassVar[tuple[str, ...]] = ()
    """Types of lines that say nothing to a client, as patterns: `session.*`."""

    variables: ClassVar[Mapping[str, str]] = {}
    """Set for the CLI unless the operator sets them."""

    lost: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """Text on stderr that says that the conversation to be resumed no longer exists. The turn then
    fails with a text that says how to go on. The default matches nothing."""

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self.session_id = start.session_id if start.resume else None  # to be resumed
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._over = False
        self._interrupted = False
        self.new_block = True
        self.block: list[str] = []  # the text of the last block
        self.problem: Failed | None = None  # what went wrong, if nothing better comes
        self._tools: dict[str, str] = {}  # their names by the ids of their calls
        self._changed: dict[str, None] = {}  # paths, in order
        self.denied: list[str] = []  # names of tools
        self.begin_turn()

    # --- for subclasses ------------------------------------------------------------------------

    @abstractmethod
    def arguments(self, prompt: Prompt) -> Sequence[str]:
        """What comes after those of the operator. Values are in one argument with their flag, so
        that none can be read as another."""

    def begin_turn(self) -> None:
        """Forget what was of the last turn only."""

    def input(self, prompt: Prompt) -> str:
        """What is on its stdin."""
        return prompt.text

    def halt(self) -> None:
        """End the CLI in the middle of its turn; heard_exit() follows."""
        self.stop()

    def ended(self, status: ExitStatus) -> Said:
        """The CLI has ended and not said how it went."""
        yield self.failure(status)

    @property
    def model(self) -> str | None:
        return self.start.options.model or self.config.model

    # --- what the session asks for -------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self._begin_turn()
        argv = (self.config.binary, *self.config.args, *self.arguments(prompt))
        seen = self.config.env
        env = {name: one for name, one in self.variables.items() if name not in seen}
        self.run(argv, self.input(prompt), env=env)

    def answer(self, question: Question, answer: Answer) -> None:
        """Nothing is ever asked."""

    def interrupt(self) -> bool:
        if self._over or not self.running:
            return False
        self._interrupted = True
        self.halt()
        return True

    # --- what is heard -------------------------------------------------------------------------

    def heard_line(self, text: str) -> Said:
        if self._over or not text.strip():
            return ()  # of a turn that is over
        line = text.encode()
        event = json_object(line)
        if event is None:
            return (output_status(line),)
        kind = str(event.get("type"))
        handler = self.handlers.get(kind)
        if handler is None:
            ignored = any(fnmatchcase(kind, pattern) for pattern in self.ignored)
            return () if ignored else (output_status(line),)
        said: list[AgentEvent] = []
        try:
            said.extend(handler(self, event))
        except (LookupError, TypeError, ValueError, AttributeError):
            # A known type in an unknown shape, of a newer CLI. If it was the end, the exit says so.
            said.append(output_status(line))
        return said

    def heard_exit(self, status: ExitStatus) -> Said:
        if self._over:
            return ()
        if self._interrupted:
            return self.finish(Done())
        return self.ended(status)

    def failure(self, status: ExitStatus) -> Failed:
        """What an exit means that was not to be."""
        self._over = True
        if self.session_id and self.lost.search(status.stderr):
            text = (
                f"{self.title} no longer has the conversation {self.session_id}. The message was "
                "not run; send it again to begin a new conversation."
            )
            return Failed(text, SESSION_LOST)
        return self.problem or Failed(*explain_exit(self.title, status))

    # --- what it means -------------------------------------------------------------------------

    def began(self, session_id: str, *facts: str | None) -> Iterator[Started]:
        """`facts`: model, version, mode. The next process goes on with this conversation, unless
        its id could be taken for a flag."""
        self.session_id = None if session_id.startswith("-") else session_id
        yield Started(session_id, *facts)

    def say(self, text: str) -> Iterator[Text]:
        """A piece of the answer; the first one after something else begins a block."""
        if not text:
            return
        new_block, self.new_block = self.new_block, False
        if new_block:
            self.block = []
        self.block.append(text)
        yield Text(text, new_block)

    def call(self, tool_id: str, name: str, arguments: Any) -> Iterator[ToolCall]:
        """A tool begins, if it was not heard of before."""
        self.new_block = True
        if tool_id not in self._tools:
            self._tools[tool_id] = name
            yield ToolCall(tool_id, name, arguments)

    def result(
        self,
        tool_id: str,
        output: Any,
        failed: bool,
        changes: tuple[FileChange, ...] = (),
        *,
        denied: bool = False,
    ) -> Iterator[ToolResult]:
        self.new_block = True
        name = self._tools.get(tool_id)
        if denied:
            self.denied.append(name or tool_id)
        changes = () if failed else changes
        self._changed |= dict.fromkeys(change.path for change in changes)
        yield ToolResult(tool_id, output, failed, name, None, changes)

    def finish(self, ending: Done | Failed, usage: Usage | None = None) -> Iterator[AgentEvent]:
        """The turn is over, whatever the process does. A Done is completed here."""
        self._over = True
        if usage:
            yield usage
        if self._interrupted:
            yield Failed("The turn was interrupted.", "interrupted")
        elif isinstance(ending, Done):
            yield Done(ending.text, ending.summary or "".join(self.block), self._details())
        else:
            yield ending

    def _details(self) -> Json | None:
        details = {"changedFiles": list(self._changed), "denied": self.denied}
        return {name: one for name, one in details.items() if one} or None


# --- members of a line, whose types are the CLI's affair ------------------------------------------


def count(value: Any) -> int | None:
    """A number of things, where there is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def counts(**values: Any) -> dict[str, int]:
    """Those that are numbers of things."""
    found = {name: count(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def plan_entry(todo: Any) -> PlanEntry:
    """A member of a to-do list; the words for its status are those of many tools."""
    todo = as_dict(todo)
    status = str(todo.get("status") or "").lower().removeprefix("todo_status_")
    known: dict[str, PlanStatus] = {"in_progress": "in_progress", "completed": "completed"}
    return PlanEntry(str(todo.get("content") or ""), known.get(status, "pending"))


def unified(diff: Any) -> str:
    """A diff without what git says above it."""
    text = diff if isinstance(diff, str) else ""
    start = text.find("--- ")
    return text[start:] if start >= 0 else ""
