"""Mistakes of authors of adapters that are found when the server starts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bridge.errors import ConfigurationError
from bridge.server import registry

HEAD = "from bridge.adapter import Adapter, Launch\n\n\nclass Parrot(Adapter):\n"
WHOLE = f"""{HEAD}    name = "my-parrot"
    title = "Parrot"

    def launch(self):
        return Launch(("parrot",))

    def prompt(self, prompt):
        pass

    def receive_line(self, line):
        return []
"""
MISTAKES = {
    "no launch": (
        WHOLE.replace("def launch", "def lunch"),
        r"class Parrot \(FILE:4\) has no launch\(\), which every adapter needs",
    ),
    "no methods": (
        HEAD + '    name = title = "parrot"\n',
        r"class Parrot \(FILE:4\) has no launch\(\) and prompt\(\) and receive_line\(\)",
    ),
    "no name": (WHOLE.replace('    name = "my-parrot"\n', ""), r"FILE:4\) has no name: add "),
    "no title": (WHOLE.replace('    title = "Parrot"\n', ""), r"FILE:4\) has no title: add "),
    "a name that is no id": (WHOLE.replace("my-parrot", "my parrot"), r"FILE:4\).*'my parrot'"),
    "no class": ("Parrot = 1\n", "is not a subclass of bridge.adapter.Adapter"),
    "another name": ("class Owl: pass\n", "is not a subclass of bridge.adapter.Adapter"),
    "no syntax": ("\nclass Parrot(\n", r"SyntaxError: .*FILE:2\)"),
    "an exception": ("\n\n1 / 0\n", r"ZeroDivisionError: division by zero \(.*FILE:3\)"),
    "a name that is missing": ("from bridge.adapter import Launsh\n", r"ImportError: .*FILE:1\)"),
    "a module that is missing": ("import nowhere_at_all\n", "cannot import .*nowhere_at_all"),
}
_numbers = itertools.count()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an adapter, under a name that no test has imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / f"parrot_adapter_{next(_numbers)}.py"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_file_and_line(written: Path, mistake: str) -> None:
    code, text = MISTAKES[mistake]
    written.write_text(code)
    with pytest.raises(ConfigurationError, match=text.replace("FILE", written.name)):
        registry.load(f"{written.stem}:Parrot")


def test_a_whole_adapter_is_loaded(written: Path) -> None:
    written.write_text(WHOLE)
    assert registry.load(f"{written.stem}:Parrot").name == "my-parrot"
