"""The open streams and requests of principals. They end when their credential becomes invalid: it
was removed, it has lost a right, or it has expired."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType

from bridge.auth.principal import OPERATOR, Principal
from bridge.errors import Unauthenticated

REVOKED = "The credentials of this request are not valid any more."
CUT_AFTER = 0.5  # seconds that a client may take to read earlier items before the end
_LONGEST = 3600.0  # seconds of one timer; the clock of the machine may be set meanwhile


class Hold:
    """A context in which the current task serves a principal. If the credential becomes invalid,
    the task is cancelled, and the context raises Unauthenticated. It also does so at its begin.

    A generator calls `leave` before each yield and `enter` after it: its consumer sends an item
    meanwhile, which is not interrupted for CUT_AFTER seconds. `ended`: the credential is invalid.
    """

    __slots__ = (
        "_base",
        "_cancelled",
        "_inside",
        "_owner",
        "_task",
        "_timer",
        "ended",
        "principal",
    )

    def __init__(self, owner: Revocations, principal: Principal) -> None:
        self.principal = principal
        self.ended = False
        self._owner = owner
        self._inside = True
        self._cancelled = False
        self._base = 0
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Hold:
        if not self._owner.is_valid(self.principal):
            raise Unauthenticated(REVOKED)
        self._task = asyncio.current_task()
        assert self._task
        self._base = self._task.cancelling()
        self._owner.opened(self)
        self._watch_expiry()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._owner.closed(self)
        if self._timer:
            self._timer.cancel()
        if self._cancelled and self._task is asyncio.current_task():
            assert self._task
            others = self._task.uncancel() > self._base
            if kind is asyncio.CancelledError and not others:
                raise Unauthenticated(REVOKED) from None

    def leave(self) -> None:
        """The consumer of a generator works from now on."""
        self._inside = False

    def enter(self) -> None:
        """The generator works again. Raises Unauthenticated if the credential is invalid."""
        self._inside = True
        if self.ended:
            raise Unauthenticated(REVOKED)

    def end(self) -> None:
        """The credential is invalid from now on."""
        if self.ended:
            return
        self.ended = True
        if self._timer:
            self._timer.cancel()
        if self._inside:
            self._cancel()
        else:
            self._timer = asyncio.get_running_loop().call_later(CUT_AFTER, self._cancel)

    def _cancel(self) -> None:
        if self._task and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def _watch_expiry(self) -> None:
        """End at the expiry of the credential."""
        expires = self.principal.expires
        if expires is None:
            return
        if self.principal.expired:
            self.end()
            return
        left = min(max(expires - time.time(), 0.0), _LONGEST)
        self._timer = asyncio.get_running_loop().call_later(left, self._watch_expiry)


class Revocations:
    """`is_valid`: whether the credential of a principal is valid now."""

    def __init__(self, is_valid: Callable[[Principal], bool] = lambda principal: True) -> None:
        self.is_valid = is_valid
        self._open: set[Hold] = set()

    def hold(self, principal: Principal) -> Hold:
        """The context in which a request of the principal is served."""
        return Hold(self, principal)

    def opened(self, hold: Hold) -> None:
        self._open.add(hold)

    def closed(self, hold: Hold) -> None:
        self._open.discard(hold)

    def check(self) -> int:
        """End everything whose credential is invalid by now. Returns the number."""
        invalid = [one for one in self._open if not self.is_valid(one.principal)]
        for one in invalid:
            one.end()
        return len(invalid)


def unlimited() -> Hold:
    """A hold that nothing ends."""
    return Hold(Revocations(), OPERATOR)
