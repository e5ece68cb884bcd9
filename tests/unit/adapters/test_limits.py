"""Limits of models, as the real CLIs report them (measured lines), and how their turns end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bridge.task.events import AgentEvent, Done, Failed
from bridge.task.render import status_metadata
from bridge.task.state import StatusUpdate
from bridge.task.transitions import TaskState
from tests.support.cases import each
from tests.support.dialects import OfAcp, OfClaude, OfCodex

Json = dict[str, Any]
EPOCH, AT = 1795296600, "2026-11-21T21:30:00Z"


def claude(*lines: Json) -> Failed:
    cli = OfClaude()
    cli.prompt()
    return failure([event for line in lines for event in cli.say(**line)])


def failure(said: list[AgentEvent]) -> Failed:
    failed = said[-1]
    assert isinstance(failed, Failed)
    return failed


def acp(name: str) -> OfAcp:
    cli = OfAcp(name)
    cli.begin()
    return cli


def codex() -> OfCodex:
    cli = OfCodex()
    cli.begin()
    return cli


def shown(failed: Failed, now: datetime = datetime(2026, 11, 21, 20, tzinfo=UTC)) -> Json:
    metadata = status_metadata(StatusUpdate(TaskState.FAILED, now, failed, 1))
    assert metadata
    return dict(metadata["bridge"])


def result(**members: Any) -> Json:
    return {"type": "result", "subtype": "success", "is_error": True, **members}


def test_claude_code_says_when_the_window_of_a_subscription_resets() -> None:
    window = {"status": "rejected", "resetsAt": EPOCH, "rateLimitType": "five_hour"}
    failed = claude(
        {"type": "rate_limit_event", "rate_limit_info": window},
        {"type": "assistant", "message": {"id": "m"}, "error": "rate_limit"},
        result(api_error_status=429, api_error="usage_limit_reached", result="hit your limit"),
    )
    assert shown(failed) == {"reason": "rate-limit", "result": {"retryAt": AT}}


def test_a_window_that_still_allows_is_no_time_of_a_retry() -> None:
    window = {"status": "allowed_warning", "resetsAt": EPOCH}
    failed = claude(
        {"type": "rate_limit_event", "rate_limit_info": window},
        result(api_error_status=429, result="Request rejected (429)"),
    )
    assert shown(failed) == {"reason": "rate-limit"}


@each(
    ("error", "members", "reason"),
    [
        ("billing_error", {"api_error_status": 400, "result": "Credit is low"}, "quota"),
        ("overloaded", {"api_error_status": 529, "result": "529"}, "overloaded"),
        ("server_error", {"api_error_status": 500, "result": "500"}, "model-error"),
        (
            "unknown",
            {"api_error_status": 400, "terminal_reason": "prompt_too_long"},
            "context-window",
        ),
        ("authentication_failed", {"api_error_status": 401}, "auth"),
    ],
)
def test_claude_code_has_a_reason(error: str, members: Json, reason: str) -> None:
    failed = claude(
        {"type": "assistant", "message": {"id": "m"}, "error": error},
        result(**{"result": "x", **members}),
    )
    assert shown(failed) == {"reason": reason}


@each(
    ("primary", "secondary", "text", "wanted"),
    [
        (
            (100, EPOCH),
            (30, EPOCH + 9),
            "limit",
            {"reason": "rate-limit", "result": {"retryAt": AT}},
        ),
        ((100, 1), (100, EPOCH), "limit", {"reason": "rate-limit", "result": {"retryAt": AT}}),
        (None, None, "Quota exceeded. Check your plan", {"reason": "quota"}),
        (
            None,
            None,
            "You've hit your usage limit. Try again at 12:33 PM.",
            {"reason": "rate-limit"},
        ),
        ((40, EPOCH), None, "Quota exceeded. Check your plan", {"reason": "quota"}),
    ],
)
def test_the_window_tells_two_limits_of_codex_apart(
    primary: Any, secondary: Any, text: str, wanted: Json
) -> None:
    talk = codex()
    windows = {
        name: {"usedPercent": one[0], "resetsAt": one[1]} if one else None
        for name, one in (("primary", primary), ("secondary", secondary))
    }
    talk.told("account/rateLimits/updated", rateLimits=windows)
    error = {"message": text, "codexErrorInfo": "usageLimitExceeded"}
    failed = failure(talk.end("failed", error=error))
    assert shown(failed) == wanted


def test_a_full_window_of_an_earlier_turn_of_codex_says_nothing() -> None:
    talk = codex()
    full = {"primary": {"usedPercent": 100, "resetsAt": EPOCH}}
    talk.told("account/rateLimits/updated", rateLimits=full)
    talk.end()
    talk.begin()
    error = {"message": "Quota exceeded", "codexErrorInfo": "usageLimitExceeded"}
    failed = failure(talk.end("failed", error=error))
    assert shown(failed) == {"reason": "quota"}


@each(
    ("name", "error", "reason"),
    [
        (
            "gemini",
            {"code": 429, "message": "no capacity. Suggested retry after 3600s."},
            "rate-limit",
        ),
        ("gemini", {"code": 503, "message": "try later"}, "overloaded"),
        (
            "qwen",
            {"code": -32603, "message": "Internal error", "data": {"details": "402 No"}},
            "quota",
        ),
        (
            "opencode",
            {"code": -32603, "message": "x", "data": {"errorName": "APIError"}},
            "model-error",
        ),
        ("opencode", {"code": -32603, "message": "Credit balance is too low"}, "quota"),
        ("kimi", {"code": -32000, "message": "Authentication required: 401"}, "auth"),
        ("acp", {"code": -32603, "message": "no such file"}, "agent-error"),
    ],
)
def test_an_agent_of_acp_has_a_reason(name: str, error: Json, reason: str) -> None:
    talk = acp(name)
    failed = failure(talk.end(error=error))
    assert shown(failed)["reason"] == reason


def test_a_delay_becomes_a_time() -> None:
    talk = acp("gemini")
    error = {"code": 429, "message": "Suggested retry after 3600s."}
    failed = failure(talk.end(error=error))
    assert shown(failed)["result"] == {"retryAt": "2026-11-21T21:00:00Z"}


def test_claude_agent_says_the_time_of_a_limit_before_its_error() -> None:
    talk = acp("claude-agent-acp")
    meta = {"_claude/rateLimit": {"status": "rejected", "resetsAt": EPOCH}}
    talk.update("usage_update", _meta=meta)
    error = {"code": -32603, "message": "limit", "data": {"errorKind": "rate_limit"}}
    failed = failure(talk.end(error=error))
    assert shown(failed) == {"reason": "rate-limit", "result": {"retryAt": AT}}


@each(
    ("words", "reason"),
    [
        ("Error: 429 {rate_limit_error}", "rate-limit"),
        ("Error: 529 Overloaded", "overloaded"),
        ("Error: 401 Authentication failed", "auth"),
        ("Error: 400 prompt is too long", "context-window"),
        ("Error: it broke", "agent-error"),
    ],
)
def test_copilot_says_errors_in_words(words: str, reason: str) -> None:
    talk = acp("copilot")
    talk.text(words)
    failed = failure(talk.end())
    assert failed.reason == reason


def test_an_empty_end_of_a_turn_of_kimi_is_a_failure() -> None:
    talk = acp("kimi")
    failed = failure(talk.end())
    assert failed.reason == "model-error"


def test_nothing_after_the_last_tool_of_kimi_is_a_failure() -> None:
    talk = acp("kimi")
    talk.text("First, I look.")
    talk.update("tool_call", toolCallId="1", title="Read", status="completed")
    failure(talk.end())


@each("words", ["Done.", "The error was fixed."])
def test_an_answer_of_kimi_is_an_answer(words: str) -> None:
    talk = acp("kimi")
    talk.text(words)
    assert isinstance(talk.end()[-1], Done)


def test_a_conversation_that_kimi_cannot_shorten_is_too_long() -> None:
    talk = acp("kimi")
    talk.text("Compaction is blocked by the current turn")
    failed = failure(talk.end())
    assert failed.reason == "context-window"


def test_gemini_forgets_a_turn_that_is_interrupted_while_its_model_answers() -> None:
    talk = acp("gemini")
    assert talk.adapter.forgets
    talk.update("tool_call", toolCallId="1", title="x", status="in_progress")
    assert not talk.adapter.forgets
    talk.update("tool_call_update", toolCallId="1", status="completed")
    assert talk.adapter.forgets
    assert not acp("opencode").adapter.forgets
