"""The client while connections break: the output is the one of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from bridge.errors.program import command
from tests.support.bridge_process import bridge, scripted
from tests.support.cab import Cab, Done, ended
from tests.support.free_port import free_port
from tests.support.liveness import Liveness
from tests.support.proxy import Cutter, Interrupter, port_of, serving

PIECES = 40


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


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.soak)])
async def test_a_server_that_is_killed_leaves_no_trace_in_the_output(
    workspace: Path, live: Liveness, kills: int
) -> None:
    """At a different place of the stream each time."""
    cab = Cab(
        workspace, workspace.parent / "home", BRIDGE_STATE_DIR=str(workspace.parent / "state")
    )
    settings = {**scripted(workspace), "BRIDGE_AUTH": "auto", "PORT": str(free_port())}
    names = [f"{number}:" for number in range(kills)]
    process, seen = None, b""
    for number, name in enumerate(names):
        async with bridge(workspace, **settings) as server:
            process = process or await cab.start("send", "--stream", script(live, *names))
            assert process.stdout
            mark = f"{name}{number * 7 % PIECES} ".encode()
            seen += await asyncio.wait_for(process.stdout.readuntil(mark), 60)
            await live.pid(name)
            await server.stop(signal.SIGKILL)
        await live.release(name)
    async with bridge(workspace, **settings):
        assert process
        rest = await ended(process)
        live.open = True
        whole = await cab.run("send", "--stream", script(live, *names))
    disturbed = Done(rest.status, seen + rest.out, rest.err)
    assert rest.err.count("trying again") == kills
    assert without_ids(disturbed) == without_ids(whole)
    assert disturbed.status == 0


@pytest.mark.parametrize(
    "output", ["json", *(pytest.param(one, marks=pytest.mark.soak) for one in ("text", "quiet"))]
)
async def test_a_cut_stream_is_resumed_without_gap_and_repetition(
    workspace: Path, live: Liveness, output: str
) -> None:
    cab = Cab(workspace, workspace.parent / "home")
    flags = {"text": (), "json": ("-o", "json"), "quiet": ("-q",)}[output]
    async with bridge(workspace, **scripted(workspace)) as server:
        cutter = Cutter(port_of(server.url), 8000)
        prompt = "\n".join(f"text {number} \nstatus s" for number in range(100))
        async with serving(cutter):
            cut = await cab.run("send", "--stream", *flags, prompt, "-a", cutter.url)
        whole = await cab.run("send", "--stream", *flags, prompt, "-a", server.url)
    assert cutter.number > 2, cut.err
    assert cut.status == whole.status == 0
    if output == "json":
        assert [_shape(one) for one in cut.lines] == [_shape(one) for one in whole.lines]
    elif output == "quiet":
        assert cut.out == whole.out == "".join(f"{number} " for number in range(100)).encode()
    else:
        assert without_ids(cut).replace(f" -a {cutter.url}", "") == without_ids(whole).replace(
            f" -a {server.url}", ""
        )


@pytest.mark.soak
async def test_a_stream_that_is_cut_every_two_seconds_is_complete(workspace: Path) -> None:
    """Twenty seconds: ten cuts of an agent that says a word each 10 ms."""
    cab = Cab(workspace, workspace.parent / "home")
    prompt = "\n".join(f"text {number} \npause 0.01" for number in range(2000))
    async with bridge(workspace, **scripted(workspace)) as server:
        interrupter = Interrupter(port_of(server.url), 2.0)
        async with serving(interrupter):
            cut = await cab.run("send", "-q", "--stream", "--text", prompt, "-a", interrupter.url)
    assert interrupter.number > 5, cut.err
    assert (cut.status, cut.text) == (0, "".join(f"{number} " for number in range(2000)))


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
        agent = await live.pid("busy")
        assert process.stdout
        first = await asyncio.wait_for(process.stdout.readline(), 20)
        await server.stop(signal.SIGKILL)
        rest = await ended(process)
    done = Done(rest.status, first + rest.out, rest.err)
    assert (done.status, done.error) == (5, "A2ACLI_ERR_TIMEOUT")
    assert f"Hint: {command('task', 'get', done.field('Task'))} --wait -a " in done.err
    os.kill(agent, signal.SIGKILL)  # the launcher keeps the port for as long as an agent lives
    await live.gone("busy")
    gone = await cab.run("task", "list", "-a", server.url)
    assert (gone.status, gone.error) == (3, "A2ACLI_ERR_UNREACHABLE")
