"""A turn of Codex: the state between a prompt and its end, and the notifications in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge.adapter import INTERRUPTED
from bridge.adapter.fields import Json, Said, as_dict, as_list, as_string, as_word
from bridge.task.events import (
    ArtifactChunk,
    Done,
    Failed,
    Started,
    Status,
    Text,
    Thought,
    ToolCall,
    ToolResult,
    Usage,
)
from bridge.task.message import TextPart

from ._codex_items import (
    NO_TOOLS,
    AnswerText,
    changes_of,
    failure,
    has_failed,
    has_input,
    less,
    message_of,
    output_of,
    tool_of,
    usage_of,
)
from ._tools import counts, plan


@dataclass(slots=True)
class Thread:
    """The conversation of the session."""

    over: dict[str, int] | None  # tokens of the turns that have ended; None: unknown
    used: dict[str, int] = field(default_factory=dict)  # tokens of all turns
    window: Any = None
    id: str | None = None
    members: Json = field(default_factory=dict)  # the result of thread/start or thread/resume
    agents: dict[str, str] = field(default_factory=dict)
    """Threads of sub-agents, with the tool calls that began them."""

    def started(self, mode: str | None) -> Started:
        version = as_word(as_dict(self.members.get("thread")).get("cliVersion"))
        return Started(self.id, as_word(self.members.get("model")), version, mode)

    def token_usage(self, turn: CodexTurn | None, params: Json) -> Said:
        if params.get("threadId") != self.id:
            return ()  # of a sub-agent
        usage = params["tokenUsage"]
        self.used, self.window = counts(usage["total"]), usage.get("modelContextWindow")
        if turn is None or turn.speaker(params) is None:
            self.over = self.used  # of earlier turns
        elif self.over is None:
            self.over = less(self.used, counts(usage.get("last")))
        return ()

    def turn_usage(self) -> Iterator[Usage]:
        """The tokens since the last call."""
        if self.over != self.used and self.used:
            yield usage_of(less(self.used, self.over or {}), self.window)
            self.over = self.used


@dataclass(slots=True)
class CodexTurn:
    """A task of the bridge. Usually it is one turn of Codex; a message that came too late begins
    another one."""

    thread: Thread
    pending: list[list[Json]]  # inputs that were not sent to Codex yet
    starting: bool = False  # the answer to turn/start is awaited
    steering: int = 0  # answers to turn/steer that are awaited
    steerable: bool = True
    id: str | None = None  # of the running turn of Codex
    running: bool = False  # turn/started has come
    began: bool = False  # a Started event was returned
    interrupted: bool = False
    answer: AnswerText = field(default_factory=AnswerText)
    thought: tuple[str, Any] | None = None  # the streamed reasoning: item and section
    thoughts: set[str] = field(default_factory=set)  # items whose reasoning was streamed
    tools: dict[str, Json] = field(default_factory=dict)  # items with a ToolCall event, by id
    others: dict[str, Json] = field(default_factory=dict)  # items of unknown threads, by id
    commands: set[str] = field(default_factory=set)  # items that are running
    changed: dict[str, None] = field(default_factory=dict)  # paths, in order
    limits: Json = field(default_factory=dict)  # the windows of a subscription, as Codex tells them
    diffs: dict[str, str] = field(default_factory=dict)  # by turn of Codex

    def speaker(self, params: Json) -> str | None:
        """The sender of a notification: "" is the agent itself, else the tool call that began the
        sub-agent. None: the notification does not belong to the turn."""
        thread = params.get("threadId")
        if thread == self.thread.id:
            return "" if self.id and params.get("turnId") == self.id else None
        return self.thread.agents.get(str(thread))

    def item(self, item_id: str) -> Json:
        """A known item; empty for an unknown id."""
        return self.tools.get(item_id) or self.others.get(item_id) or {}

    # --- notifications ---------------------------------------------------------------------------

    def delta(self, params: Json) -> Said:
        if self.speaker(params) != "":
            return ()  # the texts of sub-agents come complete
        return self.answer.delta(as_string(params["itemId"]), as_string(params["delta"]))

    def thought_delta(self, params: Json) -> Said:
        text = as_string(params["delta"])
        if self.speaker(params) == "":
            item = as_string(params["itemId"])
            section = (item, params.get("summaryIndex"))
            new = self.thought is not None and self.thought[0] == item and self.thought != section
            self.thought = section
            self.thoughts.add(item)
            yield Thought(f"\n\n{text}" if new else text)

    def item_started(self, params: Json) -> Said:
        item, speaker = params["item"], self.speaker(params)
        if item["type"] == "userMessage" and speaker == "":
            yield from self.answer.give_up()  # a message that joined the turn cut it
        elif item["type"] == "contextCompaction" and speaker == "":
            yield Status("Compacting the conversation", {"type": "compacting"})
        elif speaker is None:
            self.others[as_string(item["id"])] = item
        elif item["type"] not in NO_TOOLS:
            if item["type"] == "commandExecution":
                self.commands.add(item["id"])
            yield from self._announce(item, speaker or None)

    def item_completed(self, params: Json) -> Said:
        item, speaker = params["item"], self.speaker(params)
        if speaker is None and item.get("id") not in self.tools:
            return
        match item["type"]:
            case "agentMessage" | "plan" if speaker:
                yield Text(as_string(item["text"]), new_block=True, parent=speaker)
            case "agentMessage" | "plan":
                yield from self.answer.completed(as_string(item["id"]), as_string(item["text"]))
            case "reasoning" if speaker == "" and item["id"] not in self.thoughts:
                sections = as_list(item.get("summary")) or as_list(item.get("content"))
                if sections:
                    yield Thought("\n\n".join(map(str, sections)))
            case kind if kind not in NO_TOOLS:
                yield from self._tool_ended(item, speaker or None)

    def _announce(self, item: Json, parent: str | None) -> Said:
        item_id = as_string(item["id"])
        known = self.tools.get(item_id)
        if known is None or (known != item and not has_input(known) and has_input(item)):
            self.tools[item_id] = item
            yield ToolCall(item_id, *tool_of(item), parent)

    def _tool_ended(self, item: Json, parent: str | None) -> Said:
        yield from self._announce(item, parent)
        self.commands.discard(item["id"])
        for thread in as_list(item.get("receiverThreadIds")):
            self.thread.agents.setdefault(str(thread), item["id"])
        failed = has_failed(item)
        changes = () if failed else tuple(changes_of(item))
        self.changed |= dict.fromkeys(change.path for change in changes)
        name, _ = tool_of(item)
        yield ToolResult(item["id"], output_of(item), failed, name, parent, changes=changes)

    def plan_updated(self, params: Json) -> Said:
        return [plan(params["plan"])] if self.speaker(params) == "" else ()

    def diff_updated(self, params: Json) -> Said:
        """Each one has the whole diff of the turn: the last one becomes an artifact."""
        if self.speaker(params) == "":
            self.diffs[str(params["turnId"])] = as_string(params["diff"])
        return ()

    def error(self, params: Json) -> Said:
        """Only turn/completed ends a turn, and it repeats the error of a failed turn."""
        error = params["error"]
        if params.get("willRetry") and self.speaker(params) == "":
            yield from self.answer.give_up()
            facts = {"type": "retry", "codexErrorInfo": error.get("codexErrorInfo")}
            yield Status(f"The model did not answer: {message_of(error)}", facts)

    # --- the end ---------------------------------------------------------------------------------

    def outcome(self, done: Json) -> Done | Failed:
        """`done`: the turn of Codex that has ended."""
        match done.get("status"):
            case "completed":
                details = {"changedFiles": list(self.changed)} if self.changed else None
                return Done(summary=self.answer.whole, details=details)
            case "interrupted" if self.interrupted:
                return INTERRUPTED
            case "interrupted":
                return Failed("Codex interrupted the turn by itself.", "cancelled")
            case "failed":
                return failure(done.get("error"), self.limits)
        return Failed(f"Codex ended the turn as {done.get('status')}.", "stopped")

    def changes(self) -> Said:
        """The diff of the whole turn, as an artifact."""
        diff = "".join(self.diffs.values())
        if diff:
            part = TextPart(diff, "text/x-diff", "changes.diff")
            yield ArtifactChunk("diff", (part,), "Changes")


NOTIFICATIONS: Mapping[str, Callable[[CodexTurn, Json], Said]] = {
    "turn/plan/updated": CodexTurn.plan_updated,
    "turn/diff/updated": CodexTurn.diff_updated,
    "item/started": CodexTurn.item_started,
    "item/completed": CodexTurn.item_completed,
    "item/agentMessage/delta": CodexTurn.delta,
    "item/plan/delta": CodexTurn.delta,
    "item/reasoning/summaryTextDelta": CodexTurn.thought_delta,
    "item/reasoning/textDelta": CodexTurn.thought_delta,
    "error": CodexTurn.error,
}
