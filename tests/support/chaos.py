"""Faults on purpose, against the real server: each scenario makes a world (a state folder with
servers one after the other, problem CLIs, clients that come back), does something to it, and has
the ledger checked. `scripts/chaos` runs them for a given time and prints the table.

Everything random comes from the seed; what the kernel's scheduling adds to that does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import glob
import json
import mmap
import os
import platform
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from tests import CHECKOUT
from tests.support import client, ledger, load
from tests.support.bindings import piped
from tests.support.bridge_process import BridgeProcess, program_with
from tests.support.client import RpcError
from tests.support.constants import taken
from tests.support.forked_server import fork_server, may_fork
from tests.support.ledger import Ledger, View, read_ledger
from tests.support.numbered_streams import (
    BINDINGS,
    Numbered,
    Open,
    Reach,
    may_repeat,
    over_pipes,
    over_sse,
)
from tests.support.offered_bindings import LISTENING, offered
from tests.support.problem_cli import PROGRAM
from tests.support.stdio_server import Child

Json = dict[str, Any]
Steps = list[list[Any]]

RUN_WITHIN = 120.0  # seconds for one run; a start of a server took 15 s on a busy machine
GRACE = 1.0  # seconds from SIGTERM to SIGKILL, in these servers
GONE_WITHIN = GRACE + 1.0  # seconds from the reply to a cancel
ENDS_WITHIN = 5.0  # seconds from the death of a CLI, or from a restart, to a terminal state
REPORT = CHECKOUT / "docs/evidence/reliability.md"
CHAOS, LOAD = "chaos", "load"  # the blocks of the report
GONE = (ClientError, ConnectionError, TimeoutError, asyncio.IncompleteReadError)


SSE, STDIO = ("sse",), ("stdio",)  # the bindings of a world
OVER_ALL = ("F8", "F9")  # the faults whose clients use all bindings


class Skip(Exception):
    """The fault is not available on this machine."""


@dataclass
class Run:
    """One task: the file of its ledger, its clients, and their answers. `killed`: the CLI was
    killed from outside. `largest`: characters of an answer. `ends`: the possible final states."""

    message_id: str
    text: str
    ledger_file: Path
    ends: tuple[str, ...]
    into: str | None = None
    context: str | None = None
    task_id: str = ""
    killed: bool = False
    largest: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    views: list[View] = field(default_factory=list)
    watchers: list[asyncio.Task[None]] = field(default_factory=list)
    known: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ledger(self) -> Ledger:
        return read_ledger(self.ledger_file)

    @property
    def view(self) -> View:
        return self.views[0]


class World:
    """`wrong`: the errors so far; `timings`: measurements in seconds. `bindings`: each connection
    of a client chooses one. `alone`: the servers do not listen, and their clients share the pipes
    of their parent."""

    def __init__(
        self, root: Path, seed: int, http: ClientSession, bindings: Sequence[str] = SSE
    ) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.http = http
        self.alone = bindings == STDIO
        self.bindings: Sequence[Open] = (
            [over_pipes] if self.alone else [BINDINGS[n] for n in bindings]
        )
        self.reach = Reach(http)
        self.wrong: list[str] = []
        self.timings: dict[str, list[float]] = {}
        self.runs: list[Run] = []
        self.servers: list[BridgeProcess] = []
        self.env: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()
        self.up = asyncio.Event()
        for name in ("workspace", "home", "tmp", "ledgers"):
            (root / name).mkdir()
        self.state = root / "state"

    # --- servers -------------------------------------------------------------------------------

    @property
    def server(self) -> BridgeProcess:
        return self.servers[-1]

    async def spawn(self) -> BridgeProcess:
        """Start a server, and wait for nothing."""
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONWARNINGS": "error",
            "HOST": "127.0.0.1",
            "PORT": "0",
            "AGENT_REPO_PATH": str(self.root / "workspace"),
            "AGENT_ADAPTER": "jsonl",
            "AGENT_BINARY": sys.executable,
            "AGENT_ARGS": f"-I -S {PROGRAM}",
            "BRIDGE_STATE_DIR": str(self.state),
            "BRIDGE_STOP_GRACE_MS": str(int(GRACE * 1000)),
            "BRIDGE_DRAIN_MS": "0",
            "BRIDGE_AUTH": "none",  # faults of tokens are not the subject
            "BRIDGE_SANDBOX": "none",  # the agent keeps its ledger beside its workspace
            **self.env,
        }
        constants, env = taken(env)
        if not self.alone and not self.prefix and may_fork(env):
            home = self.root / "home"
            forked = await fork_server([], cwd=home, env=env, constants=constants)
            self.servers.append(BridgeProcess(forked))
            return self.server
        process = await asyncio.create_subprocess_exec(
            *self.prefix,
            *program_with(constants),
            *(["stdio"] if self.alone else []),
            cwd=self.root / "home",
            env=env,
            stdin=asyncio.subprocess.PIPE if self.alone else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if self.alone else None,
            stderr=asyncio.subprocess.PIPE,
            limit=2**26,
        )
        self.servers.append(BridgeProcess(process))
        if self.alone:
            self.reach.pipes = piped(Child(process))
        return self.server

    async def start(self) -> None:
        server = await self.spawn()
        if self.alone:
            await server.logged("serving the parent process")
        else:
            await server.listening()
        self.reach.url = server.url
        self.up.set()

    async def kill(self) -> None:
        """kill -9."""
        self.up.clear()
        if self.server.process.returncode is None:
            self.server.process.kill()
        await self.server.ended()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def stop(self) -> None:
        """An orderly end; then nothing may be left of this server or of those before it."""
        await self._check_zombies()
        self.up.clear()
        code = await self.leave()
        if code != 0:
            self.wrong.append(f"SIGTERM: exit status {code}")
        self._check_left()

    async def leave(self) -> int:
        """SIGTERM, or the end of stdin. Returns the exit status."""
        stdin = getattr(self.server.process, "stdin", None)
        if stdin is None:
            return await self.server.stop()
        stdin.close()
        return await self.server.ended()

    async def _check_zombies(self) -> None:
        deadline = time.monotonic() + 20
        while dead := ledger.zombies(self.server.process.pid):
            if time.monotonic() > deadline:
                self.wrong.append(f"zombies of the server: {dead}")
                return
            await asyncio.sleep(0.02)

    def _check_left(self) -> None:
        left = ledger.marked(self.marker)
        if left:
            self.wrong.append(f"processes left after the server's end: {left}")
        files = ledger.left_files(self.state, self.root / "tmp")
        if files:
            self.wrong.append(f"files left after the server's end: {files}")

    @property
    def marker(self) -> str:
        """The common beginning of the markers of all processes of this state."""
        identity = self.state / "id"
        return f"{identity.read_text().strip()}." if identity.exists() else "no server yet."

    def sweep(self) -> None:
        """Remove all files and processes, also after an error."""
        for server in self.servers:
            if server.process.returncode is None:
                server.process.kill()
        for pid in ledger.marked(self.marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # --- tasks ---------------------------------------------------------------------------------

    def run(self, steps: Steps, *ends: str, context: str | None = None, **options: Any) -> Run:
        """Send a prompt with these steps; a client streams it to its end, over all restarts."""
        number = len(self.runs)
        file = self.root / "ledgers" / f"{number}.jsonl"
        script = {"ledger": str(file), "seed": self.random.randrange(2**32), "steps": steps}
        script["rest"] = "x" * options.get("largest", 0)
        message_id = f"message-{self.random.getrandbits(64):016x}"
        run = Run(message_id, json.dumps(script), file, ends or ("completed",), context)
        run.largest = options.get("largest", 0)
        if not options.get("hold_answers"):
            run.may_answer.set()
        self.runs.append(run)
        self.watch(run, cuts=bool(options.get("cuts")))
        return run

    def watch(self, run: Run, cuts: bool = False) -> View:
        """One more client. `cuts`: it hangs up now and then."""
        view = View(f"client {len(run.views)} of {run.ledger_file.stem}")
        run.views.append(view)
        seed = self.random.randrange(2**32) if cuts else None
        run.watchers.append(asyncio.create_task(self._watch(run, view, seed)))
        return view

    async def _watch(self, run: Run, view: View, cut_seed: int | None) -> None:
        cutter = random.Random(cut_seed) if cut_seed is not None else None
        while not view.ended:
            await self.up.wait()
            limit = cutter.randrange(1, 30) if cutter else None
            try:
                await self._connect(run, view, limit)
            except RpcError as error:
                if error.code == -32004 and view.last is None:
                    return  # it has ended already
                if not may_repeat(error):
                    self.wrong.append(f"{view.name}: {error}")
                    return
                await asyncio.sleep(0.05)
            except GONE:
                await asyncio.sleep(0.005)  # until it is told that the server is gone

    async def _connect(self, run: Run, view: View, limit: int | None) -> None:
        """One connection, up to its end or for `limit` updates."""
        view.connections += 1
        if run.task_id and (view is not run.view or self.random.random() < 0.8):
            if view is not run.view or view.last is not None:
                method, params = "SubscribeToTask", {"id": run.task_id}
            else:
                method, params = "SendStreamingMessage", self._params(run)
        elif view is run.view:
            method, params = "SendStreamingMessage", self._params(run)
        else:
            await run.known.wait()
            return
        async with contextlib.aclosing(self._items(method, params, view.last)) as items:
            async for number, item in items:
                self._take(run, view, number, item)
                limit = limit - 1 if limit is not None else None
                if view.ended or limit == 0:
                    return

    def _items(self, method: str, params: Json, seen: int | None) -> Numbered:
        """A stream over a binding that the client chooses for this connection."""
        chosen = self.random.choice(self.bindings) if len(self.bindings) > 1 else self.bindings[0]
        return chosen(self.reach, method, params, seen)

    def _params(self, run: Run) -> Json:
        message: Json = {
            "messageId": run.message_id,
            "role": "ROLE_USER",
            "parts": [{"text": run.text}],
        }
        if run.into:
            message["contextId"] = run.into
        return {"message": message}

    def _take(self, run: Run, view: View, number: int, item: Json) -> None:
        if "task" in item:
            view.snapshots.append((number, item))
        else:
            view.updates.append((number, item))
        if view is not run.view:
            return
        if not run.task_id:
            run.task_id, run.context = client.task_id(item), client.context_id(item)
            run.known.set()
        elif run.task_id != client.task_id(item):
            self.wrong.append(f"{view.name}: sent again, it became another task")
        question = client.facts(item).get("questionId")
        if question and client.state(item) == "input-required" and question not in run.answers:
            more = self.random.choice((0, 10, run.largest // 10, run.largest))
            run.answers[question] = f"my answer {self.random.getrandbits(32):x}" + "x" * more
            run.watchers.append(asyncio.create_task(self._answer(run, question)))

    async def _answer(self, run: Run, question: str) -> None:
        """The same message until it is taken."""
        await run.may_answer.wait()
        message = {
            "messageId": f"answer-{self.random.getrandbits(64):016x}",
            "role": "ROLE_USER",
            "taskId": run.task_id,
            "parts": [{"text": run.answers[question]}],
        }
        params = {"message": message, "configuration": {"returnImmediately": True}}
        try:
            await self.call("SendMessage", params)
        except RpcError as error:
            if not await self._is_over(run):
                self.wrong.append(f"an answer was refused: {error}")

    async def _is_over(self, run: Run) -> bool:
        return client.state(await self.call("GetTask", {"id": run.task_id})) in ledger.TERMINAL

    async def call(self, method: str, params: Json) -> Json:
        """The result of `method`, attempted until a server answers. Raises RpcError."""
        while True:
            await self.up.wait()
            try:
                return await self.reach.call(method, params)
            except GONE:
                await asyncio.sleep(0.005)
            except RpcError as error:
                if not may_repeat(error):
                    raise
                await asyncio.sleep(0.05)

    async def cancel(self, run: Run) -> None:
        """Cancel, and see that its processes go in time."""
        await run.known.wait()
        began = time.monotonic()
        try:
            await self.call("CancelTask", {"id": run.task_id})
        except RpcError:  # it had ended, and its CLI waits for the next message
            return
        self.measured("cancel: reply", time.monotonic() - began)
        pids = [pid for pid, _ in run.ledger.pids]
        markers = {mark for pid in pids if (mark := _marker_of(pid))}
        while alive := [mark for mark in markers if ledger.marked(mark)]:
            if time.monotonic() - began > GONE_WITHIN:
                left = [ledger.marked(mark) for mark in alive]
                self.wrong.append(f"alive {GONE_WITHIN:g} s after the cancel: {left}")
                return
            await asyncio.sleep(0.01)
        self.measured("cancel: tree gone", time.monotonic() - began)

    def measured(self, name: str, seconds: float) -> None:
        self.timings.setdefault(name, []).append(seconds)

    # --- the end -------------------------------------------------------------------------------

    async def finish(self) -> None:
        """All tasks end, and their state equals the updates of all clients."""
        for run in self.runs:
            for watcher in run.watchers:
                await watcher
        for run in self.runs:
            await self._check(run)
        await self.stop()
        tasks = {run.task_id: (run.ledger, run.killed) for run in self.runs}
        url = self.env.get("BRIDGE_STORE")
        if url:
            self.wrong += ledger.check_database(url, tasks)
        else:
            self.wrong += ledger.check_store(self.state, tasks)

    async def _check(self, run: Run) -> None:
        whole = View("all")
        while not whole.ended:  # from the very beginning
            await self._replay(run, whole)
        task = await self.call("GetTask", {"id": run.task_id})
        state = client.state(task)
        wrong = ledger.check_reference(whole.updates, task)
        for view in run.views:
            wrong += ledger.check_view(view, whole.updates)
        if state not in run.ends:
            wrong.append(f"{state} ({client.said(task)}), not {' or '.join(run.ends)}")
        found = ledger.heard(item for _, item in whole.updates)
        reason = task.get("metadata", {}).get("bridge", {}).get("reason")
        judged = "canceled" if state == "failed" and reason not in (None, "exit") else state
        wrong += ledger.check_said(found, run.ledger, judged, run.killed)
        wrong += ledger.check_told(run.ledger, run.task_id, run.answers)
        self.wrong += [f"task {run.ledger_file.stem} ({run.task_id}): {one}" for one in wrong]

    async def _replay(self, run: Run, whole: View) -> None:
        seen, params = whole.last or 0, {"id": run.task_id}
        read = over_pipes if self.alone else over_sse
        items = read(self.reach, "SubscribeToTask", params, seen)
        async with contextlib.aclosing(items):
            async for number, item in items:
                whole.updates.append((number, item))


def _marker_of(pid: int) -> str | None:
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    name = ledger.MARKER.encode() + b"="
    return next((line[len(name) :].decode() for line in lines if line.startswith(name)), None)


# --- scenarios -----------------------------------------------------------------------------------

Play = Callable[[World], Awaitable[int]]
"""Does it, and returns how many faults there were."""


@dataclass(frozen=True)
class Scenario:
    fault: str
    what: str
    play: Play
    weight: int = 1


SCENARIOS: list[Scenario] = []


def scenario(fault: str, what: str, weight: int = 1) -> Callable[[Play], Play]:
    def add(play: Play) -> Play:
        SCENARIOS.append(Scenario(fault, what, play, weight))
        return play

    return add


async def said_so_much(run: Run, count: int) -> None:
    """Until the CLI's ledger has so many things."""
    await until(lambda: len(run.ledger.said) >= count)


