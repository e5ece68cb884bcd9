"""The real Claude Code, on a scripted model: its turns outlive the server that began them.

The server is killed as `kill -9` does it; the CLI and what it runs live on, and another server on
the same state goes on with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.process.process_tree import leader
from tests.support.client import (
    METHODS,
    Json,
    artifact_text,
    context_id,
    facts,
    said,
    state,
    states,
    streamed_text,
    task_id,
)
from tests.support.real_claude_code import (
    GONE_WITHIN,
    VERSIONS,
    RealClaudeCode,
    all_facts,
    answer,
    ask,
    ask_user,
    bash,
    claude_code,
    question,
    reason,
    running_command,
    script,
    session_id,
    tool,
    tool_results,
    user_texts,
    written,
)

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

WITHIN = 60.0  # seconds for each wait
REATTACHED_WITHIN = 20.0  # seconds from the start of the next server to its first update
STOPPED_WITHIN = 9.0  # seconds, although a client still reads: a supervisor waits for 10
FORCE = {"AGENT_FORCE": "true", "IS_SANDBOX": "1"}  # nothing is asked


def durable(folder: Path, **env: str) -> AbstractAsyncContextManager[RealClaudeCode]:
    """A server whose tasks and agents outlive it."""
    return claude_code(folder, BRIDGE_STATE_DIR=str(folder / "state"), **env)


class Reader:
    """A client that reads a task's stream. When that breaks, it can come back for the rest."""

    def __init__(
        self, real: RealClaudeCode, version: str = "1.0", seen: Json | None = None
    ) -> None:
        """`seen`: a task that was got before its first update."""
        self.items: list[Json] = [seen] if seen else []
        self._numbers: list[int] = [0] if seen else []
        self._real = real
        self._version = version
        self._news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    @property
    def text(self) -> str:
        return streamed_text(self.items)

    def send(self, text: str, **members: Any) -> None:
        message = self._real.client(self._version).message(text, **members)
        self._begin(METHODS[self._version][1], {"message": message})

    def come_back(self) -> None:
        params = {"id": task_id(self.items[0])}
        self._begin(METHODS[self._version][4], params, {"Last-Event-ID": str(self._numbers[-1])})

    async def until(self, wanted: Callable[[Reader], object]) -> None:
        """Read on until all that was read is as `wanted`."""
        async with asyncio.timeout(WITHIN):
            while not wanted(self):
                assert self._reading
                if self._reading.done():
                    self._reading.result()
                    raise AssertionError("the stream ended before that")
                self._news.clear()
                await self._news.wait()

    async def end(self) -> Json:
        """The last item, once the stream has ended or is broken. Nothing was sent twice, and
        nothing left out."""
        assert self._reading
        async with asyncio.timeout(WITHIN):
            await self._reading
        assert self._numbers == list(range(len(self._numbers)))
        return self.items[-1]

    async def completed(self) -> Json:
        """The last item of a task that ends well."""
        last = await self.end()
        assert state(last) == "completed", (state(last), said(last), self._real.server.log)
        return last

    def _begin(self, method: str, params: Json, headers: Mapping[str, str] | None = None) -> None:
        assert self._reading is None or self._reading.done()
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        sent = {"A2A-Version": self._version, **(headers or {})}
        self._reading = asyncio.create_task(self._read(body, sent))

    async def _read(self, body: Json, headers: Mapping[str, str]) -> None:
        url = f"{self._real.server.url}/a2a/jsonrpc"
        number = -1
        try:
            async with self._real.http.post(url, json=body, headers=headers) as response:
                assert response.content_type == "text/event-stream", await response.text()
                async for line in response.content:
                    if line.startswith(b"id: "):
                        number = int(line[4:])
                    elif line.startswith(b"data: ") and line.endswith(b"\n"):
                        self.items.append(json.loads(line[6:])["result"])
                        self._numbers.append(number)
                        self._news.set()
        except aiohttp.ClientError:
            pass  # the server was killed
        finally:
            self._news.set()


