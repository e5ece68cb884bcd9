"""The states of a task, and the events that each state allows.

TRANSITIONS has every event that changes the state of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from bridge.task.events import (
    Answered,
    ArtifactChunk,
    Canceled,
    Done,
    Failed,
    Interrupted,
    NotUnderstood,
    Plan,
    Prompted,
    Question,
    QuestionWithdrawn,
    Queued,
    Rejected,
    Reply,
    Retracted,
    Started,
    Status,
    Steered,
    Text,
    Thought,
    TimedOut,
    ToolCall,
    ToolResult,
    Usage,
)


class TaskState(Enum):
    """A2A 1.0 §4.1.3. The values are the names of 0.3; 1.0 spells them TASK_STATE_…"""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    REJECTED = "rejected"
    # Enum.__hash__ is a Python function, and each event would call it several times.
    __hash__ = object.__hash__

    terminal: bool
    """The end: the state has an empty row in TRANSITIONS."""
    interrupted: bool
    """The task waits for the client (§3.2.2)."""


PROGRESS = (Started, Status, Thought, ToolCall, ToolResult, Plan)
_OUTPUT = (*PROGRESS, Text, Retracted, ArtifactChunk, Usage)
# The possible next states; the first one is the default.
Targets = tuple[TaskState, ...]

_WAITING: Targets = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
ENDINGS: Mapping[type, Targets] = {
    Done: (TaskState.COMPLETED,),
    Reply: (TaskState.COMPLETED,),
    Failed: (TaskState.FAILED,),
    Rejected: (TaskState.REJECTED,),
    Canceled: (TaskState.CANCELED,),
    TimedOut: (TaskState.FAILED,),
    Interrupted: (TaskState.FAILED,),
}
_RUNNING: dict[type, Targets] = {
    **dict.fromkeys(_OUTPUT, (TaskState.WORKING,)),
    QuestionWithdrawn: (TaskState.WORKING,),
    Prompted: (TaskState.WORKING,),
    Steered: (TaskState.WORKING,),
    Question: _WAITING,  # by its kind
    **ENDINGS,
}


def _waiting(state: TaskState) -> dict[type, Targets]:
    """Output of the agent does not answer the open question. The answer may bring the next
    question."""
    return {
        **dict.fromkeys((*_OUTPUT, Prompted, Question, NotUnderstood), (state,)),
        **dict.fromkeys((Answered, QuestionWithdrawn), (TaskState.WORKING, *_WAITING)),
        **ENDINGS,
    }


TRANSITIONS: Mapping[TaskState, Mapping[type, Targets]] = {
    TaskState.SUBMITTED: {**_RUNNING, Queued: (TaskState.SUBMITTED,)},
    # The client answers a question about the repository before the task has a slot.
    TaskState.WORKING: {**_RUNNING, Queued: (TaskState.WORKING,)},
    TaskState.INPUT_REQUIRED: _waiting(TaskState.INPUT_REQUIRED),
    TaskState.AUTH_REQUIRED: _waiting(TaskState.AUTH_REQUIRED),
    TaskState.COMPLETED: {},
    TaskState.CANCELED: {},
    TaskState.FAILED: {},
    TaskState.REJECTED: {},
}
for _state, _events in TRANSITIONS.items():
    _state.terminal, _state.interrupted = not _events, _state in _WAITING


class IllegalTransition(Exception):
    """The event cannot happen in this state: a bug of the caller, never of a client."""
