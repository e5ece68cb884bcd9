"""Many cases within one test. A test of its own costs milliseconds to collect and to set up, in
each worker; a case costs a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

Case = tuple[str, dict[str, Any]]
"""What a failure calls the case, and its arguments."""


def each(
    names: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], object] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `pytest.mark.parametrize`, but all cases are one test, and the cases of several
    decorators are multiplied. Every case runs, also after a failure; the failure of the test names
    each case that failed. Fixtures are made once: they are for tests that change nothing
    in them.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    found = list(values)
    given = list(ids) if ids is not None and not callable(ids) else None
    assert found, "no cases"
    assert given is None or len(given) == len(found)
    labels: Sequence[str | None] = given or [_label(wanted, value, ids) for value in found]
    cases = [_case(wanted, value, label) for value, label in zip(found, labels, strict=True)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        inner: tuple[Callable[..., Any], list[Case]] | None = getattr(function, "each", None)
        if inner is None:
            return _looping(function, cases)
        return _looping(
            inner[0],
            [(f"{one}, {two}", {**a, **b}) for (one, a), (two, b) in product(cases, inner[1])],
        )

    return decorate


def _label(names: list[str], value: Any, ids: Any) -> str | None:
    if ids is None or hasattr(value, "marks"):
        return None
    return "-".join(str(ids(one)) for one in ([value] if len(names) == 1 else value))


def _case(names: list[str], value: Any, label: str | None) -> Case:
    parts: Sequence[Any] = [value] if len(names) == 1 else value
    if hasattr(value, "marks"):  # pytest.param
        assert not value.marks, "a mark is for a whole test"
        parts, label = value.values, value.id or label
    arguments = dict(zip(names, parts, strict=True))
    return label or ", ".join(f"{name}={value!r}"[:200] for name, value in arguments.items()), (
        arguments
    )


def _looping(function: Callable[..., Any], cases: list[Case]) -> Callable[..., Any]:
    """The test, which takes the fixtures that no case names."""
    problems: Any = (Exception, pytest.fail.Exception)

    def run(**fixtures: Any) -> None:
        failed: list[tuple[str, BaseException]] = []
        for label, arguments in cases:
            try:
                function(**fixtures, **arguments)
            except problems as problem:
                failed.append((label, problem))
        _report(failed, len(cases))

    async def run_async(**fixtures: Any) -> None:
        failed: list[tuple[str, BaseException]] = []
        for label, arguments in cases:
            try:
                await function(**fixtures, **arguments)
            except problems as problem:
                failed.append((label, problem))
        _report(failed, len(cases))

    looping: Any = run_async if inspect.iscoroutinefunction(function) else run
    named = {name for _, arguments in cases for name in arguments}
    signature = inspect.signature(function)
    assert named <= set(signature.parameters), f"{function.__name__} has not all of {named}"
    looping.__signature__ = signature.replace(
        parameters=[
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, one in signature.parameters.items()
            if name not in named
        ]
    )
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(looping, name, getattr(function, name))
    looping.each = (function, cases)
    if hasattr(function, "pytestmark"):
        looping.pytestmark = function.pytestmark
    return looping  # type: ignore[no-any-return]


def _report(failed: list[tuple[str, BaseException]], total: int) -> None:
    """Raises with the traceback of the first failure, and a line for each."""
    if failed:
        lines = [f"{label}: {problem!r}"[:2000] for label, problem in failed]
        text = "\n".join([f"{len(failed)} of {total} cases failed", *lines])
        raise AssertionError(text) from failed[0][1]
