"""The documents say what the code does."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

import bridge
from bridge.server.settings import former
from bridge.server.settings.root import VARIABLES
from tests import CHECKOUT
from tests.support import documents, pictures
from tests.support.bridge_process import bridge as bridge_process
from tests.support.cases import each
from tests.support.client import Client, artifact_text, context_id, said
from tests.support.hostile_cli import ATTEMPTS
from tests.support.terminal import Terminal

LONGEST = {
    "security.md": 5500,
    "evidence/security.md": 2500,
    "reliability.md": 1300,
    "agents.md": 1500,
}
"""Words of a page."""
DEMO = (sys.executable, str(CHECKOUT / "scripts/demo.py"))
REWRITE = "run: python -m tests.support.documents"


def test_the_table_of_settings_is_the_one_of_the_code() -> None:
    page = documents.SETTINGS.read_text("utf-8")
    assert documents.with_settings(page) == page, REWRITE


def test_the_page_of_settings_begins_with_the_ten_that_a_person_needs() -> None:
    page = documents.SETTINGS.read_text("utf-8")
    first = page[: page.index("\n## ")]
    names = re.findall(r"^\| `(\w+)` \|", first, re.MULTILINE)
    assert len(names) == 10 == len(set(names))
    assert {former.current(name.lower()) for name in names} <= VARIABLES


def test_the_matrix_of_clis_is_the_one_of_the_tests() -> None:
    page = documents.AGENTS.read_text("utf-8")
    assert documents.with_matrix(page) == page, REWRITE


def test_the_matrix_of_mcp_clients_is_the_one_of_the_tests() -> None:
    page = documents.MCP.read_text("utf-8")
    assert documents.with_mcp(page) == page, REWRITE


def test_the_table_of_system_calls_is_the_one_of_the_tests() -> None:
    page = documents.CALLS.read_text("utf-8")
    assert documents.with_calls(page) == page, REWRITE


def test_every_setting_has_a_help_text_and_is_in_env_example() -> None:
    assert documents.ENV_EXAMPLE.read_text("utf-8") == documents.env_example(), REWRITE
    assert {name for _, rows in documents.variables() for name, _, text in rows if text} == {
        name.upper() for name in VARIABLES
    }


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in (*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)]+)\)", document.read_text("utf-8")):
            if "://" not in target:
                path, _, anchor = target.partition("#")
                page = document.parent / path if path else document
                assert page.exists(), f"{document.name}: {target}"
                assert not anchor or anchor in anchors(page), f"{document.name}: {target}"


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def test_every_script_is_named_and_can_be_run() -> None:
    """In README.md, which has those of `.ci/run`, in CONTRIBUTING.md or in docs."""
    pages = [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *CHECKOUT.glob("docs/**/*.md")]
    by_page = [set(re.findall(r"\b(scripts/[\w-]+)(?![\w./-])", one.read_text())) for one in pages]
    assert {"scripts/install", "scripts/check", "scripts/test"} <= by_page[0]
    scripts = [path for path in (CHECKOUT / "scripts").iterdir() if os.access(path, os.X_OK)]
    own = {f"scripts/{path.name}" for path in scripts if path.is_file()}
    named = set().union(*by_page)
    assert own - named == set()
    assert {one for one in named - own if not (CHECKOUT / one).is_dir()} == set()


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
    page = documents.SECURITY.read_text("utf-8")
    assert documents.with_blast_radius(page) == page, REWRITE
    failed = documents.ATTEMPTS.read_text("utf-8")
    assert documents.with_attempts(failed) == failed, REWRITE
    cells = re.findall(r"[a-z0-9 ]+", f"{page}\n{failed}")
    missing = {name.replace("-", " ") for name in ATTEMPTS} - {one.strip() for one in cells}
    assert not missing


@each("page", LONGEST)
def test_a_page_is_short(page: str) -> None:
    text = (CHECKOUT / "docs" / page).read_text("utf-8")
    assert len(text.split()) <= LONGEST[page]


def test_the_page_of_security_begins_with_a_page_for_operators() -> None:
    page = documents.SECURITY.read_text("utf-8")
    first, _, rest = page.partition("\n## Callers\n")
    assert "## For operators" in first and rest
    assert len(first.split()) <= 800


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


@pytest.mark.parametrize("method", ["launch", "answer"])
async def test_an_exception_of_an_adapter_is_in_the_task_with_its_line(
    tmp_path: Path, method: str
) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    code = example("example").replace(f"def {method}(", "def unused(", 1)
    at = code.index("    def unused(")
    broken = f"    def {method}(self, *given):\n        return {{}}['missing']\n\n"
    (tmp_path / "parrot_adapter.py").write_text(code[:at] + broken + code[at:])
    line = code[:at].count("\n") + 2
    cli = tmp_path / "parrot"
    cli.write_text('#!/bin/sh\necho \'{"kind": "may", "id": 7, "do": "fly"}\'\nexec cat >&2\n')
    cli.chmod(0o755)
    env: Any = {"AGENT_ADAPTER": "parrot_adapter:Parrot", "AGENT_BINARY": str(cli)}
    path = f"{CHECKOUT}:{tmp_path}"
    async with bridge_process(workspace, **env, PYTHONPATH=path) as server, ClientSession() as http:
        client = Client(http, server.url)
        task = await client.send("hello")
        if method == "answer":
            task = await client.send("yes", taskId=task["id"])
        where = f"The adapter parrot failed in {method}() at parrot_adapter.py:{line}: KeyError: "
        assert said(task).startswith(where)
    assert f'\n      File "{tmp_path}/parrot_adapter.py", line {line}, in {method}\n' in server.log


def example(name: str) -> str:
    """The Python code of docs/adapters.md between two marks."""
    page = (CHECKOUT / "docs/adapters.md").read_text("utf-8")
    return page.partition(f"<!-- {name} -->\n```python\n")[2].partition("```\n")[0]


SAGE = f"""#!{sys.executable} -IS
import sys
if not sys.stdin.isatty():
    sys.exit("sage needs a terminal")
