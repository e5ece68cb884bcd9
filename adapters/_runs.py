"""CLIs that are not made to be driven, through bridge/runner.py, which runs and hears them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import orjson

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Launch, SessionStart
from bridge.events import AgentEvent, Failed
from bridge.readable import json_object
from bridge.shapes import as_string, output_status

Said = Iterable[AgentEvent]


class Runs(Adapter):
    """The process of the session is the runner, in which the CLI is run: once per turn, or once and
    then spoken to. Subclasses begin with run(), and are told what is heard."""

    warms: ClassVar[Literal["greeted", "started", "no"]] = "no"

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
