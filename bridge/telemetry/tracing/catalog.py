"""The spans of the server: their names, kinds and attributes.

The conventions are in https://github.com/open-telemetry/semantic-conventions-genai:
docs/gen-ai/a2a.md at commit 6718089f, and model/gen-ai/spans.yaml at commit 7e7e4e76. Both have the
status Development. Names that begin with `bridge.` belong to this project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.telemetry.metrics.tools import kind_of

CONVENTIONS = {"docs/gen-ai/a2a.md": "6718089f", "model/gen-ai/spans.yaml": "7e7e4e76"}
SCOPE = "coding-agent-bridge"
MOST_CONTENT = 16 * 1024  # bytes of an attribute with content
Kind = Literal["server", "internal", "client"]
Value = str | int | float | bool

METHODS: Mapping[str, str] = {
    "send": "SendMessage",
    "stream": "SendStreamingMessage",
    "get": "GetTask",
    "list": "ListTasks",
    "cancel": "CancelTask",
    "subscribe": "SubscribeToTask",
    "extended-card": "GetExtendedAgentCard",
    "push-create": "CreateTaskPushNotificationConfig",
    "push-get": "GetTaskPushNotificationConfig",
    "push-list": "ListTaskPushNotificationConfigs",
    "push-delete": "DeleteTaskPushNotificationConfig",
}
"""The 1.0 name of each operation."""
READS = frozenset({"get", "list", "push-get", "push-list", "extended-card"})
"""Operations that change nothing. Without a parent, the span of one that succeeds would be a trace
of its own: clients poll, so most traces would be these."""
PROVIDERS: Mapping[str, str] = {
    "claude-code": "anthropic",
    "claude-agent-acp": "anthropic",
    "codex": "openai",
    "codex-acp": "openai",
    "gemini": "gcp.gemini",
}
"""gen_ai.provider.name by adapter. Another adapter has its own name."""
CACHE_READ = ("cacheReadTokens", "cachedReadTokens", "cachedInputTokens")
CACHE_CREATION = ("cacheCreationTokens", "cachedWriteTokens", "cacheWriteInputTokens")
"""Names of the tokens of the cache in Usage.extra."""


@dataclass(frozen=True, slots=True)
class SpanKind:
    """The spans of one name. `name`: with the attribute that it contains in braces. `content`:
    attributes only with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT."""

    name: str
    kind: Kind
    attributes: frozenset[str]
    content: frozenset[str] = field(default_factory=frozenset)


def _named(*names: str) -> frozenset[str]:
    return frozenset(names)


_TURN = ("gen_ai.conversation.id", "a2a.task.id")
REQUEST = SpanKind(
    "{a2a.method.name}",
    "server",
    _named(
        *("a2a.method.name", "a2a.protocol.version", "a2a.message.id", "a2a.task.id"),
        *("a2a.task.state", "a2a.tenant", "gen_ai.agent.name", "gen_ai.agent.version"),
        *("gen_ai.conversation.id", "client.address", "server.address", "server.port"),
        *("error.type", "bridge.binding", "bridge.request_id"),
    ),
)
TURN = SpanKind(
    "invoke_agent {gen_ai.agent.name}",
    "internal",
    _named(
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
        *("gen_ai.agent.id", "gen_ai.agent.name", "gen_ai.usage.input_tokens"),
        *("gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens"),
        *("gen_ai.usage.cache_creation.input_tokens", "error.type", "a2a.task.state"),
        *("bridge.session.start", "bridge.cost_usd", *_TURN),
    ),
    _named("gen_ai.input.messages", "gen_ai.output.messages"),
)
TOOL = SpanKind(
    "execute_tool {gen_ai.tool.name}",
    "internal",
    _named(
        *("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id"),
        *("gen_ai.tool.type", "error.type"),
    ),
    _named("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
)
QUEUE = SpanKind("bridge.queue", "internal", frozenset())
SESSION = SpanKind("bridge.session_start", "internal", _named("bridge.session.start"))
QUESTION = SpanKind(
    "bridge.question",
    "internal",
    _named("bridge.question.kind", "bridge.question.answered_by"),
)
PUSH = SpanKind(
    "{http.request.method}",
    "client",
    _named(
        *("http.request.method", "server.address", "http.response.status_code", "error.type"),
    ),
)
SPANS = (REQUEST, TURN, TOOL, QUEUE, SESSION, QUESTION, PUSH)

_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}")


def tool_name(name: str) -> str:
    """The name of a tool. Some CLIs report the title of a call, which has paths and commands; it is
    replaced by the kind of the tool."""
    return name if _TOOL_NAME.fullmatch(name) else kind_of(name)


def tool_type(name: str) -> str:
    """A tool of an MCP server is an extension of the agent."""
    return "extension" if name.startswith(("mcp_", "mcp.")) else "function"