async def until(true: Callable[[], object], pause: float = 0.005) -> None:
    """Poll the state of other processes, for which there is no event."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(pause)


def streaming(chance: random.Random) -> Steps:
    """Some texts at some pace: a few tenths of a second up to two seconds."""
    count = chance.randrange(20, 400)
    return [["text", count, chance.choice((0.5, 2, 5)), chance.choice((5, 40, 2000))]]


@scenario("F1", "the CLI ends or is killed at a random event, also within a line")
async def cli_dies(world: World) -> int:
    await world.start()
    chance = world.random
    for _ in range(3):
        last = chance.choice((["kill"], ["killgroup"], ["exit", 3], ["exit", 0]))
        part = [["piece", '{"type":"text","te']] if chance.random() < 0.5 else []
        world.run([["text", chance.randrange(60), 0, 20], *part, last], "failed")
    victim = world.run([["text", 2000, 1, 20]], "failed")
    victim.killed = True
    await said_so_much(victim, chance.randrange(1, 300))
    os.kill(victim.ledger.pids[0][0], signal.SIGKILL)
    began = time.monotonic()
    await victim.watchers[0]
    world.measured("CLI killed: task failed", time.monotonic() - began)
    await world.finish()
    return 4


@scenario("F2", "the CLI ignores SIGTERM, or has stopped itself, and is canceled", weight=4)
async def cancel_deaf(world: World) -> int:
    await world.start()
    chance = world.random
    endings: list[Steps] = [
        [["deaf"], ["silence"]],
        [["stop"], ["silence"]],
        [["deaf"], ["stop"], ["silence"]],
        [["deaf"], ["text", 5000, 1, 20]],
        [["text", 5000, 1, 20]],
        [["ask", "q"]],
    ]
    chosen = [chance.choice(endings) for _ in range(6)]
    runs = [world.run([*streaming(chance)[:1], *one], "canceled", "completed") for one in chosen]

    async def one(run: Run) -> None:
        run.may_answer.clear()
        await run.known.wait()
        await asyncio.sleep(chance.random() * 0.4)
        await world.cancel(run)
        run.may_answer.set()  # too late

    await asyncio.gather(*map(one, runs))
    await world.finish()
    return len(runs)


@scenario("F2", "a cancel at the very end of a turn: canceled or completed, never both", weight=2)
async def cancel_races(world: World) -> int:
    await world.start()
    chance = world.random
    runs = [world.run([["text", 30, 1, 20]], "canceled", "completed") for _ in range(8)]

    async def one(run: Run) -> None:
        await said_so_much(run, chance.randrange(1, 31))
        await world.cancel(run)

    await asyncio.gather(*map(one, runs))
    await world.finish()
    return len(runs)


@scenario("F3", "the CLI is silent; stays after its turn; exits in the middle of a line")
async def silence(world: World) -> int:
    world.env["AGENT_IDLE_EXIT_MS"] = "700"
    await world.start()
    world.run([["text", 3], ["silence"]], "failed")
    world.run([["silence"]], "failed")
    world.run([["deaf"], ["text", 20]])
    world.run([["text", 3], ["piece", '{"type":"text"'], ["exit", 0]], "failed")
    world.run([["text", 3], ["end", "nothing"]], "failed")
    await world.finish()
    return 5


KINDS = ("group", "own-group", "session", "daemon", "nohup", "talks")


@scenario("F4", "children that ignore SIGTERM, of all kinds; a cancel, an end, a kill", weight=2)
async def children(world: World) -> int:
    await world.start()
    chance = world.random
    born = [["child", kind] for kind in chance.sample(KINDS, chance.randrange(1, 7))]
    late = [["late"]] if chance.random() < 0.5 else []
    canceled = world.run([*born, *late, ["text", 5], ["silence"]], "canceled")
    talks: Steps = [*born, ["text", 5, 20, 20], ["text", 500, 5, 20], ["silence"]]
    again = world.run(talks, "canceled")
    world.run([*born, ["text", 5]])
    world.run([*born, ["text", 5], ["kill"]], "failed")
    for run in (canceled, again):
        await said_so_much(run, 5)
    if chance.random() < 0.5:
        await world.restart()
    await asyncio.gather(world.cancel(canceled), world.cancel(again))
    await world.finish()
    return 4


AWKWARD = (
    "plain words",
    "\xff\xfe invalid UTF-8 \xc3",
    "\xed\xa0\x80 a surrogate",
    "\xef\xbb\xbfa byte order mark",
    "a NUL \x00 inside",
    '{"type":"text","text":"not closed',
    '{"type":"text","text":NaN}',
    "[1, 2, 3]",
    "null",
    '"text"',
    "carriage\rreturn\r",
    "\xe2\x80\xa8 U+2028",
    "[" * 3000,
    "9" * 5000,
)


@scenario("F5", "stdout: long lines, no JSON, invalid UTF-8, a byte at a time, floods, no newline")
async def awkward(world: World) -> int:
    world.env["BRIDGE_MAX_LINE_BYTES"] = str(1024 * 1024)
    await world.start()
    chance = world.random
    mixed: Steps = []
    for line in chance.sample(AWKWARD, 8):
        mixed += [["raw", line], ["text", chance.randrange(3)]]
    world.run(mixed)
    long = chance.choice((1024 * 1024 + 1, 5 * 1024 * 1024, 40 * 1024 * 1024))
    world.run([["text", 2], ["long", long], ["text", 2]])
    world.run([["drip", 2], ["drip", 1]])
    world.run([["flood", 20000]], cuts=True)
    world.run([["text", 2], ["piece", chance.choice(AWKWARD)], ["exit", 0]], "failed")
    await world.finish()
    return 5


@scenario("F5", "stdout opened a second time (/dev/stdout), to append")
async def second_descriptor(world: World) -> int:
    await world.start()
    world.run([["text", 5], ["reopen", "a"], ["text", 300, 10, 20]])
    world.run([["text", 30, 1, 20], ["reopen", "a"], ["text", 30, 10, 20]])
    await world.finish()
    return 2


@scenario("F6", "stderr: floods before, during and instead of an answer")
async def stderr_floods(world: World) -> int:
    await world.start()
    size = world.random.choice((1, 20, 100)) * 1024 * 1024
    world.run([["stderr", size], ["text", 50], ["stderr", size], ["text", 50]])
    world.run([["stderr", size], ["exit", 1]], "failed")
    world.run([["close", 2], ["text", 50]])
    await world.finish()
    return 3


@scenario("F7", "stdin: closed, never read, a question whose answer is never read; stdout closed")
async def stdin_trouble(world: World) -> int:
    await world.start()
    world.run([["close", 0], ["text", 50]], "completed", "failed")
    deaf = world.run([["text", 5], ["unread", "q"], ["silence"]], "canceled")
    world.run([["text", 5], ["close", 1], ["silence"]], "failed")
    await said_so_much(deaf, 5)
    await until(lambda: deaf.answers)
    await world.cancel(deaf)
    await world.finish()
    return 3


@scenario("F8", "clients: 12 at once that hang up at random, and one from every possible id")
async def fickle_clients(world: World) -> int:
    await world.start()
    chance = world.random
    run = world.run([["text", 150, 3, 30], ["ask", "q"], ["text", 100, 1, 30]], cuts=True)
    await run.known.wait()
    for _ in range(12):
        world.watch(run, cuts=chance.random() < 0.8)
        await asyncio.sleep(chance.random() * 0.1)
    await run.watchers[0]
    whole = View("all")
    while not whole.ended:
        await world._replay(run, whole)
    for number in range(len(whole.updates)):
        one = View(f"from {number}", snapshots=[])
        one.updates = whole.updates[:number]
        await world._replay(run, one)
        world.wrong += ledger.check_view(one, whole.updates)
    await world.finish()
    return 12 + len(whole.updates)


# --- the server is killed ------------------------------------------------------------------------


async def kill_now_and_then(world: World, times: int, within: float) -> int:
    for _ in range(times):
        await asyncio.sleep(world.random.random() * within)
        await world.restart()
    return times


@scenario("F9", "kill -9 of the server while tasks stream; restart on the same state", weight=8)
async def kill_streaming(world: World) -> int:
    await world.start()
    chance = world.random
    for _ in range(3):
        world.run([*streaming(chance), *streaming(chance)], cuts=chance.random() < 0.3)
    died = chance.choice((["kill"], ["exit", 3], ["killgroup"]))
    world.run([*streaming(chance), died], "failed")
    for run in world.runs:
        world.watch(run)
    for run in world.runs:  # so that the first kill meets streams on a slow machine, too
        await run.known.wait()
    kills = await kill_now_and_then(world, chance.randrange(1, 5), 0.8)
    await world.finish()
    return kills


@scenario("F9", "kill -9 between a send and its first event; sent again with its id", weight=3)
async def kill_sending(world: World) -> int:
    await world.start()
    chance = world.random
    kills = 0
    for _ in range(3):
        for _ in range(2):
            world.run([["text", chance.randrange(30), 1, 20]])
        await asyncio.sleep(chance.random() * chance.choice((0.01, 0.1)))
        await world.restart()
        kills += 1
    await world.finish()
    return kills


@scenario("F9", "kill -9 with questions open, and while they are answered", weight=4)
async def kill_asking(world: World) -> int:
    await world.start()
    chance, rounds = world.random, 5
    steps: Steps = []
    for number in range(4 * rounds):
        steps += [["text", 5, 1, 20], ["ask", str(number)]]
    runs = [world.run([*steps, ["text", 5]], hold_answers=True) for _ in range(3)]
    for run in runs:
        await run.known.wait()
    for _ in range(rounds):
        for run in runs:
            if chance.random() < 0.7:
                await until(lambda: _is_asked(run) or run.view.ended)  # noqa: B023
        await world.restart()
        for run in runs:
            run.may_answer.set()
            await asyncio.sleep(chance.random() * 0.05)
        for run in runs:
            run.may_answer.clear()
        await world.restart()
    for run in runs:
        run.may_answer.set()
    await world.finish()
    return 2 * rounds


def _is_asked(run: Run) -> bool:
    """Whether the CLI waits for an answer. A whole ledger would take long to read each time."""
    known = run.ledger_file.read_bytes() if run.ledger_file.exists() else b""
    return len(run.answers) > known.count(b'{"kind": "answer"')


@scenario("F9", "kill -9 while a long prompt and long answers are written to stdin", weight=2)
async def kill_writing(world: World) -> int:
    await world.start()
    chance, kills = world.random, 20
    steps: Steps = [["ask", str(number)] for number in range(3 * kills)]
    run = world.run(steps, largest=100_000)
    for _ in range(kills):
        await until(lambda: run.view.ended or _is_writing(world), pause=0.0005)
        await asyncio.sleep(chance.random() * 0.01)
        await world.restart()
    await world.finish()
    return kills


def _is_writing(world: World) -> bool:
    """Whether some CLI has input that it has not read. From the first call on, its pipe holds one
    page, so that an input takes many writes."""
    for fifo in world.state.glob("sessions/*/in"):
        fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
            if int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder):
                return True
        except OSError:  # its present content is larger than a page
            return True
        finally:
            os.close(fd)
    return False


@scenario("F9", "kill -9, then the CLI ends without a server; its children live on")
async def dies_unwatched(world: World) -> int:
    await world.start()
    chance = world.random
    born = [["child", kind] for kind in chance.sample(KINDS, chance.randrange(4))]
    runs = [world.run([*born, ["text", 60, 5, 20], ["kill"]], "failed")]
    runs.append(world.run([*born, ["text", 60, 5, 20]]))
    for run in runs:
        await said_so_much(run, chance.randrange(5, 40))
    await world.kill()
    await until(lambda: _stat(runs[0].ledger.pids[0][0])[0] in "Z" and runs[1].ledger.end)
    await world.start()
    began = time.monotonic()
    try:
        async with asyncio.timeout(ENDS_WITHIN):
            await asyncio.gather(*(run.watchers[0] for run in runs))
    except TimeoutError:
        states = [(run.view.state, run.view.last) for run in runs]
        world.wrong.append(f"{ENDS_WITHIN:g} s after the restart ({born}): {states}")
        return 1
    world.measured("restart: a task whose CLI had died ends", time.monotonic() - began)
    await world.finish()
    return 1


@scenario("F9", "kill -9 of server and launcher: the task fails, and its CLI ends")
async def kill_both(world: World) -> int:
    await world.start()
    last = world.random.choice(([["silence"]], [["text", 3000, 1, 20]]))
    run = world.run([["text", 30, 1, 20], ["child", "session"], *last], "failed")
    run.killed = True  # its stdout has no reader for a while
    await said_so_much(run, 30)
    await until(lambda: len(run.ledger.pids) == 2)
    launcher = int(_stat(run.ledger.pids[0][0])[1])
    await world.kill()
    os.kill(launcher, signal.SIGKILL)
    await world.start()
    try:
        async with asyncio.timeout(ENDS_WITHIN + GONE_WITHIN):
            await run.watchers[0]
            await until(lambda: not ledger.marked(world.marker))
    except TimeoutError:
        left = ledger.marked(world.marker)
        world.wrong.append(f"the task is {run.view.state}, and its CLI lives on: {left}")
    await world.finish()
    return 1


@scenario("F9", "kill -9 during cancels; a cancel that was answered stays one", weight=4)
async def kill_canceling(world: World) -> int:
    await world.start()
    chance = world.random
    kinds: list[Steps] = [[["deaf"]], [["child", "session"]], [["child", "daemon"], ["deaf"]], []]
    longer = ["text", 60_000, 1, 20]  # than a restart takes, and a cancel after it
    runs = [world.run([*chance.choice(kinds), longer], "canceled") for _ in range(3)]
    for run in runs:
        await said_so_much(run, chance.randrange(1, 50))
    cancels = [asyncio.create_task(_cancel_over_restarts(world, run)) for run in runs]
    await asyncio.sleep(chance.random() * chance.choice((0.005, 0.05, 1.2)))
    await world.restart()
    await asyncio.gather(*cancels)
    deadline = time.monotonic() + GONE_WITHIN
    while left := ledger.marked(world.marker):
        if time.monotonic() > deadline:
            world.wrong.append(f"alive after a cancel and a restart: {left}")
            break
        await asyncio.sleep(0.02)
    await world.finish()
    return 1


async def _cancel_over_restarts(world: World, run: Run) -> None:
    await run.known.wait()
    with contextlib.suppress(RpcError):  # canceled before the first reply got lost
        await world.call("CancelTask", {"id": run.task_id})


@scenario("F9", "kill -9 of a server that is just starting, several times over", weight=3)
async def kill_starting(world: World) -> int:
    await world.start()
    chance = world.random
    world.run([["text", 300, 5, 20]])
    world.run([["text", 50, 1, 20], ["ask", "q"], ["text", 50]])
    asked = world.run([["text", 20, 1, 20], ["child", "session"], ["kill"]], "failed")
    await asked.known.wait()
    await asyncio.sleep(chance.random() * 0.2)
    kills = chance.randrange(2, 6)
    for _ in range(kills):
        await world.kill()
        await world.spawn()
        await asyncio.sleep(chance.random() * 0.9)
    await world.restart()
    await world.finish()
    return kills + 1


@scenario("F9", "kill -9 with several tasks of one conversation, one behind the other", weight=2)
async def kill_queue(world: World) -> int:
    await world.start()
    chance = world.random
    first = world.run([["text", 100, 2, 20]])
    await first.known.wait()
    for _ in range(3):
        world.run([["text", chance.randrange(60), 2, 20]], context=first.context)
    kills = await kill_now_and_then(world, 3, 0.5)
    await world.finish()
    return kills


@scenario("F9", "SIGTERM with BRIDGE_ON_STOP=keep, then a new server", weight=1)
async def hand_over(world: World) -> int:
    world.env["BRIDGE_ON_STOP"] = "keep"
    await world.start()
    for _ in range(3):
        world.run([["text", 800, 2, 20], ["ask", "q"], ["text", 5]])
    for _ in range(2):
        await asyncio.sleep(world.random.random() * 0.5)
        world.up.clear()
        if await world.leave() != 0:
            world.wrong.append("SIGTERM: no exit status 0")
        await world.start()
    await world.finish()
    return 2


# --- the machine ---------------------------------------------------------------------------------


@scenario("F11", "the disk is full for a while (a tmpfs of 24 MiB), then has room again")
async def disk_full(world: World) -> int:
    disk = world.root / "disk"
    disk.mkdir()
    if _run("mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "chaos", str(disk)) != 0:
        raise Skip("a tmpfs cannot be mounted here")
    try:
        world.state = disk / "state"
        await world.start()
        run = world.run([["text", 400, 3, 20], ["ask", "q"], ["text", 50]])
        await said_so_much(run, 50)
        _fill(disk / "ballast")
        await asyncio.sleep(0.3 + world.random.random())  # the time without room is the fault
        refused = await _refused(world)
        (disk / "ballast").unlink()
        if not refused:
            world.wrong.append("a message was taken while nothing could be written down")
        await run.watchers[0]
        await world.finish()
    finally:
        world.sweep()
        _run("umount", "-l", str(disk))
    return 1


async def _refused(world: World) -> bool:
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": {"messageId": "x", "role": "ROLE_USER", "parts": [{"text": "{}"}]}},
    }
    url = f"{world.server.url}/a2a/jsonrpc"
    async with world.http.post(url, json=body, headers={"A2A-Version": "1.0"}) as response:
        return "error" in await response.json()


def _fill(file: Path) -> None:
    with open(file, "wb", buffering=0) as ballast:
        for size in (65536, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while ballast.write(b"x" * size) == size:
                    pass


def _run(*argv: str) -> int:
    return subprocess.run(argv, check=False, capture_output=True).returncode


@scenario("F12", "the store is locked by another process, or damaged, when the server starts")
async def bad_store(world: World) -> int:
    await world.start()
    world.run([["text", 300, 0, 200]])
    await world.finish()
    runs, world.runs = world.runs, []
    file = world.state / "tasks.db"
    database = sqlite3.connect(file)
    database.execute("BEGIN EXCLUSIVE")
    locked = await world.spawn()
    code = await locked.ended()
    database.close()
    if code in (0, None) or "locked" not in locked.log or "Traceback" in locked.log:
        world.wrong.append(f"a locked store: status {code}, {locked.log[-300:]!r}")
    where = world.random.choice(("header", "page", "middle", "empty"))
    _damage(file, where, world.random)
    try:
        await world.start()
    except AssertionError:
        world.wrong.append(f"damaged ({where}): does not start: {world.server.log[-400:]!r}")
        return 2
    task = {"id": runs[0].task_id}
    with contextlib.suppress(RpcError):  # it may be gone
        await world.call("GetTask", task)
    run = world.run([["text", 20]])
    await run.watchers[0]
    if not run.view.ended:
        world.wrong.append(f"damaged ({where}): nothing can be done any more")
    await world.server.stop()
    return 2


def _damage(file: Path, where: str, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    start = {"header": 0, "page": 4096, "middle": 4096 * (len(data) // 8192), "empty": 0}[where]
    data[start : start + 3000] = chance.randbytes(3000)
    file.write_bytes(b"" if where == "empty" else data)


@scenario("F15", "the clock jumps a day ahead and back (libfaketime)")
async def clock_jumps(world: World) -> int:
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    if not found:
        raise Skip("libfaketime is not installed")
    clock = world.root / "clock"
    clock.write_text("+0")
    world.env |= {
        "LD_PRELOAD": found[0],
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    await world.start()
    run = world.run([["text", 300, 3, 20], ["ask", "q"], ["text", 50, 3, 20]], cuts=True)
    for jump in ("+1d", "-1d", "+1h", "-1h"):
        await said_so_much(run, world.random.randrange(1, 200))
        clock.write_text(jump)
    await run.watchers[0]
    del world.env["LD_PRELOAD"]  # the next server has the right time
    await world.restart()
    await world.finish()
    return 4


@scenario("F16", "no file descriptors left (ulimit -n 64); clients hold all of them for a while")
async def no_descriptors(world: World) -> int:
    world.prefix = ("/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    world.env["BRIDGE_MAX_SESSIONS"] = "30"
    await world.start()
    dying = [world.run([["text", 60, 10, 20], ["kill"]], "failed") for _ in range(2)]
    for run in dying:
        await said_so_much(run, 5)
    address = world.server.url.removeprefix("http://").split(":")
    held = [await asyncio.open_connection(address[0], int(address[1])) for _ in range(60)]
    await asyncio.gather(*(said_so_much(run, 60) for run in dying))
    await asyncio.sleep(0.5)  # the time without descriptors is the fault
    for _, writer in held:
        writer.close()
    try:
        async with asyncio.timeout(10):
            await asyncio.gather(*(run.watchers[0] for run in dying))
    except TimeoutError:
        states = [run.view.state for run in dying]
        world.wrong.append(f"CLIs that ended while there were no descriptors: {states} for ever")
        return 1
    many = [world.run([["text", 5, 50, 20]], "completed", "failed") for _ in range(25)]
    await asyncio.gather(*(run.watchers[0] for run in many))
    await world.finish()
    return 2


@scenario("F18", "another process has the pid of a CLI that ended without a server")
async def pid_reuse(world: World) -> int:
    await world.start()
    run = world.run([["text", 200, 1, 20], ["kill"]], "failed")
    await said_so_much(run, 20)
    await world.kill()
    pid = run.ledger.pids[0][0]
    await until(lambda: not os.path.exists(f"/proc/{pid}"))
    strangers = _take_pid(pid)
    try:
        await world.start()
        await world.finish()
        dead = [one.pid for one in strangers if one.poll() is not None]
        if dead:
            world.wrong.append(f"strangers were killed: {dead}")
    finally:
        for one in strangers:
            one.kill()
            one.wait()
    return 1


def _stat(pid: int) -> list[str]:
    """The state of a process and its parent; empty ones if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", ""]


