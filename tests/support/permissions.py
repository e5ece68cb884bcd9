"""The question for one permission in the dialect of each CLI."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bridge.adapter import Adapter, AgentConfig, Lines, Prompt, SessionStart
from bridge.server import registry
from bridge.task.events import AgentEvent, Question
from bridge.task.message import Message, Role, TextPart

Json = dict[str, Any]
OPTIONS = (
    {"optionId": "a", "name": "Always", "kind": "allow_always"},
    {"optionId": "o", "name": "Once", "kind": "allow_once"},
    {"optionId": "n", "name": "No", "kind": "reject_once"},
)


def begun(name: str, *answers: Json, **config: Any) -> Adapter:
    """An adapter with a prompt. `answers`: the results of its handshake, in order."""
    adapter: Adapter = registry.load(name)(
        AgentConfig("/opt/agent", **config), SessionStart("/workspace", "s-1")
    )
    message = Message("m", Role.USER, (TextPart("go"),))
    adapter.prompt(Prompt("task", "context", message))
    for number, result in enumerate(answers, 1):
        hear(adapter, id=number, result=result)
    return adapter


def hear(adapter: Adapter, **line: Any) -> list[AgentEvent]:
    return list(adapter.receive_line(json.dumps(line).encode()))


def last(said: list[AgentEvent]) -> Question:
    assert isinstance(said[-1], Question), said
    return said[-1]


def claude(given: Any, tool: str = "mcp__shop__order", **more: Any) -> Question:
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": given, **more}
    line = {"type": "control_request", "request_id": "r", "request": request}
    return last(hear(begun("claude-code"), **line))


def acp_begun() -> Adapter:
    return begun("acp", {"protocolVersion": 1, "agentCapabilities": {}}, {"sessionId": "s-1"})


def acp_update(adapter: Adapter, **update: Any) -> list[AgentEvent]:
    params = {"sessionId": "s-1", "update": {"sessionUpdate": "tool_call_update", **update}}
    return hear(adapter, method="session/update", params=params)


def acp_permission(adapter: Adapter, **call: Any) -> list[AgentEvent]:
    params = {"sessionId": "s-1", "toolCall": {"toolCallId": "t1", **call}, "options": OPTIONS}
    return hear(adapter, id=0, method="session/request_permission", params=params)


def acp(given: Any, title: str = "order", kind: str = "other", **more: Any) -> Question:
    raw = {} if given is None else {"rawInput": given}
    return last(acp_permission(acp_begun(), title=title, kind=kind, **raw, **more))


def codex_begun() -> Adapter:
    thread = {"thread": {"id": "th"}, "model": "m"}
    return begun("codex", {"userAgent": "x"}, thread, {"turn": {"id": "tu"}})


def codex_item(adapter: Adapter, event: str, **item: Any) -> list[AgentEvent]:
    params = {"threadId": "th", "turnId": "tu", "item": item}
    return hear(adapter, method=f"item/{event}", params=params)


def codex_mcp(given: Any) -> Question:
    meta = {"tool_name": "order", "tool_params": given}
    params = {"serverName": "shop", "mode": "form", "message": "May it?", "requestedSchema": {}}
    params |= {"threadId": "th", "turnId": "tu", "_meta": meta}
    return last(hear(codex_begun(), id=0, method="mcpServer/elicitation/request", params=params))


def codex(given: Any) -> Question:
    params = {"threadId": "th", "turnId": "tu", "itemId": "c1", **given}
    method = "item/commandExecution/requestApproval"
    return last(hear(codex_begun(), id=0, method=method, params=params))


def jsonl(given: Any) -> Question:
    return jsonl_without_input({"name": "order", "input": given})


def jsonl_without_input(given: Any) -> Question:
    options = [{"id": "y", "name": "Yes", "kind": "allow_once"}]
    line = {"type": "question", "id": "q", "text": "May I?", "options": options, "data": given}
    return last(hear(begun("jsonl"), **line))


def terminal(name: str, *lines: Json, **config: Any) -> Question:
    adapter = begun(name, **config)
    return last([event for line in lines for event in hear(adapter, **line)])


def generic(command: str) -> Question:
    lines = Lines(question=r"\[y/N\] $")
    heard = ({"line": "I want to run:"}, {"line": command}, {"tail": "Proceed? [y/N] "})
    return terminal("generic", *heard, lines=lines)


def aider(command: str) -> Question:
    tail = {"tail": "Run shell command? (Y)es/(N)o/(D)on't ask again [Yes]: "}
    heard = ["diff multi> ", "Run this:", "", "Tokens: 1k sent, 2 received.", ""]
    heard += command.split("\n")
    lines = [{"line": line} for line in heard]
    return terminal("aider", {"tail": "diff multi> "}, *lines, tail)


STRUCTURED: dict[str, Callable[[Any], Question]] = {
    "claude-code": claude,
    "acp": acp,
    "codex-mcp": codex_mcp,
    "codex": codex,
    "jsonl": jsonl,
    "jsonl-data": jsonl_without_input,
}
"""The dialects whose requests have an input of any shape."""
