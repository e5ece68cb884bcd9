"""`task export`: conversations as Markdown and JSON, on stdout and in files."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession

from tests.support.bridge_process import BridgeProcess, bridge, scripted
from tests.support.cab import Cab
from tests.support.client import Client, Json

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOSTILE = (
    "\x1b[2J# No heading\n```\n## Task `x`\n````\n![](https://evil.example/x)\n<!--\x9b31m\u202e"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BridgeProcess]:
    workspace = tmp_path_factory.mktemp("shared") / "workspace"
    workspace.mkdir()
    async with bridge(workspace, **scripted(workspace), BRIDGE_AUTH="auto") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: BridgeProcess) -> AsyncIterator[Client]:
    async with ClientSession() as http:
        yield Client(http, server.url, headers=server.credentials)


@pytest.fixture
def cab(server: BridgeProcess, tmp_path: Path) -> Cab:
    token = server.token_file.read_text().strip()
    return Cab(tmp_path, tmp_path, A2ACLI_AGENT_CARD=server.url, A2ACLI_BEARER=token)


def say(kind: str, **members: Any) -> str:
    """A command of the scripted agent."""
    return "line " + json.dumps({"type": kind, **members})


SCRIPT = "\n".join(
    [
        say("tool_call", id="1", name="Bash", input={"command": "npm test `x`"}),
        say("tool_result", id="1", output="ok"),
        say("tool_call", id="2", name="Read", input={"file_path": "a.py"}),
        say("tool_result", id="2", output="no such file", isError=True),
        say("status", text=f"busy {HOSTILE}"),
        "permit q May I go on?",
        "permit r And now?",
        say("text", text=HOSTILE),
        say("artifact", artifactId="f", name=HOSTILE, parts=[{"text": HOSTILE}]),
        say(
            "artifact",
            artifactId="g",
            name="files",
            parts=[
                {"raw": "aGVsbG8=", "filename": HOSTILE, "mediaType": "image/png"},
                {"url": "https://example.org/a>(b) c", "filename": "link"},
                {"data": {"a": HOSTILE}},
            ],
        ),
        say("usage", inputTokens=3, costUsd=0.25),
    ]
)


def outside(page: str) -> list[str]:
    """The lines outside of fences. A fence ends with at least as many marks as it began with."""
    lines, fence = [], ""
    for line in page.splitlines():
        marks = re.match(r"`{3,}", line)
        if fence:
            fence = "" if marks and len(marks[0]) >= len(fence) and marks[0] == line else fence
        elif marks:
            fence = marks[0]
        elif line:
            lines.append(line)
    assert not fence
    return lines


async def conversation(client: Client) -> tuple[Json, Json]:
    """Two tasks of a context; the second one was refused to go on, and failed."""
    context = os.urandom(8).hex()
    asked = await client.send(SCRIPT, contextId=context)
    question = client.answer_parts(asked, "Go on")
    asked = await client.send(question, taskId=asked["id"], contextId=context)
    question = client.answer_parts(asked, "Do not")
    first = await client.send(question, taskId=asked["id"], contextId=context)
    second = await client.send(f"{say('text', text='half')}\nfail {HOSTILE}", contextId=context)
    return first, second


async def test_a_conversation_is_one_page_of_markdown(cab: Cab, client: Client) -> None:
    first, second = await conversation(client)
    done = await cab.run("task", "export", first["contextId"])
    assert (done.status, done.err) == (0, "")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.text)
    lines = outside(done.text)
    headings = [re.sub(r" \(.*", "", line) for line in lines if line.startswith("#")]
    assert headings == [
        f"# Conversation `{first['contextId']}`",
        f"## Task `{first['id']}`",
        *("### Prompt", "### Question", "### Question", "### Answer"),
        *(line for line in headings[6:8] if line.startswith("### Artifact `")),
        f"## Task `{second['id']}`",
        *("### Prompt", "### End", "### Answer"),
    ]
    expected = [
        "- State: `completed`",
        "- Usage: `3 inputTokens, 0.25 costUsd`",
        "- `` ● Bash npm test `x` ``",
        "- `● Read a.py · failed`",
        "- Answered by `local`: `Go on`",
        "- Answered by `local`: `Do not`",
        "- File: [`link`](<https://example.org/a%3E%28b%29%20c>)",
        "- State: `failed`",
    ]
    assert [line for line in expected if line not in lines] == []
    assert any(line.startswith("- File: `") and "image/png, 5 bytes`" in line for line in lines)
    assert not any(re.match(r"!\[|<!--", line) for line in lines)
    times = [line for line in lines if line.startswith("- Time: ")]
    assert len(times) == 2 and all(re.search(r"\d\d:\d\d:\d\d to .* UTC$", one) for one in times)
    assert "half" in done.text and HOSTILE.splitlines()[2] in done.text


async def test_one_task_is_exported_alone(cab: Cab, client: Client) -> None:
    first, second = await conversation(client)
    page = (await cab.run("task", "export", second["id"])).text
    assert f"# Conversation `{second['contextId']}`" in page and first["id"] not in page


async def test_an_open_question_is_named(cab: Cab, client: Client) -> None:
    asked = await client.send("permit q May I go on?")
    lines = outside((await cab.run("task", "export", asked["id"])).text)
    assert lines[-1] == "- The question is open."
    await client.cancel(asked["id"])
    lines = outside((await cab.run("task", "export", asked["id"])).text)
    assert "- The question is open." not in lines


@pytest.mark.parametrize("flags", [(), ("--transport", "rest"), ("--a2a-version", "0.3")])
async def test_json_has_the_whole_tasks_of_a2a_1_0(
    cab: Cab, client: Client, flags: tuple[str, ...]
) -> None:
    first, second = await conversation(client)
    done = await cab.run("task", "export", first["contextId"], "--format", "json", *flags)
    assert done.status == 0 and "\x1b" not in done.text and "\x9b" not in done.text
    assert done.json["contextId"] == first["contextId"]
    tasks = done.json["tasks"]
    assert [task["id"] for task in tasks] == [first["id"], second["id"]]
    got = await cab.run("task", "get", first["id"], "--history", "100", "-o", "json", *flags)
    assert tasks[0] == got.json
    assert len(tasks[0]["history"]) > 5 and tasks[0]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_all_pages_of_a_context_are_exported_in_order(cab: Cab, client: Client) -> None:
    """Takes seconds: more tasks than one page of a list has."""
    sent = [(await client.send("done", contextId="long"))["id"] for _ in range(102)]
    done = await cab.run("task", "export", "long", "--format", "json")
    assert [task["id"] for task in done.json["tasks"]] == sent


# --- files --------------------------------------------------------------------------------------


async def test_a_file_is_private_and_complete_and_takes_the_place_of_another(
    cab: Cab, client: Client
) -> None:
    task = (await client.send("text hello\ndone"))["id"]
    file = cab.cwd / "out.md"
    file.write_text("old")
    file.chmod(0o644)
    with file.open() as old:
        done = await cab.run("task", "export", task, "-o", "out.md")
        assert (done.status, done.out, old.read()) == (0, b"", "old")
    assert "hello" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(cab.cwd) == ["out.md"]


async def test_a_failure_leaves_the_old_file(cab: Cab) -> None:
    file = cab.cwd / "out.md"
    file.write_text("old")
    done = await cab.run("task", "export", "unknown", "-o", "out.md")
    assert (done.status, done.error) == (1, "TaskNotFoundError")
    assert "unknown is neither a task nor a context with tasks" in done.err
    assert file.read_text() == "old" and os.listdir(cab.cwd) == ["out.md"]


async def test_only_files_are_replaced(cab: Cab, client: Client) -> None:
    task = (await client.send("done"))["id"]
    (cab.cwd / "target").write_text("old")
    (cab.cwd / "link").symlink_to("target")
    (cab.cwd / "folder").mkdir()
    os.mkfifo(cab.cwd / "fifo")
    for name in ("link", "folder", "fifo", "missing/file", "json"):
        done = await cab.run("task", "export", task, "-o", name)
        assert (done.status, done.error) == (2, "A2ACLI_ERR_USAGE"), name
    assert (cab.cwd / "target").read_text() == "old"
    assert sorted(os.listdir(cab.cwd)) == ["fifo", "folder", "link", "target"]
