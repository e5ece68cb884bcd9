"""Prompts that a real CLI could take for a command, a flag or a file: its model receives them and
answers, and nothing else happens. tests/system/test_hostile_prompts.py has every adapter, with a
program in place of its CLI.

A conversation has up to 30 turns: some CLIs in each run, the others in the soak tier."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.cli_row import Cli
from tests.support.client import artifact_text, context_id, said, state, strings
from tests.support.real_claude_code import answer, ask, script
from tests.support.real_clis import AIDER, CLIS, Real, params, serving

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

TEXTS = (
    *(
        "/help",
        "/clear",
        "/compact",
        "/init",
        "/nonsense",
        "\n/init",
        "\ufeff/init",
        "#note: CANARY",
    ),
    *("!touch CANARY", "&touch CANARY", "--version", "--help", "-", "exit", "logout", "\ttab"),
    "a\x00\x03\x04\x1a\x1b]52;c;eA==\x07b",
)
OWN = {
    "claude-code": ("/cost", "/context", "/model opus", "/mcp:a:b", "/memory"),
    "claude-agent-acp": ("/cost", "/context", "/mcp:a:b", "/review", "/security-review"),
    "codex": ("/status", "/model", "/approvals", "/diff", "$init", "/review"),
    "codex-acp": ("/status", "/review", "/review-branch x", "/diff", "$init", "/logout"),
    "cline": ("/status", "/newtask", "/deep-planning", "/newrule", "/smol", "/team x"),
    "droid": ("/status", "/review", "/init-deep", "/settings", "/mcp", "/share"),
    "gemini": ("/about", "/memory show", "/restore", "/extensions list", "/tools"),
    "qwen": ("/status", "/summary", "/export", "/btw x", "/context"),
    "opencode": ("/status", "/review", "/summarize", "/undo", "/share"),
    "kilo": ("/status", "/review", "/summarize", "/undo", "/share"),
    "copilot": ("/usage", "/session", "/share", "/allow-all", "/add-dir /", "/models"),
    "kimi": ("/status", "/usage", "/mcp", "/tasks", "/check-kimi-code-docs"),
    "grok": ("/context", "/session-info", "/always-approve on", "/feedback x"),
    "vibe": ("/data-retention", "/log", "/mcp status", "/leanstall"),
    "hermes": ("/context", "/tools", "/model x", "/reset", "/version"),
    "openhands": ("/confirm always-approve", "/status"),
    "deepagents": ("/model x", "/threads", "/tokens"),
    "aider": ("/run touch CANARY", "/add ../outside.txt", "/exit", "/test false", "{x"),
}
"""What may be a command of it."""
SECRET = "what-only-the-file-has"
OUTSIDE = (
    *("@../outside.txt", 'see @"../outside.txt"', "@@/../../outside.txt", "@{../outside.txt}"),
    *("@/etc/passwd", "read @/proc/self/environ"),
)
KEYS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def texts(cli: Cli) -> tuple[str, ...]:
    return (*TEXTS, *OWN[cli.name], *OUTSIDE)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=params(CLIS, "claude-code", "codex", "gemini"),
)
async def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Real]:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "outside.txt").write_text(SECRET)
    # Without a boundary, which would keep files from it that it must leave alone by itself.
    async with serving(request.param, folder, BRIDGE_SANDBOX="none") as server:
        yield server


def files(real: Real) -> list[Path]:
    """Those of the workspace, but for the map that aider draws of it."""
    found = real.workspace.rglob("*")
    return sorted(path for path in found if ".aider.tags.cache" not in str(path))


def as_told(cli: Cli, text: str) -> str:
    """How its model is told it, but for white space around it."""
    text = KEYS.sub(" ", text) if cli is AIDER else text
    return text.strip("\ufeff \n\t")


async def test_the_model_is_told_it_and_nothing_else_comes_of_it(real: Real) -> None:
    before = files(real)
    context: dict[str, Any] = {}
    for text in texts(real.cli):
        requests = len(real.model.requests)
        task = await real.client().send(text, **context)
        context = {"contextId": context_id(task)}
        assert state(task) == "completed", (text, said(task))
        assert artifact_text(task).strip() == "(no script in the prompt)", text
        told = [one for body in real.model.requests[requests:] for one in strings(body)]
        assert any(as_told(real.cli, text) in one for one in told), (text, told[-3:])
        assert not any(SECRET in one or "root:x:0" in one for one in told), text
        assert files(real) == before, text


@pytest.mark.soak
async def test_control_characters_of_an_answer_are_not_keys_of_aider(tmp_path: Path) -> None:
    """tests/component/process/test_pty_runner.py has this with a program in place of aider."""
    async with serving(AIDER, tmp_path) as real:
        path = real.workspace / "after.txt"
        asked = await ask(real.client(), script("run", real.run(f"touch {path}"), "the end"))
        again = await answer(real.client(), asked, "\x03\x04\x1a\x1b]52;c;eA==\x07")
        assert (state(again), path.exists()) == ("input-required", False)
        done = await answer(real.client(), again, "yes")
        assert (state(done), path.exists()) == ("completed", True), said(done)
