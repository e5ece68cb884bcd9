"""Runs CLIs without a protocol for programs, one after the other, on a terminal or on pipes, and
reports their output and pauses.

    python pty_runner.py

A program of its own, so that the bridge has one long-lived process that prints lines, as for other
CLIs. Orders come on stdin, JSON lines with one member:

    {"run": {"argv": […], "input": text|null, "open": bool, "pty": bool, "env": {…}}}
    {"write": text}           to the CLI's stdin; control characters become spaces for a terminal
    {"interrupt": true}       SIGINT to its process group, as ^C does
    {"stop": true}            SIGTERM to its process group, and SIGKILL after STOP_GRACE

`input` is written at once, then stdin is closed, unless it must stay `open`. `env` is added to the
environment of this program. Reports go to stdout:

    {"line": text}            a line, without its newline
    {"tail": text}            an incomplete line, after QUIET seconds without output
    {"pause": seconds}        1, 2, 4, … seconds without any output
    {"exit": code, "stderr": text}    negative: the signal; the end of its stderr
    {"error": text, "running": bool}  an order that failed

A terminal has no stderr of its own. Only one CLI runs at a time. At the end of the orders, and at
SIGTERM, this program stops the CLI and ends.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

import pexpect

Fd = int
QUIET = 0.1  # seconds, longer than a program needs between two writes
STOP_GRACE = 2.0
READ_BYTES = 64 * 1024
STDERR_TAIL = 16 * 1024
DRAIN = 64  # reads after the end of a program: more than a pipe holds
FLUSH_AGAIN = 0.01
LONGEST_LINE = 1024 * 1024  # bytes of an incomplete line; a longer one is reported in pieces
CANONICAL = 4095  # bytes of a line that the kernel's line editor keeps
ROWS, COLUMNS = 50, 1000  # so wide that a program hardly folds its lines
_ERRNO = re.compile(r"\[Errno (\d+)\]")
KEYS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters; not \t and \n


class PipeChild:
    """A CLI with three pipes."""

    def __init__(self, argv: list[str], env: dict[str, str], stays_open: bool) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=env, start_new_session=True
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self.pid = self._child.pid
        self.stdout = self._child.stdout.fileno()
        self.stderr: Fd | None = self._child.stderr.fileno()
        self.stdin = self._child.stdin.fileno()

    def typed(self, text: str) -> bytes:
        """`text` as bytes for its stdin. Raises ValueError if stdin cannot take it."""
        return text.encode()

    def close_stdin(self) -> None:
        assert self._child.stdin
        self._child.stdin.close()

    def end(self) -> int:
        """Close its streams. Returns its exit code."""
        code = self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            assert stream
            stream.close()
        return code


class Terminal:
    """A CLI on a terminal of its own, which echoes nothing.

    The kernel's line editor truncates long lines; it stays on only if the end of the input must be
    sent. Control characters in a text are replaced: they would act like pressed keys.
    """

    def __init__(self, argv: list[str], env: dict[str, str], stays_open: bool) -> None:
        self._child = pexpect.spawn(
            argv[0],
            argv[1:],
            env=env,
            echo=False,
            dimensions=(ROWS, COLUMNS),
            preexec_fn=_default_signals,
        )
        self.pid = self._child.pid
        self.stdin = self.stdout = self._child.child_fd
        self.stderr: Fd | None = None
        if stays_open:
            mode = termios.tcgetattr(self.stdin)
            mode[3] &= ~termios.ICANON
            termios.tcsetattr(self.stdin, termios.TCSANOW, mode)

    def typed(self, text: str) -> bytes:
        data = KEYS.sub(" ", text).encode()
        longest = max(map(len, data.split(b"\n")))
        edits = termios.tcgetattr(self.stdin)[3] & termios.ICANON
        if edits and longest > CANONICAL:
            raise ValueError(
                f"a line of {longest} bytes is too long for a terminal, which keeps {CANONICAL}"
            )
        return data

    def close_stdin(self) -> None:
        self._child.sendeof()  # of the line that is not complete, if there is one
        self._child.sendeof()

    def end(self) -> int:
        self._child.wait()
        self._child.close()
        if self._child.signalstatus is not None:
            return -int(self._child.signalstatus)
        return int(self._child.exitstatus or 0)


def _default_signals() -> None:
    """Python ignores two signals, and a program would inherit that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


