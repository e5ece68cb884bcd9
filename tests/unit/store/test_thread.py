"""The thread of a database: one call at a time, in order, and others between the steps of a long
one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from bridge.store.sqlite.thread import DatabaseThread

WITHIN = 60.0


def noting(seen: list[str], name: str) -> Callable[[], str]:
    def call() -> str:
        seen.append(name)
        return threading.current_thread().name

    return call


def test_calls_run_in_order_in_one_thread() -> None:
    thread, seen = DatabaseThread("database"), list[str]()
    calls = [thread.submit(noting(seen, f"{number}")) for number in range(100)]
    assert {one.result(WITHIN) for one in calls} == {"database"}
    assert seen == [f"{number}" for number in range(100)]
    thread.shutdown()


def test_a_long_call_lets_the_waiting_ones_pass() -> None:
    thread, seen = DatabaseThread("database"), list[str]()
    began, go = threading.Event(), threading.Event()

    def long() -> None:
        began.set()
        assert go.wait(WITHIN)
        thread.run_waiting()
        thread.run_waiting()  # none
        seen.append("long")

    first = thread.submit(long)
    assert began.wait(WITHIN)
    others = [thread.submit(noting(seen, name)) for name in "ab"]
    canceled = thread.submit(noting(seen, "canceled"))
    assert canceled.cancel()
    failing = thread.submit(lambda: 1 // 0)
    thread.shutdown(wait=False)  # the end comes after all of them
    go.set()
    first.result(WITHIN)
    assert {one.result(WITHIN) for one in others} == {"database"}
    assert seen == ["a", "b", "long"]
    with pytest.raises(ZeroDivisionError):
        failing.result(WITHIN)
    thread.shutdown()
    assert all(one.name != "database" for one in threading.enumerate())


def test_a_long_call_lets_the_calls_of_a_time_pass() -> None:
    """The second call comes while the long one waits for it."""
    thread, seen = DatabaseThread("database"), list[str]()
    began = threading.Event()

    def long() -> None:
        began.set()
        thread.run_waiting(WITHIN)  # until the end comes
        seen.append("long")

    first = thread.submit(long)
    assert began.wait(WITHIN)
    assert thread.submit(noting(seen, "a")).result(WITHIN / 2) == "database"
    assert thread.submit(noting(seen, "b")).result(WITHIN / 2) == "database"
    assert not first.done()
    thread.shutdown()
    assert seen == ["a", "b", "long"]


def test_a_closed_thread_takes_no_calls() -> None:
    thread = DatabaseThread("database")
    thread.shutdown()  # it never began
    thread.shutdown()
    with pytest.raises(RuntimeError, match="has ended"):
        thread.submit(print)
