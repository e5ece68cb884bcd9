"""An agent that speaks ACP and does what its prompt says, line by line. It shares no code with the
bridge: what it sends was written down from the specification and from recordings.

    python acp_agent.py [OPTIONS]      OPTIONS is a JSON object:

capabilities  auth_methods  modes  models  config    what it answers, as it is
login       a file: session/new needs a login until it exists; authenticate makes it
sessions    a file with the ids of sessions, which load and resume look into
journal     "late": a session is in that file only when a turn has ended, and a moment after that
load        "error", "exit": what a session/load comes to
history     updates that session/load says before its answer;  late: and after it
ids         "string": its own requests have such ids;  bare: it leaves `jsonrpc` out

text X     thought X   say X             update JSON    any session/update
permit X   [KIND…]     ask for a permission for X, and say the outcome
ask METHOD JSON        send any request, and say its answer
tell METHOD JSON       send any notification
line X                 print X as it is
after WORD X           do it behind the answer of the turn;  babble: say x there without a pause
told METHOD            say the params of the last request with this method
pid  turn  cwd         say it
wait PATH NAME         tell the test that it lives, and wait until it says go
spawn PATH NAME        start a process in a session of its own that tells the same
hold                   wait for session/cancel
stop REASON            end the turn so; else `end_turn`
result JSON            end the turn with this result
error CODE X           end the turn with this error
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
Json = dict[str, Any]
KINDS = ("allow_once", "allow_always", "reject_once")
_open: list[socket.socket] = []


class Problem(Exception):
    """Ends a request with an error."""

    def __init__(self, code: int, text: str) -> None:
        self.error = {"code": code, "message": text}


class Stop(Exception):
    """Ends a turn with this result."""

    def __init__(self, result: Json) -> None:
        self.result = result


class Agent:
    def __init__(self, options: Json) -> None:
        self.options = options
        self.told: dict[str, Json] = {}
        self.session = ""
        self.asked = 0
        self.turns = 0
        self.cancelled = False
        self.last: list[tuple[str, str]] = []  # what comes behind the answer

    # --- JSON-RPC ------------------------------------------------------------------------------

    def send(self, **message: Any) -> None:
        tag = {} if self.options.get("bare") else {"jsonrpc": "2.0"}
        print(json.dumps({**tag, **message}), flush=True)

    def read(self) -> Json:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        message: Json = json.loads(line)
        if message.get("method") == "session/cancel":
            self.cancelled = True
        return message

    def serve(self) -> None:
        while True:
            message = self.read()
            if "id" not in message or "method" not in message:
                continue
            method, params = message["method"], message["params"]
            self.told[method] = params
            handler = getattr(self, "on_" + method.replace("/", "_"), None)
            try:
                if handler is None:
                    raise Problem(-32601, f"no {method}")
                self.send(id=message["id"], result=handler(params))
            except Problem as problem:
                self.send(id=message["id"], error=problem.error)
            self.after(method)

    def ask(self, method: str, params: Json) -> Json:
        """The other side's answer, whole."""
        number: int | str = self.asked
        self.asked += 1
        if self.options.get("ids") == "string":
            number = f"agent-{number}"
        self.send(id=number, method=method, params=params)
        while True:
            message = self.read()
            if message.get("id") == number and "method" not in message:
                return {name: message[name] for name in ("result", "error") if name in message}

    def update(self, **update: Any) -> None:
        params = {"sessionId": self.session, "update": update}
        self.send(method="session/update", params=params)

    def say(self, text: str, kind: str = "agent_message_chunk") -> None:
        self.update(sessionUpdate=kind, content={"type": "text", "text": text})

    # --- the handshake -------------------------------------------------------------------------

    def on_initialize(self, params: Json) -> Json:
        return {
            "protocolVersion": self.options.get("version", 1),
            "agentCapabilities": self.options.get("capabilities", {}),
            "authMethods": self.options.get("auth_methods", []),
            "agentInfo": {"name": "scripted", "version": "1.2.3"},
        }

    def on_authenticate(self, params: Json) -> Json:
        Path(self.options["login"]).touch()
        return {}

    def on_session_new(self, params: Json) -> Json:
        login = self.options.get("login")
        if login and not Path(login).exists():
            raise Problem(-32000, "Authentication required")
        self.session = f"session-{os.getpid()}"
        if not self.options.get("journal"):
            self.write_down()
        return {"sessionId": self.session, **self.offers()}

    def write_down(self) -> None:
        if "sessions" in self.options:
            with open(self.options["sessions"], "a", encoding="utf-8") as file:
                file.write(f"{self.session}\n")

    def offers(self) -> Json:
        names = {"modes": "modes", "models": "models", "config": "configOptions"}
        return {there: self.options[here] for here, there in names.items() if here in self.options}

    def on_session_resume(self, params: Json) -> Json:
        self.session = params["sessionId"]
        path = self.options.get("sessions")
        known = Path(path).read_text().split() if path and Path(path).exists() else []
        if self.session not in known:
            raise Problem(-32002, f"Resource not found: {self.session}")
        return self.offers()

    def on_session_load(self, params: Json) -> Json:
        if self.options.get("load") == "exit":
            sys.exit("the journal cannot be read")
        if self.options.get("load") == "error":
            raise Problem(-32603, "the journal cannot be read")
        result = self.on_session_resume(params)
        self.repeat("history")
        return result

    def on_session_list(self, params: Json) -> Json:
        known = Path(self.options["sessions"]).read_text().split()
        place = int(params.get("cursor", "0"))
        rest = {"nextCursor": str(place + 1)} if place + 1 < len(known) else {}
        return {"sessions": [{"sessionId": one} for one in known[place : place + 1]], **rest}

    def after(self, method: str) -> None:
        if method == "session/load":
            self.repeat("late")
        last, self.last = self.last, []
        for word, rest in last:
            self.obey(word, rest)
        if method == "session/prompt" and self.options.get("journal"):
            time.sleep(0.1)
            self.write_down()

    def repeat(self, which: str) -> None:
        for update in self.options.get(which, []):
            self.update(**update)

    def on_session_set_mode(self, params: Json) -> Json:
        if params["modeId"] not in json.dumps(self.options):
            raise Problem(-32603, "Invalid or unavailable mode")
        return {}

    def on_session_set_model(self, params: Json) -> Json:
        return {}

    def on_session_set_config_option(self, params: Json) -> Json:
        return {"configOptions": self.options["config"]}

    # --- a turn --------------------------------------------------------------------------------

    def on_session_prompt(self, params: Json) -> Json:
        self.turns += 1
        self.cancelled = False
        script = "\n".join(one.get("text", "") for one in params["prompt"])
        try:
            for line in filter(None, script.splitlines()):
                word, _, rest = line.partition(" ")
                self.obey(word, rest)
        except Stop as stop:
            return stop.result
        return {"stopReason": "end_turn"}

    def obey(self, word: str, rest: str) -> None:  # noqa: C901, PLR0912 - a table
        match word:
            case "text" | "thought":
                kind = "message" if word == "text" else "thought"
                self.say(rest, f"agent_{kind}_chunk")
            case "update":
                self.update(**json.loads(rest))
            case "permit":
                self.permit(*rest.split())
            case "ask":
                method, _, text = rest.partition(" ")
                self.say(json.dumps(self.ask(method, json.loads(text))))
            case "tell":
                method, _, text = rest.partition(" ")
                self.send(method=method, params=json.loads(text))
            case "line":
                print(rest, flush=True)
            case "after":
                after, _, rest = rest.partition(" ")
                self.last.append((after, rest))
            case "babble":
                while not select.select([sys.stdin], [], [], 0)[0]:
                    self.say("x")
            case "told":
                self.say(json.dumps(self.told.get(rest)))
            case "wait":
                if not connect(*rest.split()).recv(10):
                    sys.exit(9)  # the test is over
            case "spawn":
                spawn(*rest.split())
            case "hold":
                while not self.cancelled:
                    self.read()
                raise Stop({"stopReason": "cancelled"})
            case "stop":
                raise Stop({"stopReason": rest})
            case "result":
                raise Stop(json.loads(rest))
            case "error":
                code, _, text = rest.partition(" ")
                raise Problem(int(code), text)
            case _:
                facts = {"pid": os.getpid(), "turn": self.turns, "cwd": os.getcwd()}
                self.say(str(facts.get(word, f"unknown {word}")))

    def permit(self, title: str, *kinds: str) -> None:
        """Options whose ids do not show their kinds."""
        options = [
            {"optionId": f"option-{number}", "name": f"Name of {kind}", "kind": kind}
            for number, kind in enumerate(kinds or KINDS)
        ]
        call = {"toolCallId": f"call-{title}", "title": title, "kind": "execute"}
        params = {"sessionId": self.session, "toolCall": call, "options": options}
        outcome = self.ask("session/request_permission", params)["result"]["outcome"]
        if self.cancelled:
            raise Stop({"stopReason": "cancelled"})
        self.say(json.dumps(outcome))


def connect(path: str, name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(f"{name} {os.getpid()}\n".encode())
    _open.append(connection)
    return connection


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
        Agent(json.loads(sys.argv[1]) if sys.argv[1:] else {}).serve()
