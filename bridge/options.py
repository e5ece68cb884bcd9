"""What a client may choose for its turns in `metadata.bridge` (docs/extension.md).

Nothing here becomes part of a command line before it has been held against what the operator and
the adapter allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from bridge.a2a.codec import Params, parse
from bridge.adapter import Adapter, SessionOptions
from bridge.errors import InvalidParams


class _Wishes(Params):
    model_config = ConfigDict(**{**Params.model_config, "str_max_length": 4096})

    cwd: Any = None  # Workspaces says what is wrong with it
    model: StrictStr | None = None
    mode: StrictStr | None = None
    budget_usd: StrictFloat | StrictInt | None = Field(None, gt=0)
    thoughts: StrictBool | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """`cwd` and `session` belong to the context, `thoughts` to the task. None: not chosen."""

    cwd: Any = None
    session: SessionOptions = field(default_factory=SessionOptions)
    thoughts: bool | None = None


def read_options(
    *metadata: Mapping[str, Any] | None, adapter: type[Adapter], models: tuple[str, ...]
) -> Options:
    """The client's choices; of several metadata the first that makes one counts. `models`: those
    that the operator lets clients choose. Raises InvalidParams for what is not to be had."""
    given: dict[str, Any] = {}
    for one in filter(None, reversed(metadata)):
        bridge = one.get("bridge")
        given |= {"cwd": one["cwd"]} if one.get("cwd") else {}
        given |= bridge if isinstance(bridge, dict) else {}
    wishes = parse(_Wishes, given)
    _check("model", wishes.model, models)
    _check("mode", wishes.mode, adapter.modes)
    if wishes.budget_usd is not None and not adapter.takes_budget:
        raise _refusal("budgetUsd", "This agent takes no budget.")
    budget = None if wishes.budget_usd is None else float(wishes.budget_usd)
    session = SessionOptions(wishes.model, wishes.mode, budget)
    return Options(wishes.cwd, session, wishes.thoughts)


def _check(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        choice = ", ".join(allowed) or "none: the operator allows no choice"
        raise _refusal(name, f"Possible for metadata.bridge.{name}: {choice}.")


def _refusal(name: str, text: str) -> InvalidParams:
    return InvalidParams(text, [(f"metadata.bridge.{name}", text)])
