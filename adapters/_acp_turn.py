"""A turn of ACP: what is kept of it, and what it is made of, as events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from bridge.adapter import Prompt
from bridge.adapter.fields import as_dict, as_string, as_word
from bridge.task.events import Plan, PlanEntry, PlanStatus
from bridge.task.message import RawPart, TextPart, UrlPart

from ._acp_tools import Tool

Json = Mapping[str, Any]


@dataclass(slots=True)
class Turn:
    """From a prompt to its end."""

    prompt: Prompt
    sent: bool = False
    heard: bool = False  # something was said since it was sent
    interrupted: bool = False
    refused: bool = False  # the client said no to a permission
    tools: dict[str, Tool] = field(default_factory=dict)
    message: str | None = None  # id of the message whose text is being streamed
    new_block: bool = True
    block: list[str] = field(default_factory=list)  # the text of the last block
    artifacts: int = 0
    usage: dict[str, Any] = field(default_factory=dict)
    cost: float | None = None
    changed: dict[str, None] = field(default_factory=dict)  # paths, in order

    def came_to_nothing(self) -> bool:
        """Whether the model has said nothing, or what it said was never counted."""
        counted = [self.usage.get(f"{name}Tokens") for name in ("input", "output")]
        return not (self.block or self.tools) or counted == [0, 0]

    def ended_in_an_error(self) -> bool:
        """Whether its last words are one, and no model was asked."""
        counted = any(self.usage.get(f"{name}Tokens") for name in ("input", "output"))
        return bool(self.block) and self.block[-1].startswith("Error: ") and not counted


def part(content: Json) -> RawPart | UrlPart | TextPart | None:
    """What an agent hands over in a ContentBlock that is no text."""
    kind = as_word(content.get("mimeType"))
    match content.get("type"):
        case "image" | "audio":
            return RawPart(as_string(content["data"]), kind)
        case "resource_link":
            return UrlPart(as_string(content["uri"]), kind, as_word(content.get("name")))
        case "resource":
            inner = as_dict(content["resource"])
            name, kind = as_word(inner.get("uri")), as_word(inner.get("mimeType"))
            if isinstance(inner.get("blob"), str):
                return RawPart(inner["blob"], kind, name)
            return TextPart(as_string(inner["text"]), kind, name)
    return None


def plan(entries: Any) -> Plan:
    """Of ACP's entries; Cursor's todos have the same members."""
    return Plan(tuple(_plan_entry(as_dict(entry)) for entry in entries))


def _plan_entry(entry: Json) -> PlanEntry:
    known: dict[Any, PlanStatus] = {"in_progress": "in_progress", "completed": "completed"}
    return PlanEntry(str(entry.get("content") or ""), known.get(entry.get("status"), "pending"))


def usage_of(result: Json) -> dict[str, int]:
    """The tokens of a turn; gemini says them in a place and in words of its own."""
    quota = as_dict(as_dict(as_dict(result.get("_meta")).get("quota")).get("token_count"))
    words = {"inputTokens": "input_tokens", "outputTokens": "output_tokens"}
    own = {ours: quota.get(theirs) for ours, theirs in words.items()}
    return counts({**own, **as_dict(result.get("usage"))})


def counts(values: Json) -> dict[str, int]:
    """The members that are counts."""
    return {name: one for name, one in values.items() if is_count(one)}


def is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