class PtyRunner:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._orders = bytearray()
        self._open = True  # further orders may come
        self._begin(None)

    def _begin(self, child: PipeChild | Terminal | None) -> None:
        self._child = child
        self._line = bytearray()
        self._stderr = bytearray()
        self._unsent = bytearray()
        self._then_close = False
        self._kill_at: float | None = None
        self._spoke(child is not None)

    def _spoke(self, expecting: bool) -> None:
        """Restart the timers of `tail` and `pause`, or stop them."""
        self._tail_told = not expecting
        self._pause = 1 if expecting else 0  # seconds; the next one to report
        self._heard = time.monotonic()

    def run(self) -> None:
        """Run until the orders have ended and no CLI runs."""
        self._watch(0, self._read_orders)
        self._signalled = _signals()
        self._watch(self._signalled, self._end_orders)
        while self._open or self._child:
            for key, _ in self._selector.select(self._patience()):
                if self._selector.get_map().get(key.fd) == key:  # it may be removed meanwhile
                    key.data()
            self._look_at_the_clock()

    def _watch(self, fd: Fd, react: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, react)

    def _unwatch(self, fd: Fd) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    # --- orders ----------------------------------------------------------------------------------

    def _read_orders(self) -> None:
        data = os.read(0, READ_BYTES)
        if not data:
            self._unwatch(0)
            self._end_orders()
        *lines, rest = (self._orders + data).split(b"\n")
        self._orders = bytearray(rest)
        for line in lines:
            if line.strip():
                self._obey(json.loads(line))

    def _end_orders(self) -> None:
        self._unwatch(self._signalled)  # it stays readable
        self._open = False
        self._stop()

    def _obey(self, order: dict[str, Any]) -> None:
        try:
            if "run" in order:
                self._start(order["run"])
            elif "write" in order:
                self._write(order["write"])
            elif "interrupt" in order:
                self._signal(signal.SIGINT)
            elif "stop" in order:
                self._stop()
        except (OSError, ValueError, pexpect.ExceptionPexpect) as error:
            say(error=_reason(error), running=self._child is not None)

    def _start(self, order: dict[str, Any]) -> None:
        if self._child:
            raise ValueError("a program is running already")
        kind = Terminal if order.get("pty") else PipeChild
        stays_open = bool(order.get("open"))
        child = kind(order["argv"], {**os.environ, **order.get("env", {})}, stays_open)
        self._begin(child)
        for fd in {child.stdin, child.stdout}:
            os.set_blocking(fd, False)
        self._watch(child.stdout, self._read_stdout)
        if child.stderr is not None:
            os.set_blocking(child.stderr, False)
            self._watch(child.stderr, self._read_stderr)
        self._pidfd = os.pidfd_open(child.pid)
        self._watch(self._pidfd, self._end)
        self._then_close = not stays_open
        self._write(order.get("input") or "")

    def _write(self, text: str) -> None:
        if not self._child:
            raise ValueError("no program is running")
        self._unsent += self._child.typed(text)
        tail_told = self._tail_told
        self._spoke(True)  # the next pause is new; the line of the question is not
        self._tail_told = tail_told
        self._flush()

    def _flush(self) -> None:
        child = self._child
        if not child:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(child.stdin, self._unsent[:4096])]
        except BlockingIOError:
            return  # retried soon: see _patience()
        except OSError:  # it has closed stdin; its exit follows
            self._unsent.clear()
        if self._then_close:
            self._then_close = False
            child.close_stdin()

    def _stop(self) -> None:
        if self._child and self._kill_at is None:
            self._kill_at = time.monotonic() + STOP_GRACE
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    # --- output of the program -----------------------------------------------------------------

    def _read_stdout(self) -> bool:
        """Whether there was any output."""
        assert self._child
        data = _read(self._child.stdout)
        if data:
            self._hear(data)
        elif data == b"":
            self._unwatch(self._child.stdout)
        return bool(data)

    def _read_stderr(self) -> None:
        assert self._child and self._child.stderr is not None
        data = _read(self._child.stderr)
        if data:
            self._stderr += data
            del self._stderr[:-STDERR_TAIL]
        elif data == b"":
            self._unwatch(self._child.stderr)

    def _hear(self, data: bytes) -> None:
        self._spoke(True)
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            say(line=text(line.removesuffix(b"\r")))
        self._line = bytearray(rest)
        while len(self._line) > LONGEST_LINE:
            end = LONGEST_LINE
            while self._line[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
            say(line=text(self._line[:end]))
            del self._line[:end]

    def _end(self) -> None:
        """The program has ended. Its descendants may hold its streams open, so only the present
        content of the pipes is read."""
        child = self._child
        assert child
        for _ in range(DRAIN):
            if not self._read_stdout():
                break
        if child.stderr is not None:
            self._read_stderr()
        for fd in (child.stdout, child.stderr, self._pidfd):
            if fd is not None:
                self._unwatch(fd)
        os.close(self._pidfd)
        if self._line:
            say(line=text(self._line))
        code, stderr = child.end(), text(self._stderr)
        self._begin(None)
        say(exit=code, stderr=stderr)

    # --- the clock -----------------------------------------------------------------------------

    def _patience(self) -> float | None:
        """Seconds until the next timer; None if no timer runs."""
        times = [self._kill_at] if self._kill_at else []
        if self._unsent:
            times.append(time.monotonic() + FLUSH_AGAIN)
        if not self._tail_told:
            times.append(self._heard + QUIET)
        elif self._pause:
            times.append(self._heard + self._pause)
        return max(min(times) - time.monotonic(), 0) if times else None

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._unsent:
            self._flush()
        if not self._tail_told and now >= self._heard + QUIET:
            self._tail_told = True
            if self._line:
                say(tail=codecs.getincrementaldecoder("utf-8")("replace").decode(self._line))
        if self._pause and now >= self._heard + self._pause:
            say(pause=self._pause)
            self._pause *= 2
        if self._kill_at and now >= self._kill_at:
            self._kill_at = None
            self._signal(signal.SIGKILL)


def _reason(error: Exception) -> str:
    """The words of the system, without paths. pexpect gives the error of its child as a text."""
    number = _ERRNO.match(str(error))
    return os.strerror(int(number[1])) if number else str(error)


def _read(fd: Fd) -> bytes | None:
    """The available bytes; empty at the end of the stream, None if there are none yet."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:  # a terminal whose program has ended
        return b""


def _signals() -> Fd:
    """A descriptor that becomes readable at SIGTERM or SIGINT."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    return reader


def text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")


def say(**members: Any) -> None:
    sys.stdout.write(json.dumps(members) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    PtyRunner().run()