async def happens(condition: Callable[[], object]) -> None:
    """Wait for what no event tells of: it happens in other programs."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def kill(real: RealClaudeCode, *readers: Reader) -> None:
    """Kill the server; its clients are cut off."""
    await real.kill()
    for reader in readers:
        assert state(await reader.end()) not in ("completed", "failed", "canceled")


def agents(real: RealClaudeCode) -> list[int]:
    """The CLIs that run, or have ended and nobody has written down how."""
    found = [leader(folder) for folder in real.home.parent.glob("state/sessions/*")]
    return [pid for pid in found if pid]


def heard(real: RealClaudeCode) -> int:
    """How many bytes the stdin of the only session has got. A CLI that is told something twice
    may well keep that to itself."""
    (counters,) = real.home.parent.glob("state/sessions/*/sent")
    return int.from_bytes(counters.read_bytes()[8:], sys.byteorder)


def prompts(messages: list[Json]) -> list[str]:
    """The prompts in a conversation, without their scripts."""
    return [text.split(" @@")[0] for text in user_texts(messages) if "@@" in text]


def printed_an_end(real: RealClaudeCode) -> bool:
    """Whether some CLI has printed the end of its turn."""
    printed = (out.read_bytes() for out in real.home.parent.glob("state/sessions/*/out"))
    return any(b'"idle"' in one.partition(b'"type":"result"')[2] for one in printed)


# --- the server is killed ----------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_turn_goes_on_where_the_next_server_finds_it(tmp_path: Path, version: str) -> None:
    async with durable(tmp_path, **FORCE) as real, running_command() as command:
        reader = Reader(real, version)
        run = tool("Bash", "Before. ", command=command.line, description="x")
        reader.send(script("Run it.", run, {"text": "After it. " * 20, "chunks": 20}))
        await command.begun()
        await reader.until(lambda r: all_facts(r.items, "tool_call"))
        agent = real.agent(await real.client(version).get(task_id(reader.items[0])))
        told = heard(real)
        await kill(real, reader)
        assert agent.is_running()
        assert not command.ended.is_set()
        async with asyncio.timeout(REATTACHED_WITHIN):
            await real.restart()
            task = await real.client(version).get(task_id(reader.items[0]))
        assert (state(task), artifact_text(task)) == ("working", "Before. ")
        reader.come_back()
        command.release()
        await reader.completed()
        assert heard(real) == told, "nothing was said to it again"
        assert states(reader.items) == ["submitted", "working", "completed"]
        assert reader.text == "Before. \n\n" + "After it. " * 20
        task = await real.client(version).get(task_id(task))
        assert artifact_text(task) == reader.text
        assert len(all_facts(reader.items, "tool_call")) == 1
        assert len(all_facts(reader.items, "tool_result")) == 1
        assert len(real.requests("Run it.")) == 2, "the model was asked once for each step"
        assert prompts(real.requests("Run it.")[-1]) == ["Run it."]
        assert real.agent(task) == agent


@pytest.mark.parametrize(
    ("version", "pieces"), [("1.0", 6000), pytest.param("0.3", 150, marks=pytest.mark.soak)]
)
async def test_text_that_streams_is_complete_and_told_once(
    tmp_path: Path, version: str, pieces: int
) -> None:
    """So fast that a server is always behind; and slowly. The pauses leave time for the kill."""
    text = " ".join(f"{number} é\U0001f9d1 \u2028" for number in range(6000))
    pace = {"delay": 0.01 if pieces == 150 else 0.0005}
    async with durable(tmp_path) as real:
        reader = Reader(real, version)
        reader.send(script("Count.", {"text": text, "chunks": pieces, **pace}))
        await reader.until(lambda r: r.text)
        await kill(real, reader)
        heard = len(reader.text)
        assert text.startswith(reader.text)
        assert heard < len(text)
        async with asyncio.timeout(REATTACHED_WITHIN):
            await real.restart()
            reader.come_back()
            await reader.until(lambda r: len(r.text) > heard)
        await reader.completed()
        assert reader.text == text
        assert artifact_text(await real.client(version).get(task_id(reader.items[0]))) == text
        assert len(real.requests("Count.")) == 1


@pytest.mark.soak
async def test_a_turn_lives_through_several_servers(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(durable(tmp_path, **FORCE))
        commands = [await stack.enter_async_context(running_command()) for _ in range(2)]
        steps = [
            tool("Bash", text, command=command.line, description="x")
            for text, command in zip(("One. ", "Two. "), commands, strict=True)
        ]
        reader = Reader(real, "0.3")
        reader.send(script("Run both.", *steps, "Three."))
        for command in commands:
            await command.begun()
            for _ in range(2):
                await kill(real, reader)
                await real.restart()
                reader.come_back()
            command.release()
        await reader.completed()
        assert reader.text == "One. \n\nTwo. \n\nThree."
        assert len(all_facts(reader.items, "tool_result")) == 2
        assert len(real.requests("Run both.")) == 3


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
async def test_an_idle_session_ends_with_its_server_and_its_conversation_goes_on(
    tmp_path: Path, version: str
) -> None:
    async with durable(tmp_path) as real:
        first = await real.client(version).send(script("beginning", "Begun."))
        agent = real.agent(first)
        await real.kill()
        assert agent.is_running()
        await real.restart()
        assert real.processes() == []
        assert not list((tmp_path / "state/sessions").iterdir())
        client = real.client(version)
        assert artifact_text(await client.get(task_id(first))) == "Begun."
        task = await client.send(script("and then", "More."), contextId=context_id(first))
        assert (state(task), artifact_text(task)) == ("completed", "More.")
        assert session_id(task) == session_id(first)
        assert prompts(real.requests("and then")[-1]) == ["beginning", "and then"]
        assert "Begun." in str(real.requests("and then")[-1])


@pytest.mark.soak
async def test_a_later_turn_of_a_conversation_goes_on_too(tmp_path: Path) -> None:
    """All that the CLI was ever told counts, not only what this turn told it."""
    async with durable(tmp_path) as real:
        mark = tmp_path / "ran"
        task = await ask(real.client(), script("one", counting(mark), "First."))
        task = await answer(real.client(), task, "always")
        assert artifact_text(task) == "First."
        other = bash("python3 -c 'print(2)'")
        context: Json = {"contextId": context_id(task)}
        task = await ask(real.client(), script("two", counting(mark), other, "Second."), **context)
        await real.kill()
        await real.restart()
        task = await answer(real.client(), task, "allow")
        assert (state(task), artifact_text(task)) == ("completed", "Second.")
        assert written(mark) == "ran ran "
        used = await real.client().send(script("three", "Third."), **context)
        assert artifact_text(used) == "Third."
        assert prompts(real.requests("three")[-1]) == ["one", "two", "three"]


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_prompt_that_was_half_sent_is_sent_to_its_end(tmp_path: Path) -> None:
    """The CLI does not read, and its stdin takes no more."""
    words = [f"{letter} {'é' * 400_000}" for letter in "abc"]
    async with durable(tmp_path) as real:
        task = await real.client().send(script("first", "One."))
        agent = real.agent(task)
        client, context = real.client(), {"contextId": context_id(task)}
        before = heard(real)
        agent.suspend()
        long = [client.text_part(text) for text in (*words, script("Look.", "Seen."))]
        task = await client.send_now(long, **context)
        await happens(lambda: heard(real) > before)
        assert heard(real) < before + len(str(words).encode())
        await real.kill()
        await real.restart()
        agent.resume()
        reader = Reader(real, seen=task)
        reader.come_back()
        await reader.completed()
        assert reader.text == "Seen."
        (request,) = real.requests("Look.")
        assert [text for text in user_texts(request) if "é" in text] == words
        assert agent.is_running()


@pytest.mark.soak
async def test_all_contexts_go_on_and_what_waits_behind_them(tmp_path: Path) -> None:
    names = ("one of two", "two of two")
    async with AsyncExitStack() as stack:
        real = await stack.enter_async_context(durable(tmp_path, **FORCE))
        commands = [await stack.enter_async_context(running_command()) for _ in names]
        readers = [Reader(real) for _ in names]
        for name, reader, command in zip(names, readers, commands, strict=True):
            reader.send(script(name, bash(command.line), f"{name} done"))
        for command in commands:
            await command.begun()
        context: Json = {"contextId": context_id(readers[0].items[0])}
        queued = await real.client().send_now(script("behind", "behind done"), **context)
        await kill(real, *readers)
        await real.restart()
        assert state(await real.client().get(task_id(queued))) == "submitted"
        waiting = Reader(real, seen=queued)
        for reader in (waiting, *readers):
            reader.come_back()
        for name, reader, command in zip(names, readers, commands, strict=True):
            assert not command.ended.is_set()
            command.release()
            await reader.completed()
            assert reader.text == f"{name} done"
        await waiting.completed()
        assert waiting.text == "behind done"
        assert prompts(real.requests("behind")[-1]) == ["one of two", "behind"]
        assert [len(real.requests(name)) for name in names] == [3, 2]


@pytest.mark.soak
async def test_a_message_that_joined_the_turn_is_heard_once(tmp_path: Path) -> None:
    async with (
        durable(tmp_path, **FORCE, BRIDGE_WHEN_BUSY="steer") as real,
        running_command() as command,
    ):
        reader = Reader(real)
        reader.send(script("Run it.", bash(command.line), "not said"))
        await command.begun()
        context: Json = {"contextId": context_id(reader.items[0])}
        steered = await real.client().send_now(script("Rather that.", "said"), **context)
        assert task_id(steered) == task_id(reader.items[0])
        await kill(real, reader)
        await real.restart()
        reader.come_back()
        command.release()
        await reader.completed()
        assert reader.text.endswith("said")
        assert states(reader.items) == ["submitted", "working", "completed"]
        heard = str(real.requests("Rather that.")[-1])
        assert (heard.count("Run it. @@"), heard.count("Rather that. @@")) == (1, 1)


# --- questions ---------------------------------------------------------------------------------


def counting(mark: Path) -> Json:
    """A command that leaves a mark each time that it runs."""
    return bash(f'python3 -c \'open("{mark}", "a").write("ran ")\'')


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
async def test_an_open_permission_is_still_open(tmp_path: Path, version: str) -> None:
    async with durable(tmp_path) as real:
        mark = tmp_path / "ran"
        task = await ask(real.client(version), script("Do it.", counting(mark), "Done."))
        told = heard(real)
        await real.kill()
        await real.restart()
        client = real.client(version)
        again = await client.get(task_id(task))
        assert state(again) == "input-required"
        assert said(again) == said(task)
        assert facts(again) == facts(task)
        assert written(mark) is None
        assert heard(real) == told
        task = await answer(client, task, "allow")
        assert (state(task), artifact_text(task)) == ("completed", "Done.")
        assert written(mark) == "ran "
        assert len(real.requests("Do it.")) == 2


@pytest.mark.soak
async def test_an_answer_that_was_taken_is_given_once(tmp_path: Path) -> None:
    """Killed as soon as the client knows that it was taken."""
    async with durable(tmp_path) as real:
        mark = tmp_path / "ran"
        steps = (counting(mark), counting(mark), "Done.")
        task = await ask(real.client(), script("Do it.", *steps))
        ids: Json = {"taskId": task_id(task), "contextId": context_id(task)}
        await real.client().send_now("allow", **ids)
        await real.kill()
        await real.restart()
        reader = Reader(real, seen=task)
        reader.come_back()
        await reader.until(
            lambda r: all_facts(r.items, "tool_result") and state(r.items[-1]) == "input-required"
        )
        assert written(mark) == "ran "
        task = await answer(real.client(), reader.items[-1], "allow")
        assert (state(task), artifact_text(task)) == ("completed", "Done.")
        assert written(mark) == "ran ran "
        assert len(real.requests("Do it.")) == 3


@pytest.mark.soak
async def test_of_two_questions_the_one_that_was_answered_stays_so(tmp_path: Path) -> None:
    async with durable(tmp_path) as real:
        asked = ask_user(question("Size?", "Small", "Large"), question("Shape?", "Round", "Flat"))
        plan = tool("ExitPlanMode", plan="# Cut")
        prompt = script("Go.", asked, tool("EnterPlanMode"), plan, "Done.")
        task = await ask(real.client(), prompt)
        assert said(task).startswith("Size?")
        task = await answer(real.client(), task, "Large")
        await real.kill()
        await real.restart()
        assert said(await real.client().get(task_id(task))).startswith("Shape?")
        task = await answer(real.client(), task, "Flat")
        assert facts(task)["kind"] == "plan"
        (result, *_) = tool_results(real.requests("Go.")[-1])
        assert '"Size?"="Large"' in result
        assert '"Shape?"="Flat"' in result
        await real.kill()
        await real.restart()
        assert "# Cut" in said(await real.client().get(task_id(task)))
        task = await answer(real.client(), task, "yes")
        assert (state(task), artifact_text(task)) == ("completed", "Done.")


# --- while no server runs ----------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("lives", [True, False], ids=["warm", "gone"])
async def test_an_end_that_no_server_heard_is_told_by_the_next_one(
    tmp_path: Path, lives: bool
) -> None:
    async with durable(tmp_path, **FORCE) as real, running_command() as command:
        reader = Reader(real)
        reader.send(script("Run it.", bash(command.line), "It ran."))
        await command.begun()
        agent = real.agent(await real.client().get(task_id(reader.items[0])))
        await kill(real, reader)
        command.release()
        await happens(lambda: printed_an_end(real))
        if not lives:
            agent.kill()
            await happens(lambda: not agents(real))
        await real.restart()
        reader.come_back()
        last = await reader.completed()
        assert reader.text == "It ran."
        assert last["statusUpdate"]["metadata"]["usage"]["outputTokens"] == 40
        assert len(real.requests("Run it.")) == 2
        context: Json = {"contextId": context_id(last)}
        task = await real.client().send(script("And then?", "More."), **context)
        assert (state(task), artifact_text(task)) == ("completed", "More.")
        assert (real.agent(task) == agent) is lives
        assert prompts(real.requests("And then?")[-1]) == ["Run it.", "And then?"]


@pytest.mark.parametrize(
    "alone", [pytest.param(True, id="cli"), pytest.param(False, id="group", marks=pytest.mark.soak)]
)
async def test_a_cli_that_died_without_a_server_fails_its_task(tmp_path: Path, alone: bool) -> None:
    """Its command is an orphan then, and goes too. `alone`: who writes down the end was not killed
    with it."""
    async with durable(tmp_path, **FORCE) as real, running_command() as command:
        reader = Reader(real, "0.3")
        reader.send(script("Run it.", bash(command.line), "It ran."))
        await command.begun()
        agent = real.agent(await real.client("0.3").get(task_id(reader.items[0])))
        await kill(real, reader)
        if alone:
            agent.kill()
        else:
            os.killpg(os.getpgid(agent.pid), signal.SIGKILL)
        await happens(lambda: not agents(real))
        await real.restart()
        reader.come_back()
        last = await reader.end()
        assert (state(last), reason(last)) == ("failed", "exit")
        assert "signal 9" in said(last)
        await real.nothing_left()
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
        context: Json = {"contextId": context_id(last)}
        task = await real.client("0.3").send(script("And then?", "More."), **context)
        assert (state(task), artifact_text(task)) == ("completed", "More.")
        assert f"--resume={session_id(task)}" in real.agent(task).cmdline()
        assert prompts(real.requests("And then?")[-1]) == ["Run it.", "And then?"]


# --- ends that are wanted ----------------------------------------------------------------------


@pytest.mark.soak
async def test_a_turn_that_was_continued_can_be_canceled(tmp_path: Path) -> None:
    async with durable(tmp_path, **FORCE) as real, running_command() as command:
        reader = Reader(real)
        reader.send(script("Run it.", bash(command.line), "It ran."))
        await command.begun()
        await kill(real, reader)
        await real.restart()
        reader.come_back()
        assert state(await real.client().cancel(task_id(reader.items[0]))) == "canceled"
        assert state(await reader.end()) == "canceled"
        await real.nothing_left()
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
        assert len(real.requests("Run it.")) == 1
        context: Json = {"contextId": context_id(reader.items[0])}
        task = await real.client().send(script("And then?", "More."), **context)
        assert (state(task), artifact_text(task)) == ("completed", "More.")


@pytest.mark.soak
async def test_agents_that_are_kept_at_a_stop_are_continued(tmp_path: Path) -> None:
    options = {**FORCE, "BRIDGE_ON_STOP": "keep", "BRIDGE_DRAIN_MS": "100"}
    async with durable(tmp_path, **options) as real, running_command() as command:
        reader = Reader(real)
        reader.send(script("Run it.", bash(command.line), "It ran."))
        await command.begun()
        agent = real.agent(await real.client().get(task_id(reader.items[0])))
        async with asyncio.timeout(STOPPED_WITHIN):
            assert await real.server.stop() == 0
        assert "Traceback" not in real.server.log
        assert state(await reader.end()) == "working"
        assert agent.is_running()
        assert not command.ended.is_set()
        await real.restart()
        reader.come_back()
        command.release()
        await reader.completed()
        assert reader.text == "It ran."
        assert len(real.requests("Run it.")) == 2
        assert real.agent(await real.client().get(task_id(reader.items[0]))) == agent
        assert await real.server.stop() == 0
        assert real.processes() == [], "only those that work are kept"


@pytest.mark.soak
async def test_a_stop_leaves_nothing_unless_told_to(tmp_path: Path) -> None:
    async with (
        durable(tmp_path, **FORCE, BRIDGE_DRAIN_MS="100") as real,
        running_command() as command,
    ):
        reader = Reader(real)
        reader.send(script("Run it.", bash(command.line), "It ran."))
        await command.begun()
        assert await real.server.stop() == 0
        assert real.processes() == []
        async with asyncio.timeout(GONE_WITHIN):
            await command.ended.wait()
        assert state(await reader.end()) == "failed"
        await real.restart()
        assert state(await real.client().get(task_id(reader.items[0]))) == "failed"
        context: Json = {"contextId": context_id(reader.items[0])}
        task = await real.client().send(script("And then?", "More."), **context)
        assert (state(task), artifact_text(task)) == ("completed", "More.")
