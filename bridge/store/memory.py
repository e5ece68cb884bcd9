"""Tasks in memory. Those that are not finished are all kept; of the finished, the newest."""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.log import EventLog
from bridge.task import Task, Update


@dataclass(slots=True, eq=False, weakref_slot=True)
class Record:
    """A task and the log of its updates. `shown`: a client knows the task, so that a direct
    reply of the agent can no longer stand for it."""

    task: Task
    log: EventLog[Update] = field(default_factory=EventLog)
    shown: bool = False


class MemoryStore:
    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._records: dict[str, Record] = {}
        self._finished: dict[str, None] = {}  # ids, oldest first

    def add(self, record: Record) -> None:
        self._records[record.task.id] = record

    def get(self, task_id: str) -> Record | None:
        return self._records.get(task_id)

    def all(self) -> list[Record]:
        return list(self._records.values())

    def unfinished(self) -> list[Record]:
        return [r for r in self._records.values() if not r.task.state.terminal]

    def finished(self, record: Record) -> list[str]:
        """`record` will not change any more. Returns the ids of those that had to go for it."""
        self._finished[record.task.id] = None
        gone = list(self._finished)[: max(0, len(self._finished) - self.keep)]
        for task_id in gone:
            self.remove(task_id)
        return gone

    def remove(self, task_id: str) -> None:
        self._finished.pop(task_id, None)
        self._records.pop(task_id, None)
