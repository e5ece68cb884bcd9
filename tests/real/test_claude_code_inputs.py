"""The real Claude Code: files that come with a message, and messages that steer a running turn."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cab import COMMAND, Cab
from tests.support.client import (
    Client,
    Json,
    RpcError,
    artifact_text,
    context_id,
    said,
    state,
    streamed_text,
    task_id,
    texts,
)
from tests.support.real_claude_code import (
    VERSIONS,
    RealClaudeCode,
    ask,
    bash,
    claude_code,
    file_part,
    read_until,
    running_command,
    script,
    tool,
    tool_results,
    user_texts,
)
from tests.support.terminal import Terminal

MARK = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealClaudeCode]:
    folder = tmp_path_factory.mktemp("inputs")
    async with claude_code(folder, BRIDGE_WHEN_BUSY="steer") as server:
        yield server


# --- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_file_that_the_cli_cannot_take_is_put_where_the_prompt_says(
    real: RealClaudeCode, version: str
) -> None:
    client = real.client(version)
    content = b"word,count\nfirst," + version.encode() + b"\n"
    zipped = file_part(client, "application/x-table", content, "../../ta ble.csv")
    text = client.text_part(script(f"A file of {version}.", "seen"))
    task = await client.send([text, zipped])
    (named,) = [t for t in user_texts(real.requests(f"A file of {version}")[-1]) if "Attached" in t]
    path = Path(named.partition(": ")[2])
    assert path.name == "1-ta_ble.csv"
    assert path.read_bytes() == content  # noqa: ASYNC240 - a few bytes
    assert [oct(folder.stat().st_mode & 0o777) for folder in (path, path.parent)] == [
        "0o600",
        "0o700",
    ]
    # The CLI may read it without asking, though it lies outside of the workspace.
    read = script("Read it.", tool("Read", file_path=str(path)), "read")
    task = await client.send(read, contextId=context_id(task))
    assert (state(task), artifact_text(task)) == ("completed", "read")
    assert content.decode().split()[1] in tool_results(real.requests("Read it.")[-1])[-1]


async def test_a_file_that_comes_later_reaches_a_conversation_that_goes_on(
    real: RealClaudeCode,
) -> None:
    client = real.client()
    first = await client.send(script("Without a file.", "one"))
    part = file_part(client, "application/x-unknown", b"later", "late")
    text = client.text_part(script("With a file.", "two"))
    second = await client.send([text, part], contextId=context_id(first))
    seen = real.requests("With a file.")[-1]
    assert [text for text in user_texts(seen) if "Without a file." in text]
    (named,) = [text for text in user_texts(seen) if text.startswith("Attached file: ")]
    path = named.partition(": ")[2]
    read = script("Read the late one.", tool("Read", file_path=path), "read")
    third = await client.send(read, contextId=context_id(second))
    assert (state(third), artifact_text(third)) == ("completed", "read")


def url_part(client: Client, url: str) -> Json:
    return {"kind": "file", "file": {"uri": url}} if client.version == "0.3" else {"url": url}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_file_of_the_workspace_is_named_in_the_prompt(
    real: RealClaudeCode, version: str
) -> None:
    client = real.client(version)
    path = real.workspace / f"of {version}.txt"
    path.write_text("here")
    text = client.text_part(script(f"Look at it in {version}.", "seen"))
    await client.send([text, url_part(client, path.as_uri())])
    seen = user_texts(real.requests(f"Look at it in {version}.")[-1])
    assert f"Attached file: {path}" in seen


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", -32602),
        ("file:///etc/nothing-there", -32602),
        ("file:///dev/zero", -32602),
        ("file://WORKSPACE/../../etc/passwd", -32602),
        ("file://WORKSPACE/%2e%2e/%2e%2e/%2e%2e/etc/passwd", -32602),
        ("file://WORKSPACE/link", -32602),
        ("file://WORKSPACE/pipe", -32602),
        ("file://WORKSPACE", -32602),
        ("file://WORKSPACE/nul%00", -32602),
        ("file:relative", -32602),
        ("file:////etc/passwd", -32602),
        ("FILE:///etc/passwd", -32602),
        ("file://[", -32602),
        ("file://elsewhere/etc/passwd", -32005),
        ("http://127.0.0.1/file", -32005),
        ("ftp://127.0.0.1/file", -32005),
    ],
)
async def test_a_file_from_anywhere_else_is_refused(
    real: RealClaudeCode, url: str, code: int
) -> None:
    client = real.client()
    link, pipe = real.workspace / "link", real.workspace / "pipe"
    if not pipe.exists():
        link.symlink_to("/etc/passwd")
        os.mkfifo(pipe)
    part = url_part(client, url.replace("WORKSPACE", str(real.workspace)))
    before = set(real.processes())
    with pytest.raises(RpcError) as refused:
        await client.send([client.text_part("Look."), part])
    assert refused.value.code == code
    if code == -32602:  # what is outside looks like what is not there
        assert str(refused.value).endswith("A file: URL names no file in the workspace.")
    assert set(real.processes()) <= before


# --- steering ----------------------------------------------------------------------------------


async def test_a_message_joins_the_turn_whose_command_runs(real: RealClaudeCode) -> None:
    client = real.client()
    async with running_command() as command:
        task = await ask(client, script("Begin.", bash(command.line), "left it is"))
        ids = {"taskId": task_id(task), "contextId": context_id(task)}
        async with client.stream("allow", **ids) as items:
            await command.begun()
            steered = await client.send_now("Go left.", contextId=context_id(task))
            assert task_id(steered) == task_id(task)
            command.release()
            seen = [item async for item in items]
    assert streamed_text(seen) == "left it is"
    task = await client.get(task_id(task))
    assert state(task) == "completed"
    said = [texts(m["parts"]) for m in task["history"] if m["role"] == "ROLE_USER"]
    assert [text.split(" @@")[0] for text in said] == ["Begin.", "allow", "Go left."]
    # The model is told of it with what the command returned, before it goes on.
    told = real.requests("Go left.")
    assert len(told) == 1
    assert "Go left." in json.dumps(told[0][-1])


async def test_a_line_of_a_person_joins_the_turn_and_everybody_sees_it(
    real: RealClaudeCode,
) -> None:
    """Two people are attached to a conversation of a third client. Their clients start in a second
    each."""
    cab = Cab(real.workspace, real.home)
    client = real.client()
    async with running_command() as command:
        task = await ask(client, script("Begin.", bash(command.line), "right it is"))
        context = {"contextId": context_id(task)}
        words = (*COMMAND, "attach", context_id(task), "-a", real.server.url)
        anna, ben = (Terminal(words, cab.cwd, cab.env, 100, 30) for _ in range(2))
        try:
            await client.send_now("allow", taskId=task_id(task), **context)
            await command.begun()
            for one in (anna, ben):
                await one.shows("Running")
            await anna.press("Go right.\r")
            for one in (anna, ben):
                await one.shows(f"{MARK} Go right.")
            command.release()
            for one in (anna, ben):
                await one.shows("  right it is")
                await one.shows("Ready")
            assert anna.text.count("Go right.") == ben.text.count("Go right.") == 1
        finally:
            anna.close()
            ben.close()
    assert len((await client.call("ListTasks", context))["tasks"]) == 1
    assert "Go right." in json.dumps(real.requests("Go right.")[0][-1])


def is_piece(item: Json) -> bool:
    return "artifactUpdate" in item


@pytest.mark.parametrize(
    "pieces", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 4))]
)
async def test_a_message_that_comes_with_the_last_words_is_answered_in_the_same_task(
    real: RealClaudeCode, pieces: int
) -> None:
    client = real.client()
    slow = {"text": "slowly spoken words.", "chunks": 4, "delay": 0.1}
    async with client.stream(script("Speak.", slow)) as items:
        seen = [await read_until(items, is_piece) for _ in range(pieces)]
        ids = seen[-1]["artifactUpdate"]
        refused = ""
        try:
            await client.send_now(script("And more.", "more"), taskId=ids["taskId"])
        except RpcError as error:
            refused = str(error)
        seen += [item async for item in items]
    if refused:  # on a slow machine: those were the last words, and the task had ended with them
        assert pieces == 4 and "The task is completed" in refused
        assert streamed_text(seen) == "slowly spoken words."
        return
    assert streamed_text(seen) == "slowly spoken words.\n\nmore"
    task = await client.get(ids["taskId"])
    assert (state(task), artifact_text(task)) == ("completed", "slowly spoken words.\n\nmore")
    assert said(task) == "more"
    again = await client.send(script("Afterwards.", "the next"), contextId=ids["contextId"])
    assert (state(again), artifact_text(again)) == ("completed", "the next")
    assert task_id(again) != task_id(task)
