"""A line-oriented CLI for tests of `generic`, which knows nothing of the bridge.

    line_cli.py [--repl] [--slow] [PROMPT]

With --repl it writes `> `, reads a line, does it, and so on; else it does what stands in PROMPT, or
on stdin up to its end, and exits. --slow: it takes its time to start. A line is commands with `;`:

say X       print X           ask X      print X without a newline, read an answer, say it
askline X   the same, X on a line of its own
part X      print X without a newline, and wait for a line on the socket before going on
json X      print {"delta": {"text": X}}
flood N     print N lines     err X      print X on stderr
wait PATH NAME     tell the test that it lives (tests/support/liveness.py), and wait until it says
go spawn PATH NAME    start a process in a session of its own that tells the same
args        say sys.argv      tty        say which of its streams are terminals
exit N      end
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable


def main() -> None:
    args = sys.argv[1:]
    if "--slow" in args:
        subprocess.run(["sleep", "1.5"], check=True)
    if "--repl" in args:
        print("Welcome.", flush=True)
        while True:
            sys.stdout.write("> ")
            sys.stdout.flush()
            line = sys.stdin.readline()
            if not line:
                return
            do(line)
    words = [arg for arg in args if not arg.startswith("--")]
    if words:
        do(words[0])
    elif "--line" in args:
        do(sys.stdin.readline())
    else:
        do(sys.stdin.read())


def do(line: str) -> None:
    for command in line.strip().split(";"):
        name, _, rest = command.strip().partition(" ")
        COMMANDS[name](rest)


def say(text: str) -> None:
    print(text, flush=True)


def ask(text: str) -> None:
    sys.stdout.write(f"{text} ")
    sys.stdout.flush()
    say(f"got {sys.stdin.readline().strip()!r}")


def ask_line(text: str) -> None:
    say(text)
    say(f"got {sys.stdin.readline().strip()!r}")


def connected(rest: str) -> socket.socket:
    path, name = rest.split()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(f"{name} {os.getpid()}\n".encode())
    return connection


def part(rest: str) -> None:
    path_and_name, _, text = rest.partition(" | ")
    sys.stdout.write(text)
    sys.stdout.flush()
    connected(path_and_name).recv(100)


def spawn(rest: str) -> None:
    program = "import runpy,sys; m=runpy.run_path(sys.argv[1]); m['connected'](sys.argv[2]).recv(9)"
    argv = [sys.executable, "-c", program, __file__, rest]
    subprocess.Popen(argv, start_new_session=True)


def flood(count: str) -> None:
    sys.stdout.write("".join(f"{n} {'x' * 50}\n" for n in range(int(count))))
    sys.stdout.flush()


COMMANDS: dict[str, Callable[[str], object]] = {
    "say": say,
    "ask": ask,
    "askline": ask_line,
    "part": part,
    "json": lambda text: say(json.dumps({"delta": {"text": text}})),
    "flood": flood,
    "err": lambda text: print(text, file=sys.stderr, flush=True),
    "wait": lambda rest: connected(rest).recv(100),
    "spawn": spawn,
    "args": lambda rest: say(json.dumps(sys.argv[1:])),
    "tty": lambda rest: say(str([os.isatty(fd) for fd in range(3)])),
    "exit": lambda code: sys.exit(int(code)),
    "": lambda rest: None,
}

if __name__ == "__main__":
    main()
