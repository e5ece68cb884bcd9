"""What the users of real A2A clients are shown, compared as text (tests/support/client_matrix.py).

Each client is started once for each agent, which takes from 1 s to 10 s for its imports. Clients
whose installation is large are in the soak tier.
"""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bridge.task.rules.approval_policy import Rule
from tests import CHECKOUT
from tests.support import documents
from tests.support.client_driver import READS_AS_A_PERSON, TOKEN, WITHIN, driving
from tests.support.client_matrix import (
    BY_NAME,
    CLIENTS,
    COLUMNS,
    DOCUMENT,
    DRIVERS,
    FAILURE,
    PROMPTS,
    QUESTION,
    REPLY,
    A2AClient,
)
from tests.support.liveness import listening
from tests.support.programs import missing
from tests.support.real_claude_code import bash, claude_code, running_command, script, write
from tests.support.served import serving

STOPS_WITHIN = 2.0  # seconds; a client that has not stopped its agent by then does not
VARYING = {
    "ID": re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}"),
    "QUESTION": re.compile(r"\b[0-9a-f]{8}-1\b"),
    "TIME": re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"),
    "PORT": re.compile(r"(?<=//127\.0\.0\.1:)\d+"),
}
"""What differs from run to run, by the word that stands for it in an expected text."""
REPLAY: Any = {"agent_adapter": "replay", "agent_binary": None, "agent_args": ()}
FASTA2A = CHECKOUT / ".venvs/fasta2a/bin/python"
pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


