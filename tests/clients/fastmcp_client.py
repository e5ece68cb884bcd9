"""Drive /mcp with the client of FastMCP: `fastmcp_client.py URL MODE`, MODE being a revision
without a handshake, or legacy. Prints one JSON object."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

PERMIT = {"prompt": "permit q May I?\ntext  ended"}


async def main(url: str, mode: str) -> dict[str, Any]:
    forms: list[str] = []

    async def fill_in(message: str, kind: Any, params: Any, context: Any) -> ElicitResult[Any]:
        forms.append(message)
        return ElicitResult(action="accept", content={"decision": "Go on"})

    async with Client(url, mode=mode, elicitation_handler=fill_in) as client:
        listed = [tool.name for tool in await client.list_tools()]
        agents = await client.call_tool("list_agents", {})
        asked = await client.call_tool("delegate", {**PERMIT, "wait_seconds": 40})
        resources = await client.list_resources()
        (content,) = await client.read_resource(resources[0].uri)
        return {
            "listed": listed,
            "agents": [one["id"] for one in agents.structured_content["agents"]],
            "text": asked.structured_content["text"],
            "resource": content.text,
            "forms": len(forms),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 30))))
