"""The choices of a client for its turns in `metadata.bridge` (docs/extension.md).

A choice becomes part of a command line only after a check against the values that the operator and
the adapter allow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictStr

from bridge.a2a.requests import Params, parse
from bridge.adapter import Adapter, SessionOptions
from bridge.errors import InvalidParams
from bridge.task.nearest import LONGEST_NAME, nearest, no_such

LONGEST = 100 * 1024  # characters of a message in which the keywords of a profile are searched
OnDisconnect = Literal["continue", "cancel"]
"""The treatment of a task after its client left (BRIDGE_ON_DISCONNECT)."""
ThoughtsFor = Literal["off", "request", "always"]
"""The clients that get the thoughts of the model (BRIDGE_THOUGHTS)."""

T = TypeVar("T")


class _Wishes(Params):
    model_config = ConfigDict(**{**Params.model_config, "str_max_length": 4096})

    cwd: Any = None  # Workspaces validates it
    role: StrictStr | None = None
    model: StrictStr | None = None
    mode: StrictStr | None = None
    budget_usd: StrictFloat | None = Field(None, gt=0)  # also integers
    thoughts: StrictBool | None = None
    on_disconnect: OnDisconnect | None = None


class _Metadata(Params):
    bridge: _Wishes


class _Request(Params):
    """This level only makes errors name the members as clients do."""

    metadata: _Metadata


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of work, and its agent, its model or both. A message that contains one of `keywords`
    selects the profile; case is ignored."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # the source is TOML

    agent: str | None = None
    model: str | None = None
    keywords: tuple[str, ...] = ()

    def found_in(self, text: str) -> bool:
        words = "|".join(map(re.escape, self.keywords))
        return bool(words and re.search(rf"\b(?:{words})\b", text[:LONGEST], re.IGNORECASE))


@dataclass(frozen=True, slots=True)
class Options:
    """`cwd`, `role` and `session` belong to the context, the other members to the task. None: no
    choice. Later messages may change the mode and the model of the session."""

    cwd: Any = None
    role: str | None = None
    session: SessionOptions = field(default_factory=SessionOptions)
    thoughts: bool | None = None
    on_disconnect: OnDisconnect | None = None

    @property
    def choices(self) -> Mapping[str, Any]:
        """The mode and the model, if the client chose them."""
        given = {"mode": self.session.mode, "model": self.session.model}
        return {name: value for name, value in given.items() if value is not None}


def read_options(
    *metadata: Mapping[str, Any] | None, adapter: type[Adapter], models: tuple[str, ...]
) -> Options:
    """The client's choices. If several metadata contain a choice, the first one counts. `models`:
    the models that the operator allows. Raises InvalidParams for a choice that is not available."""
    given: dict[str, Any] = {}
    for one in filter(None, reversed(metadata)):
        bridge = one.get("bridge")
        if not isinstance(bridge, dict | None):
            raise InvalidParams(
                "metadata.bridge: not an object", [("metadata.bridge", "no object")]
            )
        given |= {"cwd": one["cwd"]} if one.get("cwd") else {}
        given |= {name: value for name, value in (bridge or {}).items() if value is not None}
    wishes = parse(_Request, {"metadata": {"bridge": given}}).metadata.bridge
    check_model(wishes.model, models)
    _check("mode", wishes.mode, adapter.modes)
    if wishes.budget_usd is not None and not adapter.takes_budget:
        raise _refusal("budgetUsd", "This agent takes no budget.")
    session = SessionOptions(wishes.model, wishes.mode, wishes.budget_usd)
    return Options(wishes.cwd, wishes.role, session, wishes.thoughts, wishes.on_disconnect)


def known_value(what: str, name: str, known: Mapping[str, T]) -> T:
    """The value of a name that the client chose. Raises InvalidParams with the known names."""
    if name in known:
        return known[name]
    raise _refusal(what, no_such(what, name, known))


def check_model(model: str | None, models: tuple[str, ...]) -> None:
    """Raises InvalidParams for a model that the operator does not allow."""
    _check("model", model, models)


def _check(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        choice = ", ".join(allowed) or "none: the operator allows no choice"
        hint = nearest(value[:LONGEST_NAME], allowed)
        raise _refusal(name, f"Possible for metadata.bridge.{name}: {choice}.{hint}")


def _refusal(name: str, text: str) -> InvalidParams:
    return InvalidParams(text, [(f"metadata.bridge.{name}", text)])
