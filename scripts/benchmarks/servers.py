"""The servers that are measured, each started anew for each measure, and the agent they run."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.benchmarks import processes

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
SDK = CHECKOUT / ".venvs/bench-sdk"
SDK_PYTHON = SDK / "bin/python"
OTHERS = {
    "sdk": (str(SDK_PYTHON), str(HERE / "sdk_server.py")),
    "alone": (sys.executable, str(HERE / "alone.py")),
}
"""What the bridge is compared with: the official SDK, and aiohttp alone."""
RPC, CARD = "/a2a/jsonrpc", "/.well-known/agent-card.json"
STARTS_WITHIN = 30.0
STOPS_WITHIN = 30.0

BRIDGE_SETTINGS = {
    "AGENT_ADAPTER": "jsonl",
    "HOST": "127.0.0.1",
    "PORT": "0",
    "BRIDGE_AUTH": "token",
    "BRIDGE_SANDBOX": "auto",
    "BRIDGE_REDACT": "known",
    "BRIDGE_MAX_SESSIONS": "4000",
    "BRIDGE_MAX_CONNECTIONS_PER_SECOND": "1000",
    "BRIDGE_DRAIN_MS": "0",
}
"""Of both servers of ours, beside BRIDGE_STORE, BRIDGE_TOKEN (a random one), paths and the agent.
All that is not here is as it is by default: Host and Origin are looked at, /monitor is there, an
audit log is written."""


@dataclass(frozen=True)
class Agent:
    """The program that all servers run. Its path is what its processes are known by."""

    command: tuple[str, ...]
    language: str
    mark: str

    def start_ms(self) -> float:
        """From starting it until its first line, without any server."""
        began = time.monotonic()
        process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin and process.stdout
        process.stdin.write(b'{"type":"prompt","text":"n=1"}\n')
        process.stdin.close()
        process.stdout.readline()
        took = (time.monotonic() - began) * 1000
        process.stdout.close()
        process.wait()
        return took


def make_agent(folder: Path) -> Agent:
    """In C where there is a compiler, else in Python."""
    compiler = shutil.which("cc")
    if compiler:
        binary = folder / "benchmark-agent"
        subprocess.run([compiler, "-O2", "-o", binary, HERE / "agent.c"], check=True)
        return Agent((str(binary),), "C", str(binary))
    script = shutil.copy(HERE / "agent.py", folder / "benchmark-agent.py")
    return Agent((sys.executable, "-I", "-S", str(script)), "Python", str(script))


class Server:
    """A running server, as a client sees it, and as the kernel does."""

    def __init__(self, pid: int, port: int, token: str, agent: Agent) -> None:
        self.pid = pid
        self.agent = agent
        self.address = ("127.0.0.1", port)
        self.headers = {
            "Host": f"127.0.0.1:{port}",
            "Authorization": f"Bearer {token}",
            "A2A-Version": "1.0",
            "Content-Type": "application/json",
        }

    # --- requests ------------------------------------------------------------------------------

    def request(self, path: str, body: bytes = b"", **more: str) -> bytes:
        """As bytes: POST with a body, GET without."""
        headers = {**self.headers, **more, "Content-Length": str(len(body))}
        lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def send_request(self, **knobs: int) -> bytes:
        """A message to a new context, which the agent takes its knobs from."""
        parts = [{"text": prompt(**knobs)}]
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts}
        return self.request(RPC, call("SendStreamingMessage", {"message": message}))

    def subscribe_request(self, task_id: str, after: int | None = None) -> bytes:
        more = {} if after is None else {"Last_Event_ID": str(after)}
        return self.request(RPC, call("SubscribeToTask", {"id": task_id}), **more)

    def get_task_request(self, task_id: str) -> bytes:
        return self.request(RPC, call("GetTask", {"id": task_id}))

    def ask(self, method: str, params: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """Milliseconds until all of the answer was there, and its result."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        connection.connect()
        began = time.monotonic()
        connection.request("POST", RPC, call(method, params), self.headers)
        answer = connection.getresponse().read()
        took = (time.monotonic() - began) * 1000
        connection.close()
        return took, json.loads(answer)["result"]

    # --- the process ---------------------------------------------------------------------------

    def cpu_seconds(self) -> float:
        return sum(processes.cpu_seconds(pid) for pid in {self.pid, *self._helpers()})

    def rss_bytes(self) -> int:
        return processes.rss_bytes(self.pid)

    def helpers_bytes(self) -> int:
        """What the other processes take that are the server's: those that start its agents, or
        wait for their end."""
        return sum(processes.pss_bytes(pid) for pid in self._helpers())

    def agents(self) -> set[int]:
        return processes.with_in_command_line(self.agent.mark)

    def family(self) -> set[int]:
        """All that stems from the server."""
        return {*self.agents(), *self._helpers()}

    def _helpers(self) -> set[int]:
        return processes.helpers(self.pid, self.agent.mark)


