"""The real CLIs, on scripted models, at the limits of a model: the reason of the failure and the
time of the next attempt are what the provider says."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.cli_row import Cli
from tests.support.client import Json, state
from tests.support.real_claude_code import bash, claude_code, reason, script
from tests.support.real_clis import CLIS, CODEX, each, serving

pytestmark = pytest.mark.real

RESET = int(time.time()) + 3600  # the end of the window of a subscription
AT = datetime.fromtimestamp(RESET, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
UNIFIED = {
    "status": "rejected",
    "reset": str(RESET),
    "representative-claim": "five_hour",
    "5h-reset": str(RESET),
    "5h-utilization": "1.0",
    "5h-status": "rejected",
}


def facts(item: Json) -> Json:
    inner = item.get("statusUpdate") or item
    return dict(inner["metadata"]["bridge"])


async def test_claude_code_with_a_subscription(tmp_path: Path) -> None:
    headers = {f"anthropic-ratelimit-unified-{name}": one for name, one in UNIFIED.items()}
    login = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-x"}
    async with claude_code(tmp_path, **login) as real:
        items = await real.client().collect(script("limit", {"error": 429, "headers": headers}))
    assert (state(items[-1]), reason(items[-1])) == ("failed", "rate-limit")
    assert facts(items[-1])["result"] == {"retryAt": AT}


async def test_codex_with_a_subscription(tmp_path: Path) -> None:
    window = {"used-percent": "100", "window-minutes": "300", "reset-at": str(RESET)}
    headers = {f"x-codex-primary-{name}": one for name, one in window.items()}
    body = {"type": "usage_limit_reached", "plan_type": "plus", "resets_at": RESET}
    async with serving(CODEX, tmp_path) as real:
        step = {"error": 429, "headers": headers, "body": body}
        items = await real.client().collect(script("limit", step))
        assert (state(items[-1]), reason(items[-1])) == ("failed", "rate-limit")
        assert facts(items[-1])["result"] == {"retryAt": AT}
        quota = {"error": 429, "body": {"type": "insufficient_quota"}}
        items = await real.client().collect(script("quota", quota))
        assert (state(items[-1]), reason(items[-1])) == ("failed", "quota")
        assert "result" not in facts(items[-1])


def by_name(name: str) -> Cli:
    return next(cli for cli in CLIS if cli.name == name)


PER_MINUTE = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"}],
}
LIMITS: list[tuple[str, Json, str]] = [
    ("opencode", {"error": 429, "retry_after": 0}, "rate-limit"),
    ("opencode", {"error": 400, "body": {"message": "Your credit balance is too low"}}, "quota"),
    (
        "opencode",
        {"error": 400, "body": {"message": "prompt is too long: 2 tokens > 1 maximum"}},
        "context-window",
    ),
    ("copilot", {"error": 429, "retry_after": 3600}, "rate-limit"),
    ("copilot", {"error": 400, "body": {"message": "Your credit balance is too low"}}, "quota"),
    ("qwen", {"error": 402, "body": {"message": "Insufficient Balance"}}, "quota"),
    ("claude-agent-acp", {"error": 529}, "overloaded"),
    # It ends the turn without a word, so that the reason cannot be known.
    ("kimi", {"error": 400, "body": {"message": "Your credit balance is too low"}}, "model-error"),
]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "step", "wanted"), LIMITS)
async def test_a_limit_has_its_reason_and_no_invented_time(
    tmp_path: Path, name: str, step: Json, wanted: str
) -> None:
    async with serving(by_name(name), tmp_path) as real:
        items = await real.client().collect(script("limit", step))
        assert (state(items[-1]), reason(items[-1])) == ("failed", wanted)
        assert "retryAt" not in facts(items[-1]).get("result", {})


@pytest.mark.soak
async def test_claude_agent_acp_with_a_subscription(tmp_path: Path) -> None:
    """It tells the time only after a message of the model in the same turn (0.101)."""
    headers = {f"anthropic-ratelimit-unified-{name}": one for name, one in UNIFIED.items()}
    login = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-x"}
    async with serving(by_name("claude-agent-acp"), tmp_path, **login) as real:
        limit = {"error": 429, "headers": headers}
        for steps, wanted in (((limit,), None), ((bash("echo hi"), limit), {"retryAt": AT})):
            items = await real.client().collect(script("limit", *steps))
            assert (state(items[-1]), reason(items[-1])) == ("failed", "rate-limit")
            assert facts(items[-1]).get("result") == wanted


@pytest.mark.soak
async def test_gemini_with_a_limit_for_each_minute(tmp_path: Path) -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3600s"}
    body = {"status": "RESOURCE_EXHAUSTED", "details": [PER_MINUTE, delay]}
    async with serving(by_name("gemini"), tmp_path) as real:
        before = time.time()
        items = await real.client().collect(script("limit", {"error": 429, "body": body}))
        assert (state(items[-1]), reason(items[-1])) == ("failed", "rate-limit")
        at = datetime.fromisoformat(facts(items[-1])["result"]["retryAt"])
        assert before + 3590 <= at.timestamp() <= time.time() + 3610


# Others try again for minutes, or say such errors in words of their own.
NOT_RETRIED = ("claude-code", "claude-agent-acp", "copilot")


@each([cli for cli in CLIS if cli.name not in ("cline", "droid", "aider", "codex")])
async def test_every_cli_has_a_reason(tmp_path: Path, cli: Cli) -> None:
    steps = {"auth": 401, "model-error": 400} if cli.name in NOT_RETRIED else {"auth": 401}
    async with serving(cli, tmp_path) as real:
        for wanted, status in steps.items():
            items = await real.client().collect(script(f"fail {wanted}", {"error": status}))
            assert (state(items[-1]), reason(items[-1])) == ("failed", wanted)