def _take_pid(pid: int) -> list[subprocess.Popen[bytes]]:
    """A process in a session of its own with this pid, by the kernel's counter where it may be
    set; otherwise one with another pid, which is the weaker test."""
    with contextlib.suppress(OSError):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    return [subprocess.Popen(["sleep", "60"], start_new_session=True)]


@scenario(
    "F20", "the CLI's file is missing, a folder, not executable, or is removed during the run"
)
async def no_program(world: World) -> int:
    program = world.root / "program"
    kind = world.random.choice(("missing", "folder", "not executable", "bad interpreter"))
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {PROGRAM} "$@"\n')
    program.chmod(0o700)
    world.env |= {"AGENT_BINARY": str(program), "AGENT_ARGS": ""}
    await world.start()
    good = world.run([["text", 100, 2, 20]])
    await said_so_much(good, 1)
    program.unlink()
    match kind:
        case "folder":
            program.mkdir()
        case "not executable":
            program.write_text("#!/bin/sh\n")
        case "bad interpreter":
            program.write_text("#!/no/such/program\n")
            program.chmod(0o700)
    began = time.monotonic()
    bad = world.run([["text", 5]], "failed")
    await bad.watchers[0]
    world.measured("no such CLI: task failed", time.monotonic() - began)
    await world.finish()
    return 1


