"""The load client: one thread, one epoll, raw sockets. It records all input with its time, and
checks it only afterwards (transcript.py), so that its own work does not affect the figures."""

from __future__ import annotations

import gc
import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from scripts.benchmarks.transcript import BEGINS, Transcript

PIECE = 64 * 1024  # for larger ones, the allocator would call the kernel each time
C = TypeVar("C", bound="Connection")
LAST_CHUNK = b"0\r\n\r\n"
UNANSWERED = 64  # most requests without an answer in a crowd of streams


class TooSlow(Exception):
    """The time limit of a wait has passed."""


class Connection:
    def __init__(self, address: tuple[str, int], receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive(self) -> None:
        """Receive all available bytes."""
        raise NotImplementedError


class Stream(Connection):
    """A request with a stream as its answer."""

    def __init__(self, loop: Loop, request: bytes, receive_buffer: int = 0) -> None:
        super().__init__(loop.address, receive_buffer)
        self._loop = loop
        self._tail = b""
        self._texts = False
        self.ended = False
        self.received: list[tuple[int, bytes]] = []
        self.sent = time.monotonic_ns()
        self.socket.sendall(request)

    def receive(self) -> None:
        try:
            data = self.socket.recv(PIECE)
        except ConnectionError:
            data = b""
        now = time.monotonic_ns()
        refused = not self.received and b"chunked" not in data.lower()
        self._loop.answered += not self.received
        self.received.append((now, data))
        if not self._texts and BEGINS in data:
            self._texts = True
            self._loop.streaming += 1
        self._tail = (self._tail + data[-5:])[-5:]
        if self._tail == LAST_CHUNK or not data or refused:
            self.ended = True
            self._loop.remove(self)
            self._loop.ended += 1

    def has(self, part: bytes) -> bool:
        """Whether the latest input contains `part`."""
        return part in b"".join(data for _, data in self.received[-2:])

    def transcript(self) -> Transcript:
        return Transcript(self.received)


class Caller(Connection):
    """A keep-alive connection that repeats its request as soon as it has the answer."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        super().__init__(address)
        self._request = request
        self._answer = b""
        self._length = 0  # of an answer; all have the same length
        self.milliseconds: list[float] = []
        self._ask()

    def _ask(self) -> None:
        self._answer, self._sent = b"", time.monotonic_ns()
        self.socket.sendall(self._request)

    def receive(self) -> None:
        self._answer += self.socket.recv(PIECE)
        if not self._length and b"\r\n\r\n" in self._answer:
            self._length = _length(self._answer)
        if self._length and len(self._answer) >= self._length:
            assert self._answer.startswith(b"HTTP/1.1 200"), self._answer[:300]
            assert len(self._answer) == self._length, "answers differ in length"
            self.milliseconds.append((time.monotonic_ns() - self._sent) / 1e6)
            self._ask()


def _length(answer: bytes) -> int:
    head, _, _ = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(head) + 4 + int(line.partition(b":")[2])
    raise TooSlow(f"an answer without a length: {head[:200]!r}")


class Loop:
    """Connections to one address that are read together, and the progress of all of them."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self.answered = self.streaming = self.ended = 0

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in list(self._connections.values()):
            self.remove(connection)
        self._epoll.close()

    def stream(self, request: bytes) -> Stream:
        return self.add(Stream(self, request))

    def call(self, request: bytes) -> Caller:
        return self.add(Caller(self.address, request))

    def add(self, connection: C) -> C:
        self._connections[connection.socket.fileno()] = connection
        self._epoll.register(connection.socket, select.EPOLLIN)
        return connection

    def remove(self, connection: Connection) -> None:
        self._connections.pop(connection.socket.fileno())
        self._epoll.unregister(connection.socket)
        connection.socket.close()

    def run(self, until: Callable[[], bool], seconds: float, what: str) -> None:
        """Receive until the condition holds. Raises TooSlow after that many seconds."""
        deadline = time.monotonic() + seconds
        gc.disable()  # a collection would add to a measured latency
        try:
            while not until():
                if time.monotonic() > deadline:
                    raise TooSlow(f"{what}: not in {seconds:.0f} s")
                for descriptor, _ in self._epoll.poll(0.02):
                    self._connections[descriptor].receive()
        finally:
            gc.enable()

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.run(lambda: time.monotonic() >= end, seconds + 10, "time")

    def run_to_end(self, streams: int, seconds: float, what: str) -> None:
        """Receive until that many streams have ended."""
        self.run(lambda: self.ended == streams, seconds, what)

    def run_to(self, stream: Stream, part: bytes, seconds: float, what: str) -> None:
        """Receive until the stream contains `part`."""
        self.run(lambda: stream.has(part), seconds, what)

    def crowd(self, requests: Iterable[bytes], seconds: float, what: str) -> list[Stream]:
        """Open a stream per request, UNANSWERED at a time; receive until all have texts."""
        waiting, streams = list(requests), list[Stream]()
        answered, streaming, count = self.answered, self.streaming, len(waiting)

        def all_streaming() -> bool:
            while waiting and len(streams) - (self.answered - answered) < UNANSWERED:
                streams.append(self.stream(waiting.pop()))
            return self.streaming - streaming == count

        self.run(all_streaming, seconds, what)
        return streams
