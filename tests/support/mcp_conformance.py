"""The conformance suite of MCP and the inspector, as packages of npm, against the bridge."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import CHECKOUT
from tests.support.mcp import Json

FOLDER = CHECKOUT / "tests/clients/mcp-suites"
PACKAGES: dict[str, str] = json.loads((FOLDER / "package.json").read_text())["dependencies"]
RUNS_WITHIN = 240.0  # seconds
SCENARIO_MS = "20000"

PASSED = (
    "http-header-validation",
    "input-required-result-ignore-extra-params",
    "input-required-result-missing-input-response",
    "input-required-result-multi-round",
    "input-required-result-request-state",
    "input-required-result-result-type",
    "input-required-result-tampered-state",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "ping",
    "resources-list",
    "sep-2164-resource-not-found",
    "server-initialize",
    "server-session-lifecycle",
    "server-sse-multiple-streams",
    "server-sse-polling",
    "tasks-capability-negotiation",
    "tasks-dispatch-and-envelope",
    "tasks-request-state-removal",
    "tasks-status-notifications",
    "tasks-wire-fields",
    "tools-call-elicitation",
    "tools-call-error",
    "tools-list",
)
"""Scenarios without a failed check."""

_CONTENT = "the suite's own words, images, audio or schema as the content of a tool"
_METHOD = "a method that the bridge does not offer, and does not advertise"
_RESOURCE = "the suite's own resources"
_REQUEST = "sampling and roots: the bridge asks by elicitation only"
NOT_PASSED = {
    "caching": "prompts; the other lists pass",
    "completion-complete": _METHOD,
    "dns-rebinding-protection": "an Origin on localhost that the operator has not allowed",
    "elicitation-sep1034-defaults": "forms with defaults: a form of the bridge has none",
    "elicitation-sep1330-enums": "forms with all kinds of enum: the bridge uses the plain one",
    "http-custom-header-server-validation": "tools with arguments in headers",
    "input-required-result-basic-elicitation": "a key of the suite's choice for the form",
    "input-required-result-basic-list-roots": _REQUEST,
    "input-required-result-basic-sampling": _REQUEST,
    "input-required-result-capability-check": _REQUEST,
    "input-required-result-multiple-input-requests": "two forms at once: an agent asks one by one",
    "input-required-result-non-tool-request": _METHOD,
    "json-schema-2020-12": _CONTENT,
    "logging-set-level": _METHOD,
    "prompts-get-embedded-resource": _METHOD,
    "prompts-get-simple": _METHOD,
    "prompts-get-with-args": _METHOD,
    "prompts-get-with-image": _METHOD,
    "prompts-list": _METHOD,
    "resources-read-binary": _RESOURCE,
    "resources-read-text": _RESOURCE,
    "resources-subscribe": _METHOD,
    "resources-templates-read": _RESOURCE,
    "resources-unsubscribe": _METHOD,
    "server-stateless": "four diagnostic tools of the suite; the other 21 checks pass",
    "tasks-lifecycle": "a task that fails by an error of the protocol; the other 8 checks pass",
    "tasks-mrtr-composition": "questions before the task exists",
    "tasks-mrtr-input": "two forms at once; the other 3 checks pass",
    "tasks-request-headers": "the suite's own words; the other 3 checks pass",
    "tasks-required-task-error": "a tool that requires tasks: each works without them",
    "tools-call-audio": _CONTENT,
    "tools-call-embedded-resource": _CONTENT,
    "tools-call-image": _CONTENT,
    "tools-call-mixed-content": _CONTENT,
    "tools-call-sampling": _REQUEST,
    "tools-call-simple-text": _CONTENT,
    "tools-call-with-logging": _METHOD,
    "tools-call-with-progress": "three reports of progress within a moment",
}
"""Scenarios with a failed check, and their needs that a bridge does not meet."""
SKIPPED = ("sep-2640-skills-",)
"""The beginnings of the names of scenarios about extensions that the bridge does not have."""


async def run(program: str, *words: str) -> tuple[int, str, str]:
    """The exit status and the output of a program of the packages."""
    path = FOLDER / "node_modules/.bin" / program
    assert path.exists(), f"{path} is missing: run scripts/install --soak"
    return await run_program("node", str(path), *words)


async def run_program(*line: str) -> tuple[int, str, str]:
    """The exit status and the output of a program, without the proxies of this environment."""
    process = await asyncio.create_subprocess_exec(
        *line,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(RUNS_WITHIN):
            output, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(), problems.decode()


_TIME = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")  # the end of the name of a folder


async def failed_checks(url: str, folder: Path) -> dict[str, Sequence[Json]]:
    """The failed checks of each scenario that the suite ran; `folder` gets its files."""
    words = ("server", "--suite", "all", "--timeout", SCENARIO_MS)
    _, output, problems = await run("conformance", *words, "--url", f"{url}/mcp", "-o", str(folder))
    found = dict(_results(folder))
    assert found, f"{output}\n{problems}"
    return found


def _results(folder: Path) -> Iterator[tuple[str, Sequence[Json]]]:
    for path in sorted(folder.glob("server-*/checks.json")):
        name = _TIME.sub("", path.parent.name.removeprefix("server-"))
        if not name.startswith(SKIPPED):
            checks = json.loads(path.read_text())
            yield name, [one for one in checks if one["status"] == "FAILURE"]


def table() -> str:
    """The lists of docs/mcp.md."""
    version = PACKAGES["@modelcontextprotocol/conformance"]
    lines = [
        f"`@modelcontextprotocol/conformance` {version}, {len(PASSED)} scenarios that pass:",
        "",
        *(f"* `{name}`" for name in PASSED),
        "",
        "| other scenario | needs |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in NOT_PASSED.items()),
    ]
    return "\n".join(lines) + "\n"
