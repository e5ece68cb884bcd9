"""The programs of docs/integrations.md on the official SDKs, run literally: they send a task, show
it as it streams, answer its questions and print the result."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.auth.principal import Token, digest
from tests import CHECKOUT
from tests.support.official_sdks import command
from tests.support.served import serving

pytestmark = pytest.mark.real
PAGE = (CHECKOUT / "docs/integrations.md").read_text("utf-8")
SECRET = "secret" * 4
TOKENS = {"alice": Token(hash=f"sha256:{digest(SECRET).hex()}")}
PROMPT = "text I look.\npermit q May I?\npermit r Really?\nask s Which?\ntext It is fine."
ANSWERS = ("yes", "yes", "the blue one")
LONGEST = 28  # lines of a program
WITHIN = 60.0  # seconds


def program(name: str, language: str) -> str:
    found = PAGE.partition(f"<!-- {name} -->\n```{language}\n")[2].partition("```")[0]
    assert 0 < found.count("\n") <= LONGEST, name
    return found


@pytest.mark.parametrize(
    ("sdk", "language", "run"),
    [
        ("python-v1", "python", ("-c",)),
        ("js-v1", "js", ("--input-type=module", "-e")),
    ],
    ids=("python", "js"),
)
async def test_a_program_of_the_page_answers_questions(
    workspace: Path, sdk: str, language: str, run: tuple[str, ...]
) -> None:
    """A second: the program starts with its SDK. Its second "yes" comes at once after the second
    question, and decides it nevertheless, because the program names the question."""
    interpreter, driver = command(sdk)
    async with serving(workspace, tokens=TOKENS) as server:
        name = ("--", "coder.mjs") if language == "js" else ()
        process = await asyncio.create_subprocess_exec(
            *(interpreter, *run, program(f"sdk-{language}", language), *name),
            *(server.url, SECRET, PROMPT),
            cwd=driver.parent,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin and process.stdout
        shown = b""
        try:
            async with asyncio.timeout(WITHIN):
                for question, answer in zip(
                    (b"May I?", b"Really?", b"Which?"), ANSWERS, strict=True
                ):
                    shown += await process.stdout.readuntil(question)
                    process.stdin.write(f"{answer}\n".encode())
                shown += await process.stdout.read()
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    text = shown.decode()
    assert text.startswith("I look.") and "\nTASK_STATE_COMPLETED: " in text
    assert text.count("Really?") == 1, "the question was not answered at once"
    assert '"the blue one"' in text and "It is fine." in text
