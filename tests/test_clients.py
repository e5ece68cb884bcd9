"""What the users of real A2A clients are shown, compared as text (tests/client_matrix.py).

Each client is started once for each agent, which takes from 1 s to 10 s for its imports. Clients
whose installation is large are in the soak tier.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from tests.client_matrix import (
    BY_NAME,
    CHECKOUT,
    CLIENTS,
    COLUMNS,
    DRIVERS,
    FAILURE,
    PROMPTS,
    QUESTION,
    REPLY,
    A2AClient,
)
from tests.liveness import listening
from tests.programs import missing
from tests.served import Server, serving

TOKEN = "a-token-of-the-operator-of-32-characters"
WITHIN = 60.0  # seconds for one turn, the start of the client included
ENDS_WITHIN = 20.0
STOPS_WITHIN = 2.0  # seconds; a client that has not stopped its agent by then does not
READS_AS_A_PERSON = 0.8  # seconds; what is faster may be an answer to an earlier question
VARYING = {
    "ID": re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}"),
    "TIME": re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"),
    "PORT": re.compile(r"(?<=//127\.0\.0\.1:)\d+"),
}
"""What differs from run to run, by the word that stands for it in an expected text."""
FASTA2A = CHECKOUT / ".venvs/fasta2a/bin/python"
pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]


class Driver:
    """A running client: tests/ecosystems/driver.py has the other end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def say(self, prompt: str) -> str:
        """What its user is shown for this prompt."""
        await self.begin(prompt)
        shown = await self.answer()
        assert isinstance(shown, str)
        return shown

    async def begin(self, prompt: str) -> None:
        await self._tell(prompt)

    async def stop(self) -> None:
        """Stop the prompt that is under way, as its users do."""
        await self._tell(None)
        assert await self.answer() is None

    async def _tell(self, what: str | None) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        await self._process.stdin.drain()

    async def answer(self) -> Any:
        """What its user is shown; None for a prompt that was stopped."""
        assert self._process.stdout
        async with asyncio.timeout(WITHIN):
            line = await self._process.stdout.readline()
        assert line, "the driver has ended; its stderr says why"
        return json.loads(line)


@asynccontextmanager
async def driving(client: A2AClient, server: Server, folder: Path) -> AsyncIterator[Driver]:
    """The client in a folder of its own."""
    assert client.snippet, f"docs/clients.md has no snippet under {client.section!r}"
    argv = (str(client.program), str(DRIVERS / client.driver), client.snippet, server.url, TOKEN)
    pipes: Any = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*argv, cwd=folder, limit=2**24, **pipes)
    assert process.stdin
    try:
        yield Driver(process)
    finally:
        process.stdin.close()  # the driver stops what is under way, and ends
        try:
            async with asyncio.timeout(ENDS_WITHIN):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Talks]:
    async with AsyncExitStack() as stack:
        folder = tmp_path_factory.mktemp("workspace")
        settings: Any = {"bridge_on_disconnect": "cancel", "bridge_disconnect_grace_ms": 100}
        server = await stack.enter_async_context(serving(folder, bridge_token=TOKEN, **settings))
        yield Talks(server, tmp_path_factory)


class Talks:
    """What the users of each client are shown for PROMPTS, in one conversation per client."""

    def __init__(self, server: Server, folders: pytest.TempPathFactory) -> None:
        self._server = server
        self._folders = folders
        self._shown: dict[str, dict[str, str]] = {}

    async def of(self, client: A2AClient) -> dict[str, str]:
        """By prompt; and for `after`, what follows a prompt that the user has stopped."""
        if client.name not in self._shown:
            self._shown[client.name] = await self._talk(client)
        return self._shown[client.name]

    async def _talk(self, client: A2AClient) -> dict[str, str]:
        folder = self._folders.mktemp(client.name)
        async with (
            listening() as live,
            driving(client, self._server, folder) as driver,
        ):
            shown = {name: await driver.say(prompt) for name, prompt in PROMPTS.items()}
            await driver.begin(f"wait {live.path} a")
            await live.pid("a")
            await driver.stop()
            if "stop" in client.no:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(STOPS_WITHIN):
                        await live.gone("a")
                await live.release("a")
            else:
                await live.gone("a")
            live.open = True  # some clients send a prompt that was stopped along with the next
            return {**shown, "after": await driver.say("text Here again.")}