async def conversation(client: A2AClient, folder: Path) -> dict[str, str]:
    """What its user is shown, by prompt; and as `after`, what follows a prompt that the user has
    stopped. The agent of that prompt has ended, unless the client cannot stop it."""
    workspace = folder / "workspace"
    workspace.mkdir()
    settings: Any = {"bridge_on_disconnect": "cancel", "bridge_disconnect_grace_ms": 100}
    async with (
        serving(workspace, bridge_token=TOKEN, **settings) as server,
        listening() as live,
        driving(client, server.url, folder) as driver,
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


def each(clients: list[A2AClient], *in_soak: str) -> Callable[[Test], Test]:
    """A test for each of these clients. The soak tier has those that are named, and those that each
    run omits."""
    params = [_param(one, one.soak or one.name in in_soak) for one in clients]
    return pytest.mark.parametrize("client", params)


def _param(client: A2AClient, soak: bool) -> Any:
    reason = missing(client.title)
    marks = [pytest.mark.skipif(not client.installed, reason=reason)]
    return pytest.param(client, id=client.name, marks=marks + [pytest.mark.soak] * soak)


@each(CLIENTS, "langgraph")
async def test_a_conversation_is_shown_as_the_matrix_says(
    client: A2AClient, tmp_path: Path
) -> None:
    """The texts of its prompts, the conversation after a prompt that was stopped, and the row of
    the matrix."""
    shown = await conversation(client, tmp_path)
    assert {name: constant(shown[name]) for name in PROMPTS} == {
        name: client.expected(name) for name in PROMPTS
    }
    assert "Here again." in shown["after"]
    can = {
        "answer once": shown["answer"].count("It is fine.") == 1,
        "question": any(text in shown["question"] for text in (QUESTION, json.dumps(QUESTION))),
        "answered": REPLY in shown["reply"],
        "failure": FAILURE in shown["failure"],
        "no JSON": not any("{" in text for text in shown.values()),
    }
    assert can == {name: name not in client.no for name in COLUMNS if name != "stop"}


def constant(shown: str) -> str:
    """The text without what differs from run to run."""
    for word, pattern in VARYING.items():
        shown = pattern.sub(word, shown)
    return shown


ANSWERS = [client for client in CLIENTS if not {"question", "answered"} & client.no.keys()]


@each(ANSWERS, "adk", "gemini")
async def test_a_recorded_task_of_claude_code_is_readable(
    client: A2AClient, tmp_path: Path
) -> None:
    """It asks before it edits and before it runs a command. What the model of the Gemini CLI is
    told is short, and docs/integrations.md shows it."""
    prompts, shown = ("Add a --shout flag to greet.py", "Allow", "Allow"), []
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with (
        serving(workspace, bridge_token=TOKEN, **REPLAY) as server,
        driving(client, server.url, tmp_path) as driver,
    ):
        for prompt in prompts:
            shown.append(await driver.say(prompt))
            await asyncio.sleep(READS_AS_A_PERSON)
    asked, again, done = shown
    choice = 'Reply with exactly one of: "Allow", "Always allow in this session", "Deny".'
    assert "Claude Code asks to use Edit" in asked and choice in asked
    assert "Claude Code asks to use Bash" in again and choice in again
    assert "prints `HELLO, ADA!`" in done
    if "no JSON" not in client.no:
        assert "{" not in "".join(shown).replace('f"Hello, {name}', "")
    if client.name == "gemini":
        assert sum(map(len, shown)) <= 1300
        talk = f"> {prompts[0]}\n\n{asked}"
        assert f"```\n{talk}\n```" in DOCUMENT.read_text("utf-8"), talk


@each([client for client in CLIENTS if "[[rules]]" in client.no.get("answered", "")])
async def test_rules_answer_for_clients_that_cannot(client: A2AClient, tmp_path: Path) -> None:
    """The rules are those of docs/integrations.md."""
    page = DOCUMENT.read_text("utf-8").partition("## Clients that cannot answer")[2]
    table = tomllib.loads(page.partition("```toml\n")[2].partition("```")[0])
    rules = tuple(Rule(**rule) for rule in table["rules"])
    async with (
        serving(tmp_path, bridge_token=TOKEN, rules=rules, **REPLAY) as server,
        driving(client, server.url, tmp_path) as driver,
    ):
        shown = await driver.say("Add a --shout flag to greet.py")
    assert "prints `HELLO, ADA!`" in shown
    assert "input-required" not in shown


@each([client for client in CLIENTS if not client.reads_both], "gemini", "langgraph")
async def test_a_card_of_the_other_version_excludes_the_client(
    client: A2AClient, tmp_path: Path
) -> None:
    """The setting BRIDGE_CARD names these clients."""
    other = {"0.3": "1.0", "1.0": "0.3"}[client.wire]
    async with (
        serving(tmp_path, bridge_token=TOKEN, bridge_card=other) as server,
        driving(client, server.url, tmp_path) as driver,
    ):
        assert "Here." not in await driver.say("text Here.")
    name = re.sub(r",.*| \(.*|^AWS |^Vercel ", "", client.title)
    assert name in documents.help_texts()["AgentSettings"]["card"]


@each([BY_NAME["adk"]], "adk")
async def test_real_claude_code_is_asked_answered_and_stopped(
    client: A2AClient, tmp_path: Path
) -> None:
    """Its model is scripted by the prompts. It takes 3 s to start both programs."""
    env = {"BRIDGE_AUTH": "auto", "BRIDGE_ON_DISCONNECT": "cancel"}
    async with claude_code(tmp_path, **env, BRIDGE_DISCONNECT_GRACE_MS="100") as real:
        token = real.server.credentials["Authorization"].removeprefix("Bearer ")
        path = real.workspace / "hello.txt"
        async with (
            driving(client, real.server.url, tmp_path, token) as driver,
            running_command() as command,
        ):
            asked = await driver.say(script("Write it.", write(path), "It is written."))
            assert f"Claude Code asks to use Write: {path}" in asked
            assert not path.exists()
            assert await driver.say("Allow") == "It is written."
            assert path.read_text() == "written"
            asked = await driver.say(script("Run it.", bash(command.line)))
            assert command.line in asked
            await asyncio.sleep(READS_AS_A_PERSON)
            await driver.begin("Allow")
            await command.begun()
            await driver.stop()
            async with asyncio.timeout(WITHIN):
                await command.ended.wait()
            await real.nothing_left()


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
        driving(client, server.url, tmp_path) as driver,
    ):
        await driver.begin(f"wait {live.path} a\ntext done")
        await live.pid("a")
        await asyncio.sleep(70)
        await live.release("a")
        assert await driver.answer() == "done"
