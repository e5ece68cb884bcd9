"""Microsoft Agent Framework as a client, in its own environment (.venvs/agent-framework): prints
what its users get, as JSON.

    agent_framework_client.py SNIPPET URL PROMPT…

SNIPPET makes the agent `coder`, given `httpx_client` and a `card`. `runs`: the text of a blocking
run for each prompt of one session. `stream`: the text of a streamed run of the first prompt.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from a2a.client import A2ACardResolver


async def main(snippet: str, url: str, prompts: list[str]) -> None:
    async with httpx.AsyncClient() as client:
        card = await A2ACardResolver(httpx_client=client, base_url=url).get_agent_card()
    made: dict[str, Any] = {"card": card, "url": url}
    exec(snippet, made)
    agent = made["coder"]
    session = agent.create_session()
    runs = [(await agent.run(prompt, session=session)).text for prompt in prompts]
    stream = ""
    if len(prompts) == 1 and "wait" not in prompts[0]:
        async for update in agent.run(prompts[0], stream=True):
            stream += update.text or ""
    print(json.dumps({"runs": runs, "stream": stream}))


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
