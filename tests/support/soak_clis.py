"""The rows of the real CLIs that only the soak tier installs (tests/support/real_clis.py)."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from tests import CHECKOUT
from tests.support.cli_row import KEY, Cli, Step, tool_of
from tests.support.openai_server import OpenAiServer
from tests.support.real_claude_code import tool

WITHOUT_TMUX = f"{CHECKOUT / 'tests/clis/soak/without-tmux'}:{os.environ['PATH']}"


def of_grok(url: str, home: Path) -> None:
    (home / ".grok").mkdir(exist_ok=True)
    (home / ".grok/config.toml").write_text(
        f"""
        [models]
        default = "scripted"

        [model.scripted]
        model = "scripted"
        name = "Scripted"
        base_url = "{url}/v1"
        api_key = "{KEY}"
        context_window = 200000

        [features]
        telemetry = false
        """
    )


def of_vibe(url: str, home: Path) -> None:
    (home / ".vibe").mkdir(exist_ok=True)
    (home / ".vibe/config.toml").write_text(
        f"""
        active_model = "scripted"
        enable_telemetry = false
        enable_update_checks = false

        [[providers]]
        name = "scripted"
        api_base = "{url}/v1"
        api_key_env_var = "MISTRAL_API_KEY"
        api_style = "openai"
        backend = "generic"

        [[models]]
        name = "scripted"
        provider = "scripted"
        alias = "scripted"
        """
    )


def of_hermes(url: str, home: Path) -> None:
    (home / ".hermes").mkdir(exist_ok=True)
    model = {"default": "scripted", "provider": "custom", "base_url": f"{url}/v1", "api_key": KEY}
    # Else it asks the model for a title after the first turn: see docs/agents.md.
    quiet = {"title_generation": {"enabled": False}}
    config = {"model": model, "approvals": {"mode": "manual"}, "auxiliary": quiet}
    (home / ".hermes/config.yaml").write_text(json.dumps(config))  # YAML contains JSON


def of_openhands(url: str, home: Path) -> None:
    for name in ("profiles", "cache"):  # made by its first start
        (home / ".openhands" / name).mkdir(parents=True, exist_ok=True)
    model = {"model": "openai/scripted", "api_key": KEY, "base_url": f"{url}/v1"}
    settings = {
        "kind": "Agent",
        "llm": {**model, "usage_id": "agent", "num_retries": 0},
        "tools": [{"name": "terminal", "params": {}}, {"name": "file_editor", "params": {}}],
        "system_prompt_kwargs": {"cli_mode": True, "llm_security_analyzer": True},
    }
    (home / ".openhands/agent_settings.json").write_text(json.dumps(settings))


def in_a_shell(name: str) -> Callable[[str], Step]:
    """For a CLI that asks only before some commands."""

    def run(command: str) -> Step:
        return tool(name, command=f"bash -c {shlex.quote(command)}", description="Run it")

    return run


SOAK_CLIS = (
    Cli(
        "kimi",
        "@moonshot-ai/kimi-code",
        ".bin/kimi",
        tool_of("Bash"),
        lambda url: {
            "KIMI_MODEL_NAME": "scripted",
            "KIMI_MODEL_PROVIDER_TYPE": "openai",
            "KIMI_MODEL_BASE_URL": f"{url}/v1",
            "KIMI_MODEL_API_KEY": KEY,
            "KIMI_DISABLE_TELEMETRY": "1",
        },
        model=OpenAiServer,
    ),
    Cli(
        "grok",
        "@xai-official/grok-linux-x64",
        "@xai-official/grok-linux-x64/bin/grok",
        in_a_shell("run_terminal_command"),
        lambda url: {"XAI_API_KEY": KEY},
        of_grok,
        OpenAiServer,
    ),
    Cli(
        "vibe",
        "mistral-vibe",
        "mistral-vibe/bin/vibe-acp",
        lambda command: tool("bash", command=command),
        lambda url: {"MISTRAL_API_KEY": KEY},
        of_vibe,
        OpenAiServer,
    ),
    Cli(
        "hermes",
        "hermes-agent[acp]",
        "hermes-agent/bin/hermes-acp",
        in_a_shell("terminal"),
        lambda url: {},
        of_hermes,
        OpenAiServer,
    ),
    Cli(
        "openhands",
        "openhands",
        "openhands/bin/openhands",
        lambda command: tool("terminal", command=command, security_risk="LOW", summary="Run it"),
        lambda url: {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "PATH": WITHOUT_TMUX,
            # The path is fixed. It contains compiled templates: see docs/agents.md.
            "BRIDGE_SANDBOX_WRITE": "~/.openhands/cache/",
        },
        of_openhands,
        OpenAiServer,
    ),
    Cli(
        "deepagents",
        "deepagents-code",
        "deepagents-code/bin/dcode",
        tool_of("execute"),
        lambda url: {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": url,
            "LANGSMITH_TRACING": "false",
            "AGENT_MODEL": "anthropic:claude-sonnet-4-5",
        },
    ),
)
