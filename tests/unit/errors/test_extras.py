"""The command line that adds an extra, in the way of the installation. It names no package that an
index does not have."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from bridge.errors.extras import install_line, line_of
from tests import CHECKOUT


class Installed:
    """The metadata of an installation, as an installer writes them."""

    def __init__(self, **origin: object) -> None:
        self.origin = origin
        self.requires: list[str] | None = [
            "aiohttp>=3",
            "pytest>=1; extra == 'one'",
            "pytest>=1; extra == 'two'",
            "no-such-library>=1; extra == 'two'",
        ]

    def read_text(self, filename: str) -> str | None:
        assert filename == "direct_url.json"
        return json.dumps(self.origin) if self.origin else None


PIP = f"{shlex.quote(sys.executable)} -m pip install"
EDITABLE = Installed(url="file:///home/me/my%20tools", dir_info={"editable": True})
FOLDER = Installed(url="file:///src", dir_info={})
GIT = Installed(url="https://git.example/b.git", vcs_info={"vcs": "git"})


@pytest.mark.parametrize(
    ("found", "file", "wanted"),
    [
        (EDITABLE, None, f"{PIP} --editable '/home/me/my tools[redis]'"),
        (FOLDER, None, f"{PIP} '/src[redis]'"),
        (Installed(), None, f"{PIP} 'coding-agent-bridge[redis]'"),
        (GIT, None, f"{PIP} 'coding-agent-bridge[redis] @ git+https://git.example/b.git'"),
        (FOLDER, "uv-receipt.toml", "uv tool install --force '/src[one,redis]'"),
        (EDITABLE, "pipx_metadata.json", "pipx install --force --editable '/home/me/my tools["),
    ],
)
def test_an_extra_is_added_in_the_way_of_the_installation(
    tmp_path: Path, found: Installed, file: str | None, wanted: str
) -> None:
    if file:
        (tmp_path / file).write_text("")
    assert line_of("redis", found, str(tmp_path)).startswith(wanted)


def test_this_checkout_is_named_by_its_path() -> None:
    assert f"{CHECKOUT}[grpc]" in shlex.split(install_line("grpc"))
