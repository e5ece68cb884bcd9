"""Invalid requests and misbehaving CLIs, against the real server. The server answers each of them,
reveals no internals, and continues."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from tests.support import agent, misbehaving
from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.children import children
from tests.support.client import Client, Json, artifact_text, said, state, streamed_text, texts

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITHIN = 60.0
SETTINGS = {
    "AGENT_IDLE_EXIT_MS": "2000",
    "BRIDGE_STOP_GRACE_MS": "300",
    "BRIDGE_DRAIN_MS": "0",
    "BRIDGE_MAX_BODY_BYTES": "10000000",
    "BRIDGE_MAX_SESSIONS": "100",
}


def cli(folder: Path, program: str) -> str:
    """A program that can be run by its path alone."""
    path = folder / "cli"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {program} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BridgeProcess]:
    """A server with a scripted CLI. Its log contains only the expected errors."""
    folder = tmp_path_factory.mktemp("server")
    workspace = folder / "workspace"
    workspace.mkdir()
    binary = cli(folder, agent.PROGRAM)
    settings: Json = {**SETTINGS, "AGENT_ADAPTER": "jsonl", "AGENT_BINARY": binary}
    async with bridge(workspace, **settings) as server:
        yield server
    assert server.process.returncode == 0
    assert troubles(server) == []


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: BridgeProcess) -> AsyncIterator[Client]:
    """Afterwards the server serves as before."""
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(force_close=True)  # the server may close after an error
    async with aiohttp.ClientSession(
        timeout=timeout, read_bufsize=2**25, connector=connector
    ) as http:
        client = Client(http, server.url)
        yield client
        task = await client.send("text still here", contextId="canary")
        assert artifact_text(task) == "still here"


def troubles(server: BridgeProcess) -> list[str]:
    """The errors in the log of the bridge, without those of aiohttp for requests that are not
    HTTP."""
    lines = server.log.splitlines()
    return [line for line in lines if "Traceback" in line and " error aiohttp." not in line]


def nested(depth: int, inner: str = "1") -> str:
    return "[" * depth + inner + "]" * depth


# --- requests ----------------------------------------------------------------------------------

SEND = '{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":%s}}'
MESSAGE = '{"messageId":"m","role":"ROLE_USER","parts":[{"text":"text a"}],"metadata":{"a":%s}}'
DATA = '{"messageId":"m","role":"ROLE_USER","parts":[{"text":"prompt"},{"data":%s}]}'
GET = '{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":%s}}'
BODIES: dict[str, bytes] = {
    "deeper than a parser goes": (SEND % MESSAGE % nested(100_000)).encode(),
    "deeper than a writer goes": (SEND % MESSAGE % nested(400)).encode(),
    "as deep in a part": (SEND % DATA % nested(600)).encode(),
    "deep at the top": nested(1000).encode(),
    "never closed": b"[" * 1_000_000,
    "objects never closed": b'{"a":' * 100_000,
    "invalid UTF-8": SEND.encode() % MESSAGE.encode() % b'"\xff\xfe\xc0\x80"',
    "overlong UTF-8": GET.encode() % b'"\xe0\x80\x80"',
    "a surrogate in UTF-8": GET.encode() % b'"\xed\xa0\x80"',
    "a lone surrogate": (SEND % MESSAGE % '"\\ud800"').encode(),
    "surrogates the wrong way round": (GET % '"\\udc00\\ud800"').encode(),
    "NaN": (SEND % MESSAGE % "NaN").encode(),
    "infinity": (SEND % MESSAGE % "-Infinity").encode(),
    "a number beyond all doubles": (SEND % MESSAGE % "1e999").encode(),
    "a huge integer": (SEND % MESSAGE % ("9" * 5000)).encode(),
    "a huge integer as the id": b'{"jsonrpc":"2.0","id":%s,"method":"Nope"}' % (b"9" * 400),
    "the smallest integers": (SEND % MESSAGE % "-9223372036854775809").encode(),
    "null characters": (SEND % MESSAGE % '"\\u0000"').encode(),
    "a raw null character": (SEND % MESSAGE % '"\0"').encode(),
    "a byte order mark": b"\xef\xbb\xbf" + (GET % '"x"').encode(),
    "UTF-16": (GET % '"x"').encode("utf-16"),
    "proto": (SEND % '{"__proto__":{"a":1},"constructor":1}').encode(),
    "a comment": b'{"jsonrpc":"2.0" /* */}',
    "two documents": (GET % '"x"').encode() * 2,
    "a trailing comma": b'{"jsonrpc":"2.0",}',
    "an id of control characters": (GET % '"\\u0000\\r\\n\\u001b[31m"').encode(),
    "an id of a megabyte": (GET % json.dumps("x" * 1_000_000)).encode(),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_makes_no_sense_is_answered(client: Client, name: str) -> None:
    response = await client.post(BODIES[name])
    assert response.status == 200, await response.text()
    answer = await response.json()
    assert set(answer) in ({"jsonrpc", "id", "error"}, {"jsonrpc", "id", "result"})
    if "error" in answer:
        assert answer["error"]["code"] in (-32700, -32600, -32601, -32602, -32001), answer
        assert "Traceback" not in answer["error"]["message"]
        assert len(answer["error"]["message"]) < 2000


async def test_every_accepted_message_can_be_read(client: Client) -> None:
    odd = '"\\u0000\\u2028\\ud83d\\ude00"'
    for value in (odd, "1e999", "9" * 30, "-0.0", nested(50), '{"":{"":null}}'):
        response = await client.post((SEND % DATA % value).encode())
        answer = await response.json()
        if "error" not in answer:
            task = answer["result"]["task"]
            assert await client.get(task["id"]) == task


@pytest.mark.parametrize("depth", [100, 250, 1000, 1030])
async def test_nesting_is_refused_or_served_but_never_half(client: Client, depth: int) -> None:
    for version in ("1.0", "0.3"):
        client = Client(client.session, client.url, version)
        value = json.loads(nested(depth, '"x"')) if depth < 900 else None
        message = client.message("text a\nask q-1 x", metadata={"deep": "DEEP"})
        method = "message/send" if version == "0.3" else "SendMessage"
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}})
        body = body.replace("{}", json.dumps({"message": message}))
        raw = body.replace('"DEEP"', nested(depth, '"x"')).encode()
        answer = await (await client.post(raw)).json()
        if "error" in answer:
            assert answer["error"]["code"] in (-32600, -32602), answer
            continue
        task = answer["result"].get("task", answer["result"])
        assert state(task) == "input-required", said(task)
        assert task["history"][0]["metadata"] == {"deep": value}
        assert (await client.get(task["id"]))["history"] == task["history"]


HEADERS: list[dict[str, str]] = [
    {"Content-Type": "application/json; charset=nonsense"},
    {"Content-Type": "application/json; charset=utf-16"},
    {"Accept": "\u00ff"},
    {"Accept": "text/event-stream"},
    {"A2A-Version": "\u00ff\u00fe"},
    {"A2A-Version": "1.0\u0660"},
    {"A2A-Extensions": "," * 1000},
    {"Host": "[::1"},
    {"Host": ""},
    {"X-Forwarded-For": "x" * 4000},
    {"Authorization": "Bearer \u00ff"},
]


@pytest.mark.parametrize("headers", HEADERS)
async def test_headers_that_make_no_sense_are_answered(
    client: Client, headers: dict[str, str]
) -> None:
    response = await client.post((GET % '"x"').encode(), **headers)
    assert response.status in (200, 400), await response.text()
    assert "Traceback" not in await response.text()


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "gzip, identity", "nonsense"])
async def test_a_compressed_body_is_refused_and_never_unpacked(client: Client, name: str) -> None:
    for packed in (gzip.compress((GET % '"x"').encode()), gzip.compress(b" " * 100_000_000)):
        response = await client.post(packed, **{"Content-Encoding": name})
        assert response.status == 415
        assert (await response.json())["error"]["code"] == -32005
    response = await client.post((GET % '"x"').encode(), **{"Content-Encoding": "Identity"})
    assert (await response.json())["error"]["code"] == -32001


RAW: dict[str, bytes] = {
    "nothing": b"",
    "garbage": bytes(range(256)) * 10,
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"POST /a2a/jsonrpc\r\n\r\n",
    "a bad length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "a huge header": b"POST / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "a bad chunk": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b'Content-Length: 500\r\n\r\n{"jsonrpc":"2.0",',
    "half a chunk": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n50\r\nabc",
    "a path of odd bytes": b"POST /\xff\xfe%zz%00/../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", RAW)
async def test_bytes_that_are_not_a_request_do_no_harm(client: Client, name: str) -> None:
    host, port = client.url.removeprefix("http://").split(":")
    async with asyncio.timeout(WITHIN):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(RAW[name])
        writer.write_eof()
        answer = await reader.read()
        writer.close()
    assert answer == b"" or not answer.startswith(b"HTTP/1.1 5")
    assert b"Traceback" not in answer and b"/bridge/" not in answer


async def test_a_client_that_goes_away_in_the_middle_of_its_request_does_no_harm(
    client: Client,
) -> None:
    host, port = client.url.removeprefix("http://").split(":")
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(RAW["half a body"])
        await writer.drain()
        writer.transport.abort()


# --- what an agent says ------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [50, 240, 900])
@pytest.mark.parametrize(
    "line",
    [
        '{"type":"artifact","parts":[{"data":%s}]}',
        '{"type":"artifact","parts":[{"text":"x"}],"metadata":{"a":%s}}',
        '{"type":"tool_call","id":"1","name":"t","input":%s}',
        '{"type":"tool_result","id":"1","output":%s}',
        '{"type":"question","id":"1","text":"x","data":{"a":%s}}',
        '{"type":"usage","a":%s}',
        '{"type":%s}',
    ],
)
async def test_deep_output_of_an_agent_does_not_break_its_task(
    client: Client, line: str, depth: int
) -> None:
    script = f"text a\nline {line % nested(depth)}\ntext b\nfail now"
    items = await client.collect(script)
    task = await client.get(items[0]["task"]["id"])
    async with asyncio.timeout(WITHIN):
        while state(task) == "input-required":  # it does not wait for an answer
            task = await client.get(task["id"])
    assert state(task) == "failed"
    assert streamed_text(items).startswith("a")
    assert artifact_text(task).startswith("a")


@pytest.mark.parametrize(
    "line",
    [
        *("[]", "null", "5", '""', "{}", '{"type":null}', '{"type":[]}', '{"type":{}}'),
        *('{"type":"nope"}', '{"type":"text"}', '{"type":"text","text":5}', "\x00\x01", "{"),
        '{"type":"text","text":"\\ud800"}',
        '{"type":"question"}',
        '{"type":"question","id":5,"text":null,"options":5}',
        '{"type":"question","id":"q","options":[5,null,{"id":1},{"kind":[]}]}',
        '{"type":"artifact"}',
        '{"type":"artifact","parts":5,"name":5}',
        '{"type":"artifact","parts":[{"text":"x"}],"name":5,"description":[],"metadata":"x"}',
        '{"type":"artifact","parts":[{"text":"x"}],"artifactId":["a"]}',
        '{"type":"tool_call"}',
        '{"type":"tool_call","id":[],"name":{},"input":5}',
        '{"type":"tool_result","id":null,"output":[1,{"a":null}],"isError":"x"}',
        '{"type":"usage","inputTokens":"many","costUsd":[]}',
        '{"type":"auth_required","id":null,"text":[]}',
        '{"type":"status","text":{}}',
        '{"type":"thought"}',
    ],
)
async def test_a_line_that_an_agent_got_wrong_does_not_end_its_turn(
    client: Client, line: str
) -> None:
    task = await client.send(f"text a\nline {line}\ntext b\ndone end")
    async with asyncio.timeout(WITHIN):
        while state(task) in ("input-required", "auth-required"):  # it does not wait for an answer
            task = await client.get(task["id"])
    assert state(task) == "completed" and said(task).endswith("b\n\nend"), task
    assert artifact_text(task).endswith("b")
    for artifact in task["artifacts"]:
        assert isinstance(artifact["artifactId"], str)
        assert isinstance(artifact.get("name", ""), str)
        assert isinstance(artifact.get("description", ""), str)
        assert isinstance(artifact.get("metadata", {}), dict)


# --- CLIs --------------------------------------------------------------------------------------


@pytest_asyncio.fixture(params=["jsonl", "claude-code"], scope="module", loop_scope="module")
async def rude(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BridgeProcess]:
    """The server with a CLI that misbehaves if its prompt is the name of a misbehaviour."""
    folder = tmp_path_factory.mktemp("rude")
    workspace = folder / "workspace"
    for name in (*AT_START, "proper"):
        (workspace / name).mkdir(parents=True)
        if name != "proper":
            (workspace / name / "at-start").write_text(name)
    binary = cli(folder, misbehaving.PROGRAM)
    path = "AGENT_BINARY"
    settings: Json = {**SETTINGS, "AGENT_ADAPTER": request.param, path: binary}
    async with bridge(workspace, **settings) as server:
        yield server
        assert len(cli_processes(server)) == 0 or await all_gone(server)
    assert server.process.returncode == 0
    assert troubles(server) == []


def cli_processes(server: BridgeProcess) -> list[psutil.Process]:
    return children(server.process.pid)


async def all_gone(server: BridgeProcess) -> bool:
    """Stops the server; whether that leaves no process."""
    left = cli_processes(server)
    await server.stop()
    return not any(process.is_running() for process in left)


@pytest_asyncio.fixture(loop_scope="module")
async def rude_client(rude: BridgeProcess) -> AsyncIterator[Client]:
    timeout = aiohttp.ClientTimeout(total=30)
    connector = aiohttp.TCPConnector(force_close=True)  # the server may close after an error
    async with aiohttp.ClientSession(
        timeout=timeout, read_bufsize=2**25, connector=connector
    ) as http:
        yield Client(http, rude.url)


DURING_A_TURN = {
    "exits": "exit status 3). Its last words: I have no licence to run here",
    "exits_without_a_word": "exit status 0). It said nothing on stderr",
    "prints_garbage": "exit status 1",
    "prints_a_long_line": "exit status 1",
    "never_answers": "printed nothing for 2 s and was stopped (AGENT_IDLE_EXIT_MS",
    "floods_stderr": "the last words",
    "leaves_half_a_line": "exit status 1",
    "dies_by_a_signal": "signal 9",
    "closes_stdout": "closed its output|AGENT_IDLE_EXIT_MS",
    "closes_stdin_and_stdout": "closed its output|AGENT_IDLE_EXIT_MS",
}
AT_START = (
    "exits",
    "never_answers",
    "floods_stderr",
    "dies_by_a_signal",
    "closes_stdin_and_stdout",
)


async def fails_as_expected(task: Json, behaviour: str) -> None:
    assert state(task) == "failed", task
    wanted = DURING_A_TURN[behaviour].split("|")
    assert any(text in said(task) for text in wanted), said(task)[:3000]
    assert len(said(task)) <= 8000


async def works_again(server: BridgeProcess, client: Client, context: str, **more: Any) -> None:
    """A new process, the only one of the context, runs its next task."""
    task = await client.send("hello", contextId=context, **more)
    assert (state(task), artifact_text(task)) == ("completed", "so far"), task
    async with asyncio.timeout(WITHIN):
        while any(map(is_zombie, cli_processes(server))):
            await client.get(task["id"])  # one of another context may be ending just now


def is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("behaviour", DURING_A_TURN)
async def test_a_cli_that_misbehaves_fails_only_its_task(
    rude: BridgeProcess, rude_client: Client, behaviour: str
) -> None:
    async with asyncio.timeout(WITHIN):
        before = len(cli_processes(rude))
        items = await rude_client.collect(behaviour, contextId=behaviour)
        task = await rude_client.get(items[0]["task"]["id"])
        await fails_as_expected(task, behaviour)
        assert said(items[-1]) == said(task)
        assert artifact_text(task) == streamed_text(items) == "so far"
        await works_again(rude, rude_client, behaviour)
        assert len(cli_processes(rude)) == before + 1
    history = " ".join(texts(message["parts"]) for message in task["history"])
    if behaviour == "prints_garbage":
        assert "garbage" in history
    if behaviour == "prints_a_long_line":
        assert "A line of 50000000 bytes was cut" in history
    if behaviour == "leaves_half_a_line":
        assert "a whole line" in history and '{"type":"text","text":"ha' in history


async def test_clis_that_misbehave_from_the_start_fail_only_their_tasks(
    rude: BridgeProcess, rude_client: Client
) -> None:
    async def one(behaviour: str) -> None:
        metadata = {"bridge": {"cwd": behaviour}}
        task = await rude_client.send("hello", contextId=f"{behaviour}-start", metadata=metadata)
        await fails_as_expected(task, behaviour)
        proper = {"bridge": {"cwd": "proper"}}
        await works_again(rude, rude_client, f"{behaviour}-after", metadata=proper)

    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*map(one, AT_START))


async def test_many_clis_that_misbehave_at_once_harm_no_other(
    rude: BridgeProcess, rude_client: Client
) -> None:
    behaviours = [name for name in DURING_A_TURN if name != "never_answers"] * 2
    async with asyncio.timeout(2 * WITHIN):
        tasks = await asyncio.gather(
            *(rude_client.send(name) for name in behaviours),
            *(rude_client.send("hello") for _ in behaviours),
        )
    assert [state(task) for task in tasks] == ["failed"] * len(behaviours) + ["completed"] * len(
        behaviours
    )
