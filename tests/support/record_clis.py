"""Records the real CLIs of tests/support/real_clis.py in sessions of one kind each, for
tests/unit/adapters/test_recordings.py: `python -m tests.support.record_clis [NAME…]`."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests import CHECKOUT
from tests.support.cli_row import Cli
from tests.support.client import context_id, state, task_id
from tests.support.real_claude_code import answer, ask, running_command, script
from tests.support.real_clis import CLIS, Real, serving
from tests.support.recorded_changes import differences

FOLDER = CHECKOUT / "tests" / "transcripts" / "sessions"


async def allowed(real: Real) -> None:
    """A command that is allowed; then another turn."""
    task = await ask(real.client(), script("run", real.run("echo written > file.txt"), "the end"))
    while state(task) == "input-required":
        task = await answer(real.client(), task, "yes")
    step = {"thinking": "let me see", "text": "Two lines,\nand a second one.", "chunks": 4}
    await real.client().send(script("another", step), contextId=context_id(task))


async def denied(real: Real) -> None:
    task = await ask(real.client(), script("run", real.run("echo written > file.txt"), "the end"))
    await answer(real.client(), task, "no")


async def failed(real: Real) -> None:
    await real.client().send(script("x", {"error": 401}))


async def cancelled(real: Real) -> None:
    """While a command runs."""
    client = real.client()
    async with running_command() as command:
        task = await ask(client, script("run", real.run_outside(command.line), "never"))
        params = {"message": client.message("yes", taskId=task_id(task))}
        params["configuration"] = {"returnImmediately": True}
        await client.call("SendMessage", params)
        await command.begun()
        await client.cancel(task_id(task))
        await command.ended.wait()
    await real.nothing_left()


SESSIONS: tuple[Callable[[Real], Awaitable[None]], ...] = (allowed, denied, failed, cancelled)


async def record(cli: Cli, folder: Path) -> None:
    """All sessions of one CLI, and print what differs from the earlier ones. Its HOME is the same
    for all, since some begin slowly in a new one."""
    target = FOLDER / cli.name
    new = folder / "new"
    new.mkdir()
    for session in SESSIONS:
        path = folder / "rows.jsonl"
        path.unlink(missing_ok=True)
        scrub = {
            str(folder / "workspace"): "/workspace",
            str(folder / "home"): "/home/user",
            str(folder): "/scratch",
            str(CHECKOUT): "/opt/clis",
        }
        env = {
            "AGENT_ADAPTER": "tests.support.recorder:Recorder",
            "RECORD_ADAPTER": cli.name,
            "RECORD_FILE": str(path),
            "RECORD_SCRUB": json.dumps(scrub),
        }
        async with asyncio.timeout(120), serving(cli, folder, **env) as real:
            await session(real)
        shutil.copy(path, new / f"{session.__name__}.jsonl")
    for line in differences(target, new):
        print(f"  {line}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(new, target)


async def main(names: list[str]) -> None:
    """A CLI that fails keeps its recordings, and does not stop the others."""
    failed = []
    for cli in CLIS:
        if not names or cli.name in names:
            print(f"{cli.name} {cli.version}", flush=True)
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                try:
                    await record(cli, Path(folder))
                except Exception as error:
                    print(f"  not recorded: {type(error).__name__}: {error}"[:500], flush=True)
                    failed.append(cli.name)
    if failed:
        sys.exit(f"not recorded: {', '.join(failed)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