# --- running them --------------------------------------------------------------------------------


@dataclass
class Row:
    """The results of the runs of a scenario."""

    runs: int = 0
    faults: int = 0
    violations: list[str] = field(default_factory=list)
    skipped: str = ""


@dataclass
class Outcome:
    rows: dict[str, Row] = field(default_factory=dict)
    timings: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        return [one for row in self.rows.values() for one in row.violations]


@asynccontextmanager
async def making(
    seed: int, keep: list[Path], bindings: Sequence[str] = SSE
) -> AsyncIterator[World]:
    """A world that leaves nothing behind; its folder only if something was wrong with it."""
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    timeout = ClientTimeout(total=None, sock_connect=5, sock_read=30)
    async with (
        ClientSession(timeout=timeout, read_bufsize=2**25) as http,
        contextlib.AsyncExitStack() as stack,
    ):
        world = World(root, seed, http, bindings)
        if bindings not in (SSE, STDIO):
            world.env |= await stack.enter_async_context(offered(root, bindings, world.reach))
        try:
            yield world
        finally:
            watchers = [watcher for run in world.runs for watcher in run.watchers]
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            world.sweep()
            for server in world.servers:
                await server.ended()
    if world.wrong:
        for number, server in enumerate(world.servers):
            (root / f"server-{number}.log").write_text(server.log)
        keep.append(root)
    else:
        shutil.rmtree(root, ignore_errors=True)


