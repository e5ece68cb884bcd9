"""Tool calls of ACP, merged from several kinds of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from bridge.adapter.diff import unified_diff
from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string, as_word
from bridge.adapter.wish import subject_of
from bridge.task.events import FileChange, ToolCall
from bridge.task.text import DATA_BYTES


@dataclass(slots=True)
class Tool:
    """A tool call, merged from all messages about it."""

    id: str
    title: str = ""
    name: str = ""  # the tool's own, if the agent sends it
    kind: str = ""
    input: Any = None
    output: Any = None
    printed: str = ""  # by a terminal of the agent (codex-acp), which shows it in pieces
    content: Sequence[Any] = ()
    paths: tuple[str, ...] = ()
    changes: tuple[FileChange, ...] = ()
    status: str = "pending"
    announced: str | None = None  # the name in its ToolCall event
    shown: Any = None  # the input in that event
    ended: bool = False


def merged(tools: dict[str, Tool], update: Json) -> Tool:
    """The tool call with the new members; missing members stay as they were."""
    tool_id = as_string(update["toolCallId"])
    tool = tools.setdefault(tool_id, Tool(tool_id))
    meta = as_dict(update.get("_meta"))
    name = meta.get("toolName") or as_dict(meta.get("claudeCode")).get("toolName")
    tool.name = as_word(name) or tool.name
    tool.title = as_word(update.get("title")) or tool.title
    tool.kind = as_word(update.get("kind")) or tool.kind
    tool.status = as_word(update.get("status")) or tool.status
    tool.input = update.get("rawInput") or tool.input
    tool.output = update.get("rawOutput") if "rawOutput" in update else tool.output
    piece = as_word(as_dict(meta.get("terminal_output_delta")).get("data"))
    if piece and len(tool.printed) <= DATA_BYTES:
        tool.printed += piece
    content = update.get("content")
    if isinstance(content, list):
        tool.content = content
        tool.changes = tuple(changes(content)) or tool.changes
    if tool.input is None and tool.status == "pending":
        tool.input = _told_as_text(words(tool))
    paths = [as_word(as_dict(one).get("path")) for one in as_list(update.get("locations"))]
    tool.paths = tuple(filter(None, paths)) or tool.paths
    return tool


def _told_as_text(text: str) -> Json | None:
    """The input of a tool that has not begun: kimi sends it as a text before it asks, and its
    request contains only the beginning of a command."""
    try:
        return as_dict(orjson.loads(text)) or None
    except orjson.JSONDecodeError:
        return None


def waiting(tools: dict[str, Tool], request: Tool) -> Tool:
    """The tool that waits for the answer to `request`, or `request` with all of them."""
    tools.pop(request.id)
    left = [one for one in tools.values() if not one.ended]
    if len(left) == 1:
        return left[0]
    request.input = {"actions": [input_of(one) for one in left]} if left else None
    return request


def announce(tool: Tool) -> Said:
    """The tool call; again, if its input was not complete before."""
    shown = input_of(tool)
    if tool.announced is None or (tool.input is not None and shown != tool.shown):
        tool.announced = tool.announced or tool.name or tool.title or tool.kind or tool.id
        tool.shown = shown
        yield ToolCall(tool.id, tool.announced, shown)


def input_of(tool: Tool) -> Any:
    """The tool's input; if the agent does not send it (gemini), the other known facts."""
    if tool.input is not None:
        return tool.input
    facts = {"title": tool.title, "kind": tool.kind, "paths": list(tool.paths)}
    return {name: value for name, value in facts.items() if value}


def output(tool: Tool) -> Any:
    if isinstance(tool.output, str):
        return tool.output
    return words(tool) or tool.printed or tool.output


def words(tool: Tool) -> str:
    """The texts of the tool's content."""
    blocks = [as_dict(one).get("content") for one in tool.content]
    texts = [as_dict(block).get("text") for block in blocks]
    resources = [as_dict(as_dict(block).get("resource")) for block in blocks]
    texts += [one.get("text") for one in resources]
    links = [as_dict(block).get("uri") for block in (*blocks, *resources)]
    return "\n".join(text for text in (*texts, *links) if isinstance(text, str) and text)


def changes(content: Sequence[Any]) -> Iterator[FileChange]:
    """The diffs in a tool call's content. Some agents send only the changed lines, not whole files:
    the line numbers of the diff then differ from those of the file."""
    for one in map(as_dict, content):
        path, new = one.get("path"), one.get("newText")
        if one.get("type") != "diff" or not isinstance(path, str):
            continue
        old = as_word(one.get("oldText")) or ""
        kind: Literal["create", "update", "delete"] = "update" if old else "create"
        kind = kind if isinstance(new, str) else "delete"
        yield FileChange(path, kind, unified_diff(path, old, as_word(new) or ""))


def subject(title: str, tool: Tool) -> Json:
    """The subject of a permission. `title`: of the agent."""
    return subject_of(
        tool.announced or tool.title,
        f"{title} asks for permission: {tool.title or tool.name or tool.kind or 'a tool'}",
        input_of(tool),
        call_id=tool.id,
        kind=tool.kind,
        note=words(tool),
        changes=[*tool.changes, *(FileChange(path, "update") for path in tool.paths)],
    )
