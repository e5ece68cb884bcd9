"""BeeAI: runs of an A2AAgent, which keeps the conversation."""

from __future__ import annotations

from driver import coder, drive

agent = coder()


async def say(prompt: str) -> str:
    """The text of the last message of a run."""
    return str((await agent.run(prompt)).last_message.text)


drive(say)
