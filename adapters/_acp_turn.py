"""A turn of ACP: the state between a prompt and its end, and the updates in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.adapter import INTERRUPTED, Prompt, model_failure
from bridge.adapter.fields import Json, Said, as_dict, as_string, as_word
from bridge.adapter.jsonrpc import Response
from bridge.task.events import ArtifactChunk, Done, Failed, Status, Text, Thought, ToolResult, Usage
from bridge.task.message import RawPart, TextPart, UrlPart

from ._acp_agent import AcpAgent
from ._acp_tools import Tool, announce, merged, output
from ._tools import counts, is_count, plan, tokens


@dataclass(slots=True)
class AcpTurn:
    prompt: Prompt
    sent: bool = False
    heard: bool = False  # the agent has sent an update or a request since then
    interrupted: bool = False
    refused: bool = False  # the client denied a permission
    response: Response | None = None  # to session/prompt: updates until `over` belong to it, too
    over: bool = False  # the quiet after the response has passed
    before: float | None = None  # USD, of the session before the turn; None: unknown
    tools: dict[str, Tool] = field(default_factory=dict)
    message: str | None = None  # id of the message whose text is being streamed
    new_block: bool = True
    block: list[str] = field(default_factory=list)  # the text of the last block
    artifacts: int = 0
    used: dict[str, Any] = field(default_factory=dict)
    cost: float | None = None  # USD, of the whole session
    changed: dict[str, None] = field(default_factory=dict)  # paths, in order
    resets_at: Any = None  # of a limit of the model, in seconds since 1970 (Claude Agent)

    # --- session/update --------------------------------------------------------------------------

    def message_chunk(self, update: Json) -> Said:
        meta_usage = as_dict(as_dict(update.get("_meta")).get("usage"))  # qwen, with an empty text
        for name, count in counts(meta_usage).items():
            self.used[name] = self.used.get(name, 0) + count
        content = update["content"]
        if content.get("type") != "text":
            given = _part(content)
            if given:
                self.artifacts += 1
                yield ArtifactChunk(f"content-{self.artifacts}", (given,), given.filename)
            return
        text = as_string(content["text"])
        if not text:
            return
        message = as_word(update.get("messageId"))
        new_block = self.new_block or message != self.message
        if new_block:
            self.block = []
        self.message, self.new_block = message, False
        self.block.append(text)
        yield Text(text, new_block)

    def thought_chunk(self, update: Json) -> Said:
        self.new_block = True
        text = as_string(update["content"].get("text") or "")
        if text:
            yield Thought(text)

    def tool_update(self, update: Json) -> Said:
        self.new_block = True
        tool = merged(self.tools, update)
        # An input that contains only a folder (opencode) is not complete yet.
        filled = isinstance(tool.input, dict) and bool(tool.input.keys() - {"cwd"})
        if filled or tool.status != "pending":
            yield from announce(tool)
        if tool.status in ("completed", "failed") and not tool.ended:
            tool.ended = True
            failed = tool.status == "failed"
            changes = () if failed else tool.changes
            self.changed |= dict.fromkeys(change.path for change in changes)
            yield ToolResult(tool.id, output(tool), failed, tool.announced, changes=changes)

    def usage_update(self, update: Json) -> Said:
        for name, ours in (("used", "contextTokens"), ("size", "contextSize")):
            if is_count(update.get(name)):
                self.used[ours] = update[name]
        limit = as_dict(as_dict(update.get("_meta")).get("_claude/rateLimit"))
        if limit.get("status") == "rejected":
            self.resets_at = limit.get("resetsAt")
        cost = as_dict(update.get("cost"))
        amount = cost.get("amount")
        if cost.get("currency") == "USD" and (is_count(amount) or isinstance(amount, float)):
            self.cost = float(amount)
        return ()

    @property
    def asks_model(self) -> bool:
        """Whether the agent waits for its model: no tool runs, and no permission is open."""
        return all(tool.ended for tool in self.tools.values())

    def goes_on(self, names: Sequence[str]) -> bool:
        """Whether a tool was used after which the agent works on: see AcpAgent.going_on."""
        for tool in self.tools.values():
            given, title = as_dict(tool.input), tool.title.replace(":", " ").split()[:1]
            if any(one in (tool.name, *title) or given.get(one) is True for one in names):
                return True
        return False

    # --- the end ---------------------------------------------------------------------------------

    def count_tokens(self, result: Json, earlier: Mapping[str, int]) -> dict[str, int]:
        """Add the tokens of a session/prompt result, without those of `earlier` turns. Returns all
        of the result; gemini has a place and names of its own, grok a place."""
        meta = as_dict(result.get("_meta"))
        quota = as_dict(as_dict(meta.get("quota")).get("token_count"))
        names = {"inputTokens": "input_tokens", "outputTokens": "output_tokens"}
        own = {ours: quota.get(theirs) for ours, theirs in names.items()}
        found = counts({**own, **as_dict(meta.get("usage")), **as_dict(result.get("usage"))})
        self.used |= {name: max(0, one - earlier.get(name, 0)) for name, one in found.items()}
        return found

    def usage(self) -> Usage | None:
        known = self.cost is not None and self.before is not None
        cost = round((self.cost or 0.0) - (self.before or 0.0), 6) if known else None
        used = dict(self.used)
        return Usage(*tokens(used), cost, used or None) if used or known else None

    def outcome(self, agent: AcpAgent, reason: Any) -> Done | Failed:
        """The meaning of a stop reason (ACP v1, Prompt Turn: Stop Reasons)."""
        match reason:
            case "end_turn" | None:
                return self._failure(agent) or self._done("end_turn")
            case "cancelled" if self.interrupted:
                return INTERRUPTED
            case "cancelled" if self.refused:  # codex-acp can deny only with `abort`
                return self._done("cancelled")
            case "cancelled":
                return Failed(f"{agent.title} cancelled the turn by itself.", "cancelled")
            case "refusal":
                return Failed(f"{agent.title} refused to continue.", "refusal")
            case "max_tokens":
                text = "The answer is incomplete: the model reached its token limit."
                return Failed(text, "max-tokens")
            case "max_turn_requests":
                text = f"{agent.title} reached its limit of model requests in one turn."
                return Failed(text, "max-turn-requests")
        text = f"{agent.title} ended the turn with an unknown stop reason: {reason}"
        return Failed(text, "stopped", {"stopReason": reason})

    def _failure(self, agent: AcpAgent) -> Failed | None:
        """The error of a model, for agents that end the turn normally after one."""
        counted = [self.used.get(f"{name}Tokens") for name in ("input", "output")]
        cut_off = (self.new_block and not self.refused) or counted == [0, 0]
        if agent.silent_failures and cut_off:
            text = f"{agent.title} ended the turn, but the model's answer was broken off."
            return Failed(text, "model-error")
        words = self.block[-1] if self.block else ""
        for beginning, reason in agent.failing_words.items():
            if words.startswith(beginning):
                return Failed(words, reason)
        if agent.error_words and words.startswith(agent.error_words) and not any(counted):
            return model_failure(words.removeprefix("Error: "), otherwise="agent-error")
        return None

    def _done(self, reason: str) -> Done:
        details: dict[str, Any] = {"stopReason": reason}
        if self.changed:
            details["changedFiles"] = list(self.changed)
        return Done(summary="".join(self.block), details=details)


UPDATES: Mapping[str, Callable[[AcpTurn, Json], Said]] = {
    "agent_message_chunk": AcpTurn.message_chunk,
    "agent_thought_chunk": AcpTurn.thought_chunk,
    "tool_call": AcpTurn.tool_update,
    "tool_call_update": AcpTurn.tool_update,
    "plan": lambda turn, update: [plan(update["entries"])],
    "usage_update": AcpTurn.usage_update,
    "notice": lambda turn, update: [_notice(update)],
}
"""Kinds that are missing here are for editors."""


def _notice(update: Json) -> Status:
    """A message of the agent itself."""
    text = ": ".join(filter(None, (as_word(update.get(one)) for one in ("title", "description"))))
    return Status(text, {"type": "warning", "text": text})


def _part(content: Json) -> RawPart | UrlPart | TextPart | None:
    """A ContentBlock of the agent that is not a text."""
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
