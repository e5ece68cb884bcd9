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

CLOSED = """
import asyncio, os, signal
from bridge.server.operate.signals import end_handling, handle_signals

SENT = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD

def send():
    for number in SENT:
        os.kill(os.getpid(), number)

class Loop(asyncio.SelectorEventLoop):
    def remove_signal_handler(self, number):
        if self.is_closed():  # close() removes the handlers that are left
            os.kill(os.getpid(), signal.SIGCHLD)
        return super().remove_signal_handler(number)

async def main():
    handle_signals(asyncio.Event(), os._exit, os.abort)
    end_handling()
    send()

with asyncio.Runner(loop_factory=Loop) as runner:
    runner.run(main())
send()
print("ended")
"""


def test_signals_after_the_end_of_hundreds_of_children_have_their_effect() -> None:
    """The pipe of the loop has room for 278 signals. Takes a second: 320 starts of a program."""
    assert run(PROGRAM) == (0, "no child is left\n", "")


def test_no_signal_has_an_effect_while_the_loop_is_closed_and_after_that() -> None:
    assert run(CLOSED) == (0, "ended\n", "")


def run(program: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr
