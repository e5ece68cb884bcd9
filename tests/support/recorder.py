"""Takes the place of an adapter and writes down all that it is told, hears and says:
`AGENT_ADAPTER=tests.support.recorder:Recorder`, with RECORD_ADAPTER, RECORD_FILE (one session is
appended after the other) and RECORD_SCRUB (JSON: what to write in the place of paths and
addresses).

A row is a JSON object: what happened, by name, with `sent` (what the CLI is owed after it) and
`events` (as bridge/store/serialization.py writes them) where there are any.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from bridge.adapter import AgentConfig, ExitStatus, Launch, Prompt, SessionStart
from bridge.server import registry
from bridge.store.serialization import dump, dump_events
from bridge.task.events import AgentEvent, Answer, Question

SCRUB: dict[str, str] = json.loads(os.environ.get("RECORD_SCRUB", "{}"))
Inner: Any = registry.load(os.environ.get("RECORD_ADAPTER", "jsonl"))


def launch_facts(launch: Launch, runner: Sequence[str]) -> dict[str, Any]:
    """The arguments after the program, or the runner of terminals, without values; and the names of
    the variables."""
    count = len(runner) if launch.argv[: len(runner)] == tuple(runner) else 1
    argv = [word.partition("=")[0] for word in launch.argv[count:]]
    return {"argv": argv, "env": sorted(launch.env)}


class Recorder(Inner):  # type: ignore[misc]
    """The adapter, whose calls are recorded. Calls within the adapter are not recorded."""

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._file = open(os.environ["RECORD_FILE"], "a", encoding="utf-8")
        self._depth = 0
        self._noted = 0  # bytes of what is owed that are in a row already
        env = {k: v for k, v in config.env.items() if k in ("HOME", "XDG_STATE_HOME")}
        kept = {**asdict(config), "env": env, "runner": ["python", "runner.py"]}
        self._write("begin", {"adapter": self.name, "config": kept, "start": asdict(start)})

    def launch(self) -> Any:
        launch = super().launch()
        self._write("launch", launch_facts(launch, self.config.runner))
        return launch

    def prompt(self, prompt: Prompt) -> None:
        self._told("prompt", json.loads(dump(prompt)), lambda: super(Recorder, self).prompt(prompt))

    def steer(self, prompt: Prompt) -> None:
        self._told("steer", json.loads(dump(prompt)), lambda: super(Recorder, self).steer(prompt))

    def answer(self, question: Question, answer: Answer) -> None:
        said = {"question": json.loads(dump(question)), "answer": json.loads(dump(answer))}
        self._told("answer", said, lambda: super(Recorder, self).answer(question, answer))

    def interrupt(self) -> bool:
        return bool(self._told("interrupt", None, super().interrupt))

    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        events = list(super().receive_line(line))
        self._write("line", line.decode(errors="surrogateescape"), events)
        return events

    def receive_exit(self, status: ExitStatus) -> Iterable[AgentEvent]:
        events = list(super().receive_exit(status))
        self._write("exit", {"code": status.code, "stderr": status.stderr}, events)
        return events

    def data_to_send(self) -> bytes:
        self._noted = 0
        return bytes(super().data_to_send())

    def _told(self, name: str, said: Any, tell: Any) -> Any:
        self._depth += 1
        try:
            result = tell()
        finally:
            self._depth -= 1
        if not self._depth:
            self._write(name, said)
        return result

    def _write(self, name: str, value: Any, events: list[AgentEvent] | None = None) -> None:
        row: dict[str, Any] = {name: value}
        if events:
            row["events"] = json.loads(dump_events(events))
        if len(self._outgoing) > self._noted:
            row["sent"] = self._outgoing[self._noted :].decode()
            self._noted = len(self._outgoing)
        text = json.dumps(row, ensure_ascii=False)
        for found, instead in SCRUB.items():
            text = text.replace(found, instead)
        self._file.write(text + "\n")
        self._file.flush()
