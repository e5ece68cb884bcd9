"""Base classes for CLIs without a protocol for programs: process/pty_runner.py runs and reads them.

`PrintModeAdapter` is for print modes: a process per turn that prints one JSON object per line. Such
a CLI cannot ask. Its arguments list the actions that it may take unasked; it denies all others.
The turn ends with a line, with the exit of the CLI, or with a line and no exit (Cursor), whichever
comes first. docs/adapters.md has an example.

`RunnerAdapter` is for other CLIs: a process per turn or per conversation, on pipes or a terminal.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from bridge.adapter import (
    INTERRUPTED,
    Adapter,
    AgentConfig,
    ExitStatus,
    Handlers,
    Launch,
    Prompt,
    SessionStart,
    explain_exit,
    unasked,
)
from bridge.adapter.fields import Json, Said, as_string, output_status
from bridge.adapter.json_lines import read
from bridge.task.events import (
    AgentEvent,
    Answer,
    Done,
    Failed,
    FileChange,
    Question,
    Started,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.text import json_object

TOO_LONG = "Argument list too long"
"""The error E2BIG in the words of the system."""
TERMINALS = "/dev/pts"
"""The folder of terminals, in which a CLI cannot open one unless `writable_paths` have it."""


class RunnerAdapter(Adapter):
    """The process of the session is the runner, which runs the CLI: a new process for each turn, or
    one process for all turns. Subclasses call run(), and get the output in heard_line() and the
    other methods of that kind."""

    can_prewarm: ClassVar[bool] = False

    shorter: ClassVar[str] = (
        "the prompt is one of them, and the system takes up to 128 KiB for it. Send a shorter text "
        "and attach the rest as a file"
    )
    """The remedy for TOO_LONG."""

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self.running = False
        self._next: Json | None = None  # the order after the end of the present CLI

    def launch(self) -> Launch:
        return Launch(self.config.runner, self.closing())

    def closing(self) -> Mapping[str, str]:
        """Variables that keep the CLI from loading the repository's configuration."""
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
        """Start the CLI with `text` on its stdin. A CLI that still runs is ended before.
        `terminal`: on a terminal of its own (see TERMINALS)."""
        if terminal and TERMINALS not in self.writable_paths:
            raise ValueError(
                f"a terminal needs {TERMINALS} in writable_paths, as TerminalAdapter has"
            )
        order = {"argv": argv, "input": text, "open": stays_open, "pty": terminal, "env": env or {}}
        if self.running:
            self.stop()
            self._next = order
        else:
            self.running = True
            self.send_line({"run": order})

    def write(self, text: str) -> None:
        """To the stdin of the CLI."""
        self.send_line({"write": text})

    def stop(self) -> None:
        """Send SIGTERM, and after a grace period SIGKILL, to the CLI; heard_exit() follows. A run()
        that waits for that exit is dropped."""
        self._next = None
        self.send_line({"stop": True})

    def break_off(self) -> None:
        """Send SIGINT to the CLI's process group, as ^C does."""
        self._next = None
        self.send_line({"interrupt": True})

    def stop_unasked(self) -> bool:
        self.stop()
        return True

    # --- output of the CLI -----------------------------------------------------------------------

    @abstractmethod
    def heard_line(self, text: str) -> Said:
        """A line of the CLI's stdout, without its newline."""

    def heard_tail(self, text: str) -> Said:
        """The incomplete line in which the CLI has paused. The line may still continue."""
        return ()

    def heard_pause(self, seconds: int) -> Said:
        """The CLI has printed nothing for 1, 2, 4, … seconds."""
        return ()

    @abstractmethod
    def heard_exit(self, status: ExitStatus) -> Said:
        """The CLI has ended."""

    def receive_line(self, line: bytes) -> Said:
        heard = json_object(line)
        if heard is None:
            return (output_status(line),) if line.strip() else ()
        if self._next and "exit" not in heard:
            return ()  # of the CLI that is being stopped
        match heard:
            case {"line": str(text)}:
                return self.heard_line(text)
            case {"tail": str(text)}:
                return self.heard_tail(text)
            case {"pause": int(seconds)}:
                return self.heard_pause(seconds)
            case {"exit": int(code)}:
                self.running = False
                order, self._next = self._next, None
                if order is None:
                    return self.heard_exit(ExitStatus(code, as_string(heard.get("stderr", ""))))
                self.running = True
                self.send_line({"run": order})
            case {"error": str(text)}:
                self.running = heard.get("running") is True
                remedy = f": {self.shorter}" if text == TOO_LONG else ""
                return [Failed(f"{self.title} cannot be run: {text}{remedy}", "launch")]
        return ()


_FACTS = (
    *("title", "binary", "environment", "modes", "project_files", "always_loaded", "homes"),
    *("instructions", "writable_paths", "reads", "uses_any_port", "verified", "widths"),
)
"""Members that are facts of the program, not of the protocol that it speaks."""