Test = TypeVar("Test", bound=Callable[..., object])


def each(clients: list[A2AClient]) -> Callable[[Test], Test]:
    """A test for each of these clients."""
    return pytest.mark.parametrize("client", [_param(client) for client in clients])


def _param(client: A2AClient) -> Any:
    reason = missing(client.title)
    marks = [pytest.mark.skipif(not client.installed, reason=reason)]
    return pytest.param(client, id=client.name, marks=marks + [pytest.mark.soak] * client.soak)


@each(CLIENTS)
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_what_its_user_is_shown(client: A2AClient, prompt: str, talks: Talks) -> None:
    shown = (await talks.of(client))[prompt]
    for word, pattern in VARYING.items():
        shown = pattern.sub(word, shown)
    assert shown == client.expected(prompt)


@each(CLIENTS)
async def test_the_agent_is_stopped_and_the_conversation_goes_on(
    client: A2AClient, talks: Talks
) -> None:
    """The fixture waits for the end of the agent's process, unless the client cannot stop it."""
    assert "Here again." in (await talks.of(client))["after"]


@pytest.mark.parametrize("column", [column for column in COLUMNS if column != "stop"])
@each(CLIENTS)
async def test_the_matrix_says_what_is_so(client: A2AClient, column: str, talks: Talks) -> None:
    shown = await talks.of(client)
    can = {
        "answer once": shown["answer"].count("It is fine.") == 1,
        "question": any(text in shown["question"] for text in (QUESTION, json.dumps(QUESTION))),
        "answered": REPLY in shown["reply"],
        "failure": FAILURE in shown["failure"],
        "no JSON": not any("{" in text for text in shown.values()),
    }
    assert can[column] is (column not in client.no)


@each([client for client in CLIENTS if not {"question", "answered"} & client.no.keys()])
async def test_a_recorded_task_of_claude_code_is_readable(
    client: A2AClient, tmp_path: Path
) -> None:
    """It asks twice before it edits and before it runs a command."""
    replay: Any = {"agent_adapter": "replay", "agent_binary": None, "agent_args": ()}
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with (
        serving(workspace, bridge_token=TOKEN, **replay) as server,
        driving(client, server, tmp_path) as driver,
    ):
        asked = await driver.say("Add a --shout flag to greet.py")
        await asyncio.sleep(READS_AS_A_PERSON)
        again = await driver.say("Allow")
        await asyncio.sleep(READS_AS_A_PERSON)
        done = await driver.say("Allow")
    choice = 'Reply with exactly one of: "Allow", "Always allow in this session", "Deny".'
    assert "Claude Code asks to use Edit" in asked and choice in asked
    assert "Claude Code asks to use Bash" in again and choice in again
    assert "prints `HELLO, ADA!`" in done
    if "no JSON" not in client.no:
        assert "{" not in (asked + again + done).replace('f"Hello, {name}', "")


@pytest.mark.soak
@pytest.mark.skipif(not FASTA2A.exists(), reason=missing("fasta2a"))
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_fasta2a_refuses_only_the_requirement_of_a_token(
    token: str | None, tmp_path: Path
) -> None:
    """A2A 1.0 wraps the scopes of a security requirement in an object; fasta2a wants the list."""
    refused = ["securityRequirements.0.schemes.bearer"] if token else []
    pipe = asyncio.subprocess.PIPE
    async with serving(tmp_path, bridge_token=token) as server, asyncio.timeout(WITHIN):
        argv = (str(FASTA2A), str(DRIVERS / "fasta2a_card.py"), server.url)
        process = await asyncio.create_subprocess_exec(*argv, stdout=pipe)
        said, _ = await process.communicate()
    assert json.loads(said) == {"skills": [] if token else ["code"], "refused": refused}


@each([BY_NAME["agent-framework"]])
@pytest.mark.timeout(240)
async def test_a_blocking_run_of_70_s_is_answered(client: A2AClient, tmp_path: Path) -> None:
    """The framework gives up after 60 s without a byte."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with (
        serving(workspace, bridge_token=TOKEN) as server,
        listening() as live,
        driving(client, server, tmp_path) as driver,
    ):
        await driver.begin(f"wait {live.path} a\ntext done")
        await live.pid("a")
        await asyncio.sleep(70)
        await live.release("a")
        assert await driver.answer() == "done"