async def play(
    one: Scenario,
    seed: int,
    outcome: Outcome,
    env: Mapping[str, str] | None = None,
    bindings: Sequence[str] = SSE,
) -> None:
    """One run; an error is printed with all data for its repetition. `env`: further settings of the
    servers. `bindings`: those of which each connection of a client chooses one; STDIO: the servers
    do not listen."""
    row = outcome.rows.setdefault(f"{one.fault} {one.what}", Row())
    kept: list[Path] = []
    wrong: list[str] = []
    async with making(seed, kept, bindings) as world:
        world.env |= env or {}
        try:
            async with asyncio.timeout(RUN_WITHIN):
                faults = await one.play(world)
                row.faults += faults  # not in one: another run may have added its own meanwhile
        except Skip as skip:
            row.skipped = str(skip)
            row.runs -= 1
        except TimeoutError:
            states = [(run.ledger_file.stem, run.view.state, run.view.last) for run in world.runs]
            world.wrong.append(f"not over after {RUN_WITHIN:g} s; tasks: {states}")
        except (Exception, AssertionError) as error:
            world.wrong.append(f"{type(error).__name__}: {error}")
        wrong = world.wrong
        for name, seconds in world.timings.items():
            outcome.timings.setdefault(name, []).extend(seconds)
    row.runs += 1
    name = one.play.__name__
    for text in wrong:
        row.violations.append(f"{one.fault} {name} seed {seed}: {text} [{kept[0]}]")
        print(f"VIOLATION {row.violations[-1]}", file=sys.stderr, flush=True)


