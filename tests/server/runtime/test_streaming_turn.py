"""How much code a streaming turn runs: the files and functions of bridge/ that sys.setprofile sees
in this process, without properties, lambdas, comprehensions and the functions of the adapter."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests import CHECKOUT
from tests.support.client import streamed_text
from tests.support.liveness import listening
from tests.support.served import serving

ROOM = str(CHECKOUT / "bridge") + "/"
WATCHDOG = ROOM + "telemetry/watchdog.py"  # it beats four times a second, whatever else runs
MOST_FILES, MOST_FUNCTIONS = 18, 55
# With the request, a new context, its process and its end: 310 functions on a quiet machine. Timers
# of a busy one run a few more. telemetry/tracing/context.py is one of the files: a request asks it
# whether it has a trace. Four of the files are parts of modules that had more than 400 lines.
MOST_FILES_OF_A_TURN, MOST_FUNCTIONS_OF_A_TURN = 77, 400
WITHIN = 60.0


@contextmanager
def traced() -> Iterator[Counter[CodeType]]:
    """The functions of bridge/ that are called, and how often."""
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOM) and code.co_filename != WATCHDOG:
            calls[code] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@cache
def properties(file: str) -> frozenset[int]:
    """The first lines of the properties in a file, as code objects have them."""
    tree = ast.parse(Path(file).read_text("utf-8"))
    return frozenset(
        min(one.lineno for one in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("property" in ast.unparse(one) for one in node.decorator_list)
    )


def counted(code: CodeType) -> bool:
    is_property = code.co_firstlineno in properties(code.co_filename)
    return not code.co_name.startswith("<") and not is_property


def report(calls: Counter[CodeType]) -> tuple[int, int]:
    """Print the functions by file. Returns the numbers of files and functions."""
    functions = {(code.co_filename, code.co_qualname) for code in calls if counted(code)}
    files = {file for file, _ in functions}
    for file in sorted(files):
        names = sorted(name for other, name in functions if other == file)
        print(file.removeprefix(ROOM), len(names), *names)
    print(f"{len(files)} files, {len(functions)} functions")
    return len(files), len(functions)


async def test_the_way_of_a_text_to_its_client_runs_few_functions(workspace: Path) -> None:
    """From the pipe of the CLI to the bytes of the stream, in the middle of a turn. The best of
    three texts counts: a timer of the server may run beside one of them."""
    reports: list[tuple[int, int]] = []
    async with serving(workspace) as server, listening() as live:
        wait = f"\nwait {live.path} cli\n"
        script = wait.join(["text one", *(f"text {number}" for number in range(3)), ""])
        async with server.client().stream(script) as items, asyncio.timeout(WITHIN):
            await live.pid("cli")
            seen = [await anext(items) for _ in range(3)]  # the task, working, and the first text
            for _ in range(3):
                with traced() as calls:
                    await live.release("cli")
                    seen.append(await anext(items))
                reports.append(report(calls))
            await live.release("cli")
            seen += [item async for item in items]
    assert streamed_text(seen) == "one012"
    files, functions = min(reports)
    assert files <= MOST_FILES
    assert functions <= MOST_FUNCTIONS


async def test_a_turn_in_a_new_context_runs_a_limited_number_of_functions(workspace: Path) -> None:
    """With its request, its session and its process. The best of three counts, as above."""
    reports: list[tuple[int, int]] = []
    async with serving(workspace) as server:
        client = server.client()
        await client.collect("text first")  # imports, caches, and the fork server
        for _ in range(3):
            with traced() as calls:
                items = await client.collect("text one\ntext two")
            assert streamed_text(items) == "onetwo"
            reports.append(report(calls))
    files, functions = min(reports)
    assert files <= MOST_FILES_OF_A_TURN
    assert functions <= MOST_FUNCTIONS_OF_A_TURN
