"""What the doctor has found, for people and for programs.

`--json` prints one object; members may be added, those that are here stay:

    {"version", "status": 0|1|2, "ok",
     "server": {"checks": [CHECK]},
     "agents": [{"id", "adapter", "title", "served", "found", "program", "install",
                 "like", "checks": [CHECK]}]}

    CHECK: {"name", "status": "ok"|"failed"|"note", "needed", "text", "next", "facts"}

`served`: the server would run it with these settings. `found`, `program`: whether and where its
CLI is. `like`: another adapter runs the same program, and was looked at instead. `next` is what to
do about a check that has failed, else null. `needed`: the server, or an agent that is served, does
not work without it. `facts` are for programs what `text` is for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bridge import __version__
from bridge.task.text import exact

MARKS = {"ok": "ok", "failed": "!!", "note": "--"}
SETTINGS = "settings"  # the name of the check that says whether they are right


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; see above."""

    name: str
    status: Literal["ok", "failed", "note"]
    text: str
    next: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    needed: bool = True

    @property
    def failed(self) -> bool:
        return self.status == "failed"


def ok(name: str, text: str, **facts: Any) -> Check:
    return Check(name, "ok", text, facts=facts)


def note(name: str, text: str, **facts: Any) -> Check:
    """What works without it, or could not be told."""
    return Check(name, "note", text, facts=facts, needed=False)


def failed(name: str, text: str, step: str, **facts: Any) -> Check:
    """`step`: what to do, as a command where one will do."""
    return Check(name, "failed", text, step, facts)


def unneeded(check: Check) -> Check:
    return replace(check, needed=False)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """One CLI, as it would be served, or is."""

    id: str
    adapter: str
    title: str
    served: bool
    checks: Sequence[Check]
    program: str | None = None
    install: str = ""
    like: str = ""

    @property
    def found(self) -> bool:
        return self.program is not None

    @property
    def ready(self) -> bool:
        return self.found and not any(check.failed for check in self.checks)


def status(server: Iterable[Check], agents: Iterable[AgentReport]) -> int:
    """The exit status: 0 if all that is needed works, 1 if something does not, 2 if the settings
    are why."""
    every = [*server, *(check for one in agents if one.served for check in one.checks)]
    wrong = [check for check in every if check.failed and check.needed]
    if any(check.name == SETTINGS for check in wrong):
        return 2
    return 1 if wrong else 0


# --- for people ----------------------------------------------------------------------------------


def section(title: str, checks: Iterable[Check]) -> str:
    """Aligned lines, each failure with its next step below it. What a CLI has said of itself does
    nothing to the terminal."""
    checks = list(checks)
    width = max((len(check.name) for check in checks), default=0)
    lines = [title]
    for check in checks:
        text = exact(check.text)
        lines.append(f"  {MARKS[check.status]}  {check.name:{width}}  {text}".rstrip())
        if check.failed:
            lines.append(f"      → {exact(check.next)}")
    return "\n".join(lines)


def agent_section(one: AgentReport) -> str:
    called = "" if one.id == one.adapter else f" [{one.adapter}]"
    return section(f"{one.id}{called}: {one.title}{', served' if one.served else ''}", one.checks)


def absent(agents: Sequence[AgentReport]) -> str:
    """Those that are neither here nor needed: what each takes to have it."""
    width = max((len(one.id) for one in agents), default=0)
    lines = [f"  --  {one.id:{width}}  {one.install or one.title}" for one in agents]
    return "\n".join(["not installed", *lines])


def further(agents: Sequence[AgentReport]) -> str:
    """Other ways to run the same programs, which were not tried."""
    width = max((len(one.id) for one in agents), default=0)
    command = "coding-agent-bridge doctor --agent"
    lines = [f"  --  {one.id:{width}}  as {one.like}: {command} {one.id}" for one in agents]
    return "\n".join(["the same programs in other ways", *lines])


def verdict(code: int, server: Iterable[Check], agents: Sequence[AgentReport]) -> str:
    """The last line."""
    served = ", ".join(one.id for one in agents if one.served)
    others = [one.id for one in agents if not one.served and one.found and not one.ready]
    wrong = [check.name for check in server if check.failed and check.needed]
    wrong += [
        f"{one.id}: {check.name}"
        for one in agents
        if one.served
        for check in one.checks
        if check.failed and check.needed
    ]
    if code == 0:
        text = f"All that is needed works: {served}." if served else "All that is needed works."
    else:
        text = f"Not ready: {', '.join(wrong)}."
    return f"{text} Not served, and not ready: {', '.join(others)}." if others else text


# --- for programs --------------------------------------------------------------------------------


def as_json(code: int, server: Iterable[Check], agents: Iterable[AgentReport]) -> dict[str, Any]:
    return {
        "version": __version__,
        "status": code,
        "ok": code == 0,
        "server": {"checks": [*_checks(server)]},
        "agents": [
            {
                "id": one.id,
                "adapter": one.adapter,
                "title": one.title,
                "served": one.served,
                "found": one.found,
                "program": one.program,
                "install": one.install or None,
                "like": one.like or None,
                "checks": [*_checks(one.checks)],
            }
            for one in agents
        ],
    }


def _checks(checks: Iterable[Check]) -> Iterator[dict[str, Any]]:
    for check in checks:
        yield {
            "name": check.name,
            "status": check.status,
            "needed": check.needed,
            "text": check.text,
            "next": check.next or None,
            "facts": dict(check.facts),
        }
