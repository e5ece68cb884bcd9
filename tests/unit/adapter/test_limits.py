"""The reasons of failures by a model, from the words of real CLIs and providers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bridge.adapter.limits import REASONS, model_failure, moment
from tests.support.cases import each

EPOCH = 1795296600  # 2026-11-21T21:30:00Z
SHAPES = (
    *("9" * 10**6, "try again in " + "1 s " * 10**5, "retry after " * 10**5, "(" * 10**6),
    *("hit your " * 10**5, "error " * 10**5, "resets 2026-" * 10**5),
)


@each(
    ("text", "facts", "reason"),
    [
        # Claude Code, with a subscription and with a key
        ("You've hit your 5-hour limit", {"kinds": ("usage_limit_reached",)}, "rate-limit"),
        ("API Error: Request rejected (429) · x", {}, "rate-limit"),
        ("scripted error 529", {"status": 529}, "overloaded"),
        ("x", {"kinds": ("overloaded",)}, "overloaded"),
        ("Credit balance is too low", {"kinds": ("billing_error",), "status": 400}, "quota"),
        ("Credit balance is too low", {"status": 400}, "quota"),
        ("You have reached your specified API usage limits.", {"status": 400}, "quota"),
        ("Prompt is too long", {"kinds": ("prompt_too_long",)}, "context-window"),
        ("Prompt is too long · the request is 300000 tokens", {"status": 400}, "context-window"),
        ("API Error: 500 Internal", {"kinds": ("server_error",)}, "model-error"),
        ("x", {"kinds": ("authentication_failed",)}, "auth"),
        # providers behind other CLIs
        ("402 Insufficient Balance", {}, "quota"),
        ("429 You exceeded your current quota", {"kinds": ("insufficient_quota",)}, "quota"),
        ("429 You exceeded your current quota. Please retry in 23.5s", {}, "rate-limit"),
        ('{"error":{"code":503,"status":"UNAVAILABLE"}}', {"status": 503}, "overloaded"),
        ("Authentication required: 401 bad key", {}, "auth"),
        ("This model's maximum context length is 8192 tokens", {"status": 400}, "context-window"),
        ("litellm.RateLimitError: no", {"kinds": ("RateLimitError",)}, "rate-limit"),
        ("exceeded retry limit, last status: 429 Too Many Requests", {}, "rate-limit"),
        ("We are over capacity", {}, "overloaded"),
        ("Internal error: 500 broken", {"status": -32603}, "model-error"),
        ("no such model", {}, "model-error"),
        ("no such model", {"otherwise": "agent-error"}, "agent-error"),
    ],
)
def test_a_failure_of_a_model_has_one_of_the_reasons(
    text: str, facts: dict[str, Any], reason: str
) -> None:
    failed = model_failure(text, **facts)
    assert (failed.text, failed.reason) == (text, reason)
    assert reason in (*REASONS, "agent-error")


@each(
    ("text", "resets_at", "retry"),
    [
        ("limit", EPOCH, {"retryAt": "2026-11-21T21:30:00Z"}),
        ("try again in 2s", EPOCH, {"retryAt": "2026-11-21T21:30:00Z"}),
        ("Suggested retry after 3600s.", None, {"retryAfter": 3600.0}),
        ("Please try again in 1m30s", None, {"retryAfter": 90.0}),
        ("try again in 250ms", None, {"retryAfter": 0.25}),
        ("try again in 5 minutes.", None, {"retryAfter": 300.0}),
        ('"retryDelay": "7s"', None, {"retryAfter": 7.0}),
        (
            "You will regain access on 2026-12-01 at 00:00 UTC.",
            None,
            {"retryAt": "2026-12-01T00:00:00Z"},
        ),
    ],
)
def test_the_next_attempt_is_what_the_provider_says(
    text: str, resets_at: Any, retry: dict[str, Any]
) -> None:
    assert model_failure(text, status=429, resets_at=resets_at).details == retry


@each(
    "text",
    [
        *("try again at 12:33 PM.", "resets 1:04pm (UTC)", "try again later", "429"),
        *("Retrying in 0.5 seconds...", "try again in a moment", "try again in 5 monkeys"),
        "regain access on 2026-12-01 at 00:00",
    ],
)
def test_no_time_is_guessed(text: str) -> None:
    assert model_failure(text, status=429).details is None


@each("value", [None, True, "1795296600", 0, -1, 2**40, float("nan"), float("inf"), {}])
def test_what_is_no_time_is_none(value: Any) -> None:
    assert moment(value) is None


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_a_long_text_is_read_quickly(shape: int) -> None:
    """A second: the work does not grow with the length."""
    before = time.process_time()
    model_failure(SHAPES[shape], kinds=(SHAPES[shape],))
    assert time.process_time() - before < 1
