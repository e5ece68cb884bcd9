"""The report of the doctor, as text and as JSON.

`--json` prints one object. Later versions may add members, and keep these:

    {"version", "status": 0|1|2, "ok",
     "server": {"checks": [CHECK]},
     "agents": [{"id", "adapter", "title", "served", "found", "program", "install",
                 "like", "checks": [CHECK]}]}

    CHECK: {"name", "status": "ok"|"failed"|"note", "needed", "text", "next", "facts"}

`served`: the server would run it with these settings. `found`, `program`: whether its CLI exists,
and its path. `like`: another adapter of the same program that was checked instead. `next`: the
remedy of a failed check, otherwise null. `needed`: the server, or a served agent, does not work
without it. `facts`: the content of `text` for programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge import __version__
from bridge.errors.program import command
from bridge.task.text import exact

MARKS = {"ok": "ok", "failed": "!!", "note": "--"}
SETTINGS = "settings"  # name of the check of the settings
ADAPTER = "adapter"  # name of the failed check of an adapter that raises an exception


@dataclass(frozen=True, slots=True)
class Check:
    """One result; see above."""

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
    """A fact that is not necessary, or that is unknown."""
    return Check(name, "note", text, facts=facts, needed=False)


def failed(name: str, text: str, step: str, **facts: Any) -> Check:
    """`step`: the remedy, if possible as a command."""
    return Check(name, "failed", text, step, facts)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The results of one CLI."""

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
    def shown(self) -> bool:
        """Whether people see its checks: it is installed, or settings name it, or the package of
        its adapter is broken."""
        broken = any(check.failed and check.name == ADAPTER for check in self.checks)
        return self.found or self.served or broken

    @property
    def ready(self) -> bool:
        return self.found and not any(check.failed for check in self.checks)


def status(server: Iterable[Check], agents: Iterable[AgentReport]) -> int:
    """The exit status: 0 if all necessary checks pass, 1 if one fails, 2 if the check of the
    settings fails."""
    every = [*server, *(check for one in agents if one.served for check in one.checks)]
    wrong = [check for check in every if check.failed and check.needed]
    if any(check.name == SETTINGS for check in wrong):
        return 2
    return 1 if wrong else 0


# --- for people ----------------------------------------------------------------------------------


def section(title: str, checks: Iterable[Check]) -> str:
    """Aligned lines, each failure with its remedy below it. Control characters in the output of a
    CLI are escaped."""
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
    """The CLIs that are neither installed nor served, with the command to install each."""
    width = max((len(one.id) for one in agents), default=0)
    lines = [f"  --  {one.id:{width}}  {one.install or one.title}" for one in agents]
    return "\n".join(["not installed", *lines])


def further(agents: Sequence[AgentReport]) -> str:
    """Further adapters of the checked programs, which were skipped."""
    width = max((len(one.id) for one in agents), default=0)
    line = command("doctor", "--agent")
    lines = [f"  --  {one.id:{width}}  as {one.like}: {line} {one.id}" for one in agents]
    return "\n".join(["further adapters of the same programs", *lines])


def unlisted(number: int) -> str:
    kind = "adapter is" if number == 1 else "adapters are"
    return f"{number} further {kind} known: {command('doctor', '--all')}"


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
        text = f"All necessary checks pass: {served}." if served else "All necessary checks pass."
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
