"""Real MCP clients on a scripted model: how each is configured, and how it runs one prompt."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.cli.mcp.configs import config_of
from tests import CHECKOUT
from tests.support.cli_row import Cli
from tests.support.client import Json
from tests.support.real_claude_code import tool
from tests.support.real_clis import CLAUDE_CODE, CLIS, CODEX

RUNS_WITHIN = 120.0  # seconds
_BY_NAME = {cli.name: cli for cli in CLIS}
Configure = Callable[["Machine", str], Sequence[str] | None]
"""Adds a printed configuration. Returns the command that does it, if there is one."""


@dataclass(frozen=True, slots=True)
class McpClient:
    """`name` is the word of --print-config. `run`: the arguments for one prompt. `tool` calls a
    tool of the bridge by its name in this client. `agent`: the CLI behind the bridge. `on_stdin`:
    it changes the quotes of a prompt among its arguments. `no`: the scenarios that it cannot pass,
    each with the reason."""

    name: str
    cli: Cli
    add: Configure
    run: Callable[[str], Sequence[str]]
    tool: Callable[..., Json]
    agent: Cli
    on_stdin: bool = False
    no: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


class Machine:
    """A user's home and workspace, in which the program of the bridge is installed."""

    def __init__(self, home: Path, workspace: Path) -> None:
        self.home = home
        self.workspace = workspace
        self.program = home / "bin/coding-agent-bridge"
        self.program.parent.mkdir(exist_ok=True)
        line = shlex.join(["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-P", "-m", "bridge"])
        self.program.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        self.program.chmod(0o755)

    async def printed(self, *words: str) -> str:
        """The output of `mcp --print-config WORDS`, as the installed program prints it."""
        code = "import sys; sys.argv = sys.argv[1:]; from bridge.cli.main import main; main()"
        line = ["-c", code, str(self.program), "mcp", "--print-config", *words]
        status, out = await self.run([sys.executable, *line], {"PYTHONPATH": str(CHECKOUT)})
        assert status == 0, out
        return out

    async def run(
        self, line: Sequence[str], env: Mapping[str, str], stdin: str = ""
    ) -> tuple[int, str]:
        """The exit status and the output of a program."""
        process = await asyncio.create_subprocess_exec(
            *line,
            cwd=self.workspace,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **env},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(RUNS_WITHIN):
                output, _ = await process.communicate(stdin.encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode is not None
        return process.returncode, output.decode(errors="replace")

    def merge(self, name: str, more: Json) -> None:
        """Add members to a JSON file of the home."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **more}))


def as_json(name: str) -> Configure:
    def add(machine: Machine, text: str) -> None:
        machine.merge(name, json.loads(text))

    return add


def as_command(machine: Machine, text: str) -> Sequence[str]:
    program, *words = shlex.split(text)
    assert program == "claude"
    return [CLAUDE_CODE.path(), *words]


def as_toml(machine: Machine, text: str) -> None:
    path = machine.home / ".codex/config.toml"
    path.write_text(f"{path.read_text()}\n{text}\n")


def named(form: str) -> Callable[..., Json]:
    """Calls of tools with names of this form."""

    def call(name: str, **arguments: Any) -> Json:
        return tool(form.format(name), **arguments)

    return call


def in_namespace(name: str, **arguments: Any) -> Json:
    return {**tool(name, **arguments), "namespace": "mcp__bridge"}


MCP_CLIENTS = (
    McpClient(
        "claude-code",
        CLAUDE_CODE,
        as_command,
        lambda prompt: ["-p", prompt, "--allowedTools", "mcp__bridge"],
        named("mcp__bridge__{}"),
        CODEX,
    ),
    McpClient(
        "codex",
        CODEX,
        as_toml,
        lambda prompt: [
            "exec",
            "--skip-git-repo-check",
            "-cmcp_servers.bridge.required=true",  # else its first request may lack the tools
            "--dangerously-bypass-approvals-and-sandbox",
            prompt,
        ],
        in_namespace,
        CLAUDE_CODE,
        no={"question": "`codex exec` declines each form by itself"},
    ),
    McpClient(
        "gemini",
        _BY_NAME["gemini"],
        as_json(".gemini/settings.json"),
        lambda prompt: ["--yolo", "-m", "gemini-2.5-flash", "-p", prompt],
        named("mcp_bridge_{}"),
        CODEX,
    ),
    McpClient(
        "opencode",
        _BY_NAME["opencode"],
        as_json(".config/opencode/opencode.json"),
        lambda prompt: ["run"],
        named("bridge_{}"),
        CODEX,
        on_stdin=True,
    ),
    McpClient(
        "copilot",
        _BY_NAME["copilot"],
        as_json(".copilot/mcp-config.json"),
        lambda prompt: ["--allow-all-tools", "-p", prompt],
        named("bridge-{}"),
        CODEX,
        no={"question": "`copilot -p` declines each form by itself"},
    ),
)

SCENARIOS = {
    "discover": "the model is shown the agents",
    "delegate": "a call returns the answer of the other CLI",
    "wait": "a call returns a handle at once, and another one the answer",
    "question": "a permission is shown with its link, answered over A2A, and the task continues",
    "cancel": "a task is canceled while its agent works",
}
"""What each client does in tests/real/test_mcp_clients.py, in print mode."""


TITLES = {
    "claude-code": "Claude Code",
    "cursor": "Cursor",
    "vscode": "VS Code",
    "zed": "Zed",
    "gemini": "Gemini CLI",
    "opencode": "opencode",
    "copilot": "GitHub Copilot CLI",
    "codex": "Codex",
}
PROGRAM = "/opt/bridge/bin/coding-agent-bridge"


def configurations() -> str:
    """The sections of docs/mcp.md with the output of `mcp --print-config`."""
    lines: list[str] = []
    for name, title in TITLES.items():
        text, place = config_of(name, None, http=False, program=[PROGRAM])
        kind = "console" if text.startswith("claude") else "toml" if text[0] == "[" else "json"
        prompt = "$ " if kind == "console" else ""
        lines += [f"{title} (`{name}`), {place[0].lower()}{place[1:]}:", ""]
        lines += [f"```{kind}", f"{prompt}{text}", "```", ""]
    return "\n".join(lines)


def table() -> str:
    """The table of docs/mcp.md."""
    lines = [
        f"| client | version | {' | '.join(SCENARIOS)} |",
        f"|---|---|{'---|' * len(SCENARIOS)}",
    ]
    for client in MCP_CLIENTS:
        cells = " | ".join("no" if name in client.no else "yes" for name in SCENARIOS)
        lines.append(f"| {client} | {client.cli.version} | {cells} |")
    legend = [f"* *{name}*: {text}." for name, text in SCENARIOS.items()]
    reasons = [f"* {one}, *{name}*: {why}." for one in MCP_CLIENTS for name, why in one.no.items()]
    return "\n".join([*lines, "", *legend, *reasons]) + "\n"
