"""The failure of a turn by an exception of its adapter. It names the place in the code of the
adapter, so that its author needs no debugger."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import get_args

from bridge.adapter import Adapter, AgentEvent, Failed
from bridge.task.text import one_line

log = logging.getLogger(__name__)

_CONTRACT = "bridge.adapter."  # the modules of the base classes
EVENTS = frozenset(get_args(AgentEvent))
"""The types of the events that an adapter may return."""


def failure_of(adapter: Adapter, error: Exception, method: str = "") -> Failed:
    """Log the exception, and convert it. `method`: the one with a result that raised it."""
    log.error("adapter failed", exc_info=error, extra={"adapter": adapter.name})
    place = next(_places(adapter, error, method))
    what = one_line(f"{type(error).__name__}: {error}").rstrip(".")
    text = f"The adapter {adapter.name} failed {place}: {what}. The server's log has the details."
    return Failed(text, "adapter-error")


def checked(events: Iterable[AgentEvent]) -> list[AgentEvent]:
    """Raises TypeError if an adapter has returned another object among the events."""
    found = [*events]
    if not EVENTS.issuperset(map(type, found)):
        wrong = next(one for one in found if type(one) not in EVENTS)
        raise TypeError(f"it returned {wrong!r} and not an event of bridge.adapter")
    return found


def culprit(error: Exception) -> Adapter | None:
    """The adapter with the method in which the exception was raised."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    found = (frame.f_locals.get("self") for frame in frames)
    return next((one for one in found if isinstance(one, Adapter)), None)


def _places(adapter: Adapter, error: Exception, method: str) -> Iterator[str]:
    """The last line in a file of the class or of a base class that its author wrote; else the
    method; else the class."""
    classes = (one for one in type(adapter).__mro__ if issubclass(one, Adapter))
    modules = {one.__module__ for one in classes if not one.__module__.startswith(_CONTRACT)}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in modules}
    lines = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if code := getattr(getattr(adapter, method, None), "__code__", None):
        lines.insert(0, (code, code.co_firstlineno))
    for code, line in reversed(lines):
        if code.co_filename in files:
            yield f"in {code.co_name}() at {os.path.basename(code.co_filename)}:{line}"
    yield f"in {type(adapter).__name__}"
