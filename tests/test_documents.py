"""The documents say what the code does."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

import bridge
from tests import documents
from tests.bridge_process import bridge as bridge_process
from tests.client import Client, artifact_text, said

CHECKOUT = documents.CHECKOUT
REWRITE = "run: python -m tests.documents"


def test_the_tables_of_the_readme_are_those_of_the_code() -> None:
    readme = documents.README.read_text("utf-8")
    assert documents.with_tables(readme) == readme, REWRITE


def test_every_setting_is_in_env_example() -> None:
    assert documents.ENV_EXAMPLE.read_text("utf-8") == documents.env_example(), REWRITE


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in (documents.README, *(CHECKOUT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_script_that_the_readme_names_can_be_run() -> None:
    named = set(re.findall(r"`(scripts/[\w-]+)", documents.README.read_text("utf-8")))
    verbs = ("install", "demo", "test", "check", "bench", "chaos", "fuzz", "update-clis")
    assert named - {"scripts/soak"} == {f"scripts/{verb}" for verb in verbs}
    for script in named:
        assert os.access(CHECKOUT / script, os.X_OK), script


def test_the_walk_through_names_only_functions_that_exist() -> None:
    """docs/design.md follows a turn through `file.py: function, …`; none of them is invented."""
    design = (CHECKOUT / "docs/design.md").read_text("utf-8")
    walk = design.partition("<!-- walk -->")[2].partition("<!-- /walk -->")[0]
    steps = re.findall(r"`((?:bridge|adapters)/[\w/]+\.py)`: (.+)", walk)
    assert len(steps) >= 10
    for file, functions in steps:
        source = (CHECKOUT / file).read_text("utf-8")
        for function in re.findall(r"`(\w+)`", functions):
            assert re.search(rf"(?:def|class) {function}\b", source), f"{file}: {function}"


def test_the_blast_radius_is_the_one_that_was_measured() -> None:
    page = (CHECKOUT / "docs/security.md").read_text("utf-8")
    assert documents.with_blast_radius(page) == page, REWRITE


async def test_the_adapter_of_the_documents_works(tmp_path: Path) -> None:
    """docs/adapters.md has one; it is run on a CLI that speaks as that page says."""
    page = (CHECKOUT / "docs/adapters.md").read_text("utf-8")
    example = page.partition("<!-- example -->\n```python\n")[2].partition("```")[0]
    assert example.count("\n") <= 55
    (tmp_path / "parrot_adapter.py").write_text(example)
    cli = tmp_path / "parrot"
    cli.write_text(
        f"""#!{sys.executable} -IS
import json, sys
say = lambda **line: print(json.dumps(line), flush=True)
for line in sys.stdin:
    say(kind="word", text="You said ")
    say(kind="word", text=json.loads(line)["prompt"])
    print("by the way")
    say(kind="may", id=7, do="fly")
    say(kind="word", text=str(json.loads(sys.stdin.readline())))
    say(kind="over")
"""
    )
    cli.chmod(0o755)
    env: Any = {"AGENT_ADAPTER": "parrot_adapter:Parrot", "AGENT_BINARY": str(cli)}
    path = f"{CHECKOUT}:{tmp_path}"
    async with bridge_process(tmp_path, **env, PYTHONPATH=path) as server, ClientSession() as http:
        client = Client(http, server.url)
        asked = await client.send("hello")
        assert said(asked).startswith("Parrot asks: fly")
        task = await client.send("yes", taskId=asked["id"])
        assert artifact_text(task) == "You said hello{'answer': 7, 'ok': True}"


def test_the_changelog_has_a_section_for_this_version() -> None:
    changelog = (CHECKOUT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {bridge.__version__} " in changelog


async def test_the_demo_ends_by_itself_and_well(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CHECKOUT / "scripts/demo.py"),
        cwd=CHECKOUT,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": str(tmp_path)},
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    for expected in ("tool  Edit", "asks  Claude Code asks", "you  allow", "+++ ", "COMPLETED"):
        assert expected in text
