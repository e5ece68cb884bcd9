"""The measured servers, which each measure starts again, and the agent that they run."""

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
"""The servers for the comparison: the official SDK, and aiohttp alone."""
RPC, CARD = "/a2a/jsonrpc", "/.well-known/agent-card.json"
LISTENS = re.compile(rb"""(?:endpoint\s+|"address":")http://[^:]+:(\d+)""")
"""The port in a line of the log, in text or JSON."""
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
"""Settings of both bridges, besides BRIDGE_STORE, BRIDGE_TOKEN (a random one), paths and the agent.
All other settings have their defaults: checks of Host and Origin, /monitor and the audit log are
on."""


@dataclass(frozen=True)
class Agent:
    """The program that all servers run. Its path identifies its processes."""

    command: tuple[str, ...]
    language: str
    mark: str

    def start_ms(self) -> float:
        """Time from its start until its first line, without any server."""
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
    """The agent in C if there is a compiler, else in Python."""
    compiler = shutil.which("cc")
    if compiler:
        binary = folder / "benchmark-agent"
        subprocess.run([compiler, "-O2", "-o", binary, HERE / "agent.c"], check=True)
        return Agent((str(binary),), "C", str(binary))
    script = shutil.copy(HERE / "agent.py", folder / "benchmark-agent.py")
    return Agent((sys.executable, "-I", "-S", str(script)), "Python", str(script))


class Server:
    """A running server, from the view of a client and of the kernel."""

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
        """A request as bytes: POST with a body, GET without."""
        headers = {**self.headers, **more, "Content-Length": str(len(body))}
        lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def send_request(self, **knobs: int) -> bytes:
        """A message to a new context; its text has the knobs for the agent."""
        parts = [{"text": prompt(**knobs)}]
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": parts}
        return self.request(RPC, call("SendStreamingMessage", {"message": message}))

    def subscribe_request(self, task_id: str, after: int | None = None) -> bytes:
        more = {} if after is None else {"Last_Event_ID": str(after)}
        return self.request(RPC, call("SubscribeToTask", {"id": task_id}), **more)

    def get_task_request(self, task_id: str) -> bytes:
        return self.request(RPC, call("GetTask", {"id": task_id}))

    def ask(self, method: str, params: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """Milliseconds until the complete answer, and its result."""
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
        """Memory of the server's other processes, which start its agents or wait for their
        end."""
        return sum(processes.pss_bytes(pid) for pid in self._helpers())

    def agents(self) -> set[int]:
        return processes.with_in_command_line(self.agent.mark)

    def family(self) -> set[int]:
        """All processes that descend from the server."""
        return {*self.agents(), *self._helpers()}

    def _helpers(self) -> set[int]:
        return processes.helpers(self.pid, self.agent.mark)


def prompt(**knobs: int) -> str:
    """A line of the jsonl protocol with these knobs, for adapters that pass on only the text of the
    message. The line that `jsonl` builds around it contains the knobs, too."""
    text = " ".join(f"{name}={value}" for name, value in knobs.items())
    return json.dumps({"type": "prompt", "text": text}, separators=(",", ":"))


def call(method: str, params: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def has_sdk() -> bool:
    """Whether scripts/install --bench has finished."""
    return (SDK / ".stamp").exists()


@dataclass(frozen=True)
class Target:
    """A kind of server: the bridge with one of its stores, or a server of OTHERS by `name`."""

    name: str
    agent: Agent
    folder: Path
    store: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def serving(self, *agent_arguments: str, **settings: str) -> Iterator[Server]:
        """A new server with an empty state. Afterwards neither it nor any of its agents runs.

        Its folder stays in another place until the end. ext4 searches for inodes among all that
        were just deleted, so the removal of 2,000 sessions would slow down the next server. So
        would each name beside the state of the next server, because it is a rule of the sandbox."""
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
        if found := LISTENS.search(log.read_bytes()):
            return int(found[1])
        time.sleep(0.01)
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes], agent: Agent) -> None:
    """Kill it: an orderly end of 2,000 tasks takes longer than the measure."""
    helpers = processes.helpers(process.pid, agent.mark)
    process.kill()
    process.wait()
    processes.kill(helpers)
    deadline = time.monotonic() + STOPS_WITHIN
    while (left := processes.with_in_command_line(agent.mark)) and time.monotonic() < deadline:
        processes.kill(left)  # they may be zombies for seconds, until their new parent reaps them
        time.sleep(0.002)
