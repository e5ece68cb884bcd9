"""The signals of a server: SIGTERM and SIGINT end it, SIGHUP reloads its configuration."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from bridge.process.process_tree import reap_orphans


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
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if stop.is_set():
            kill(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    loop.add_signal_handler(signal.SIGHUP, reload)
    loop.add_signal_handler(signal.SIGCHLD, reap_orphans)
    # Hundreds of children that end at once fill the pipe of the loop. Python would print a line for
    # each further one, which is not a line of the log; one call of reap_orphans() is for all.
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
