"""The tools: each one is a method with the arguments of a call, and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bridge.a2a.codec import timestamp
from bridge.a2a.requests import ListParams
from bridge.auth.principal import authorize
from bridge.errors import (
    DataLoss,
    RequestError,
    TaskNotCancelable,
    TaskNotFound,
    Unavailable,
)
from bridge.runtime.router import Router
from bridge.task.state import Task
from bridge.task.transitions import TaskState
from bridge.transports.mcp.calls import Call, note_task
from bridge.transports.mcp.delegates import DelegateAgent
from bridge.transports.mcp.delegation import Delegation
from bridge.transports.mcp.outcome import read_piece, title_of
from bridge.transports.mcp.questions import OpenQuestions
from bridge.transports.mcp.results import (
    ENVELOPE,
    MOST,
    Json,
    error_result,
    result,
    size_of,
    state_name,
)
from bridge.transports.mcp.tools import ToolList

LISTED = 20  # tasks of a list without a limit
TITLES = (120, 60, 30, 10)  # characters of a title, from the longest that fits
VALUES = (100, 20, 5, 1)  # values of each list of an agent, from the most that fit
NOT_ERRORS_OF_A_TOOL = (Unavailable, DataLoss)
"""They are errors of the request: the model cannot correct them."""
Tool = Callable[[Call, Mapping[str, Any]], Awaitable[Json]]


class Toolbox:
    def __init__(
        self,
        router: Router,
        agents: Sequence[DelegateAgent],
        delegation: Delegation,
        questions: OpenQuestions,
    ) -> None:
        self.list = ToolList()
        self._router = router
        self._agents = agents
        self._delegation = delegation
        self._questions = questions
        self._tools: Mapping[str, Tool] = {
            "list_agents": self._list_agents,
            "delegate": delegation.delegate,
            "wait": delegation.wait,
            "answer": self._answer,
            "result": self._result,
            "cancel": self._cancel,
            "list_tasks": self._list_tasks,
        }

    async def call(self, name: str, call: Call, arguments: Mapping[str, Any]) -> Json:
        """The result of a tool of the list. A refusal is a result, too. Raises
        NOT_ERRORS_OF_A_TOOL."""
        try:
            self.list.check(name, arguments)
            return await self._tools[name](call, arguments)
        except NOT_ERRORS_OF_A_TOOL:
            raise
        except RequestError as problem:
            return error_result(self._sentence(problem, call))

    def _sentence(self, problem: RequestError, call: Call) -> str:
        """The error for a model, with the valid choices."""
        text = str(problem).replace("metadata.bridge.", "")
        fields = {name for name, _ in getattr(problem, "fields", ())}
        if "cwd" in fields:
            return f"{text}; possible are directories below: {', '.join(self._roots(call))}"
        if isinstance(problem, TaskNotFound):
            return f"{text} Call list_tasks to find your tasks."
        return text

    def _roots(self, call: Call) -> Sequence[str]:
        return list(dict.fromkeys(root for one in self._agents for root in _roots(one, call)))

    async def _list_agents(self, call: Call, arguments: Mapping[str, Any]) -> Json:
        authorize(call.principal, "read")
        for most in VALUES:
            shown: Json = {"agents": [_agent(one, call, most) for one in self._agents]}
            lines = [
                f"{one['id']}: {one['title']}; roots {', '.join(one['roots'])}"
                f"{'; busy' if one['busy'] else ''}{'; asks before it acts' if one['asks'] else ''}"
                for one in shown["agents"]
            ]
            text = "\n".join([*lines, "Call delegate with an agent's id."])
            if _fits(shown, text):
                break
        return result(shown, text)

    async def _answer(self, call: Call, arguments: Mapping[str, Any]) -> Json:
        handle = await self._router.get(arguments["task_id"], call.principal)
        authorize(call.principal, "approve")
        note_task(handle)
        after = handle.log.visible
        await self._questions.answer(handle, call, arguments)
        return await self._delegation.show(handle, call, after)

    async def _result(self, call: Call, arguments: Mapping[str, Any]) -> Json:
        return await read_piece(self._router, arguments, call.principal)

    async def _cancel(self, call: Call, arguments: Mapping[str, Any]) -> Json:
        with suppress(TaskNotCancelable):
            await self._router.cancel(arguments["task_id"], call.principal)
        handle = await self._router.get(arguments["task_id"], call.principal)
        return await self._delegation.show(handle, call, None)

    async def _list_tasks(self, call: Call, arguments: Mapping[str, Any]) -> Json:
        state, limit = arguments.get("state"), arguments.get("limit", LISTED)
        asked = ListParams(
            context_id=arguments.get("context_id"),
            state=TaskState(state.replace("_", "-")) if state else None,
            page_size=limit,
            page_token=arguments.get("page_token", ""),
        )
        handles, page = await self._router.list(asked, call.principal)
        tasks: list[tuple[Task, str]] = []
        for handle in handles:
            with suppress(DataLoss, TaskNotFound):
                tasks.append((await handle.listed(), handle.agent))
        for chars in TITLES:
            shown: Json = {"tasks": [_listed(task, agent, chars) for task, agent in tasks]}
            if page.next_token:
                shown["next_page_token"] = page.next_token
            lines = [
                f"{one['task_id']} {one['state']} {one['agent']}: {one['title']}"
                for one in shown["tasks"]
            ]
            text = "\n".join(lines) or "No tasks were found."
            if _fits(shown, text):
                return result(shown, text)
        return await self._list_tasks(call, {**arguments, "limit": max(limit // 2, 1)})


def _fits(shown: Json, text: str) -> bool:
    return size_of(shown) + size_of(text) <= MOST - ENVELOPE


def _agent(agent: DelegateAgent, call: Call, most: int) -> Json:
    """`most`: values of each of its lists."""
    return {
        "id": agent.id,
        "title": agent.title,
        "skills": list(agent.skills)[:most],
        "models": list(agent.models)[:most],
        "modes": list(agent.modes)[:most],
        "roots": _roots(agent, call)[:most],
        "busy": agent.is_busy(),
        "asks": agent.asks,
    }


def _listed(task: Task, agent: str, chars: int) -> Json:
    return {
        "task_id": task.id,
        "context_id": task.context_id,
        "agent": agent,
        "state": state_name(task.state),
        "title": title_of(task)[:chars],
        "changed": timestamp(task.status_time),
        "asks": task.question is not None,
    }


def _roots(agent: DelegateAgent, call: Call) -> list[str]:
    """The directories that the agent and the credentials of the client allow."""
    within = call.principal.workspaces
    if within is None:
        return list(agent.roots)
    both = {*agent.roots, *within}
    return [one for one in both if _below(one, agent.roots) and _below(one, within)]


def _below(path: str, roots: Sequence[str]) -> bool:
    return any(f"{path}/".startswith(f"{root.rstrip('/')}/") for root in roots)
