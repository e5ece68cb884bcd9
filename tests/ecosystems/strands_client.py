"""AWS Strands: an A2AAgent, invoked once for each prompt."""

from __future__ import annotations

from driver import coder, drive

agent = coder()


async def say(prompt: str) -> str:
    """What `print` shows of the result, which ends each block in a newline."""
    return str(await agent.invoke_async(prompt)).removesuffix("\n")


drive(say)
