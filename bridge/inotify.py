"""Being told that a file has grown (inotify(7)); where the kernel cannot, files are looked at now
and then."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable

IN_MODIFY = 0x2
LOOK, POLL = 2.0, 0.1  # seconds between looks at a file that is watched, or cannot be
_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows


class Watch:
    """One file, until close(): `changed` is called when it was written to, and `look` now and
    then, since not everything can be told."""

    def __init__(self, path: str, changed: Callable[[], None], look: Callable[[], None]) -> None:
        self.changed = changed
        self._look_at = look
        self._loop = asyncio.get_running_loop()
        self._notifier = _notifier(self._loop)
        self._watch = self._notifier.add(path, self) if self._notifier else -1
        self._pause = LOOK if self._watch >= 0 else POLL
        self._poll: asyncio.TimerHandle = self._loop.call_later(self._pause, self._look)

    def close(self) -> None:
        self._poll.cancel()
        if self._notifier and self._watch >= 0:
            self._notifier.remove(self._watch)
            self._watch = -1

    def _look(self) -> None:
        self._poll = self._loop.call_later(self._pause, self._look)
        self._look_at()


class _Notifier:
    """The inotify instance of an event loop, until nothing is watched any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, libc: ctypes.CDLL, fd: int) -> None:
        self._loop = loop
        self._libc = libc
        self._fd = fd
        self._watches: dict[int, Watch] = {}
        loop.add_reader(fd, self._read)

    def add(self, path: str, watch: Watch) -> int:
        """The number of the watch; -1 where there can be no further one."""
        number = int(self._libc.inotify_add_watch(self._fd, os.fsencode(path), IN_MODIFY))
        if number >= 0:
            self._watches[number] = watch
        return number

    def remove(self, number: int) -> None:
        if self._watches.pop(number, None):
            self._libc.inotify_rm_watch(self._fd, number)
        if not self._watches:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            del _notifiers[self._loop]

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, 64 * 1024)
            start, numbers = 0, dict[int, None]()
            while start < len(data):
                number, _, _, length = _HEADER.unpack_from(data, start)
                start += _HEADER.size + length
                numbers[number] = None
            for number in numbers:
                self._tell(number)

    def _tell(self, number: int) -> None:
        if number < 0:  # the kernel's queue overflowed
            for one in list(self._watches.values()):
                one.changed()
        elif watch := self._watches.get(number):
            watch.changed()


_notifiers: dict[asyncio.AbstractEventLoop, _Notifier] = {}  # while they have something to watch


def _notifier(loop: asyncio.AbstractEventLoop) -> _Notifier | None:
    if sys.platform != "linux":
        return None
    known = _notifiers.get(loop)
    if known is None:
        libc = ctypes.CDLL(None)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            return None
        known = _notifiers[loop] = _Notifier(loop, libc, fd)
    return known
