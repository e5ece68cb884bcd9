"""The commands of the pages work as a reader types them: literally, in order, with the defaults."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bridge import __version__
from bridge.server.settings.load import load
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.debian import checkout
from tests.support.pages import INSTALLED, SERVING, blocks, reading

README = CHECKOUT / "README.md"
ORDER = (
    *("Install", "Start in your project", "From an IDE", "With curl", "Several people", "Limits"),
    "Documentation",
)


def test_the_readme_is_short_and_in_order() -> None:
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= 150
    assert text.index("](docs/run.svg)") < text.index("\n## ")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(ORDER)


@pytest.mark.parametrize("ordinary", [False, True], ids=["root", "ordinary"])
async def test_the_commands_of_the_readme_work(reachable: Path, ordinary: bool) -> None:
    """Eight seconds: three servers start, and a task runs at a terminal."""
    async with reading(reachable, ordinary=ordinary) as reader:
        assert len(await reader.follow(README.read_text("utf-8"))) == 5


PAGES = {
    "cli.md": (3, ""),
    "mcp.md": (0, ""),
    "agents.md": (0, ""),
    "adapters.md": (2, ""),
    "backup.md": (0, SERVING),
    "deploy.md": (12, ""),
    "integrations.md": (1, ""),
    "security.md": (0, SERVING),
}
"""For each page of docs: how many of its blocks may be left out, and what is done before.
tests/system/test_curl.py has protocol.md."""


@pytest.mark.parametrize("page", PAGES)
async def test_the_commands_of_the_pages_work(page: str, tmp_path: Path) -> None:
    """Up to ten seconds: servers start."""
    left_out, before = PAGES[page]
    text = (CHECKOUT / "docs" / page).read_text("utf-8")
    marked = [block for block in blocks(text) if block.reason]
    assert len(marked) <= left_out
    if len(marked) < len(blocks(text)):
        async with reading(tmp_path) as reader:
            await reader.follow(INSTALLED + before)
            await reader.follow(text)


@each("page", ["agents.md", "integrations.md"])
def test_the_settings_of_the_pages_are_accepted(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a page in one file. tests/system/test_deploy_page.py has those of deploy.md."""
    text = (CHECKOUT / "docs" / page).read_text("utf-8")
    settings = "\n".join(re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert settings
    for folder in ("project", "tools"):
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "config.toml").write_text(settings.replace("/home/me", str(tmp_path)))
    monkeypatch.chdir(tmp_path / "project")
    loaded = load({"config_file": str(tmp_path / "config.toml")})
    assert loaded.warnings == []


@pytest.mark.soak
async def test_the_program_installs_as_a_tool(tmp_path: Path) -> None:
    """README's first command, for real: it builds the package and installs its dependencies from a
    registry, which takes seconds to minutes. The tool works elsewhere, without the checkout."""
    home, project = tmp_path / "home", tmp_path / "project"
    checkout(tmp_path / "checkout")
    project.mkdir()
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HOME")}
    env |= {"HOME": str(home), "PATH": f"{home}/.local/bin:{os.environ['PATH']}"}
    uv = shutil.which("uv") or str(_installed_uv(tmp_path / "uv"))

    def done(*line: str, cwd: Path = project) -> str:
        ended = subprocess.run(
            line, cwd=cwd, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert ended.returncode == 0, f"{line}:\n{ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr

    shown = done(uv, "tool", "install", ".", cwd=tmp_path / "checkout")
    assert "Installed 2 executables: cab, coding-agent-bridge" in shown
    shutil.rmtree(tmp_path / "checkout")
    assert __version__ in done("coding-agent-bridge", "--version")
    try:
        shown = done("cab", "run", "Add a --shout flag to greet.py")
        assert f"started a server for {project}" in shown
        assert re.search(r"^Resume: cab answer \S+ --question \S+ OPTION$", shown, re.MULTILINE)
        assert f" {home}/.local/bin/cab mcp\n" in done(
            "cab", "mcp", "--print-config", "claude-code"
        )
    finally:
        assert "stopped " in done("cab", "stop")


def _installed_uv(folder: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "uv")
    subprocess.run(pip, timeout=200, check=True)
    return folder / "bin/uv"