async def run_all(
    chosen: Sequence[Scenario], seed: int, seconds: float, workers: int = 2, faults: int = 0
) -> Outcome:
    """Each scenario by its weight, over and over for `seconds`, but each at least once. With
    `faults`, until all together have injected so many; then each run costs little: its clients use
    HTTP, and its servers are forked."""
    outcome = Outcome()
    order = [one for one in chosen for _ in range(one.weight)]
    began = time.monotonic()
    numbers = iter(range(10**9))

    async def work() -> None:
        for number in numbers:
            over = time.monotonic() - began > seconds
            if faults:
                done = sum(row.faults for row in outcome.rows.values())
                print(f"{done} faults", file=sys.stderr, flush=True)
                over = done >= faults
            if number >= len(order) and over:
                return
            one = order[number % len(order)]
            bindings = SSE if faults else bindings_of(one, number)
            await play(one, seed + number, outcome, bindings=bindings)

    random.Random(seed).shuffle(order)
    await asyncio.gather(*(work() for _ in range(workers)))
    outcome.seconds = time.monotonic() - began
    return outcome


def bindings_of(one: Scenario, number: int) -> Sequence[str]:
    """Those of a run: faults of clients and of the server concern all of them. In each fourth run
    the server does not listen."""
    if one.fault not in OVER_ALL:
        return SSE
    return LISTENING if number % 4 else STDIO


