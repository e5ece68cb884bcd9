"""The principal of a request: the bearer of a token."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import resource
import sys
import tomllib
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.auth.authentication import FAILURES
from bridge.auth.credentials import new_token
from bridge.errors import ConfigurationError
from tests.support.agent import PROGRAM
from tests.support.bridge_process import bridge
from tests.support.cases import each
from tests.support.client import Client, artifact_text

AGENT: dict[str, Any] = {
    "AGENT_ADAPTER": "jsonl",
    "AGENT_BINARY": sys.executable,
    "AGENT_ARGS": f"-I -S {PROGRAM}",
}
TOKEN = "a-token-of-the-operator"
# Sends a message as another user, and prints the status.
AS_ANOTHER = """
import os, sys, http.client
"x".encode("idna")
os.setuid(int(sys.argv[2]))
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
body = '{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}'
headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
if sys.argv[3]:
    headers["Authorization"] = sys.argv[3]
connection.request("POST", "/a2a", body, headers)
print(connection.getresponse().status)
"""


async def status(url: str, **headers: str) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    every = {"A2A-Version": "1.0", **headers}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/a2a", json=body, headers=every) as response,
    ):
        await response.read()
        return response.status


async def test_the_same_user_needs_the_token_of_the_operator(workspace: Path) -> None:
    async with bridge(workspace, **AGENT, BRIDGE_AUTH="auto") as server:
        assert await status(server.url) == 401
        assert await status(server.url, **server.credentials) == 200
        for path in ("/health", "/.well-known/agent-card.json"):  # which are for everybody
            async with aiohttp.ClientSession() as http, http.get(server.url + path) as response:
                assert response.status == 200


async def test_who_cannot_be_known_for_want_of_descriptors_may_try_again(workspace: Path) -> None:
    env = {**AGENT, "BRIDGE_AUTH": "auto"}
    async with bridge(workspace, **env) as server, aiohttp.ClientSession() as http:
        credentials = server.credentials
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}

        async def asked() -> tuple[int, str]:
            headers = {"A2A-Version": "1.0", **credentials}
            async with http.post(f"{server.url}/a2a", json=body, headers=headers) as response:
                return response.status, await response.text()

        async with http.get(f"{server.url}/health") as response:  # over the same connection
            await response.read()
        pid = server.process.pid
        opened = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        free = next(number for number in range(len(opened) + 1) if number not in opened)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
        code, text = await asked()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert code == 503 and "try again" in text
        assert (await asked())[0] == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_of_the_machine_needs_a_token(workspace: Path) -> None:
    async with bridge(workspace, **AGENT, BRIDGE_AUTH="auto") as server:
        port = server.url.rpartition(":")[2]
        for token, expected in (("", b"401"), (server.credentials["Authorization"], b"200")):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", AS_ANOTHER, port, "65534", token),
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await asyncio.wait_for(process.communicate(), 20)
            assert out.strip() == expected


async def test_without_authentication_every_local_client_has_access(workspace: Path) -> None:
    async with bridge(workspace, **AGENT, BRIDGE_AUTH="none") as server:
        assert await status(server.url, Forwarded="for=192.0.2.1") == 200


@pytest.mark.parametrize(
    ("env", "about"),
    [
        ({"BRIDGE_AUTH": "token"}, "set BRIDGE_TOKEN"),
        ({"BRIDGE_AUTH": "none", "HOST": "0.0.0.0", "BRIDGE_TOKEN": TOKEN}, "BRIDGE_TOKEN"),
        ({"HOST": "0.0.0.0"}, "BRIDGE_TOKEN"),
    ],
)
async def test_a_sandbox_that_could_not_protect_a_folder_does_not_start(
    workspace: Path, env: dict[str, Any], about: str
) -> None:
    with pytest.raises(AssertionError, match=about):
        async with bridge(workspace, **AGENT, **env):
            pass


async def test_a_token_in_every_way_that_clients_send_it(workspace: Path) -> None:
    login = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    async with bridge(workspace, **AGENT, BRIDGE_TOKEN=TOKEN) as server:
        assert await status(server.url) == 401
        assert await status(server.url, Authorization=f"Bearer {TOKEN}") == 200
        assert await status(server.url, Authorization=f"bearer  {TOKEN} ") == 200
        assert await status(server.url, Authorization=f"Basic {login}") == 200
        assert await status(server.url, **{"X-API-Key": TOKEN}) == 200
        for wrong in ("Bearer", "Bearer ", "Bearer x", "Basic !!", f"Digest {TOKEN}", TOKEN):
            assert await status(server.url, Authorization=wrong) == 401
        assert await status(f"{server.url}/a2a?token={TOKEN}") in (401, 404)


async def test_who_guesses_has_to_wait_and_others_do_not(workspace: Path) -> None:
    async with bridge(workspace, **AGENT, BRIDGE_TOKEN=TOKEN) as server:
        for number in range(FAILURES):
            assert await status(server.url, Authorization=f"Bearer {number}") == 401
        assert await status(server.url, Authorization="Bearer another") == 429
        assert await status(server.url) == 401  # which is no guess
        assert await status(server.url, Authorization=f"Bearer {TOKEN}") == 200


async def test_a_new_token_is_known_by_its_hash(workspace: Path, tmp_path: Path) -> None:
    token, _, table = new_token("ide").partition("\n\n")
    assert token not in table
    config = tmp_path / "config.toml"
    config.write_text(f'{table}scopes = ["run", "read"]\n')
    async with bridge(workspace, **AGENT, CONFIG_FILE=str(config)) as server:
        credentials = {"Authorization": f"Bearer {token}"}
        assert await status(server.url) == 401
        assert await status(server.url, **credentials) == 200
        async with aiohttp.ClientSession(headers=credentials) as http:
            task = await Client(http, server.url).send("text hello")
            assert artifact_text(task) == "hello"
            for path in ("/monitor/agents", "/monitor/tasks"):
                async with http.get(server.url + path) as response:
                    assert response.status == 403
                    assert "admin" in await response.text()


@pytest.mark.parametrize(
    ("table", "about"),
    [
        ('[tokens.x]\nhash = "sha256:12"', r"\[tokens.x\] hash"),
        ('[tokens.local]\nhash = "sha256:' + "0" * 64 + '"', "BRIDGE_TOKEN"),
        ('[tokens.rule]\nhash = "sha256:' + "0" * 64 + '"', "Choose another name"),
        ('[tokens.x]\nhash = "sha256:' + "0" * 64 + '"\nscopes = ["fly"]', "TOKENS.x.scopes"),
        ('[tokens."a/b"]\nhash = "x"', "TOKENS"),
    ],
)
async def test_a_token_that_cannot_be(
    workspace: Path, tmp_path: Path, table: str, about: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(table)
    with pytest.raises(AssertionError, match=about) as failed:
        async with bridge(workspace, **AGENT, CONFIG_FILE=str(config)):
            pass
    assert not re.search("Traceback", str(failed.value))


@each("name", ["a b", "", ".a", "a/b", "local", "rule", "x" * 129, 'a"b'])
def test_a_name_that_no_token_can_have(name: str) -> None:
    with pytest.raises(ConfigurationError):
        new_token(name)


@each("name", ["a.b", "a-b_c", "1"])
def test_the_printed_token_entry_is_toml(name: str) -> None:
    table = tomllib.loads(new_token(name).partition("\n\n")[2])
    assert set(table["tokens"]) == {name} and set(table["tokens"][name]) == {"hash"}


async def test_refused_clients_are_written_down_but_not_all_of_a_flood(workspace: Path) -> None:
    audit = workspace.parent / "audit.jsonl"
    env = {**AGENT, "BRIDGE_TOKEN": TOKEN, "BRIDGE_AUDIT_FILE": str(audit)}
    async with bridge(workspace, **env) as server:
        assert await status(server.url) == 401
        wrong = "Bearer a-wrong-secret-of-somebody"
        codes = {await status(server.url, Authorization=wrong) for _ in range(60)}
        assert codes == {401, 429}
        assert await status(server.url, Authorization=f"Bearer {TOKEN}") == 200
        log = server.log
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    refused = [line for line in lines if line["what"] == "auth_failed"]
    assert (refused[0]["scheme"], refused[0]["cause"]) == ("bearer", "missing")
    assert refused[0]["peer"] == "127.0.0.1"
    assert {line["cause"] for line in refused[1:]} <= {"unknown", "throttled"}
    ids = [line["request_id"] for line in refused]
    assert len(set(ids)) == len(ids) and all(f"request_id='{one}'" in log for one in ids[:5])
    assert 20 <= len(refused) < 61
    told = [line for line in log.splitlines() if "not authenticated" in line]
    assert 10 <= len(told) < 61 and "peer='127.0.0.1'" in told[0]
    assert "a-wrong-secret" not in log + audit.read_text()
