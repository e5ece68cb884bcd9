"""agent.c in Python, for machines without a C compiler; agent.c documents the behaviour. Runs under
`python -I -S`, the fastest start of Python."""

import os
import re
import select
import sys
import time


def say(number: int, size: int) -> bytes:
    mark = b"~%08d@%018d~" % (number, time.monotonic_ns())
    return b'{"type":"text","text":"' + mark.ljust(size, b"x") + b'"}\n'


def flush(out: bytearray) -> None:
    while out:
        del out[: os.write(1, out)]


def wait_until(due: float) -> None:
    left = due - time.monotonic()
    if left > 0 and select.select([0], [], [], left)[0]:
        sys.exit(0)


def turn(prompt: bytes) -> None:
    given = {name.decode(): int(n) for name, n in re.findall(rb'[ "](\w+)=(\d+)', prompt)}
    n, size = given.get("n", 1), given.get("bytes", 64)
    gap, burst = given.get("gap_us", 0) / 1e6, given.get("burst", 1)
    lose, twice, swap = (given.get(name, -1) for name in ("lose", "twice", "swap"))
    swapped = {swap: swap + 1, swap + 1: swap} if swap >= 0 else {}
    if wait := given.get("wait_ms", 0):
        flush(bytearray(b'{"type":"status","text":"Waiting"}\n'))
    wait_until(time.monotonic() + wait / 1000)
    due, out = time.monotonic(), bytearray()
    for number in range(n):
        if gap and number and number % burst == 0:
            flush(out)
            due += gap
            wait_until(due)
        elif len(out) > 2**16:
            flush(out)
        if number != lose:
            out += say(swapped.get(number, number), size)
        if number == twice:
            out += say(number, size)
    flush(out)
    wait_until(time.monotonic() + given.get("hold_ms", 0) / 1000)
    flush(bytearray(b'{"type":"done"}\n'))


def main() -> None:
    if sys.argv[1:2] == ["--start-ms"]:
        time.sleep(int(sys.argv[2]) / 1000)
    with open(0, "rb", buffering=0) as lines:  # unbuffered: select() sees all input
        for line in lines:
            if b'"type":"prompt"' in line:
                turn(line)


main()
