"""Measures the server from outside: a program that prints at a given pace, and one HTTP client.

Every text event carries its number and the time at which it was printed, so that the client can
count what is missing and say how old it is. Both run on this machine and share its cores with the
server: compare figures of one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

AGENT = """\
import json, sys, time
for line in sys.stdin:
    knobs = json.loads(json.loads(line)["text"])
    due = time.monotonic()
    for number in range(knobs["events"]):
        if knobs["pause"]:
            due += knobs["pause"]
            time.sleep(max(0.0, due - time.monotonic()))
        text = '{"type":"text","text":"[%d %d]"}' % (number, time.monotonic_ns())
        print(text, flush=knobs["pause"] > 0)
    print('{"type":"done"}', flush=True)
"""
MARK = re.compile(rb"\[(\d+) (\d+)\]")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each measure")
    runs = 1 if parser.parse_args().quick else 5
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder) / "agent.py"
        agent.write_text(AGENT)
        server, url = start(agent, folder)
        try:
            measures = {
                "events/s, one task of 100,000 events": [rate(url, 100_000) for _ in range(runs)],
                "latency at 200 events/s, median, ms": [latency(url, 400) for _ in range(runs)],
                "request to first update, ms": [first(url) for _ in range(runs)],
            }
        finally:
            server.terminate()
            server.wait(timeout=20)
    print(f"{'measure':<40} {'min':>10} {'median':>10} {'max':>10}   ({runs} runs)")
    for name, figures in measures.items():
        row = (min(figures), statistics.median(figures), max(figures))
        print(f"{name:<40} " + " ".join(f"{figure:>10.2f}" for figure in row))
    return 0


def start(agent: Path, folder: str) -> tuple[subprocess.Popen[str], str]:
    settings = {
        "AGENT_ADAPTER": "jsonl",
        "AGENT_BINARY": sys.executable,
        "AGENT_ARGS": f"-I {agent}",
        "AGENT_REPO_PATH": folder,
        "PORT": "0",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "bridge"],
        env={"PATH": os.environ["PATH"], **settings},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr
    for line in server.stderr:
        if found := re.search(r"endpoint\s+(\S+)", line):
            return server, found[1]
    sys.exit("the server did not start")


def stream(url: str, knobs: dict[str, Any]) -> Iterator[bytes]:
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": json.dumps(knobs)}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"}
    body = json.dumps({**call, "params": {"message": message}}).encode()
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as lines:
        yield from lines


def marks(url: str, events: int, pause: float) -> Iterator[tuple[int, int]]:
    """(number, nanoseconds when printed) of every event, in order. Exits if one is missing."""
    expected = 0
    for line in stream(url, {"events": events, "pause": pause}):
        for found in MARK.finditer(line):
            number = int(found[1])
            if number != expected:
                sys.exit(f"event {expected} is missing: {number} came")
            expected += 1
            yield number, int(found[2])
    if expected != events:
        sys.exit(f"only {expected} of {events} events came")


def rate(url: str, events: int) -> float:
    began = 0
    for _, printed in marks(url, events, 0.0):
        began = began or printed
    return events / ((time.monotonic_ns() - began) / 1e9)


def latency(url: str, events: int) -> float:
    ages = [time.monotonic_ns() - printed for _, printed in marks(url, events, 0.005)]
    return statistics.median(ages) / 1e6


def first(url: str) -> float:
    began = time.monotonic()
    for line in stream(url, {"events": 1, "pause": 0.0}):
        if b"artifactUpdate" in line:
            return (time.monotonic() - began) * 1000
    sys.exit("nothing came")


if __name__ == "__main__":
    sys.exit(main())