def table(outcome: Outcome) -> str:
    """As Markdown. The bound: of all runs like these, with 95 % confidence fewer go wrong."""
    lines = [
        "| fault | description | runs | faults | violations | at most (95 %) |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, row in sorted(outcome.rows.items(), key=_by_number):
        fault, _, what = name.partition(" ")
        if not row.runs:
            lines.append(f"| {fault} | {what} | skipped: {row.skipped} | | | |")
            continue
        bad = len({one.partition(":")[0] for one in row.violations})
        bound = f"{min(1.0, 3 / row.runs):.1%}" if not bad else ""
        lines.append(f"| {fault} | {what} | {row.runs} | {row.faults} | {bad} | {bound} |")
    lines += ["", "| measured | times | median | 99 % | longest |", "|---|---:|---:|---:|---:|"]
    for name, seconds in sorted(outcome.timings.items()):
        ordered = sorted(seconds)
        at = [ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99, 1)]
        shown = " | ".join(f"{one * 1000:.0f} ms" for one in at)
        lines.append(f"| {name} | {len(ordered)} | {shown} |")
    return "\n".join(lines) + "\n"


def _by_number(item: tuple[str, Row]) -> tuple[int, str]:
    return int(item[0].split()[0][1:]), item[0]


def facts(command: str, outcome: Outcome) -> str:
    """Where and how the table came about."""
    return f"`{command}`, {outcome.seconds:.0f} s on {machine()}.\n\n"


