"""The signals of a server: SIGTERM and SIGINT end it, SIGHUP reloads its configuration."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial

from bridge.process.process_tree import reap_orphans

_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1)


def ignore_without_inheriting() -> None:
    """Replace each ignored signal by a handler that does nothing. The CLIs would inherit SIG_IGN,
    for example from nohup(1), and some CLIs end only after a signal. A SIGHUP before the server is
    ready has no effect: it has just read its configuration."""
    signal.signal(signal.SIGHUP, lambda *_: None)
    for number in (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def handle_signals(
    stop: asyncio.Event, kill: Callable[[int], None], reload: Callable[[], None]
) -> None:
    """The first SIGTERM or SIGINT sets `stop`, the second one calls `kill` with its number. SIGHUP
    calls `reload`, also if it was ignored at the start of the server."""

    def handle(number: int) -> None:
        if stop.is_set():
            kill(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        on_signal(number, partial(handle, number))
    on_signal(signal.SIGHUP, reload)
    on_signal(signal.SIGCHLD, reap_orphans)


def on_signal(number: signal.Signals, handler: Callable[[], object]) -> None:
    """Call `handler` in the running loop after a signal; signals that come at the same time may
    cause one call. asyncio reads the numbers of signals from a pipe of the loop, which has room for
    about 270: if hundreds of children end while the loop is blocked, a SIGTERM is lost. A handler
    of Python does not depend on that room; for it, the pipe only wakes the loop."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, _nothing)  # until the loop is closed
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler))
    signal.siginterrupt(number, False)  # as asyncio does: libraries need not expect EINTR
    # Python would print a line for each signal that finds a full pipe; it is not a line of the log.
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)


def end_handling() -> None:
    """The handled signals have no effect from now on. A loop that closes removes their handlers as
    its last step: before that, the end of a child would call the closed loop."""
    loop = asyncio.get_running_loop()
    for number in _HANDLED:
        if loop.remove_signal_handler(number):
            signal.signal(number, _nothing)


def _nothing(*_: object) -> None:
    """The call after the byte of a signal in the pipe."""
