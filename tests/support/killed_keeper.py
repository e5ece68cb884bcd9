"""A program that backs up, restores, migrates or rolls back, and is killed at a chosen step. The
tests look at the files afterwards.

`python -m tests.support.killed_keeper` obeys each line of its stdin (Order, as JSON) in a forked
child, so that imports are done once. A step is the call or the return of one of the functions in
STEPS. The answer is a line of JSON: the exit status of the child (-9: killed) and the names of its
steps (none if it was killed).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bridge.server.operate.backup import back_up_stopped
from bridge.server.operate.restore import restore
from bridge.store.sqlite.database import open_database
from bridge.store.sqlite.schema import MIGRATIONS
from bridge.store.sqlite.upgrade import roll_back
from tests import CHECKOUT

LIVES = 60  # seconds of a child
RENAMES = ("rename", "replace", "link")  # a file at a path changes in one step
STEPS = (
    *RENAMES,
    *("unlink", "rmdir", "mkdir", "open", "close", "write", "read", "pwrite", "fsync", "flock"),
    *("connect", "execute", "executescript", "fetchall", "backup"),
)


@dataclass(frozen=True, slots=True)
class Order:
    """`what`: backup, restore, migrate or rollback; `paths`: its arguments. `known`: the newest
    schema of the version that rolls back. `at`: the step at which the child is killed, 0 for
    none. `after`: it is killed after these seconds, if that is not 0."""

    what: str
    paths: tuple[str, ...]
    known: int = len(MIGRATIONS)
    at: int = 0
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    steps: list[str]

    def points(self, count: int, seed: int) -> list[int]:
        """All steps of renames, and `count` other ones."""
        numbered = list(enumerate(self.steps, 1))
        renames = [number for number, name in numbered if name in RENAMES]
        others = [number for number, name in numbered if name not in RENAMES]
        assert renames
        return renames + random.Random(seed).sample(others, min(count, len(others)))


class Keeper:
    """The program, as a child of the tests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, what: str, *paths: Path, **members: Any) -> Outcome:
        order = Order(what, tuple(map(str, paths)), **members)
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))


@contextmanager
def keeping() -> Iterator[Keeper]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_keeper"],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Keeper(process)
    finally:
        process.communicate(timeout=LIVES)


# --- in the program ------------------------------------------------------------------------------


def obey(order: Order) -> None:
    first, *others = map(Path, order.paths)
    match order.what:
        case "backup":
            back_up_stopped(first, *others)
        case "restore":
            restore(first, *others)
        case "migrate":
            open_database(first, MIGRATIONS).close()
        case "rollback":
            roll_back(first, order.known)


class Steps:
    """The names of the steps so far. Kills this process at the step with the number `at`."""

    def __init__(self, at: int) -> None:
        self.names: list[str] = []
        self._at = at

    def __call__(self, frame: object, event: str, function: Any) -> None:
        if event in ("c_call", "c_return", "c_exception") and function.__name__ in STEPS:
            self.names.append(function.__name__)
            if len(self.names) == self._at:
                os.kill(os.getpid(), signal.SIGKILL)


def child(order: Order, told: int) -> int:
    signal.alarm(LIVES)
    if order.after:
        signal.signal(signal.SIGALRM, lambda *_: None)
        killer = threading.Timer(order.after, os.kill, (os.getpid(), signal.SIGKILL))
        killer.daemon = True
        killer.start()
    steps = Steps(order.at)
    sys.setprofile(steps)
    try:
        obey(order)
    finally:
        sys.setprofile(None)
    os.write(told, " ".join(steps.names).encode())
    return 0


def run(order: Order) -> Outcome:
    reading, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = child(order, telling)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(telling)
    with open(reading) as told:
        steps = told.read().split()
    return Outcome(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), steps)


def main() -> None:
    for line in sys.stdin:
        order = Order(**json.loads(line))
        print(json.dumps(asdict(run(order))), flush=True)


if __name__ == "__main__":
    main()
