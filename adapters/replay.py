"""Plays a recording of a real CLI, without the CLI, a key and a network.

The child is process/replayer.py: it prints the recorded output, and waits for input at the recorded
places. The adapter of the recorded CLI reads the lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import orjson

from bridge.adapter import Ability, Adapter, AgentConfig, ExitStatus, Launch, Prompt, SessionStart
from bridge.adapter.fields import Said
from bridge.task.events import Answer, Done, Question

PLAYER_LINE = b'{"type":"bridge/replay"'


class Replay(Adapter):
    """`dialect` is the adapter of the recorded CLI; config.args are the player's."""

    name = "replay"
    can_prewarm = False
    title = "The recording"
    input_modes = ("*/*",)
    limitations: ClassVar[Mapping[Ability, str]] = {
        "resume": "a new process plays the recording from its beginning",
        "interrupt": "the player has no such command and is ended",
        "models": "a recording has fixed answers",
    }

    def __init__(self, config: AgentConfig, start: SessionStart, *, dialect: type[Adapter]) -> None:
        super().__init__(config, start)
        self._recorded = dialect(config, start)

    def launch(self) -> Launch:
        return Launch((self.config.binary, *self.config.args))

    def prompt(self, prompt: Prompt) -> None:
        self._recorded.prompt(prompt)

    def receive_line(self, line: bytes) -> Said:
        if line.startswith(PLAYER_LINE):
            yield Done(str(orjson.loads(line).get("text")))
            return
        yield from self._recorded.receive_line(line)

    def receive_exit(self, status: ExitStatus) -> Said:
        return self._recorded.receive_exit(status)

    def answer(self, question: Question, answer: Answer) -> None:
        self._recorded.answer(question, answer)

    def interrupt(self) -> bool:
        return False

    def data_to_send(self) -> bytes:
        return self._recorded.data_to_send()


ADAPTER = Replay
