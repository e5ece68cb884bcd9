"""The image: built from nothing, and run as containers run it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.support.bridge_process import BridgeProcess
from tests.support.client import Client, artifact_text, state, task_id
from tests.support.image import UID, Image, storage
from tests.support.reverse_proxies import free_port
from tests.support.sandboxed import needs_root

AGENT = {
    "AGENT_ADAPTER": "jsonl",
    "AGENT_BINARY": "/usr/bin/python3",
    "AGENT_ARGS": "-I -S /mnt/agent.py",
    "BRIDGE_DRAIN_MS": "0",
}


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """In a folder that another user can reach, so that TMPDIR must be such a folder, too."""
    folder = Path(tempfile.mkdtemp(prefix="image-"))
    folder.chmod(0o755)
    with storage(folder) as made:
        made.build()
        yield made


@pytest.fixture
def volumes(reachable: Path) -> Path:
    """As a platform provides them: of root, and writable for its group."""
    for name in ("state", "home", "workspace"):
        (reachable / name).mkdir()
        os.chown(reachable / name, 1000, 0)
        (reachable / name).chmod(0o770)
    return reachable


def first_process(server: BridgeProcess) -> psutil.Process:
    """The server: bubblewrap is its parent, outside of the container."""
    (inner,) = psutil.Process(server.process.pid).children()
    return inner


@pytest.mark.soak
@needs_root
@pytest.mark.timeout(1800)
async def test_the_image_serves_as_any_user(
    image: Image, volumes: Path, http: aiohttp.ClientSession
) -> None:
    """The build takes minutes. The root is read-only, and the user is another one than that of the
    image. A stop during a turn, the next container, and the same conversation."""
    port = free_port()
    async with image.running(volumes, port, **AGENT) as server:
        assert "made a token for clients" in server.log
        token = volumes / "state/bridge/token"
        assert (token.stat().st_uid, stat.S_IMODE(token.stat().st_mode)) == (UID, 0o600)
        secret = token.read_text().strip()
        assert secret not in server.log
        client = Client(http, f"http://127.0.0.1:{port}", headers=server.credentials)
        async with http.get(f"{client.url}/tasks") as answer:
            assert answer.status == 401
        done = await client.send("pid\ncwd")
        assert state(done) == "completed", done
        assert "/workspace" in artifact_text(done)
        first = first_process(server)
        assert first.uids().real == UID
        assert [one.status() for one in first.children()].count(psutil.STATUS_ZOMBIE) == 0
        stopped = await client.send_now("text one\npause 100", contextId=done["contextId"])
        async with client.subscribe(task_id(stopped)) as items:
            async for item in items:
                if "one" in str(item):
                    break
        first.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await server.process.wait() == 0
    async with image.running(volumes, port, **AGENT) as server:
        assert "made a token for clients" not in server.log
        client = Client(http, f"http://127.0.0.1:{port}", headers=server.credentials)
        assert server.credentials == {"Authorization": f"Bearer {secret}"}
        found = await client.get(task_id(stopped))
        assert state(found) == "failed", found
        again = await client.send("text here again", contextId=done["contextId"])
        assert (state(again), artifact_text(again)) == ("completed", "here again")


@pytest.mark.soak
@needs_root
@pytest.mark.timeout(1800)
async def test_the_image_has_no_secret_and_no_cli(image: Image) -> None:
    config = image.configuration()["config"]
    assert (config["User"], config["Healthcheck"]["Test"]) == (
        "1000:0",
        ["CMD", "coding-agent-bridge", "health"],
    )
    assert not any("TOKEN=" in one or "KEY=" in one for one in config["Env"])
    for name in ("claude", "codex", "node", "npm"):
        assert not list(image.root.glob(f"usr/*bin/{name}"))
    for name in ("git", "rg", "ssh", "bwrap", "git-lfs"):
        assert (image.root / "usr/bin" / name).exists(), name
    assert not list(image.root.glob("state/*"))
