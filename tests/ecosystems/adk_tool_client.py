"""Google ADK: a model that has the remote agent as an AgentTool. It repeats the result."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from adk_client import Conversation
from driver import coder, drive
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.genai import types


class Delegates(BaseLlm):
    """A model that delegates each prompt, and says what the tool has answered."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            result = last.function_response.response["result"]
            part = types.Part(text=result if isinstance(result, str) else json.dumps(result))
        else:
            part = types.Part.from_function_call(name="coder", args={"request": last.text})
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


model = Delegates(model="scripted")
drive(Conversation(LlmAgent(name="parent", model=model, tools=[AgentTool(coder())])).say)
