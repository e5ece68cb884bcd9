"""Signals of a real process whose event loop is blocked."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, os, signal
from bridge.server.operate.signals import handle_signals

def end_children(count):
    for _ in range(count):  # the end of each child is a signal of its own
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)

async def main():
    stop, reloaded = asyncio.Event(), asyncio.Event()
    handle_signals(stop, os._exit, reloaded.set)
    asyncio.get_running_loop().call_soon(end_children, 320)
    async with asyncio.timeout(20):
        await reloaded.wait()
        await stop.wait()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        print("no child is left")

asyncio.run(main())
"""


def test_signals_after_the_end_of_hundreds_of_children_have_their_effect() -> None:
    """The pipe of the loop has room for 278 signals. Takes a second: 320 starts of a program."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "no child is left\n", "")
