"""The printed configurations of MCP clients, which the documents of the clients define."""

from __future__ import annotations

import json
import shlex
import tomllib

import pytest

from bridge.cli.mcp.configs import config_of
from bridge.client.failure import ClientError
from bridge.client.values import MCP_CLIENTS

C = "/opt/bin/coding-agent-bridge"
STDIO = {
    "cursor": {"mcpServers": {"bridge": {"command": C, "args": ["mcp"]}}},
    "vscode": {"servers": {"bridge": {"type": "stdio", "command": C, "args": ["mcp"]}}},
    "zed": {
        "context_servers": {
            "bridge": {"source": "custom", "command": C, "args": ["mcp"], "env": {}}
        }
    },
    "gemini": {"mcpServers": {"bridge": {"command": C, "args": ["mcp"], "timeout": 120000}}},
    "opencode": {"mcp": {"bridge": {"type": "local", "command": [C, "mcp"], "enabled": True}}},
    "copilot": {
        "mcpServers": {"bridge": {"type": "local", "command": C, "args": ["mcp"], "tools": ["*"]}}
    },
}


@pytest.mark.parametrize("client", STDIO)
def test_configurations_in_json(client: str) -> None:
    assert json.loads(config_of(client, None, http=False, program=[C])[0]) == STDIO[client]


def test_the_other_configurations() -> None:
    text, _ = config_of("claude-code", None, http=False, program=[C])
    assert text == f"claude mcp add --scope user bridge -e BRIDGE_MCP_FORMS=quick -- {C} mcp"
    text, _ = config_of("codex", None, http=False, program=[C])
    timeouts = {"startup_timeout_sec": 20, "tool_timeout_sec": 120}
    assert tomllib.loads(text) == {
        "mcp_servers": {"bridge": {"command": C, "args": ["mcp"], **timeouts}}
    }


@pytest.mark.parametrize("client", sorted(set(MCP_CLIENTS) - {"zed"}))
def test_http_refers_to_the_token(client: str) -> None:
    text, place = config_of(client, "https://bridge.example/", http=True, program=[C])
    assert "https://bridge.example/mcp" in text
    assert "BRIDGE_TOKEN" in text
    assert ("asks for the token" if client == "vscode" else "BRIDGE_TOKEN") in place
    if client == "claude-code":
        assert shlex.split(text)[-2:] == ["--header", "Authorization: Bearer ${BRIDGE_TOKEN}"]


def test_zed_cannot_refer_to_a_token() -> None:
    with pytest.raises(ClientError, match="cannot refer to a token"):
        config_of("zed", None, http=True, program=[C])