class PrintModeAdapter(RunnerAdapter):
    """Subclasses have arguments() and a handler for each relevant type of line. A line without a
    handler, or that its handler cannot read, becomes a status with the line as its text.

    `class OwlPrint(PrintModeAdapter, like=Owl)`: Owl is the adapter of the same program in another
    mode; the members in _FACTS that OwlPrint does not define are those of Owl."""

    handlers: ClassVar[Handlers] = {}
    """By the member `type` of the line: methods of the class, which return events."""

    ignored: ClassVar[tuple[str, ...]] = ()
    """Types of lines that are dropped, as patterns: `session.*`."""

    lost: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    """Text on stderr that means that the conversation to resume no longer exists. The turn then
    fails with a text that says how to continue. The default matches nothing."""

    def __init_subclass__(cls, like: type[Adapter] | None = None) -> None:
        for name in _FACTS if like else ():
            if name not in cls.__dict__ and hasattr(like, name):
                setattr(cls, name, getattr(like, name))

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self.session_id = start.session_id if start.resume else None  # to be resumed
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._over = False
        self._interrupted = False
        self.new_block = True
        self.block: list[str] = []  # the text of the last block
        self.problem: Failed | None = None  # the outcome, unless a later line has another one
        self._tools: dict[str, str] = {}  # their names by the ids of their calls
        self._unknown: set[str] = set()  # calls that began without an input
        self._changed: dict[str, None] = {}  # paths, in order
        self._denied: list[str] = []  # names of tools
        self.begin_turn()

    # --- for subclasses ------------------------------------------------------------------------

    @abstractmethod
    def arguments(self, prompt: Prompt) -> Sequence[str]:
        """The arguments after those of the operator. A value is in one argument with its flag, so
        that it cannot be read as a flag."""

    def begin_turn(self) -> None:
        """Reset the state of a turn."""

    def input(self, prompt: Prompt) -> str:
        """The content of its stdin."""
        return prompt.text

    def ended(self, status: ExitStatus) -> Said:
        """The CLI has ended without a line that ends the turn."""
        yield self.failure(status)

    # --- calls of the session --------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self._begin_turn()
        argv = (self.config.binary, *self.config.args, *self.arguments(prompt))
        self.run(argv, self.input(prompt))

    def answer(self, question: Question, answer: Answer) -> None:
        """Never called: a print mode asks no questions."""

    def interrupt(self) -> bool:
        if self._over or not self.running:
            return False
        self._interrupted = True
        self.stop()
        return True

    # --- output of the CLI -----------------------------------------------------------------------

    def heard_line(self, text: str) -> Said:
        if not text.strip():
            return ()
        if self._over:
            return (unasked("output", "line"),)
        return read(text.encode(), self._heard_object, halves=self.halves)

    def _heard_object(self, event: Json, line: bytes) -> Said:
        kind = str(event.get("type"))
        handler = self.handlers.get(kind)
        if handler is None:
            ignored = any(fnmatchcase(kind, pattern) for pattern in self.ignored)
            return () if ignored else (output_status(line),)
        said: list[AgentEvent] = []
        try:
            said.extend(handler(self, event))
        except (LookupError, TypeError, ValueError, AttributeError):
            # A known type in an unknown shape, of a newer CLI. After a last line, the exit follows.
            said.append(output_status(line))
        return said

    def heard_exit(self, status: ExitStatus) -> Said:
        if self._over:
            return ()
        if self._interrupted:
            return self.finish(Done())
        return self.ended(status)

    def failure(self, status: ExitStatus) -> Failed:
        """The failure of a CLI that has ended too early."""
        self._over = True
        if self.session_id and self.lost.search(status.stderr):
            return self.conversation_lost(session_id=self.session_id)
        return self.problem or Failed(*explain_exit(self.title, status))

    # --- events ----------------------------------------------------------------------------------

    def began(self, session_id: str, *facts: str | None) -> Iterator[Started]:
        """`facts`: model, version, mode. The next process resumes this conversation, unless its id
        could be read as a flag."""
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
        """A tool begins; again when its input is known, and nothing if the call is known."""
        self.new_block = True
        if tool_id not in self._tools or (arguments and tool_id in self._unknown):
            self._tools[tool_id] = name
            (self._unknown.discard if arguments else self._unknown.add)(tool_id)
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
            self._denied.append(name or tool_id)
        changes = () if failed else changes
        self._changed |= dict.fromkeys(change.path for change in changes)
        yield ToolResult(tool_id, output, failed, name, changes=changes)

    def finish(self, ending: Done | Failed, usage: Usage | None = None) -> Said:
        """The turn ends, even if the process continues. Fills in the members of a Done."""
        self._over = True
        if usage:
            yield usage
        if self._interrupted:
            yield INTERRUPTED
        elif isinstance(ending, Done):
            details = {"changedFiles": list(self._changed), "denied": self._denied}
            known = {name: one for name, one in details.items() if one}
            yield Done(ending.text, ending.summary or "".join(self.block), known or None)
        else:
            yield ending