print("Sage 1.0. Type a question.")
while (line := input("sage> ")) != "/quit":
    if "write" in line:
        print("I want to write notes.txt")
        if input("Go on? [y/N] ") != "y":
            print("Then not.")
            continue
        open("notes.txt", "w").write(line)
    print(f"You asked: {{line}}")
"""


async def test_the_terminal_adapter_of_the_documents_works(tmp_path: Path) -> None:
    """With the default sandbox, in which the program must open a terminal."""
    (author := tmp_path / "sage").mkdir()
    (workspace := tmp_path / "project").mkdir()
    (author / "sage_adapter.py").write_text(example("terminal example"))
    (author / "sage").write_text(SAGE)
    (author / "sage").chmod(0o755)
    env: Any = {
        "AGENT_ADAPTER": "sage_adapter:Sage",
        "BRIDGE_SANDBOX": "auto",
        "PATH": f"{author}:{os.environ['PATH']}",
        "PYTHONPATH": f"{CHECKOUT}:{author}",
    }
    async with bridge_process(workspace, **env) as server, ClientSession() as http:
        assert re.search(r"agent +sage: ", server.log)
        client = Client(http, server.url)
        task = await client.send("what is a bird")
        assert artifact_text(task) == "You asked: what is a bird\n"
        asked = await client.send("write it", contextId=context_id(task))
        assert said(asked).startswith("Sage asks: Go on? [y/N]")
        task = await client.send("allow", taskId=asked["id"])
        assert artifact_text(task).endswith("You asked: write it\n")
    assert (workspace / "notes.txt").read_text() == "write it"


OWL = f"""#!{sys.executable} -IS
import json, sys
say = lambda **line: print(json.dumps(line), flush=True)
if "--resume=gone" in sys.argv:
    sys.exit("no such conversation")
