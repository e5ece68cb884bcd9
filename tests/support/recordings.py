"""The recordings of the bridge, played to an adapter again."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from bridge.adapter import Adapter, AgentConfig, ExitStatus, Lines, Prompt, SessionStart
from bridge.server import registry
from bridge.store.serialization import load
from bridge.task.events import AgentEvent, Answer, Question
from tests.support.record_clis import FOLDER

Json = dict[str, Any]


RECORDINGS = sorted(FOLDER.glob("*/*.jsonl"))
adapter_class = cache(registry.load)  # which looks into a folder each time


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def rows_of(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def adapter_of(begin: Json) -> Adapter:
    config = {**begin["config"], "lines": Lines(**begin["config"]["lines"])}
    config |= {name: tuple(config[name]) for name in ("args", "runner")}
    start = load(SessionStart, orjson.dumps(begin["start"]))
    return adapter_class(begin["adapter"])(AgentConfig(**config), start)


class Play:
    """An adapter that got the recorded input."""

    def __init__(self) -> None:
        self.adapter: Adapter | None = None
        self.asked: dict[str, Question] = {}

    def row(self, row: Json) -> list[AgentEvent]:
        """The bytes of the adapter to the CLI."""
        if "begin" in row:
            self.adapter = adapter_of(row["begin"])
            return []
        assert self.adapter
        match row:
            case {"prompt": prompt}:
                self.adapter.prompt(load(Prompt, orjson.dumps(prompt)))
            case {"steer": prompt}:
                self.adapter.steer(load(Prompt, orjson.dumps(prompt)))
            case {"answer": said}:
                question = load(Question, orjson.dumps(said["question"]))
                self.adapter.answer(question, load(Answer, orjson.dumps(said["answer"])))
            case {"interrupt": _}:
                self.adapter.interrupt()
            case {"line": line}:
                return list(self.adapter.receive_line(line.encode(errors="surrogateescape")))
            case {"exit": status}:
                return list(self.adapter.receive_exit(ExitStatus(**status)))
        return []

    def sent(self) -> str:
        assert self.adapter
        return self.adapter.data_to_send().decode()
