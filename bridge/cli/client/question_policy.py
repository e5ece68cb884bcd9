"""The answers that `--on-question` gives in place of a person."""

from __future__ import annotations

import os

from bridge.client.failure import usage
from bridge.client.questions import OpenQuestion
from bridge.task.events import Option
from bridge.task.rules.approval_policy import Rule, decide

RESERVED = ("stop", "deny")


class QuestionPolicy:
    """--on-question: `stop` answers nothing, `deny` refuses each permission, `allow:RULE` allows
    the permissions that the rule matches. Everything else is left to a person. `directory`: the
    agent's, on this machine; without it, no rule for paths matches."""

    def __init__(self, text: str) -> None:
        self._denies = text == "deny"
        self._rule = None if text in RESERVED else _rule(text)
        self.directory: str | None = None

    @property
    def decides(self) -> bool:
        return self._denies or self._rule is not None

    def decide(self, question: OpenQuestion) -> Option | None:
        if question.kind != "permission":
            return None
        if self._denies:
            return question.of_kind("reject_once")
        if self._rule is None or (self._rule.path is not None and self.directory is None):
            return None
        directory = self.directory or os.getcwd()
        verdict = decide([self._rule], question.subject or {}, directory, os.path.realpath)
        return question.of_kind("allow_once") if verdict == "allow" else None


def _rule(text: str) -> Rule:
    """The rule in `allow:tool=NAME`. Raises ClientError."""
    verb, _, pattern = text.partition(":")
    name, equals, value = pattern.partition("=")
    if verb != "allow" or name not in ("tool", "command", "path") or not equals:
        text = "--on-question is stop, deny, allow:tool=NAME, allow:command=PATTERN or allow:path="
        raise usage(f"{text}PATTERN")
    if not value.strip("*"):
        raise usage("--on-question allow: a rule that allows everything is refused")
    return Rule("allow", **{name: value})
