"""The common parts of the commands: settings, the connection, the output, and interrupts."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from bridge.cli.client.folding import message, width_of
from bridge.cli.client.output import JsonOutput, Output, QuietOutput, TextOutput
from bridge.cli.client.parser import PROGRAM
from bridge.client import config
from bridge.client.agent import RemoteAgent, Target, connect
from bridge.client.credentials import CredentialStore
from bridge.client.failure import TIMEOUT, ClientError
from bridge.client.follow import PATIENCE, Follower
from bridge.client.local_server import LocalServer, covering, running
from bridge.client.questions import question_of
from bridge.client.shapes import INTERRUPTED, TERMINAL, Json, state_of
from bridge.client.short_ids import whole_id
from bridge.errors.program import command

EXIT_STATES = {
    "TASK_STATE_FAILED": 10,
    "TASK_STATE_INPUT_REQUIRED": 11,
    "TASK_STATE_AUTH_REQUIRED": 11,
    "TASK_STATE_CANCELED": 12,
    "TASK_STATE_REJECTED": 13,
}
CANCELS_WITHIN = 5.0  # seconds that an interrupted command waits for the end of the task


class CommandSession:
    """One run of a command. `options` is the command line, `settings` all values with sources.
    `follower`: the task that the command follows now. `owns`: the command began the task, so that
    an interrupt cancels it. `on_interrupt`: called for SIGINT instead of that. `notice`: shows a
    line of diagnostics. `message_id`: of the message that a repetition of the command resumes, if
    the server recognises repetitions."""

    def __init__(
        self,
        options: argparse.Namespace,
        start_server: Callable[[str], Coroutine[Any, Any, LocalServer]],
    ) -> None:
        """`start_server` starts one for a directory. Raises ClientError."""
        self.options = options
        self._start_server = start_server
        self.settings = config.resolve(vars(options), options.config)
        self.follower: Follower | None = None
        self.owns = False
        self.message_id: str | None = None
        self.signal: int | None = None
        self.on_interrupt: Callable[[], None] | None = None
        self.notice: Callable[[str], None] = trace
        self._deaf = False
        self._work: asyncio.Task[int] | None = None

    def value(self, name: str) -> Any:
        return self.settings[name].value

    @property
    def json(self) -> bool:
        return bool(self.value("output") == "json")

    @property
    def stream(self) -> bool:
        return bool(self.options.stream)

    @property
    def waits(self) -> bool:
        """Whether the command waits for the end of the task. A flag has precedence."""
        if self.settings["wait"].source == "flag" and self.settings["async"].source != "flag":
            return True
        return not self.value("async")

    def output(self, *, bare: bool = False, directory: str | None = None) -> Output:
        """The output that the options choose. `bare`: a document is the task itself."""
        if self.json:
            return JsonOutput(self.stream, bare)
        if getattr(self.options, "quiet", False):
            return QuietOutput(self.stream)
        return TextOutput(self.stream, self.value("verbose"), directory)

    # --- the agent ------------------------------------------------------------------------------

    def target(self) -> Target:
        card, given = self.value("agent_card"), ("bearer", "api_key")
        sources = [f"{n} ({self.settings[n].source})" for n in given if self.value(n)]
        return Target(
            reference=card,
            cwd=os.getcwd(),
            servers=running(config.description_files(card)),
            store=CredentialStore(config.credentials_file()),
            bearer=self.value("bearer"),
            api_key=self.value("api_key"),
            source=" and ".join(sources),
            transports=self.value("transport"),
            version=self.value("a2a_version"),
            parameters=self.value("svc_param"),
            insecure=self.value("insecure"),
            trace=trace if self.value("debug") else None,
        )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[RemoteAgent]:
        """Raises ClientError."""
        target = self.target()
        if self._starts(target):
            await self._start(target.cwd)
            target = self.target()
        if target.insecure:
            trace("warning: TLS certificates are not verified (--insecure)")
        async with connect(target) as agent:
            if target.insecure and agent.credentials:
                trace("warning: credentials are sent over a connection that is not verified")
            await self._complete_ids(agent)
            yield agent

    def _starts(self, target: Target) -> bool:
        """Whether the command begins a conversation, and no local server is for this directory."""
        begins = getattr(self.options, "start", False) and target.reference is None
        if not begins or self.value("context_id") or self.value("task_id"):
            return False
        servers = target.servers
        return not covering(servers, target.cwd) and all(one.until_idle for one in servers)

    async def _start(self, cwd: str) -> None:
        server = await self._start_server(cwd)
        agents, stop = ", ".join(server.agents), command("stop")
        trace(f"started a server for {cwd} ({agents}); it ends when it is idle, or by `{stop}`")

    async def _complete_ids(self, agent: RemoteAgent) -> None:
        """Replace the short ids of the command line by whole ones. Raises ClientError."""
        options = self.options
        both = ("id", "contextId") if options.command == "attach" else ("id",)
        if isinstance(getattr(options, "task", None), str):
            options.task = await whole_id(agent, options.task, members=both)
        if isinstance(getattr(options, "tasks", None), list):
            options.tasks = [await whole_id(agent, one, members=("id",)) for one in options.tasks]
        for name, member in (("task_id", "id"), ("context_id", "contextId")):
            given = self.settings[name]
            if given.value:
                whole = await whole_id(agent, given.value, members=(member,))
                self.settings[name] = replace(given, value=whole)

    def follow(self, agent: RemoteAgent) -> Follower:
        """A new follower, which interrupts and errors refer to."""
        self.follower = Follower(
            agent,
            poll_interval=self.value("poll_interval"),
            patience=PATIENCE if self.value("timeout") is None else float("inf"),
            on_break=lambda error: self.notice(f"{error}; trying again"),
        )
        return self.follower

    def resume(self, answer: Json) -> str:
        """The command that continues after `answer`."""
        task = answer.get("task")
        if task is None:
            context = (answer.get("message") or {}).get("contextId")
            return self.command("send", "--context-id", context or "CONTEXT", "TEXT")
        identity, question = str(task.get("id")), question_of(task)
        if question and question.id is not None and question.options:
            return self.command("answer", identity, "--question", question.id, "OPTION")
        if state_of(task) in INTERRUPTED:
            return self.command("send", "--task-id", identity, "TEXT")
        if state_of(task) in TERMINAL:
            return self.command("send", "--context-id", str(task.get("contextId")), "TEXT")
        return self.command("task", "get", identity, "--wait")

    def command(self, *words: str) -> str:
        """A command line for the same agent."""
        given = self.settings["agent_card"]
        card = ("-a", given.value) if given.source == "flag" else ()
        version = self.settings["a2a_version"]
        chosen = ("--a2a-version", version.value) if version.source == "flag" else ()
        return command(*words, *card, *chosen)

    def exit_status(self, answer: Json) -> int:
        """0, or with --exit-state the status of the outcome."""
        if not getattr(self.options, "exit_state", False):
            return 0
        return EXIT_STATES.get(state_of(answer.get("task") or {}), 0)

    # --- the run --------------------------------------------------------------------------------

    async def run(self, handler: Callable[[CommandSession], Coroutine[Any, Any, int]]) -> int:
        """Run a command within --timeout. Raises ClientError."""
        loop = asyncio.get_running_loop()
        self._work = asyncio.create_task(self._bounded(handler))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupted, number)
        try:
            return await self._work
        except asyncio.CancelledError:
            if self.signal is None:
                raise
            if hint := self._hint():
                trace(f"Resume: {hint}")
            return 1
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    async def _bounded(self, handler: Callable[[CommandSession], Coroutine[Any, Any, int]]) -> int:
        limit = self.value("timeout")
        try:
            async with asyncio.timeout(limit):
                return await handler(self)
        except TimeoutError:
            text = f"the task has not ended within {limit:g} s"
            raise ClientError(TIMEOUT, text, hint=self._hint()) from None
        except ClientError as error:
            error.hint = error.hint or self._hint()
            raise

    def _hint(self) -> str | None:
        """The command that continues after a failure."""
        if self.follower and self.follower.task_id:
            return self.command("task", "get", self.follower.task_id, "--wait")
        if self.follower and self.message_id:
            return self.command("send", "--message-id", self.message_id, "TEXT")
        return None

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Ignore Ctrl-C: it is for another program at the terminal."""
        self._deaf = True
        try:
            yield
        finally:
            self._deaf = False

    def _interrupted(self, number: int) -> None:
        """Leave; the first SIGINT cancels a task that the command began, and waits for its end."""
        if self._deaf and number == signal.SIGINT:
            return
        if self.on_interrupt and number == signal.SIGINT:
            self.on_interrupt()
            return
        again = self.signal is not None
        self.signal = number
        choice = getattr(self.options, "on_interrupt", None)
        cancels = choice == "cancel" or (choice is None and self.owns)
        if self._work is None:
            return
        if again or number != signal.SIGINT or not cancels or self.follower is None:
            self._work.cancel()
            return
        self.notice("canceling the task; press Ctrl-C again to leave at once")
        loop = asyncio.get_running_loop()
        loop.call_later(CANCELS_WITHIN, self._work.cancel)
        self._canceling = asyncio.create_task(self._cancel(self.follower))

    async def _cancel(self, follower: Follower) -> None:
        await follower.known.wait()
        try:
            await follower.cancel()
        except ClientError as error:
            self.notice(f"the task could not be canceled: {error}")


def trace(text: str) -> None:
    """A line of diagnostics on stderr."""
    clean = "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
    with contextlib.suppress(OSError):  # the terminal may be gone
        command = clean.startswith("curl ")  # it stays one line, for a copy of it
        if not clean.startswith("Resume"):
            clean = message(f"{PROGRAM}: {clean}", None if command else width_of(sys.stderr))
        print(clean, file=sys.stderr)
        sys.stderr.flush()
