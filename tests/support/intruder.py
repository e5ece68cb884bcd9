"""A program for the `jsonl` adapter that uses the API of the server that started it.

The prompt's text is JSON:
    port, address    the server's; and an address of this machine that is not loopback's
    tokens           the operator's: each itself, or a file that has it
    task             of another conversation, with an open question
    group            the folder that has the control groups of agents

The answer is JSON: for each attempt the HTTP status, or why there is none.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = str(Path(__file__).resolve())
Json = dict[str, Any]
PATIENCE = 20  # seconds
OTHER = "other"  # the agent that it delegates to


def main() -> None:
    for line in sys.stdin:
        prompt = json.loads(line)
        if prompt["type"] == "prompt":
            found = dict(attempts(json.loads(prompt["text"])))
            for event in ({"type": "text", "text": json.dumps(found)}, {"type": "done"}):
                print(json.dumps(event), flush=True)


def attempts(at: Json) -> Iterator[tuple[str, Any]]:
    operations = {
        "list": ("ListTasks", {}),
        "answer": ("SendMessage", message("yes", taskId=at["task"])),
        "delegate": ("SendMessage", message("text x", metadata={"bridge": {"agent": OTHER}})),
    }
    for name, (method, params) in operations.items():
        yield f"{name} without a token", call(at["port"], None, method, params)
    for number, given in enumerate(at["tokens"]):
        try:
            token = Path(given).read_text().strip() if given.startswith("/") else given
        except OSError as error:
            yield f"read {number}", error.strerror
            continue
        for name, (method, params) in operations.items():
            yield f"{name} {number}", call(at["port"], token, method, params)
        yield f"half-closed {number}", call(at["port"], token, "ListTasks", {}, half=True)
        yield f"own address {number}", call(at["port"], token, "ListTasks", {}, host=at["address"])
        yield f"orphan {number}", orphan(at["port"], token)
        yield f"hidden socket {number}", hidden(at["port"], token)
        yield f"out of its group {number}", escaped(at, token)


def message(text: str, **more: Any) -> Json:
    parts = [{"text": text}]
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": parts, **more}}


def request(token: str | None, method: str, params: Json) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    lines = [
        *("POST /a2a HTTP/1.1", "Host: localhost", "A2A-Version: 1.0"),
        *("Content-Type: application/json", f"Content-Length: {len(body)}"),
        *([f"Authorization: Bearer {token}"] if token else []),
    ]
    return "\r\n".join([*lines, "", body]).encode()


def answer(connection: socket.socket) -> int | str:
    """The status; a word if the server does not answer."""
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    return response.status


def call(
    port: int,
    token: str | None,
    method: str,
    params: Json,
    host: str = "127.0.0.1",
    half: bool = False,
) -> Any:
    with socket.create_connection((host, port), PATIENCE) as connection:
        connection.sendall(request(token, method, params))
        if half:
            connection.shutdown(socket.SHUT_WR)
        return answer(connection)


def orphan(port: int, token: str) -> Any:
    """From a process without its parents, its session and its environment."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        code = f"import sys; sys.path.insert(0, {os.path.dirname(PROGRAM)!r}); import intruder\n"
        code += f"found = intruder.call({port}, {token!r}, 'ListTasks', {{}})\n"
        code += f"import os; os.write({writing}, str(found).encode())"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as result:
        return result.read()


def hidden(port: int, token: str) -> Any:
    """With the socket in no process while it is looked for: it is on its way through another."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE)
    data = request(token, "ListTasks", {})
    connection.sendall(data[:-1])
    socket.send_fds(theirs, [b"x"], [connection.fileno()])
    last = os.dup(connection.fileno())
    connection.close()
    os.write(last, data[-1:])
    os.close(last)
    _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    with socket.socket(fileno=fd) as returned:
        returned.settimeout(PATIENCE)
        return answer(returned)


def escaped(at: Json, token: str) -> Any:
    if not at["group"]:
        return "there are no groups"
    pid = os.fork()
    if pid == 0:
        with suppress(OSError):
            Path(at["group"], "cgroup.procs").write_text("0")
            found = orphan(at["port"], token)
            os._exit(int(found) % 256)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return "it cannot leave it" if code == 1 else 256 + code


if __name__ == "__main__":
    main()
