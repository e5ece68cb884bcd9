"""The thread of a database: it runs one call at a time, and a long call can let the others pass."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Call:
    future: Future[Any]
    work: Callable[[], Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class DatabaseThread(Executor):
    """One thread, which begins with the first call and ends with shutdown()."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call after all earlier ones. Raises RuntimeError after shutdown()."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the thread of the database has ended")
            self._calls.put(_Call(future, lambda: fn(*args, **kwargs)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return future

    def run_waiting(self, seconds: float = 0.0) -> None:
        """Run the calls that wait now, and those that come within `seconds`. Only for a call that
        runs in this thread."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._run_next(left):
            pass
        for _ in range(self._calls.qsize()):
            self._run_next(0.0)

    def _run_next(self, seconds: float) -> bool:
        """Whether a call came within that time."""
        try:
            call = self._calls.get(timeout=seconds)
        except queue.Empty:
            return False
        if call is None:  # the end comes after the call that runs
            self._calls.put(None)
            return False
        call.run()
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. With `wait`, return after the end of all earlier ones."""
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            self._calls.put(None)
        if wait and self._thread:
            self._thread.join()

    def _run(self) -> None:
        while call := self._calls.get():
            call.run()
            call = None  # the loop must not keep its result alive
