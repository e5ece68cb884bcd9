"""A stand-in for the Cursor CLI, which cannot be installed here. It shares no code with the bridge:
its arguments, its lines and their order are those of Cursor's documentation and of recordings that
others have published; what it does comes from the prompt, line by line. What it is like where
neither says so (an unknown chat, a missing login) was made up.

    cursor_agent.py --print [FLAGS] [--] PROMPT    as tests/transcripts/cursor
    cursor_agent.py acp                            as tests/support/acp_agent.py, in Cursor's words

text X     think X   plan X        todo X
shell X    rejected without --force; with it, run in a session of its own
write PATH X                       write a file
say X      all in one piece, as without --stream-partial-output
again X    in pieces, and the whole twice
prompts    say all prompts of the chat, as JSON
argv       say the arguments, without the prompt
line X     print X as it is
wait PATH NAME                     tell the test that it lives, and wait until it says go
hang       do not exit after the end;  deaf: and not on SIGTERM
fail X     end with an error as the result
die CODE X                         end without a result, with X on stderr
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.acp_agent import Agent, Json, Problem, Stop, connect

PROGRAM = str(Path(__file__).resolve())
FLAGS = ("--print", "--stream-partial-output", "--force", "--trust")
VALUES = ("--output-format", "--model", "--resume", "--mode", "--workspace")
COMMANDS = ("login", "logout", "status", "update", "ls", "resume", "acp", "mcp")


def chats() -> Path:
    path = Path(os.environ["CURSOR_CONFIG_DIR"]) / "chats"
    path.mkdir(parents=True, exist_ok=True)
    return path


def refuse(text: str, code: int = 1) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(code)


class Arguments:
    """As commander reads them: a word that is a command is one even after `--`."""

    def __init__(self, argv: list[str]) -> None:
        self.flags: set[str] = set()
        self.values: dict[str, str] = {}
        operands: list[str] = []
        while argv:
            word = argv.pop(0)
            name, equals, value = word.partition("=")
            if word == "--":
                operands += argv
                break
            if word in FLAGS:
                self.flags.add(word)
            elif name in VALUES:
                self.values[name] = value if equals else argv.pop(0)
            elif word.startswith("-"):
                refuse(f"error: unknown option '{word}'")
            else:
                operands.append(word)
        if operands and operands[0] in COMMANDS:
            self.command = operands[0]
        else:
            self.command = ""
        self.prompt = " ".join(operands)


class Printer:
    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.partial = "--stream-partial-output" in arguments.flags
        self.chat = arguments.values.get("--resume") or str(uuid.uuid4())
        self.file = chats() / f"{self.chat}.json"
        if "--resume" in arguments.values and not self.file.exists():
            refuse(f"Error: Chat {self.chat} not found")
        self.prompts = json.loads(self.file.read_text()) if self.file.exists() else []
        self.text = ""  # said since the last whole
        self.said = ""
        self.calls = 0
        self.lingers = False
        self.clock = 1787521421000

    def emit(self, kind: str, **members: Any) -> None:
        print(json.dumps({"type": kind, **members, "session_id": self.chat}), flush=True)

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def run(self) -> None:
        self.prompts.append(self.arguments.prompt)
        self.file.write_text(json.dumps(self.prompts))
        mode = self.arguments.values.get("--mode", "default")
        model = self.arguments.values.get("--model", "Auto")
        facts = {"apiKeySource": "login", "cwd": os.getcwd(), "model": model}
        self.emit("system", subtype="init", **facts, permissionMode=mode)
        content = [{"type": "text", "text": self.arguments.prompt}]
        self.emit("user", message={"role": "user", "content": content})
        for line in filter(None, self.arguments.prompt.strip().splitlines()):
            word, _, rest = line.partition(" ")
            self.obey(word, rest)
        self.flush()
        self.result("success", self.said)

    def result(self, subtype: str, text: str) -> NoReturn:
        used = {"inputTokens": 100, "outputTokens": 20, "cacheReadTokens": 5, "cacheWriteTokens": 0}
        times = {"duration_ms": 5, "duration_api_ms": 5}
        self.emit(
            "result",
            subtype=subtype,
            **times,
            is_error=subtype != "success",
            result=text,
            request_id="r",
            usage=used,
        )
        while self.lingers:
            time.sleep(1000)
        sys.exit(0)

    # --- text ----------------------------------------------------------------------------------

    def assistant(self, text: str, **members: Any) -> None:
        message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
        self.emit("assistant", message=message, **members)

    def say(self, text: str) -> None:
        """In pieces if it was asked to, else with the whole."""
        self.text += text
        self.said += text
        if self.partial:
            half = len(text) // 2
            for piece in (text[:half], text[half:]):
                self.assistant(piece, timestamp_ms=self.now())

    def flush(self, **members: Any) -> None:
        text, self.text = self.text, ""
        if text:
            self.assistant(text, **members)

    # --- tools ---------------------------------------------------------------------------------

    def tool(self, name: str, arguments: Json) -> Json:
        """Say that it begins; the members that its end has, too."""
        self.flush(model_call_id="mc-1", timestamp_ms=self.now())
        self.calls += 1
        call = {"call_id": f"call_{self.calls}\nfc", "args": arguments, "name": f"{name}ToolCall"}
        self.emit(
            "tool_call",
            subtype="started",
            call_id=call["call_id"],
            tool_call={call["name"]: {"args": arguments}},
        )
        return call

    def completed(self, call: Json, result: Json) -> None:
        body: Json = {"args": call["args"], "result": result}
        if "rejected" in result:
            del body["args"]
        self.emit(
            "tool_call",
            subtype="completed",
            call_id=call["call_id"],
            tool_call={call["name"]: body},
        )

    def shell(self, command: str) -> None:
        call = self.tool("shell", {"command": command, "workingDirectory": os.getcwd()})
        if "--force" not in self.arguments.flags:
            rejected = {"command": command, "reason": "", "isReadonly": False}
            self.completed(call, {"rejected": rejected})
            return
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["/bin/sh", "-c", command], stdout=pipe, stderr=pipe, text=True, start_new_session=True
        ) as child:
            out, err = child.communicate()
        facts = {"command": command, "exitCode": child.returncode, "stdout": out, "stderr": err}
        self.completed(call, {"success": facts})

    def write(self, path: str, text: str) -> None:
        call = self.tool("write", {"path": path, "fileText": text})
        Path(path).write_text(text)
        facts = {"path": str(Path(path).resolve()), "linesCreated": 1, "fileSize": len(text)}
        self.completed(call, {"success": facts})

    # --- the prompt ----------------------------------------------------------------------------

    def obey(self, word: str, rest: str) -> None:  # noqa: C901, PLR0912 - a table
        match word:
            case "text":
                self.say(rest)
            case "say":
                self.said += rest
                self.assistant(rest)
            case "again":
                self.say(rest)
                whole = self.text
                self.flush(model_call_id="mc-1", timestamp_ms=self.now())
                self.assistant(whole)
            case "think":
                self.emit("thinking", subtype="delta", text=rest, timestamp_ms=self.now())
                self.emit("thinking", subtype="completed", timestamp_ms=self.now())
            case "plan":
                query = {"id": 1, "createPlanRequestQuery": {"args": {"plan": rest}}}
                kind = "createPlanRequestQuery"
                self.emit("interaction_query", subtype="request", query_type=kind, query=query)
                self.emit(
                    "interaction_query", subtype="response", query_type=kind, response={"id": 1}
                )
            case "todo":
                todos = [{"content": rest, "status": "TODO_STATUS_IN_PROGRESS"}]
                call = self.tool("updateTodos", {"todos": todos})
                self.completed(call, {"success": {"todos": todos}})
            case "shell":
                self.shell(rest)
            case "write":
                self.write(*rest.split(" ", 1))
            case "prompts":
                self.say(json.dumps(self.prompts))
            case "argv":
                values = [f"{name}={one}" for name, one in self.arguments.values.items()]
                self.say(json.dumps(sorted([*self.arguments.flags, *values])))
            case "line":
                print(rest, flush=True)
            case "wait":
                if not connect(*rest.split()).recv(10):
                    sys.exit(9)  # the test is over
            case "hang" | "deaf":
                self.lingers = True
                if word == "deaf":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case "fail":
                self.result("error", rest)
            case "die":
                code, _, text = rest.partition(" ")
                refuse(text, int(code))


class CursorAgent(Agent):
    """`agent acp`: a login that is always there, and the ids of Cursor's options."""

    logged_in = False

    def on_initialize(self, params: Json) -> Json:
        return {
            "protocolVersion": 1,
            "agentCapabilities": {"loadSession": True, "promptCapabilities": {"image": True}},
            "authMethods": [{"id": "cursor_login", "name": "Cursor Login"}],
        }

    def on_authenticate(self, params: Json) -> Json:
        self.logged_in = params["methodId"] == "cursor_login"
        return {}

    def on_session_new(self, params: Json) -> Json:
        if not self.logged_in:
            raise Problem(-32000, "Authentication required")
        self.session = f"session-{os.getpid()}"
        modes = [{"id": name, "name": name.title()} for name in ("agent", "plan", "ask")]
        offered = {"currentModeId": "agent", "availableModes": modes}
        return {"sessionId": self.session, "modes": offered}

    def permit(self, title: str, *kinds: str) -> None:
        names = ("allow_once", "allow_always", "reject_once")
        options = [
            {"optionId": kind.replace("_", "-"), "name": kind, "kind": kind} for kind in names
        ]
        call = {"toolCallId": "t1", "title": f"`{title}`", "kind": "execute", "status": "pending"}
        self.update(sessionUpdate="tool_call", **call, rawInput={"command": title})
        params = {"sessionId": self.session, "toolCall": call, "options": options}
        outcome = self.ask("session/request_permission", params)["result"]["outcome"]
        if self.cancelled:
            raise Stop({"stopReason": "cancelled"})
        self.say(str(outcome["optionId"]))


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print("2026.10.01-stand-in")
        return
    arguments = Arguments(sys.argv[1:])
    if arguments.command == "acp":
        CursorAgent({}).serve()
    elif arguments.command:
        refuse(f"{arguments.command} was run", 3)
    elif "--print" not in arguments.flags or "--output-format" not in arguments.values:
        refuse("this stand-in has no terminal interface")
    elif "--trust" not in arguments.flags:
        refuse("Workspace Trust Required\nPass --trust, --yolo, or -f if you trust this directory")
    else:
        Printer(arguments).run()


if __name__ == "__main__":
    main()
