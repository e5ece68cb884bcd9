"""What only one of the real CLIs that speak ACP does, on a scripted model, through the real server.
test_matrix.py has the cases that they share. Each test starts a CLI, which takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import artifact_text, facts, said, state
from tests.support.real_claude_code import answer, ask, script, tool
from tests.support.real_clis import OVER_ACP as CLIS
from tests.support.real_clis import serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


async def test_a_question_of_claude_is_a_form(tmp_path: Path) -> None:
    options = [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}]
    question: dict[str, Any] = {"question": "Which colour?", "header": "Colour"}
    question |= {"multiSelect": False, "options": options}
    async with serving(CLIS[0], tmp_path) as real:
        asked = script("ask", tool("AskUserQuestion", questions=[question]), "thanks")
        task = await ask(real.client(), asked)
        assert (facts(task)["kind"], facts(task)["freeText"]) == ("choice", True)
        task = await answer(real.client(), task, "Blue — b")
        assert artifact_text(task) == "thanks"
        assert '\\"Which colour?\\"=\\"Blue\\"' in json.dumps(real.requests("Which colour?")[-1])


async def test_gemini_without_a_key_says_how_to_log_in(tmp_path: Path) -> None:
    cli = next(one for one in CLIS if one.name == "gemini")
    async with serving(cli, tmp_path, GEMINI_API_KEY="", GOOGLE_GEMINI_BASE_URL="") as real:
        task = await real.client().send(script("x", "y"))
        assert state(task) == "failed"
        assert task["metadata"]["bridge"]["reason"] == "auth"
        assert "Gemini API key" in said(task)
