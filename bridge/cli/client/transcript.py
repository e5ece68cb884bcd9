"""The output of a task on a screen: the answer as it arrives, tools, decisions, and a footer."""

from __future__ import annotations

import time
from datetime import datetime

from bridge.cli.client.card import decorated
from bridge.cli.client.decision import asked_in, decision
from bridge.cli.client.output import TextOutput, plan_text, reason_of
from bridge.cli.client.screen import Screen, ScreenFields
from bridge.cli.client.task_table import word_of
from bridge.cli.client.tools import figures, first_lines, head_of, label_of, output_of
from bridge.client.questions import OpenQuestion, closed_by, facts_of, question_of, text_of
from bridge.client.shapes import Json, short, state_of
from bridge.task.events import Plan, Question, Queued, ToolCall, ToolResult, Usage
from bridge.task.facts import Closed, event_of, usage_of
from bridge.task.text import one_line

MOST_REQUEST = 40  # lines of a request that stay after its answer
_ENDS = {"completed": ("✓ done", "green"), "canceled": ("✗ canceled", "yellow")}
_ENDS |= {"failed": ("✗ failed", "bold red"), "rejected": ("✗ rejected", "bold red")}
_MOST_KEPT = 1_000_000  # characters of the outputs of tools


class Transcript(TextOutput):
    """`own`: the texts of the messages of this client, by their ids."""

    fields: ScreenFields

    def __init__(
        self,
        screen: Screen,
        verbose: bool = False,
        directory: str | None = None,
        own: dict[str, str] | None = None,
    ) -> None:
        super().__init__(stream=True, verbose=verbose, directory=directory)
        self.fields = ScreenFields(screen)
        self.own = {} if own is None else own
        self.outputs = ""  # of the tools, for the pager
        self._screen = screen
        self._began = time.monotonic()
        self._times: list[datetime] = []  # of the first update and of the last one
        self._word = "Running"
        self._usage = Usage()
        self._tools: dict[str, tuple[str, datetime | None]] = {}
        self._last_tool = ""
        self._plan = ""
        self._answered: set[str] = set()
        self._question: OpenQuestion | None = None
        self._approved: set[str] = set()  # the tools whose requests stand above

    def item(self, item: Json) -> None:
        found = item.get("task") or item.get("statusUpdate") or {}
        if stamp := _stamp(found):
            self._times = [*self._times[:1], stamp]
        usage = (found.get("metadata") or {}).get("usage")
        self._usage = usage_of(usage) if isinstance(usage, dict) else self._usage
        super().item(item)
        self._note_question(found)
        self._screen.draw()

    def footer(self, width: int) -> str:
        """The state, the time, the usage and the last tool, or the open question, in one line."""
        used = figures(time.monotonic() - self._began, self._usage.total_tokens, self._cost)
        now = self._last_tool
        if self._question:
            now = one_line(self._question.request.partition("\n")[0])
        elif self._tools:
            now, _ = list(self._tools.values())[-1]
        return " · ".join(filter(None, [self._word, *used, now]))[:width].rstrip(" ·")

    def finish(self, answer: Json, resume: str) -> None:
        if "message" in answer:
            super().finish(answer, resume)
            return
        task = answer["task"]
        self._show_rest(task)
        self._show_end(task)
        for label, name in (("Task", "id"), ("Context", "contextId")):
            if str(task.get(name)) not in resume:
                self.fields.field(label, task.get(name))
        self.fields.field("Resume", resume)

    @property
    def _cost(self) -> float | None:
        return self._usage.cost_usd

    # --- one update -----------------------------------------------------------------------------

    def _show_ids(self, found: Json) -> None:
        """Nothing: the ids stand at the end."""

    def _note_question(self, found: Json) -> None:
        """Show the answer to a question below its request, with its author."""
        closed = closed_by(found)
        if closed and closed.question_id not in self._answered:
            self._answered.add(closed.question_id)
            # The time of a tool begins after the answer that it waited for.
            self._tools = {one: (label, _stamp(found)) for one, (label, _) in self._tools.items()}
            self._show_decision(closed, found)
        question = question_of(found)
        if question and question.id:
            self._answered.discard(question.id)
            self._question = question
        elif found:
            self._question = None

    def _show_decision(self, closed: Closed, found: Json) -> None:
        asked = self._question
        if asked is None or asked.id != closed.question_id:
            asked = asked_in(found, closed.question_id)
        if asked:
            self._show_request(asked)
        mine, words = closed.message_id in self.own, self.own.get(closed.message_id or "", "")
        self.fields.line(*decision(closed, asked.options if asked else (), mine, words))

    def _show_request(self, asked: OpenQuestion) -> None:
        lines = decorated(asked.request, self._screen.wrap, self._screen.width - 2)
        left = len(lines) - MOST_REQUEST
        shown = lines[: MOST_REQUEST - 1] if left > 0 else lines
        self.fields.close()
        self._screen.gap()
        self._screen.print_lines([(f"│ {text}", style) for text, style in shown])
        if left > 0:
            self.keep(asked.whole)
            self._screen.print(f"│ … {left + 1} more lines: o", "dim")
        self._approved.add(str((asked.subject or {}).get("toolCallId")))

    def _show_progress(self, found: Json) -> None:
        state = short(state_of(found))
        message = (found.get("status") or {}).get("message") or {}
        facts = facts_of(message)
        self._state, self._word = state, word_of(found)
        match event := event_of(facts):
            case ToolCall():
                self._last_tool = label_of(event, self.directory)
                self._tools[event.id] = (self._last_tool, _stamp(found))
            case ToolResult():
                self._show_result(event, _stamp(found))
            case Plan():
                self._show_plan(event)
            case Queued() | Question():
                self.fields.close()
            case _ if state in ("working", "submitted"):
                text = one_line(text_of(message.get("parts") or ()))
                if text:
                    self._show_status(text, facts)

    def _show_status(self, text: str, facts: Json) -> None:
        """A decision of the server is a line of the client; the words of an agent are not."""
        decided = facts.get("decision") if facts.get("type") == "decision" else None
        self.fields.close()
        if decided in ("allow", "deny"):
            self.fields.line(f"✓ {text}" if decided == "allow" else f"✗ {text}", "")
        else:
            self._screen.print(f"· {text}", "dim", indent=2)

    def _show_result(self, result: ToolResult, ended: datetime | None) -> None:
        label, began = self._tools.pop(result.id, (result.name or "Tool", None))
        seconds = (ended - began).total_seconds() if ended and began else None
        self.fields.line(*head_of(result, label, seconds))
        changes = bool(result.changes) and not result.is_error
        output = output_of(result)
        if changes and result.id in self._approved:
            return
        self._screen.print_lines(first_lines(output, changes), indent=2)
        if output:
            self.keep(f"{label}\n{output}")

    def keep(self, output: str) -> None:
        """Keep an output for the pager."""
        self.outputs = f"{self.outputs}\n\n{output}".lstrip("\n")[-_MOST_KEPT:]

    def _show_plan(self, plan: Plan) -> None:
        text = plan_text(plan)
        if text != self._plan:
            self._plan = text
            self.fields.block("Plan", text)

    # --- the end --------------------------------------------------------------------------------

    def _show_rest(self, task: Json) -> None:
        """The parts that no update has brought."""
        for artifact in task.get("artifacts") or ():
            self._show_artifact(artifact, whole=True)
        if short(state_of(task)) == "completed":
            self._show_words(task)

    def _show_end(self, task: Json) -> None:
        """`✗ failed · 0:05 · 480 tokens · $0.004`, and the reason."""
        state = short(state_of(task))
        mark, style = _ENDS.get(state, (f"· {word_of(task)}", "bold yellow"))
        both = len(self._times) == 2  # a task that ended earlier has one update
        took = (self._times[1] - self._times[0]).total_seconds() if both else None
        used = figures(took, self._usage.total_tokens, self._cost)
        self.fields.line(" · ".join([mark, *used]), style)
        if reason := reason_of(task):
            self._screen.print(reason, indent=2)


class ConversationTranscript(Transcript):
    """The output of one task of several. The conversation has its own end."""

    def finish(self, answer: Json, resume: str) -> None:
        if "message" in answer:
            self.fields.block("Message", text_of(answer["message"].get("parts") or ()))
            return
        self._show_rest(answer["task"])
        self._show_end(answer["task"])


def _stamp(found: Json) -> datetime | None:
    """The time of a status on the server."""
    try:
        return datetime.fromisoformat(str((found.get("status") or {}).get("timestamp")))
    except ValueError:
        return None
