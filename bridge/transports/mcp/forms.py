"""Forms: elicitations in form mode for the questions of agents, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bridge.task.answers import denial
from bridge.task.events import Option, Question
from bridge.task.subject import question_text
from bridge.task.text import exact
from bridge.transports.mcp.results import OPTION_CHARS, link

Json = dict[str, Any]
FORM_CHARS = 500  # characters of the question in a form
REASON_CHARS = 500
TEXT_CHARS = 16_384
FIRST_WITH_LISTS = "2025-11-25"  # the first revision in which a form can have a list
ACTIONS = ("accept", "decline", "cancel")
_YES = {"y": "allow_once", "yes": "allow_once", "a": "allow_always", "always": "allow_always"}
_NO = ("n", "no")


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer in a form, or of a model. `options`: ids of options."""

    options: tuple[str, ...] = ()
    text: str = ""


Outcome = Decision | Literal["misfit", "cancel"]
"""`misfit`: the content does not fit the form; `cancel`: nothing was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form for a question. `asker`: the agent and its project. `quick`: a permission has one
    field, for a letter. `revision`: of the protocol."""

    question: Question
    task_id: str
    asker: str
    revision: str
    quick: bool = False

    def params(self) -> Json:
        """The parameters of elicitation/create."""
        return {"mode": "form", "message": self._message(), "requestedSchema": self._schema()}

    def _message(self) -> str:
        asked = question_text(self.question, FORM_CHARS)
        return f"{self.asker} asks: {asked}\nOther way to answer: {link(self.task_id)}"

    @property
    def takes_letter(self) -> bool:
        """Whether y, n and a decide. Other words decide nothing: they may be a paste, or keys that
        were typed before the form appeared."""
        return self.quick and self.question.kind == "permission" and "allow_once" in self._yes

    @property
    def _yes(self) -> Mapping[str, Option]:
        """The options that allow, by kind."""
        return {
            one.kind: one for one in reversed(self.question.options) if one.kind in _YES.values()
        }

    @property
    def _letter(self) -> Json:
        """The field for a letter."""
        always = self._yes.get("allow_always")
        title, meaning = "y or n", "y: allow once. n: deny; a reason may follow."
        if always:
            name = exact(always.description or always.name, OPTION_CHARS)
            title, meaning = "y, n or a", f"{meaning} a: {name.rstrip('.')}."
        described = {"title": title, "description": meaning}
        return {"type": "string", **described, "maxLength": REASON_CHARS}

    @property
    def _takes_words(self) -> bool:
        """Whether the answer is a text. Options are then what to do instead of an answer."""
        return self.question.kind == "text" or not self.question.options

    @property
    def _names(self) -> Mapping[str, str]:
        """The ids of the options by their names in the form. Refusals stand first."""
        options = sorted(self.question.options, key=lambda one: not one.kind.startswith("reject"))
        shown = [exact(one.name, OPTION_CHARS) for one in options]
        unique = len(set(shown)) == len(shown)
        return {
            name if unique else f"{name} ({one.id})": one.id
            for name, one in zip(shown, options, strict=True)
        }

    @property
    def _has_lists(self) -> bool:
        return self.revision >= FIRST_WITH_LISTS

    def _schema(self) -> Json:
        names = list(self._names)
        if self.takes_letter:
            return {
                "type": "object",
                "properties": {"answer": self._letter},
                "required": ["answer"],
            }
        if self._takes_words:
            answer: Json = {"answer": {"type": "string", "maxLength": TEXT_CHARS}}
            others = {"instead": {"type": "string", "enum": names}} if names else {}
            required = [] if names else ["answer"]
            return {"type": "object", "properties": answer | others, "required": required}
        if self.question.multiple and not self._has_lists:
            boxes = {name: {"type": "boolean"} for name in names}
            return {"type": "object", "properties": boxes}
        decision: Json = {"type": "string", "enum": names}
        if self.question.multiple:
            decision = {"type": "array", "items": decision}
        reason = {"type": "string", "maxLength": REASON_CHARS}
        properties = {"decision": decision, "reason": reason}
        return {"type": "object", "properties": properties, "required": ["decision"]}

    def read(self, response: Mapping[str, Any]) -> Outcome:
        """The meaning of the client's response, an ElicitResult."""
        match response.get("action"):
            case "accept":
                content = response.get("content")
                return self._accepted(content if isinstance(content, dict) else {})
            case "decline":
                return self._refused("")
        return "cancel"

    def _refused(self, reason: str) -> Outcome:
        refused = denial(self.question, "")
        if refused and refused.option:
            return Decision((refused.option.id,), reason)
        return Decision(text=reason or "no") if refused else "cancel"

    def _decided(self, answer: Any) -> Outcome:
        """The meaning of y or a, or of n and a reason."""
        if not isinstance(answer, str) or len(answer) > REASON_CHARS:
            return "misfit"
        word, _, rest = answer.strip().partition(" ")
        if word.lower() in _NO:
            return self._refused(rest.strip())
        chosen = self._yes.get(_YES.get(word.lower(), ""))
        return Decision((chosen.id,)) if chosen and not rest else "misfit"

    def _accepted(self, content: Mapping[str, Any]) -> Outcome:
        names = self._names
        if self.takes_letter:
            return self._decided(content.get("answer"))
        if self._takes_words:
            if content.get("instead") in names:
                return Decision((names[content["instead"]],))
            answer = content.get("answer")
            fits = isinstance(answer, str) and answer.strip() and len(answer) <= TEXT_CHARS
            return Decision(text=str(answer)) if fits else "misfit"
        reason = content.get("reason") or ""
        if not isinstance(reason, str) or len(reason) > REASON_CHARS:
            return "misfit"
        if self.question.multiple and not self._has_lists:
            chosen: list[Any] = [name for name in names if content.get(name) is True]
        else:
            decision = content.get("decision")
            chosen = decision if isinstance(decision, list) else [decision]
        if not chosen or any(not isinstance(one, str) or one not in names for one in chosen):
            return "misfit"
        if len(chosen) > 1 and not self.question.multiple:
            return "misfit"
        return Decision(tuple(names[one] for one in chosen), reason)
