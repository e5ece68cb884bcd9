"""What the drivers of clients share. A driver makes the client from the snippet in
docs/integrations.md.

    python NAME_client.py SNIPPET URL TOKEN

Each line of its input is a prompt as a JSON string. The driver sends it as a user of the client
does, and prints what that user is shown, as a JSON string. The line `null` comes while a prompt is
under way: the driver stops it as the client's users do, and prints null."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

warnings.filterwarnings("ignore")
_, SNIPPET, URL, TOKEN = sys.argv
# What the libraries print is not an answer.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def coder(**names: Any) -> Any:
    """What the snippet calls `coder`. `names`: what its text says that it is given."""
    made = {"token": TOKEN, **names}
    exec(SNIPPET.replace("http://127.0.0.1:41242", URL), made)
    return made["coder"]


def drive(say: Callable[[str], Awaitable[str]]) -> None:
    """Obey the input until its end. An exception of `say` is what the user is shown."""
    asyncio.run(obey(say))


async def obey(say: Callable[[str], Awaitable[str]]) -> None:
    """As drive(), in a loop that runs."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    line = asyncio.ensure_future(lines.readline())
    while prompt := await line:
        line = asyncio.ensure_future(lines.readline())
        saying = asyncio.ensure_future(say(json.loads(prompt)))
        await asyncio.wait([saying, line], return_when=asyncio.FIRST_COMPLETED)
        if saying.done():
            error = saying.exception()
            answer(f"{type(error).__name__}: {error}" if error else saying.result())
        else:  # the line is null
            saying.cancel()
            await asyncio.wait([saying])
            await line
            line = asyncio.ensure_future(lines.readline())
            answer(None)


def answer(shown: str | None) -> None:
    print(json.dumps(shown), file=_answers, flush=True)
