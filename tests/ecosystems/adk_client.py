"""Google ADK as a client, in its own environment (.venvs/adk): prints what its users get, as JSON.

    adk_client.py SNIPPET URL PROMPT…

SNIPPET makes the agent `coder`, given a `token`.

`agent`: what a user of RemoteA2aAgent is shown for each prompt of one session. `tool`: what a model
is told that has the agent as an AgentTool, for the first prompt.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncGenerator
from typing import Any

warnings.filterwarnings("ignore")

from google.adk.agents import LlmAgent  # noqa: E402
from google.adk.models.base_llm import BaseLlm  # noqa: E402
from google.adk.models.llm_request import LlmRequest  # noqa: E402
from google.adk.models.llm_response import LlmResponse  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.adk.tools.agent_tool import AgentTool  # noqa: E402
from google.genai import types  # noqa: E402


class Delegates(BaseLlm):
    """A model that delegates the prompt, and says what the tool has answered."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text=json.dumps(last.function_response.response["result"]))
        else:
            part = types.Part.from_function_call(name="coder", args={"request": last.text})
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def said(event: Any) -> str:
    """The text of an event. A question is a call of a function that only its user can answer."""
    parts = (event.content.parts if event.content else None) or []
    asked = [
        part.function_call.args.get("input_required", "") for part in parts if part.function_call
    ]
    return "".join(part.text or "" for part in parts if not part.thought) + "".join(asked)


async def run(agent: Any, prompts: list[str]) -> list[dict[str, Any]]:
    """What each prompt brings: `shown`, which a user interface shows as it comes, and `kept`, the
    texts that stay in the session."""
    runner = InMemoryRunner(agent=agent, app_name="test")
    session = await runner.session_service.create_session(app_name="test", user_id="u")
    seen = []
    for prompt in prompts:
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        shown, kept, error = "", [], None
        async for event in runner.run_async(
            user_id="u", session_id=session.id, new_message=message
        ):
            error = event.error_message or error
            if event.partial:
                shown += said(event)
            elif said(event):
                kept.append(said(event))
        seen.append({"shown": shown, "kept": kept, "error": error})
    return seen


def make(snippet: str, url: str) -> Any:
    made: dict[str, Any] = {"token": "any, since the server is open"}
    exec(snippet.replace("http://127.0.0.1:41242", url), made)
    return made["coder"]


async def main(snippet: str, url: str, prompts: list[str]) -> None:
    agent = await run(make(snippet, url), prompts)
    again = make(snippet, url)
    parent = LlmAgent(name="parent", model=Delegates(model="scripted"), tools=[AgentTool(again)])
    (tool,) = await run(parent, prompts[:1])
    print(json.dumps({"agent": agent, "tool": json.loads(tool["kept"][-1])}))


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
