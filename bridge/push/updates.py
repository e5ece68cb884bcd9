"""The updates of a task for a receiver that may be far behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from bridge.store.event_log import Entry
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Store
from bridge.store.replay import read_errors, replay_updates
from bridge.task.state import Update


class TaskUpdates:
    """The updates of a task, read from its log or, if they are not there any more, from the store.
    Such a read begins at the first update, so it stays open for the next call."""

    def __init__(self, store: Store, handle: TaskHandle) -> None:
        self._store = store
        self._handle = handle
        self.release()

    def release(self) -> None:
        """Free the memory of the open read."""
        self._past: AsyncIterator[Sequence[Entry[Update]]] | None = None
        self._piece: Sequence[Entry[Update]] = ()

    async def after(self, number: int) -> Sequence[Entry[Update]]:
        """The next updates after `number`, of which at least one is published; empty if the open
        read is at its end. Raises Unavailable, DataLoss or TaskNotFound."""
        kept = self._handle.log.kept(number)
        if kept is not None:
            self.release()
            return kept
        head = self._handle.task.head()
        with read_errors(head.id):
            begins = self._past is None
            past = self._past = self._past or replay_updates(self._store, head)
            while not self._piece or self._piece[-1].number <= number:
                piece = await anext(past, None)
                if piece is None and begins:
                    raise LookupError(f"the store has no updates after {number}")
                if piece is None:  # it ended at an earlier call
                    self.release()
                    return ()
                self._piece = piece
        return self._piece[max(0, number + 1 - self._piece[0].number) :]
