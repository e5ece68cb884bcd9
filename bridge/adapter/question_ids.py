"""The ids of questions that clients see."""

from __future__ import annotations


class QuestionIds:
    """Ids that never repeat: not within a session, and not in another task of its conversation.
    An id that the CLI chooses may repeat, and an answer to the earlier question would then decide
    about the later one."""

    def __init__(self) -> None:
        self._task = ""
        self._number = 0

    def begin(self, task_id: str) -> None:
        """The next questions belong to this task."""
        self._task = task_id

    def next_id(self) -> str:
        self._number += 1
        return f"{self._task[:8] or 'question'}-{self._number}"
