"""A program for the `jsonl` adapter that does what its prompt says, line by line.

text X      thought X    status X     say X, in the one way or the other
line X      print X as it is
ask ID X    permit ID X  login ID X   ask, wait for the answer, say what it was
answers N   wait for N answers and say what they were
here PATH NAME     tell the test that it lives (tests/support/liveness.py)
wait PATH NAME     the same, and wait until the test says go
spawn PATH NAME    start a process in a session of its own that tells the same
pid  cwd  env  prompt   say it; `prompt` is the line that it was given
turn        say how many turns there have been
repeat N X  say X N times at once
flood N     say "0 ", "1 ", … in so many pieces
steps N     say so many words on progress at once
pause N     say nothing for N seconds
deaf        ignore SIGTERM from now on
reply X     done X       fail X       reject X       ways to end the turn; else `done`
exit N      end
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
Json = dict[str, Any]
ENDINGS = {"reply": "message", "done": "done", "fail": "failed", "reject": "rejected"}
_open: list[socket.socket] = []


def say(kind: str, **members: Any) -> None:
    print(json.dumps({"type": kind, **members}), flush=True)


def connect(path: str, name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(f"{name} {os.getpid()}\n".encode())
    _open.append(connection)
    return connection


class Agent:
    def __init__(self) -> None:
        self.lines: Iterator[Json] = (json.loads(line) for line in sys.stdin)
        self.prompt: Json = {}
        self.turns = 0

    def run(self) -> None:
        for line in self.lines:
            if line["type"] == "prompt":
                self.prompt, self.turns = line, self.turns + 1
                self.turn(line["text"])

    def turn(self, script: str) -> None:
        for command in script.splitlines():
            word, _, rest = command.partition(" ")
            if word in ENDINGS:
                say(ENDINGS[word], text=rest)
                return
            self.obey(word, rest)
        say("done")

    def obey(self, word: str, rest: str) -> None:  # noqa: C901, PLR0912 - a table
        match word:
            case "text" | "thought" | "status":
                say(word, text=rest)
            case "repeat":
                count, _, text = rest.partition(" ")
                say("text", text=text * int(count))
            case "pause":
                time.sleep(float(rest))
            case "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "line":
                print(rest, flush=True)
            case "ask" | "permit" | "login":
                self.ask(word, *rest.partition(" ")[::2])
            case "answers":
                answers = (line for line in self.lines if line["type"] == "answer")
                for line in islice(answers, int(rest)):
                    said = [line["questionId"], line["text"], line["optionId"]]
                    say("text", text=json.dumps(said))
            case "here":
                connect(*rest.split())
            case "wait":
                if not connect(*rest.split()).recv(10):
                    sys.exit(9)  # the test is over
            case "spawn":
                spawn(*rest.split())
            case "exit":
                sys.exit(int(rest))
            case "flood":
                for number in range(int(rest)):
                    print(f'{{"type":"text","text":"{number} "}}')
                sys.stdout.flush()
            case "steps":
                print('{"type":"status","text":"step"}\n' * int(rest), end="", flush=True)
            case _:
                say("text", text=self.fact(word))

    def ask(self, word: str, question_id: str, text: str) -> None:
        options = [
            {"id": "yes", "name": "Go on", "kind": "allow_once"},
            {"id": "no", "name": "Do not", "kind": "reject_once"},
        ]
        if word == "login":
            say("auth_required", id=question_id, text=text)
        elif word == "permit":
            say("question", id=question_id, text=text, options=options)
        else:
            say("question", id=question_id, text=text)
        for line in self.lines:
            if line["type"] == "answer":
                answer = [line["questionId"], line["text"], line["optionId"]]
                say("text", text=f"answered {json.dumps(answer)}")
                return

    def fact(self, word: str) -> str:
        facts: dict[str, Any] = {
            "pid": os.getpid(),
            "cwd": os.getcwd(),
            "env": json.dumps(dict(os.environ)),
            "turn": self.turns,
            "prompt": json.dumps(self.prompt),
        }
        return str(facts.get(word, f"unknown {word}"))


def spawn(path: str, name: str) -> None:
    """Returns after the process has connected; a test that ends it earlier would wait for ever."""
    told, telling = os.pipe()
    if os.fork() == 0:
        os.setsid()
        connect(path, name)
        os.close(telling)
        while True:
            time.sleep(1000)
    os.close(telling)
    os.read(told, 1)  # its end
    os.close(told)


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print("1.2.3 (scripted)")
    else:
        Agent().run()