say(type="hello", id="s1")
say(type="debug.x", y=1)
say(type="new", text="unheard of")
say(type="tool", id="t1", name="Look", input={{}})
say(type="tool_done", id="t1", output="seen", error=False)
say(type="word", text=" ".join(sys.argv[1:]) + ": " + sys.stdin.read())
say(type="bye", words=7)
"""


@pytest.fixture
def distribution(tmp_path: Path) -> Path:
    """A folder outside of the checkout with the examples as another distribution has them: a
    module, an entry point, and a test."""
    folder = tmp_path / "distribution"
    entry = folder / "owl_adapter-1.0.dist-info"
    entry.mkdir(parents=True)
    (folder / "owl_adapter.py").write_text(example("print example"))
    (folder / "test_owl.py").write_text(example("kit example"))
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: owl-adapter\nVersion: 1.0\n")
    (entry / "entry_points.txt").write_text(
        "[coding_agent_bridge.adapters]\nowl = owl_adapter:Owl\n"
    )
    (folder / "owl").write_text(OWL)
    (folder / "owl").chmod(0o755)
    return folder


async def test_the_print_mode_adapter_of_the_documents_works(
    distribution: Path, tmp_path: Path
) -> None:
    (tmp_path / "workspace").mkdir()
    env: Any = {
        "AGENT_ADAPTER": "owl",
        "AGENT_BINARY": str(distribution / "owl"),
        "PYTHONPATH": f"{CHECKOUT}:{distribution}",
    }
    async with bridge_process(tmp_path / "workspace", **env) as server, ClientSession() as http:
        client = Client(http, server.url)
        async with client.stream("hello") as items:
            told = [item async for item in items]
        task = await client.send("more", contextId=context_id(told[0]))
    text = str(told)
    assert "unheard of" in text and "debug.x" not in text and "Using tool: Look" in text
    assert artifact_text(task) == "-p --resume=s1: more"


@pytest.mark.soak
def test_an_adapter_of_another_distribution_passes_the_kit(distribution: Path) -> None:
    """By pytest, outside of the checkout, in a process of its own: that takes a second."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(distribution)]
    done = subprocess.run(
        [*argv, "--rootdir", str(distribution), "-c", os.devnull],
        cwd=distribution,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT}:{distribution}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b10 passed", done.stdout), done.stdout


def test_the_changelog_has_a_section_for_this_version() -> None:
    changelog = (CHECKOUT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {bridge.__version__} " in changelog


async def test_the_demo_ends_by_itself_and_well(tmp_path: Path) -> None:
    """Four seconds: a server and three commands start."""
    process = await asyncio.create_subprocess_exec(
        *DEMO, cwd=CHECKOUT, stdout=asyncio.subprocess.PIPE, env={"PATH": str(tmp_path)}
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    assert text.count("Question:\n  Claude Code asks to use ") == 2
    assert "State: completed" in text


async def test_the_demo_at_a_terminal_is_the_command_run(tmp_path: Path) -> None:
    """Three seconds: a server and a client start."""
    terminal = Terminal(DEMO, CHECKOUT, {"PATH": str(tmp_path)}, 100, 50)
    try:
        for tool in ("Edit", "Bash"):
            await terminal.allows(f"Claude Code asks to use {tool}")
        assert await terminal.ended() == 0
    finally:
        terminal.close()
    assert terminal.text.count("✓ allowed by you") == 2
    assert "✓ done · " in terminal.text and "Traceback" not in terminal.text


async def test_the_picture_is_what_run_shows() -> None:
    """Three seconds: a server and a client start. Otherwise: python -m tests.support.pictures"""
    assert pictures.PICTURE.read_text("utf-8") == await pictures.picture()


def test_the_matrix_of_clients_is_that_of_the_tests() -> None:
    page = documents.CLIENTS.read_text("utf-8")
    assert documents.with_clients(page) == page, REWRITE
