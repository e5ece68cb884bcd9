"""Microsoft Agent Framework: runs of an A2AAgent in one session."""

from __future__ import annotations

from typing import Any

from driver import coder, drive

make = coder()


class Conversation:
    """One session with the agent."""

    def __init__(self) -> None:
        self._agent: Any = None
        self._session: Any = None

    async def run(self, prompt: str) -> str:
        """The text of a blocking run."""
        return str((await self._run(prompt)).text)

    async def stream(self, prompt: str) -> str:
        """The text of a streamed run, as it comes."""
        updates = await self._run(prompt, stream=True)
        return "".join([update.text or "" async for update in updates])

    async def _run(self, prompt: str, **options: bool) -> Any:
        if self._agent is None:
            self._agent = await make()
            self._session = self._agent.create_session()
        run = self._agent.run(prompt, session=self._session, **options)
        return run if options else await run


if __name__ == "__main__":
    drive(Conversation().run)
