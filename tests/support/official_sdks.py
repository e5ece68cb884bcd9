"""The official SDKs as clients, and as servers for our client. Each scenario and each server is a
program of tests/clients, which runs in the SDK's own environment."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests import CHECKOUT

SDKS = ["python-v1", "python-v1-rest", "python-v03", "js-v1", "js-v1-rest", "js-v03"]
TRANSPORTS = {"rest": "HTTP+JSON", "grpc": "GRPC"}  # by the end of the name; else JSON-RPC
RUNS_WITHIN = 75.0  # seconds; the programs give up after 60


def command(sdk: str) -> tuple[Path | str, Path]:
    """Interpreter and program. The folder of an SDK is made by scripts/install."""
    language, version = sdk.split("-")[:2]
    if language == "js":
        installed = CHECKOUT / f"tests/clients/js-{version}/node_modules/@a2a-js/sdk"
        found: tuple[Path | str, Path] = "node", CHECKOUT / f"tests/clients/js-{version}/driver.mjs"
    else:
        installed = CHECKOUT / f".venvs/a2a-sdk-{version}/bin/python"
        found = installed, CHECKOUT / f"tests/clients/sdk_{version}.py"
    assert installed.exists(), f"{installed} is missing: run scripts/install"
    return found


def server(sdk: str) -> tuple[Path | str, Path]:
    """Interpreter and program of a server of the SDK."""
    interpreter, client = command(sdk)
    name = "server.mjs" if client.suffix == ".mjs" else client.name.replace("sdk_", "server_")
    return interpreter, client.with_name(name)


async def play(
    url: str, sdk: str, scenario: str, prompt: str, answer: str = "allow", token: str = "any"
) -> Any:
    """The items that the SDK's client saw. Its environment has no proxies: the server is on
    loopback."""
    process = await asyncio.create_subprocess_exec(
        *command(sdk),
        url,
        scenario,
        env={
            "PATH": os.environ["PATH"],
            "A2A_PROMPT": prompt,
            "A2A_TOKEN": token,
            "A2A_ANSWER": answer,
            "A2A_TRANSPORT": TRANSPORTS.get(sdk.rpartition("-")[2], "JSONRPC"),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RUNS_WITHIN):
            output, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, problems.decode()
    return json.loads(output)
