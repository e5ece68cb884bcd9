"""The blocks of a page, their commands, and the outputs that a page stands for."""

from __future__ import annotations

from tests.support.cases import each
from tests.support.pages import Block, Command, blocks, commands, pattern

PAGE = """Text
```sh
one
```
<!-- not run: needs root -->
```console
$ two
```
```python
three
```
<!-- run -->
```console
$ four
```
"""


def test_the_blocks_between_two_marks_have_their_reason() -> None:
    found = [(block.kind, block.text, block.reason) for block in blocks(PAGE)]
    assert found == [
        ("sh", "one\n", ""),
        ("console", "$ two\n", "needs root"),
        ("console", "$ four\n", ""),
    ]


def test_a_command_ends_where_the_shell_waits_for_no_other_line() -> None:
    text = "$ curl \\\n  -d '{\n  }'\nshown\n$ next # it's\n"
    assert commands(Block("console", text, "")) == [
        Command("curl \\\n  -d '{\n  }'", "shown"),
        Command("next # it's", ""),
    ]


@each(
    "page, output, stands_for",
    [
        ("stopped …", "stopped http://127.0.0.1:1 (pid 5)", True),
        ("stopped …", "started http://127.0.0.1:1", False),
        ("…\nend", "a\nb\nend", True),
        ("…\nend", "a\nb\nend\nmore", False),
        ("in …/b: 41.9 MB in 12 files", "in /a/b: 0.1 MB in 3 files", True),
        ("in …/b: 41.9 MB in 12 files", "in /a/b: no MB in 3 files", False),
        ("port 41242/", "port 41243/", True),
        (":41242/x", ":41243/x", False),
    ],
)
def test_dots_are_any_text_and_figures_are_examples(
    page: str, output: str, stands_for: bool
) -> None:
    assert bool(pattern(page).fullmatch(output + "\n")) is stands_for
