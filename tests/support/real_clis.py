"""The real CLIs of the tests, each a row: its start, its configuration and its commands, on a
scripted model. A prompt contains the answers of the model (tests/support/real_claude_code.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.bridge_process import BridgeProcess, bridge
from tests.support.cli_row import FOLDERS, KEY, Cli, Step, tool_of
from tests.support.gemini_server import GeminiServer
from tests.support.openai_server import OpenAiServer
from tests.support.real_claude_code import GONE_WITHIN, RealClaudeCode, tool
from tests.support.responses_server import ResponsesServer
from tests.support.soak_clis import SOAK_CLIS

__all__ = ["FOLDERS", "KEY", "Cli", "Step"]
CODEX_WAITS = 30_000  # ms: until a command that runs longer continues in the background


def of_opencode(folder: str, name: str) -> Callable[[str, Path], None]:
    """Writes the configuration of opencode or of a fork. In each new home it installs a package for
    plugins, which takes several seconds; here the registry is not reachable."""

    def write(url: str, home: Path) -> None:
        model = {
            "attachment": True,
            "modalities": {"input": ["text", "image"], "output": ["text"]},
            "limit": {"context": 200000, "output": 8000},
        }
        provider = {
            "npm": "@ai-sdk/anthropic",
            "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
            "models": {"scripted": model},
        }
        config = {
            "provider": {"fake": provider},
            "model": "fake/scripted",
            "small_model": "fake/scripted",
            "permission": {"bash": "ask", "edit": "ask"},
            "autoupdate": False,
            "share": "disabled",
        }
        path = home / ".config" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
        (home / ".npmrc").write_text("registry=http://127.0.0.1:9\nfetch-retries=0\n")

    return write


def of_gemini(url: str, home: Path) -> None:
    config = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    (home / ".gemini").mkdir(exist_ok=True)
    (home / ".gemini/settings.json").write_text(json.dumps(config))


def of_codex(url: str, home: Path) -> None:
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex/config.toml").write_text(
        f"""
        model = "scripted"
        model_provider = "scripted"

        [model_providers.scripted]
        name = "scripted"
        base_url = "{url}/v1"
        wire_api = "responses"
        env_key = "OPENAI_API_KEY"
        request_max_retries = 0
        stream_max_retries = 1
        """
    )


def in_a_block(command: str) -> Step:
    """aider's model has no tools: it writes the command down."""
    return f"Run this:\n\n```bash\n{command}\n```\n"


def of_cline(url: str, home: Path) -> None:
    settings = {"provider": "openai-compatible", "apiKey": KEY, "model": "scripted"}
    provider = {
        "settings": {**settings, "baseUrl": f"{url}/v1"},
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    }
    config = {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {"openai-compatible": provider},
    }
    folder = home / ".cline/data/settings"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "providers.json").write_text(json.dumps(config))
    # Each process looks up the address of its telemetry, which takes seconds without a network.
    (folder / "global-settings.json").write_text(json.dumps({"telemetryOptOut": True}))


def of_droid(url: str, home: Path) -> None:
    model = {
        "model": "scripted",
        "displayName": "Scripted",
        "baseUrl": url,
        "apiKey": KEY,
        "provider": "anthropic",
        "maxOutputTokens": 8000,
    }
    (home / ".factory").mkdir(exist_ok=True)
    (home / ".factory/settings.json").write_text(json.dumps({"customModels": [model]}))


def out_of_its_sandbox(command: str) -> Step:
    """For Codex, whose model has to request it."""
    escalated = {"sandbox_permissions": "require_escalated", "justification": "So."}
    return tool("exec_command", cmd=command, yield_time_ms=CODEX_WAITS, **escalated)


