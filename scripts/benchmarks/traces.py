"""The cost of traces: CPU of a server with a collector over that of a server without one.

Run `python -m scripts.benchmarks.traces`. Both servers run at the same time, and the rounds
alternate between them; the ratio of a round compares neighbours.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from scripts.benchmarks.client import Loop
from scripts.benchmarks.measures import one_stream
from scripts.benchmarks.servers import Server, Target, make_agent

ROUNDS = 15
SECONDS = 0.5  # of a round of GetTask
TASKS = 10  # of a round of tasks
EVENTS = 2_000  # of a task


class _Taker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None: ...


@contextmanager
def collector() -> Iterator[str]:
    """The address of a server that takes all spans and reads none."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def gets(server: Server, task_id: str) -> float:
    """CPU microseconds of one GetTask, on one busy connection."""
    with Loop(server.address) as loop:
        caller = loop.call(server.get_task_request(task_id))
        began = server.cpu_seconds()
        loop.run_for(SECONDS)
        return 1e6 * (server.cpu_seconds() - began) / len(caller.milliseconds)


def tasks(events: int) -> Callable[[Server, str], float]:
    def measure(server: Server, task_id: str) -> float:
        """CPU microseconds of one task with so many events."""
        began = server.cpu_seconds()
        for _ in range(TASKS):
            one_stream(server, 30.0, n=events)
        return 1e6 * (server.cpu_seconds() - began) / TASKS

    return measure


def main() -> None:
    measures = {
        f"a task of {EVENTS:,} events": tasks(EVENTS),
        "a task of 20 events": tasks(20),
        "GetTask": gets,
    }
    with tempfile.TemporaryDirectory() as folder, collector() as url:
        target = Target("bridge", make_agent(Path(folder)), Path(folder), "durable")
        with target.serving() as off, target.serving(OTEL_EXPORTER_OTLP_ENDPOINT=url) as on:
            known = {one.pid: one_stream(one, 30.0, n=10).task_id() for one in (off, on)}
            for name, measure in measures.items():
                pairs = []
                for number in range(ROUNDS):
                    order = (off, on) if number % 2 else (on, off)
                    found = {one.pid: measure(one, known[one.pid]) for one in order}
                    pairs.append((found[off.pid], found[on.pid]))
                ratios = sorted(second / first for first, second in pairs)
                low, middle, high = ratios[3], statistics.median(ratios), ratios[-4]
                best = [min(one) for one in zip(*pairs, strict=True)]
                print(
                    f"{name}: {best[0]:.1f} us without, {best[1]:.1f} us with traces (smallest);"
                    f" ratio {middle:.3f} (60 % of the rounds: {low:.3f} to {high:.3f})"
                )


if __name__ == "__main__":
    main()
