"""process/pty_runner.py as a program: orders in, output of its child out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.process import pty_runner

Json = dict[str, Any]
WITHIN = 60.0


class Driven:
    def __init__(self) -> None:
        argv = [sys.executable, "-I", pty_runner.__file__]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, bufsize=0)

    def order(self, **order: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order).encode() + b"\n")

    def shell(self, script: str, **options: Any) -> None:
        self.order(run={"argv": ["/bin/sh", "-c", script], **options})

    def heard(self) -> Json:
        assert self.process.stdout
        return dict(json.loads(self.process.stdout.readline()))

    def heard_until(self, name: str) -> list[Json]:
        found = [self.heard()]
        while name not in found[-1]:
            found.append(self.heard())
        return found

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(WITHIN)


@pytest.fixture
def driven() -> Iterator[Driven]:
    one = Driven()
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait(WITHIN)
    for stream in (one.process.stdin, one.process.stdout):
        assert stream
        stream.close()


@pytest.mark.parametrize("pty", [False, True])
def test_lines_and_how_it_ended(driven: Driven, pty: bool) -> None:
    driven.shell("echo a; printf b; exit 3", pty=pty, open=True)
    assert driven.heard_until("exit") == [
        {"line": "a"},
        {"line": "b"},
        {"exit": 3, "stderr": ""},
    ]
    driven.shell("kill -9 $$", pty=pty)
    assert driven.heard() == {"exit": -9, "stderr": ""}
    assert driven.end() == 0


def test_where_it_pauses(driven: Driven) -> None:
    driven.shell("printf 'Go? '; read x; echo got $x; sleep 1.2", open=True)
    assert driven.heard() == {"tail": "Go? "}
    assert driven.heard() == {"pause": 1}
    driven.order(write="on\n")
    assert driven.heard() == {"line": "Go? got on"}
    assert driven.heard() == {"pause": 1}


def test_a_growing_line_is_reported_completely_each_time(driven: Driven) -> None:
    driven.shell("printf 'a \\303'; read x; printf '\\244'; read x; echo", open=True)
    assert driven.heard() == {"tail": "a "}  # the rest is not a character yet
    driven.order(write="\n")
    assert [one for one in driven.heard_until("tail") if "pause" not in one] == [{"tail": "a ä"}]
    driven.order(write="\n")
    assert driven.heard_until("line")[-1] == {"line": "a ä"}


def test_the_end_of_stderr(driven: Driven) -> None:
    driven.shell("i=0; while [ $i -lt 3000 ]; do echo line $i >&2; i=$((i+1)); done")
    stderr = driven.heard()["stderr"]
    assert stderr.endswith("line 2999\n") and len(stderr) == pty_runner.STDERR_TAIL


@pytest.mark.parametrize("stays_open", [False, True])
def test_control_characters_of_a_prompt_are_not_keys(driven: Driven, stays_open: bool) -> None:
    keys = "\x00\x03\x04\x1a\x1c\x1b\x15\x16\x7f\x9b\r"
    say = "IFS= read -r x; printf '%s\n' \"$x\""
    driven.shell(f"{say}; {say}", pty=True, open=stays_open, input=f"\ta{keys}é\n{keys}b\n")
    blank = " " * len(keys)
    assert driven.heard_until("exit")[:2] == [{"line": f"\ta{blank}é"}, {"line": f"{blank}b"}]
    if stays_open:
        driven.shell(say, pty=True, open=True)
        driven.order(write=f"{keys}c\n")
        assert driven.heard_until("exit")[-2] == {"line": f"{blank}c"}


def test_a_program_is_not_given_the_signals_that_python_ignores(driven: Driven) -> None:
    pythons = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    for pty in (False, True):
        driven.shell("grep SigIgn /proc/self/status", pty=pty)
        ignored = int(driven.heard_until("exit")[0]["line"].removeprefix("SigIgn:"), 16)
        assert not ignored & pythons


def test_who_inherits_the_streams_does_not_keep_it(driven: Driven) -> None:
    driven.shell("sleep 60 & echo $!")
    pid = int(driven.heard()["line"])
    assert driven.heard() == {"exit": 0, "stderr": ""}
    os.kill(pid, signal.SIGKILL)


@pytest.mark.soak
def test_an_endless_line_is_reported_in_pieces(driven: Driven) -> None:
    count = pty_runner.LONGEST_LINE
    driven.shell(f"head -c {count} /dev/zero | sed 's/\\x00/\\xc3\\xa4/g'")
    pieces = [one["line"] for one in driven.heard_until("exit") if "line" in one]
    assert "".join(pieces) == "ä" * count


def test_much_input_is_read_when_it_is_read(driven: Driven) -> None:
    text = "x" * 99 + "\n"
    driven.order(run={"argv": ["/bin/sh", "-c", "sleep 0.3; wc -c"], "input": text * 20000})
    assert driven.heard_until("exit")[-2]["line"].strip() == "2000000"


@pytest.mark.parametrize("pty", [False, True])
def test_a_program_that_is_not_there(driven: Driven, pty: bool) -> None:
    driven.order(run={"argv": ["/nowhere/cli"], "pty": pty})
    answer = driven.heard()
    assert answer["error"] and answer["running"] is False
    driven.shell("echo still here")
    assert driven.heard() == {"line": "still here"}


def test_orders_that_make_no_sense(driven: Driven) -> None:
    driven.order(write="x")
    assert driven.heard() == {"error": "no program is running", "running": False}
    driven.shell("read x", open=True)
    driven.shell("echo second")
    assert driven.heard() == {"error": "a program is running already", "running": True}


@pytest.mark.parametrize("pty", [False, True])
def test_an_interrupt_is_the_key_of_the_terminal(driven: Driven, pty: bool) -> None:
    driven.shell("trap 'echo stopped; exit 7' INT; echo on; while :; do sleep 0.05; done", pty=pty)
    assert driven.heard() == {"line": "on"}
    driven.order(interrupt=True)
    assert driven.heard_until("exit")[-2:] == [{"line": "stopped"}, {"exit": 7, "stderr": ""}]


@pytest.mark.parametrize("how", ["order", "signal", "end of orders"])
@pytest.mark.parametrize("deaf", [False, True])
def test_it_stops_its_program(driven: Driven, how: str, deaf: bool) -> None:
    trap = "trap '' TERM" if deaf else "trap 'echo bye; exit 0' TERM"
    driven.shell(f"{trap}; echo on; while :; do sleep 0.05; done")
    assert driven.heard() == {"line": "on"}
    if how == "order":
        driven.order(stop=True)
    elif how == "signal":
        driven.process.send_signal(signal.SIGTERM)
    else:
        assert driven.process.stdin
        driven.process.stdin.close()
    last = driven.heard_until("exit")
    assert last[-1]["exit"] == (-9 if deaf else 0)
    assert ({"line": "bye"} in last) is not deaf
    if how != "order":
        assert driven.process.wait(WITHIN) == 0


def test_a_terminal_is_its_own_and_says_nothing_back(driven: Driven) -> None:
    driven.shell("tty; stty -a | grep -o -e '-echo '; read x; echo $x", pty=True, open=True)
    assert driven.heard()["line"].startswith("/dev/pts/")
    assert driven.heard()["line"] == "-echo "
    driven.order(write="x" * 10000 + "\n")
    assert driven.heard_until("line")[-1] == {"line": "x" * 10000}


def test_a_terminal_that_edits_lines_refuses_those_that_are_too_long(driven: Driven) -> None:
    driven.order(run={"argv": ["/bin/cat"], "pty": True, "input": "x" * 5000})
    assert "too long" in driven.heard()["error"]
    driven.process.terminate()
    assert driven.process.wait(WITHIN) == 0
