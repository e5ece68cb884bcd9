"""The configuration of MCP clients: `coding-agent-bridge mcp --print-config CLIENT`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.client.failure import usage
from bridge.client.values import MCP_CLIENTS
from bridge.errors.program import command

NAME = "bridge"
TOKEN = "BRIDGE_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_URL = "http://127.0.0.1:41242"
QUICK = "BRIDGE_MCP_FORMS=quick"  # of a bridge that `mcp` starts: its forms take the fewest keys
START_SECONDS, CALL_SECONDS = 20, 120  # a call waits up to 50 s, and a person may answer meanwhile
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Client:
    """`place`: where the configuration belongs. `stdio` makes it from a command line, and `http`
    from an address; None if the client cannot refer to a token. `note`: how it gets the token."""

    place: str
    stdio: Callable[[Sequence[str]], str]
    http: Callable[[str], str] | None
    note: str = f"The variable {TOKEN} has the token"


def config_of(
    client: str, url: str | None, *, http: bool, program: Sequence[str]
) -> tuple[str, str]:
    """The configuration of a client, and where it belongs. `program`: its absolute words. Raises
    ClientError."""
    found = CLIENTS[client]
    if not http:
        line = [*program, "mcp", *(("--url", url) if url else ())]
        return found.stdio(line), found.place
    if found.http is None:
        text = f"{client} cannot refer to a token; use the configuration without --http"
        raise usage(text, command("mcp", "--print-config", client))
    address = f"{(url or DEFAULT_URL).rstrip('/')}/mcp"
    return found.http(address), f"{found.place}. {found.note}"


def _json(*path: str, **more: Any) -> Callable[[Json], str]:
    """Encodes the configuration of a server below the keys `path`."""

    def encode(server: Json) -> str:
        found: Json = {NAME: server}
        for key in reversed(path):
            found = {key: found}
        return json.dumps({**found, **more}, indent=2, ensure_ascii=False)

    return encode


def _command(line: Sequence[str]) -> Json:
    return {"command": line[0], "args": list(line[1:])}


def _bearer(reference: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {reference}"}


def _claude_code(line: Sequence[str]) -> str:
    words = ["claude", "mcp", "add", "--scope", "user", NAME, "-e", QUICK]
    return shlex.join([*words, "--", *line])


def _claude_code_http(url: str) -> str:
    header = f"Authorization: Bearer ${{{TOKEN}}}"
    words = ["claude", "mcp", "add", "--scope", "user", "--transport", "http", NAME, url]
    return shlex.join([*words, "--header", header])


def _codex(line: Sequence[str]) -> str:
    return _toml({**_command(line), **_TIMEOUTS})


def _codex_http(url: str) -> str:
    return _toml({"url": url, "bearer_token_env_var": TOKEN, **_TIMEOUTS})


_TIMEOUTS = {"startup_timeout_sec": START_SECONDS, "tool_timeout_sec": CALL_SECONDS}


def _toml(server: Json) -> str:
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in server.items()]
    return "\n".join([f"[mcp_servers.{NAME}]", *lines])


_servers = _json("mcpServers")
_TIMEOUT = {"timeout": CALL_SECONDS * 1000}
_INPUT = {"type": "promptString", "id": "bridge-token", "description": TOKEN, "password": True}
CLIENTS: Mapping[str, Client] = {
    "claude-code": Client("Run it in a shell", _claude_code, _claude_code_http),
    "cursor": Client(
        "~/.cursor/mcp.json",
        lambda line: _servers(_command(line)),
        lambda url: _servers({"url": url, "headers": _bearer(f"${{env:{TOKEN}}}")}),
    ),
    "vscode": Client(
        "mcp.json of the profile (MCP: Open User Configuration)",
        lambda line: _json("servers")({"type": "stdio", **_command(line)}),
        lambda url: _json("servers", inputs=[_INPUT])(
            {"type": "http", "url": url, "headers": _bearer("${input:bridge-token}")}
        ),
        note="The client asks for the token",
    ),
    "zed": Client(
        "settings.json (zed: open settings)",
        lambda line: _json("context_servers")({"source": "custom", **_command(line), "env": {}}),
        None,
    ),
    "gemini": Client(
        "~/.gemini/settings.json",
        lambda line: _servers({**_command(line), **_TIMEOUT}),
        lambda url: _servers({"httpUrl": url, "headers": _bearer(f"${{{TOKEN}}}"), **_TIMEOUT}),
    ),
    "opencode": Client(
        "~/.config/opencode/opencode.json",
        lambda line: _json("mcp")({"type": "local", "command": list(line), "enabled": True}),
        lambda url: _json("mcp")(
            {"type": "remote", "url": url, "headers": _bearer(f"{{env:{TOKEN}}}"), "enabled": True}
        ),
    ),
    "copilot": Client(
        "~/.copilot/mcp-config.json",
        lambda line: _servers({"type": "local", **_command(line), "tools": ["*"]}),
        lambda url: _servers(
            {"type": "http", "url": url, "headers": _bearer(f"${{{TOKEN}}}"), "tools": ["*"]}
        ),
    ),
    "codex": Client("~/.codex/config.toml", _codex, _codex_http),
}
assert tuple(CLIENTS) == MCP_CLIENTS
