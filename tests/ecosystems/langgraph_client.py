"""LangGraph: a model that calls the tool of langgraph-a2a-client. It is told a ToolMessage."""

from __future__ import annotations

from driver import URL, coder, drive

(send,) = [tool for tool in coder().tools if tool.name == "a2a_send_message"]


async def say(prompt: str) -> str:
    """The text of the ToolMessage that the tool makes for a call by a model."""
    arguments = {"message_text": prompt, "target_agent_url": URL}
    call = {"type": "tool_call", "id": "1", "name": send.name, "args": arguments}
    return str((await send.ainvoke(call)).content)


drive(say)