def prompt(**knobs: int) -> str:
    """A line of the jsonl protocol with these knobs: what the agent reads from adapters that hand
    it the text of the message alone. What `jsonl` makes of it has the knobs in it all the same."""
    text = " ".join(f"{name}={value}" for name, value in knobs.items())
    return json.dumps({"type": "prompt", "text": text}, separators=(",", ":"))


def call(method: str, params: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def has_sdk() -> bool:
    """Whether scripts/install --bench has come to its end."""
    return (SDK / ".stamp").exists()


@dataclass(frozen=True)
class Target:
    """A kind of server: the bridge with one of its stores, or what OTHERS calls `name`."""

    name: str
    agent: Agent
    folder: Path
    store: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def serving(self, *agent_arguments: str, **settings: str) -> Iterator[Server]:
        """A new server with an empty state. Afterwards neither it nor an agent of its is left.

        Its folder is put away until the end. ext4 looks for inodes among all that were just
        deleted, so that to remove those of 2,000 sessions would slow down whoever is measured next,
        as does each name beside the next one's state: it is a rule of the sandbox."""
        run = self.folder / uuid.uuid4().hex[:8]
        (run / "workspace").mkdir(parents=True)
        token = secrets.token_urlsafe(24)
        command, environment = self._start(run, [*self.agent.command[1:], *agent_arguments])
        environment |= {"BRIDGE_TOKEN": token, **settings} if self.store else {}
        log = run / "log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                command, env=environment, cwd=run, stdin=subprocess.DEVNULL, stderr=stderr
            )
        try:
            yield Server(process.pid, _port(process, log), token, self.agent)
        finally:
            _stop(process, self.agent)
            (self.folder / "done").mkdir(exist_ok=True)
            run.rename(self.folder / "done" / run.name)

    def _start(self, run: Path, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(run), "TMPDIR": str(run)}
        if not self.store:
            agent = shlex.join([self.agent.command[0], *arguments])
            return list(OTHERS[self.name]), {**environment, "AGENT": agent}
        settings = {
            **BRIDGE_SETTINGS,
            **self.settings,
            "BRIDGE_STORE": self.store,
            "BRIDGE_STATE_DIR": str(run / "state"),
            "AGENT_BINARY": self.agent.command[0],
            "AGENT_ARGS": shlex.join(arguments),
            "AGENT_REPO_PATH": str(run / "workspace"),
            "PYTHONPATH": str(CHECKOUT),
        }
        return [sys.executable, "-m", "bridge"], {**environment, **settings}


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(rb"endpoint\s+http://[^:]+:(\d+)", log.read_bytes()):
            return int(found[1])
        time.sleep(0.01)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes], agent: Agent) -> None:
    """By force: an orderly end of 2,000 tasks takes longer than what is measured."""
    helpers = processes.helpers(process.pid, agent.mark)
    process.kill()
    process.wait()
    processes.kill(helpers)
    deadline = time.monotonic() + STOPS_WITHIN
    while (left := processes.with_in_command_line(agent.mark)) and time.monotonic() < deadline:
        processes.kill(left)  # they may be zombies for seconds, which whoever has them now reaps
        time.sleep(0.002)
