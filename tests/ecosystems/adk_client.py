"""Google ADK: a RemoteA2aAgent in a session of its user."""

from __future__ import annotations

from typing import Any

from driver import coder, drive
from google.adk.runners import InMemoryRunner
from google.genai import types


class Conversation:
    """One session with an agent."""

    def __init__(self, agent: Any) -> None:
        self._runner = InMemoryRunner(agent=agent, app_name="test")
        self._session: Any = None

    async def say(self, prompt: str) -> str:
        """What its user is shown: the pieces that stream, or what came whole if none did; and a
        question, which is a call of a function that only the user can answer."""
        if self._session is None:
            sessions = self._runner.session_service
            self._session = await sessions.create_session(app_name="test", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        streamed, whole, asked = "", "", ""
        async for event in self._runner.run_async(
            user_id="u", session_id=self._session.id, new_message=message
        ):
            if event.partial:
                streamed += said(event)
            else:
                whole = said(event) or event.error_message or whole
                asked = asks(event) or asked
        return "\n".join(filter(None, [streamed or whole, asked]))


def said(event: Any) -> str:
    return "".join(part.text or "" for part in parts(event) if not part.thought)


def asks(event: Any) -> str:
    calls = (part.function_call for part in parts(event) if part.function_call)
    return "".join(call.args.get("input_required", "") for call in calls)


def parts(event: Any) -> list[Any]:
    return (event.content.parts if event.content else None) or []


if __name__ == "__main__":
    drive(Conversation(coder()).say)