def machine() -> str:
    return f"{os.cpu_count()} cores, Linux {platform.release()}, Python {sys.version.split()[0]}"


def write_report(block: str, text: str) -> None:
    """Put it between the marks of docs/evidence/reliability.md."""
    begin, end = f"<!-- {block} -->\n", f"<!-- /{block} -->"
    before, _, rest = REPORT.read_text("utf-8").partition(begin)
    after = rest.partition(end)[2]
    REPORT.write_text(f"{before}{begin}{text}{end}{after}", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=(__doc__ or "").strip())
    parser.add_argument("--seconds", type=float, default=120.0, help="how long (120)")
    parser.add_argument("--kills", type=int, default=0, help="until so many faults, over HTTP")
    parser.add_argument("--only", default="", help="faults (F9) or scenarios, by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="worlds at once (2)")
    parser.add_argument("--write", action="store_true", help="into docs/evidence/reliability.md")
    parser.add_argument("--load", action="store_true", help="no faults, but many agents")
    given = parser.parse_args()
    command = " ".join(["scripts/chaos", *(a for a in sys.argv[1:] if a != "--write")])
    if given.load:
        text = f"`{command}`, {machine()}.\n\n{asyncio.run(load.table())}\n"
        print(text)
        if given.write:
            write_report(LOAD, text)
        return 0
    wanted = set(filter(None, given.only.split(",")))
    chosen = [s for s in SCENARIOS if not wanted or {s.fault, s.play.__name__} & wanted]
    if not chosen:
        parser.error(f"there is no {given.only}")
    outcome = asyncio.run(run_all(chosen, given.seed, given.seconds, given.workers, given.kills))
    text = facts(command, outcome) + table(outcome)
    print(text)
    if given.write:
        write_report(CHAOS, text)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
