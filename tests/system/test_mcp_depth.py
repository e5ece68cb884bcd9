"""Agents that delegate to each other: the server counts them by their processes."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.process.procfs import MARKER
from tests.support.bridge_process import bridge
from tests.support.mcp import Mcp, shown

OPERATOR, AGENT = "o" * 43, "a" * 43
# Delegates the prompt with the next smaller number, and says what it was told.
PROGRAM = f"""
import json, os, subprocess, sys, urllib.request

POST = '''
import json, sys, urllib.request
url, prompt = sys.argv[1:]
meta = {{"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {{}}}}
params = {{"name": "delegate", "arguments": {{"prompt": prompt}}, "_meta": meta}}
body = {{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}}
headers = {{"Authorization": "Bearer {AGENT}", "Content-Type": "application/json",
           "Accept": "application/json, text/event-stream", "Mcp-Name": "delegate",
           "Mcp-Method": "tools/call", "MCP-Protocol-Version": "2026-07-28"}}
request = urllib.request.Request(url + "/mcp", json.dumps(body).encode(), headers)
print(json.load(urllib.request.urlopen(request))["result"]["content"][0]["text"], flush=True)
'''
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] != "prompt":
        continue
    how, number, url, *first = message["text"].split()
    if int(number):
        marker = first[0] if first else os.environ["{MARKER}"]
        prompt = f"{{how}} {{int(number) - 1}} {{url}} {{marker}}"
        command = [sys.executable, "-I", "-c", POST, url, prompt]
        if how == "hidden":  # a process without parents and without the marker
            command = ["env", "-i", "sh", "-c", '("$@") & wait', "sh", *command]
            command = ["env", "-i", "setsid", "--fork", *command]
        elif how == "forged":  # the same, with the marker of the first agent
            forged = f"{MARKER}={{marker}}"
            command = ["env", "-i", forged, "setsid", "--fork", *command]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        print(json.dumps({{"type": "text", "text": done.stdout}}), flush=True)
    else:
        print(json.dumps({{"type": "text", "text": "the last one"}}), flush=True)
    print(json.dumps({{"type": "done"}}), flush=True)
"""


def config(folder: Path) -> Path:
    path = folder / "config.toml"
    digest = hashlib.sha256(AGENT.encode()).hexdigest()
    path.write_text(
        f'[tokens.agent]\nhash = "sha256:{digest}"\nscopes = ["read", "run", "cancel"]\n'
    )
    return path


@pytest.mark.parametrize(
    ("prompt", "refused"),
    [
        pytest.param("plain 1", False, marks=pytest.mark.soak),
        ("plain 2", True),
        pytest.param("hidden 1", True, marks=pytest.mark.soak),
        ("forged 2", True),
    ],
)
async def test_agents_are_counted_by_their_processes(
    workspace: Path, http: aiohttp.ClientSession, prompt: str, refused: bool
) -> None:
    program = workspace.parent / "agent.py"
    program.write_text(PROGRAM)
    settings: dict[str, Any] = {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"-I -S {program}",
        "BRIDGE_STATE_DIR": str(workspace.parent / "state"),
        "BRIDGE_TOKEN": OPERATOR,
        "CONFIG_FILE": str(config(workspace.parent)),
    }
    async with bridge(workspace, **settings) as server:
        client = Mcp(http, server.url, headers={"Authorization": f"Bearer {OPERATOR}"})
        ended = shown(await client.tool("delegate", {"prompt": f"{prompt} {server.url}"}))
        assert ended["state"] == "completed", ended
        assert ("which is the limit" in ended["text"]) is refused
        assert ("the last one" in ended["text"]) is not refused
