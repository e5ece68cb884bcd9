"""Questions of each kind."""

from __future__ import annotations

from bridge.task.events import Option, Question

ALLOW = Option("allow", "Allow", "allow_once")


ALWAYS = Option("allow_always", "Always allow in this session", "allow_always")


DENY = Option("deny", "Deny", "reject_once")


RED, BLUE, DARK = Option("r", "Red"), Option("b", "Blue"), Option("d", "Dark blue.")


PERMISSION = Question("q", "permission", "May I?", (ALLOW, ALWAYS, DENY))


CHOICE = Question("q", "choice", "Which?", (RED, BLUE, DARK))


SEVERAL = Question("q", "choice", "Which?", (RED, BLUE, DARK), multiple=True)


PLAN = Question("q", "plan", "Good?", (ALLOW, DENY), free_text=True)
