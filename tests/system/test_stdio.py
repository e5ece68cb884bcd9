"""The stdio binding: a real server whose client is the process that started it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import CHECKOUT
from tests.support.bindings import numbered, piped
from tests.support.cases import each
from tests.support.client import Json, state, streamed_text, task_id
from tests.support.liveness import Liveness
from tests.support.stdio_server import (
    SERVE,
    artifact,
    child,
    refused,
    request,
    settings,
    streamed,
    unread,
)

WITHIN = 60.0  # seconds
NODE = CHECKOUT / ".venvs/node/bin/node"  # of scripts/install

PARENT = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
keeper = subprocess.Popen(["sleep", "60"], stdin=child.stdin.fileno(), stdout=subprocess.PIPE,
                          pass_fds=[child.stdin.fileno()])
child.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}\\n')
child.stdin.flush()
child.stdout.readline()
print(child.pid, keeper.pid, flush=True)
sys.stdin.read()
"""
"""A parent whose end of the pipe another process keeps open."""


@each("headers", [False, True])
async def test_both_framings_stream_and_skip_what_is_too_long(
    workspace: Path, headers: bool
) -> None:
    """A start of the program takes up to a second."""
    limit = 2**20
    async with child(workspace, headers=headers, BRIDGE_MAX_BODY_BYTES=str(limit)) as server:
        server.send(streamed(1, "text hello"))
        frames = await server.stream()
        numbers = [one["eventId"] for one in frames[:-1]]
        assert numbers == list(range(len(numbers)))
        assert artifact(frames) == "hello"
        assert frames[-1] == {"jsonrpc": "2.0", "id": 1, "streamEnd": True}
        server.send(b'{"x":"' + b"x" * limit + b'"}', b"{", request(2, "ListTasks"))
        too_long, broken, tasks = [await server.next() for _ in range(3)]
        assert too_long["id"] is broken["id"] is None
        assert too_long["error"]["data"][0]["reason"] == "BODY_TOO_LARGE"
        assert broken["error"]["code"] == -32700
        assert len(tasks["result"]["tasks"]) == 1
        assert await server.leave() == 0


async def test_a_line_of_20_mib_is_a_request_and_stderr_may_be_stdout(workspace: Path) -> None:
    """A start of the program takes up to a second."""
    async with child(workspace, stderr=asyncio.subprocess.STDOUT) as server:
        asked = request(1, "ListTasks", {"pageSize": 1})
        server.send({**asked, "padding": "x" * 20 * 2**20})
        answer = await server.next()  # and no line of the log
        assert (answer["id"], answer["result"]["tasks"]) == (1, [])
        text = "x" * 200_000
        server.send(streamed(2, f"text {text}"))
        assert artifact(await server.stream()) == text
        assert await server.leave() == 0


async def test_a_stream_can_be_stopped_and_the_end_of_stdin_ends_all(
    workspace: Path, live: Liveness
) -> None:
    """A start of the program takes up to a second."""
    async with child(workspace) as server:
        server.send(streamed(1, f"text a\nwait {live.path} agent"))
        first = await server.next()
        await live.pid("agent")
        server.send({"jsonrpc": "2.0", "id": 1, "cancelStream": True})
        await server.stream()
        task = first["result"]["task"]["id"]
        server.send(request(2, "GetTask", {"id": task}))
        assert (await server.next())["result"]["status"]["state"] == "TASK_STATE_WORKING"
        left = psutil.Process(server.process.pid).children(recursive=True)
        assert left
        assert await server.leave() == 0
        _, alive = await asyncio.to_thread(psutil.wait_procs, left, WITHIN)
        assert not alive


async def test_streams_continue_after_a_kill_of_the_server(workspace: Path, live: Liveness) -> None:
    """The parent starts the program again on the same folder, and comes back with the last numbers
    that it has seen: each item arrives once. Two starts of the program."""
    folder = str(workspace.parent / "state")
    seen = dict[str, list[tuple[int, Json]]]()
    async with child(workspace, BRIDGE_STATE_DIR=folder) as server:
        binding = piped(server)
        for number, name in enumerate("ab"):
            script = f"text 1\nwait {live.path} {name}\nstatus 2\ntext 3"
            asked = streamed(number, script)
            _, queue = await binding.begin(asked["method"], asked["params"])
            stream = numbered(queue)
            seen[name] = [await anext(stream)]
            while text_of(seen[name]) != "1":
                seen[name].append(await anext(stream))
            await live.pid(name)
        server.process.kill()
        with pytest.raises(ConnectionError):
            await anext(stream)
    async with child(workspace, BRIDGE_STATE_DIR=folder) as server:
        binding = piped(server)
        for name, items in seen.items():
            await live.release(name)
            named = {"id": task_id(items[0][1])}
            last = {"Last-Event-ID": str(items[-1][0])}
            _, queue = await binding.begin("SubscribeToTask", named, **last)
            items += [one async for one in numbered(queue)]
            assert [number for number, _ in items] == list(range(len(items)))
            assert (text_of(items), state(items[-1][1])) == ("13", "completed")
        assert await server.leave() == 0
        await binding.close()


