"""The client while connections break: the output is the one of an undisturbed run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.bridge_process import bridge, scripted
from tests.support.cab import Cab, Done, ended
from tests.support.liveness import Liveness, listening

PIECES = 40


@pytest.fixture
async def live() -> AsyncIterator[Liveness]:
    async with listening() as live:
        yield live


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def without_ids(done: Done) -> str:
    """The output without the ids, which differ between two runs."""
    text = done.text
    for label in ("Task", "Context"):
        text = text.replace(done.field(label), label)
    return text


def script(live: Liveness, *names: str) -> str:
    """An answer in pieces. The agent waits under each name."""
    lines = []
    for name in names:
        lines += [f"text {name}{number} " for number in range(PIECES)]
        lines += ["status between", f"wait {live.path} {name}"]
    return "\n".join([*lines, "text end"])


async def test_a_killed_server_leaves_no_trace_in_the_output(
    workspace: Path, live: Liveness
) -> None:
    cab = Cab(
        workspace, workspace.parent / "home", BRIDGE_STATE_DIR=str(workspace.parent / "state")
    )
    settings = {**scripted(workspace), "BRIDGE_AUTH": "auto", "PORT": free_port()}
    async with bridge(workspace, **settings) as server:
        process = await cab.start("send", "--stream", script(live, "a", "b"))
        assert process.stdout
        first = await asyncio.wait_for(process.stdout.readuntil(b"a39"), 20)
        await live.pid("a")
        await server.stop(signal.SIGKILL)
    async with bridge(workspace, **settings):
        await live.release("a")
        await live.release("b")
        rest = await ended(process)
        live.open = True
        whole = await cab.run("send", "--stream", script(live, "a", "b"))
    disturbed = Done(rest.status, first + rest.out, rest.err)
    assert "trying again" in rest.err
    assert without_ids(disturbed) == without_ids(whole)
    assert disturbed.status == 0


class Cutter:
    """A proxy to a server that cuts each connection after a number of bytes from the server."""

    def __init__(self, port: int, most: int) -> None:
        self._port, self._most = port, most
        self.cuts = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(self._pump(reader, ours, None))
        with contextlib.suppress(ConnectionError):
            await self._pump(theirs, writer, self._most)
        up.cancel()
        for one in (writer, ours):
            one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None
    ) -> None:
        passed = 0
        while data := await reader.read(1024):
            writer.write(data)
            await writer.drain()
            passed += len(data)
            if most is not None and passed > most:
                self.cuts += 1
                return


@asynccontextmanager
async def cutting(url: str, most: int) -> AsyncIterator[tuple[Cutter, str]]:
    cutter = Cutter(int(url.rpartition(":")[2]), most)
    server = await asyncio.start_server(cutter, "127.0.0.1", 0)
    async with server:
        yield cutter, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("output", ["text", "json", "quiet"])
async def test_a_cut_stream_is_resumed_without_gap_and_repetition(
    workspace: Path, live: Liveness, output: str
) -> None:
    cab = Cab(workspace, workspace.parent / "home")
    flags = {"text": (), "json": ("-o", "json"), "quiet": ("-q",)}[output]
    async with (
        bridge(workspace, **scripted(workspace)) as server,
        cutting(server.url, 8000) as (cutter, address),
    ):
        prompt = "\n".join(f"text {number} \nstatus s" for number in range(100))
        cut = await cab.run("send", "--stream", *flags, prompt, "-a", address)
        whole = await cab.run("send", "--stream", *flags, prompt, "-a", server.url)
    assert cutter.cuts > 2, cut.err
    assert cut.status == whole.status == 0
    if output == "json":
        assert [_shape(one) for one in cut.lines] == [_shape(one) for one in whole.lines]
    elif output == "quiet":
        assert cut.out == whole.out
    else:
        assert without_ids(cut).replace(f" -a {address}", "") == without_ids(whole).replace(
            f" -a {server.url}", ""
        )


def _shape(item: dict[str, object]) -> tuple[str, str]:
    """An item without ids and times."""
    (kind, value) = next(iter(item.items()))
    text = json.dumps(value)
    return kind, text[text.find('"parts"') :] if kind == "artifactUpdate" else ""


async def test_a_server_that_stays_away_is_unreachable(workspace: Path, live: Liveness) -> None:
    cab = Cab(workspace, workspace.parent / "home")
    async with bridge(workspace, **scripted(workspace)) as server:
        words = ("send", "--timeout", "6s", f"status on\nwait {live.path} busy", "-a", server.url)
        process = await cab.start(*words)
        await live.pid("busy")
        assert process.stdout
        first = await asyncio.wait_for(process.stdout.readline(), 20)
        await server.stop(signal.SIGKILL)
        rest = await ended(process)
    done = Done(rest.status, first + rest.out, rest.err)
    assert (done.status, done.error) == (5, "A2ACLI_ERR_TIMEOUT")
    assert f"Hint: coding-agent-bridge task get {done.field('Task')} --wait -a " in done.err
    gone = await cab.run("task", "list", "-a", server.url)
    assert (gone.status, gone.error) == (3, "A2ACLI_ERR_UNREACHABLE")
