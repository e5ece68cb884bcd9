"""The settings of the client, and the meaning of their texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from bridge.a2a import VERSIONS
from bridge.client.failure import usage

TYPE_CHECKING = False  # a name that type checkers know: the module typing takes long to import
if TYPE_CHECKING:
    from typing import Any

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def duration(text: str) -> float:
    """Seconds in a text such as `90s`, `5m`, `1h` or `500ms`. Raises ClientError."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise usage(f"{text!r} is not a duration such as 90s or 5m")
    return float(found[1]) * _SECONDS[found[2]]


def boolean(text: str) -> bool:
    if text.strip().lower() not in _BOOLEANS:
        raise usage(f"{text!r} is neither true nor false")
    return _BOOLEANS[text.strip().lower()]


def budget(text: str) -> float:
    """Dollars in a text such as 2.5usd. Raises ClientError."""
    number = text.lower().removesuffix("usd")
    try:
        if number == text.lower():
            raise ValueError
        return float(number)
    except ValueError:
        raise usage(f"{text!r} is not a budget such as 2usd") from None


def parameter(text: str) -> tuple[str, str]:
    """The name and the value of a service parameter K:V."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name.strip()):
        raise usage(f"{text.partition(':')[0]!r} is not a service parameter: write NAME:VALUE")
    if not value.isprintable():
        raise usage(f"the service parameter {name.strip()} contains control characters")
    return name.strip(), value.strip()


def transport(text: str) -> str:
    """The name of a binding as in a card."""
    names = {"jsonrpc": "JSONRPC", "http+json": "HTTP+JSON", "rest": "HTTP+JSON"}
    if text.strip().lower() not in names:
        raise usage(f"{text!r} is not a transport: jsonrpc, http+json or rest")
    return names[text.strip().lower()]


def version(text: str) -> str:
    if text not in VERSIONS:
        raise usage(f"A2A {text} is not supported: {' or '.join(VERSIONS)}")
    return text


def output(text: str) -> str:
    if text not in ("text", "json"):
        raise usage(f"{text!r} is not an output format: text or json")
    return text


class Setting:
    """`convert` reads a text of the environment, a file or the command line. `many`: the setting is
    a list; in the environment its items are separated by commas. `secret`: never shown."""

    def __init__(
        self,
        convert: Callable[[str], Any] = str,
        default: Any = None,
        *,
        many: bool = False,
        secret: bool = False,
    ) -> None:
        self.convert = convert
        self.default = default
        self.many = many
        self.secret = secret


SETTINGS: Mapping[str, Setting] = {
    "agent_card": Setting(),
    "output": Setting(output, "text"),
    "async": Setting(boolean, False),
    "wait": Setting(boolean, False),
    "timeout": Setting(duration),
    "poll_interval": Setting(duration, 2.0),
    "context_id": Setting(),
    "task_id": Setting(),
    "metadata": Setting(),
    "svc_param": Setting(parameter, (), many=True, secret=True),
    "bearer": Setting(secret=True),
    "api_key": Setting(secret=True),
    "a2a_version": Setting(version),
    "transport": Setting(transport, (), many=True),
    "insecure": Setting(boolean, False),
    "verbose": Setting(boolean, False),
    "debug": Setting(boolean, False),
}
"""The settings that a flag, a variable A2ACLI_NAME or a file can set."""

MCP_CLIENTS = ("claude-code", "cursor", "vscode", "zed", "gemini", "opencode", "copilot", "codex")
"""The MCP clients whose configuration `mcp --print-config` prints."""