def text_of(items: list[tuple[int, Json]]) -> str:
    return streamed_text([item for _, item in items])


async def test_answers_of_the_last_requests_come_after_the_end_of_stdin(workspace: Path) -> None:
    """A start of the program takes up to a second."""
    async with child(workspace, BRIDGE_DRAIN_MS="20000") as server:
        server.send(streamed(1, "text hello"))
        server.stdin.close()
        assert artifact(await server.stream()) == "hello"
        assert await server.leave() == 0


async def test_a_parent_that_does_not_read_is_named_in_the_log_and_stays(workspace: Path) -> None:
    """The stream waits, and is complete. A start of the program takes up to a second."""
    env = {"BRIDGE_STALL_TIMEOUT_MS": "200"}
    async with unread(workspace, **env) as server:
        server.send(streamed(1, f"repeat 500 {'x' * 10_000}"))
        await server.logged(b"does not read its answers")
        frames = await server.frames(1)
        assert artifact(frames) == "x" * 5_000_000
        assert await server.leave() == 0


async def test_a_parent_that_reads_no_more_ends_the_server(workspace: Path) -> None:
    """A start of the program takes up to a second."""
    home, variables = settings(workspace)
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *SERVE, cwd=home, env=variables, stdin=asyncio.subprocess.PIPE, stdout=writing
    )
    os.close(writing)
    os.close(reading)
    assert process.stdin
    process.stdin.write(json.dumps(request(1, "ListTasks")).encode() + b"\n")
    async with asyncio.timeout(WITHIN):
        assert await process.wait() == 1


async def test_a_killed_parent_leaves_no_process(workspace: Path) -> None:
    """Another process keeps its end of the pipe open. Two starts of an interpreter."""
    home, variables = settings(workspace)
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        *SERVE,
        cwd=home,
        env=variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout
    async with asyncio.timeout(WITHIN):
        server, keeper = map(psutil.Process, map(int, (await parent.stdout.readline()).split()))
    try:
        family = [server, *server.children(recursive=True)]
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, WITHIN)
        assert not alive
        assert keeper.is_running()
    finally:
        keeper.kill()


async def test_as_gives_the_rights_of_a_token(workspace: Path) -> None:
    """A start of the program takes up to a second."""
    config = workspace.parent / "bridge.toml"
    config.write_text(f'[tokens.reader]\nhash = "sha256:{"0" * 64}"\nscopes = ["read"]\n')
    async with child(workspace, "--as", "reader", CONFIG_FILE=str(config)) as server:
        server.send(request(1, "ListTasks"), streamed(2, "text hello"))
        answers = {(one := await server.next())["id"]: one for _ in range(2)}
        assert answers[1]["result"]["tasks"] == []
        assert answers[2]["error"]["data"][0]["reason"] == "PERMISSION_DENIED"
        assert await server.next() == {"jsonrpc": "2.0", "id": 2, "streamEnd": True}


@each("wrong", [["--as", "unknown"], ["--agent", "unknown"]])
def test_wrong_settings_end_before_the_first_frame(workspace: Path, wrong: list[str]) -> None:
    """A start of the program takes up to a second."""
    done = refused(workspace, *wrong)
    assert done.returncode == 2 and b"unknown" in done.stderr


@pytest.mark.parametrize("language", ["python", "node"])
def test_the_clients_of_the_documents(workspace: Path, language: str) -> None:
    """Two starts of an interpreter."""
    code = (CHECKOUT / "docs/examples/stdio.js").read_text("utf-8")
    if language == "python":
        page = (CHECKOUT / "docs/bindings.md").read_text("utf-8")
        code = page.partition("<!-- stdio-python -->\n```python\n")[2].partition("```")[0]
    code = code.replace("Describe this project.", "text hi")
    shown = '["coding-agent-bridge", "stdio", "--a2a-version", "1.0"]'
    assert shown in code
    code = code.replace(shown, json.dumps(SERVE))
    home, variables = settings(workspace)
    done = subprocess.run(
        [sys.executable, "-c", code] if language == "python" else [NODE, "-e", code],
        cwd=home,
        env=variables,
        capture_output=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"hi" in done.stdout and b"TASK_STATE_COMPLETED" in done.stdout
    assert b"streamEnd" in done.stdout.splitlines()[-1]