ENVIRONMENT_OF_CLAUDE = {
    "ANTHROPIC_API_KEY": KEY,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_RETRIES": "1",
}
CLAUDE_CODE = Cli(
    "claude-code",
    "@anthropic-ai/claude-code",
    ".bin/claude",
    tool_of("Bash"),
    lambda url: {"ANTHROPIC_BASE_URL": url, **ENVIRONMENT_OF_CLAUDE},
    force={"IS_SANDBOX": "1"},  # tests may be run by root
)
CODEX = Cli(
    "codex",
    "@openai/codex",
    ".bin/codex",
    lambda command: tool("exec_command", cmd=command, yield_time_ms=CODEX_WAITS),
    lambda url: {"OPENAI_API_KEY": KEY},
    of_codex,
    ResponsesServer,
    run_outside=out_of_its_sandbox,
)
AIDER = Cli(
    "aider",
    "aider-chat",
    "aider-chat/bin/aider",
    in_a_block,
    lambda url: {
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": KEY,
        "AGENT_MODEL": "openai/scripted",
        "AGENT_ARGS": "--edit-format=diff",  # the default one takes every block for a file
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "AGENT_ENV": "LITELLM_LOCAL_MODEL_COST_MAP",
    },
    model=OpenAiServer,
)
OVER_ACP = (
    Cli(
        "claude-agent-acp",
        "@agentclientprotocol/claude-agent-acp",
        ".bin/claude-agent-acp",
        tool_of("Bash"),
        lambda url: {"ANTHROPIC_BASE_URL": url, **ENVIRONMENT_OF_CLAUDE},
    ),
    Cli(
        "opencode",
        "opencode-linux-x64-baseline",
        "opencode-linux-*/bin/opencode",
        tool_of("bash"),
        lambda url: {"OPENCODE_DISABLE_MODELS_FETCH": "1", "BRIDGE_SANDBOX_READ": "~/.npmrc"},
        of_opencode("opencode", "opencode.json"),
    ),
    Cli(
        "copilot",
        "@github/copilot",
        ".bin/copilot",
        tool_of("bash"),
        lambda url: {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_PROVIDER_BASE_URL": url,
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_MODEL": "claude-sonnet-4.5",
        },
    ),
    Cli(
        "kilo",
        "@kilocode/cli-linux-x64",
        "@kilocode/cli-linux-*/bin/kilo",
        tool_of("bash"),
        lambda url: {"BRIDGE_SANDBOX_READ": "~/.npmrc"},
        of_opencode("kilo", "kilo.json"),
    ),
    Cli(
        "gemini",
        "@google/gemini-cli",
        ".bin/gemini",
        tool_of("run_shell_command"),
        lambda url: {
            "GEMINI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "AGENT_MODEL": "gemini-2.5-flash",
        },
        of_gemini,
        GeminiServer,
    ),
    Cli(
        "qwen",
        "@qwen-code/qwen-code",
        ".bin/qwen",
        tool_of("run_shell_command"),
        lambda url: {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_MODEL": "scripted",
        },
        model=OpenAiServer,
    ),
    Cli(
        "cline",
        "@cline/cli-linux-x64",
        "@cline/cli-linux-*/bin/cline",
        lambda command: tool("run_commands", commands=[command]),
        lambda url: {
            "CLINE_API_KEY": KEY,
            "CLINE_PROVIDER": "openai-compatible",
            "CLINE_MODEL": "scripted",
        },
        of_cline,
        OpenAiServer,
    ),
    Cli(
        "droid",
        "@factory/cli-linux-x64",
        "@factory/cli-linux-*/bin/droid",
        lambda command: tool(
            "Execute", command=command, riskLevel="medium", riskLevelReason="It writes."
        ),
        lambda url: {"FACTORY_API_KEY": "fk-scripted", "FACTORY_AIRGAP_ENABLED": "true"},
        of_droid,
    ),
    Cli(
        "codex-acp",
        "@agentclientprotocol/codex-acp",
        ".bin/codex-acp",
        out_of_its_sandbox,
        lambda url: {"OPENAI_API_KEY": KEY},
        of_codex,
        ResponsesServer,
    ),
    *SOAK_CLIS,
)
CLIS = (CLAUDE_CODE, CODEX, *OVER_ACP, AIDER)


def each(clis: Iterable[Cli], *always: str) -> pytest.MarkDecorator:
    """A test for each of these CLIs: for those that are named in each run of the tests, for the
    others in the soak tier."""
    return pytest.mark.parametrize("cli", params(clis, *always))


def params(clis: Iterable[Cli], *always: str) -> list[Any]:
    """The same as the parameters of a fixture."""
    soak = [pytest.mark.soak]
    return [pytest.param(cli, id=cli.name, marks=soak * (cli.name not in always)) for cli in clis]


@dataclass(slots=True)
class Real(RealClaudeCode):
    """A server whose agent is the real CLI."""

    cli: Cli

    def run(self, command: str) -> Step:
        return self.cli.run(command)

    def run_outside(self, command: str) -> Step:
        """A command that must reach the test over a socket."""
        return (self.cli.run_outside or self.cli.run)(command)


@asynccontextmanager
async def serving(cli: Cli, folder: Path, **env: str) -> AsyncIterator[Real]:
    workspace, home = folder / "workspace", folder / "home"
    for path in (workspace, home, folder / "tmp"):
        path.mkdir(exist_ok=True)
    async with (
        cli.model() as model,
        AsyncExitStack() as servers,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(170), read_bufsize=2**25) as http,
    ):
        cli.configure(model.url, home)
        every: dict[str, Any] = {
            "AGENT_ADAPTER": cli.name,
            "AGENT_BINARY": cli.path(),
            "TMPDIR": str(folder / "tmp"),
            "BRIDGE_THOUGHTS": "true",
            "BRIDGE_SANDBOX": "auto",  # they work in what users have by default
            **cli.environment(model.url),
            **env,
        }

        async def start(**more: str) -> BridgeProcess:
            return await servers.enter_async_context(bridge(workspace, **{**every, **more}))

        server = await start()
        real = Real(server, model, http, workspace, home, start, cli)  # type: ignore[arg-type]
        try:
            yield real
        finally:
            await http.close()
            await real.server.stop()
            for process in real.processes():  # of a test that failed while no server ran
                process.kill()


async def gone(processes: set[psutil.Process]) -> None:
    """Until they have ended, as they must in time."""
    left = await asyncio.to_thread(psutil.wait_procs, processes, GONE_WITHIN)
    assert left[1] == []
