"""The MCP server: the library's low-level server over the tools, tasks and resources.

Handlers return dicts, because a pydantic result loses `ttlMs: null`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from mcp import types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import decode_header_value
from mcp.types.jsonrpc import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from bridge import __version__
from bridge.auth.principal import Principal
from bridge.auth.token_bucket import RateLimitedLogs
from bridge.errors import DataLoss, RequestError, TaskNotFound, Unavailable
from bridge.runtime.router import Router
from bridge.store.handle import TaskHandle
from bridge.store.protocol import Store
from bridge.task.nearest import no_such
from bridge.telemetry.observation import REQUEST, RequestSubject, observed
from bridge.telemetry.tracing.context import TRACES
from bridge.transports.mcp.announced import EXTENSION, NAME, SCOPE, TEMPLATES, TTL, not_found
from bridge.transports.mcp.asgi import EXCHANGE, App, Exchange
from bridge.transports.mcp.calls import Call, Elicit, Json, observed_tool
from bridge.transports.mcp.delegates import DelegateAgent
from bridge.transports.mcp.delegation import Delegation
from bridge.transports.mcp.keys import Marks
from bridge.transports.mcp.outcome import list_resources, read_resource
from bridge.transports.mcp.questions import Approve, OpenQuestions
from bridge.transports.mcp.sessions import IDLE
from bridge.transports.mcp.tasks import PolledTasks
from bridge.transports.mcp.toolbox import Toolbox

logging.getLogger("mcp").setLevel(logging.WARNING)
for module in ("request_state", "streamable_http_manager", "runner"):  # a client can repeat it
    logging.getLogger(f"mcp.server.{module}").addFilter(RateLimitedLogs())

NO_RESOURCE = -32002  # of an unknown resource, in revisions with sessions
MOST_STATE = 30 * 86_400.0  # seconds that a requestState is valid if questions have no limit
MOST_SESSIONS = 1_000
MOST_NAME = 200  # characters of a client's name and version
MOST_DEPTH_TEXT = 3  # digits of a depth in a header
CACHE: Mapping[Any, CacheHint] = {
    method: CacheHint(ttl_ms=ttl, scope=SCOPE) for method, ttl in TTL.items()
}
Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig:
    """`approve`, `quick`: see OpenQuestions. `most_depth`, `cancel_after`: see Delegation. `keep`:
    how long finished tasks are kept; None: without a limit. `patience`: seconds that a question
    waits; 0: without a limit. `secret`: at least 32 bytes that seal requestState."""

    approve: Approve
    quick: bool
    most_depth: int
    keep: timedelta | None
    patience: float
    secret: bytes
    cancel_after: float


class McpServer:
    """`agents`: for the tool list_agents. `asker`: the agent and the project of a task."""

    def __init__(
        self,
        router: Router,
        store: Store,
        agents: Sequence[DelegateAgent],
        asker: Callable[[TaskHandle], str],
        config: McpConfig,
    ) -> None:
        marks = Marks(store)
        questions = OpenQuestions(router, marks, asker, approve=config.approve, quick=config.quick)
        self._router = router
        self._delegation = Delegation(
            router,
            marks,
            questions,
            created=self._created,
            most_depth=config.most_depth,
            cancel_after=config.cancel_after,
        )
        self._tasks = PolledTasks(router, questions, self._delegation.final, config.keep)
        self._tools = Toolbox(router, agents, self._delegation, questions)
        self._manager = StreamableHTTPSessionManager(
            self._server(config), session_idle_timeout=IDLE, max_sessions=MOST_SESSIONS
        )
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def app(self) -> App:
        return self._manager.handle_request

    def user(self, principal: Principal) -> AuthenticatedUser:
        """The principal in the form of the library, which compares it with the one that began a
        session."""
        return AuthenticatedUser(AccessToken(token="", client_id=principal.id, scopes=[]))

    async def start(self) -> None:
        ready = asyncio.Event()
        self._running = asyncio.create_task(self._run(ready))
        await ready.wait()

    async def close(self) -> None:
        self._delegation.close()
        self._stop.set()
        if self._running:
            await self._running

    async def _run(self, ready: asyncio.Event) -> None:
        async with self._manager.run():
            ready.set()
            await self._stop.wait()

    async def _created(self, handle: TaskHandle, call: Call) -> Json:
        return await self._tasks.created(handle, call)

    # --- the server of the library ---------------------------------------------------------------

    def _server(self, config: McpConfig) -> Server[Any]:
        server = _Server(
            NAME,
            version=__version__,
            cache_hints=CACHE,
            get_tool_input_schema=self._tools.list.schema,
            on_list_tools=self._list_tools,  # type: ignore[arg-type]
            on_call_tool=self._call_tool,  # type: ignore[arg-type]
            on_list_resources=self._list_resources,  # type: ignore[arg-type]
            on_list_resource_templates=self._list_templates,  # type: ignore[arg-type]
            on_read_resource=self._read_resource,  # type: ignore[arg-type]
        )
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", _TaskParams, self._task(self._tasks.get))
        server.add_request_handler("tasks/update", _UpdateParams, self._task(self._tasks.update))
        server.add_request_handler("tasks/cancel", _TaskParams, self._task(self._tasks.cancel))
        security = RequestStateSecurity(
            keys=[config.secret],
            ttl=config.patience or MOST_STATE,
            bind_principal=lambda ctx: _exchange(ctx).principal.id,
        )
        # Without the library's own middleware, which is for OpenTelemetry.
        server.middleware = [_hint, RequestStateBoundary(security, default_audience=NAME)]
        return server

    async def _list_tools(self, ctx: Context, params: Any) -> Json:
        return {"resultType": "complete", "tools": list(self._tools.list.tools)}

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Json:
        if params.name not in self._tools.list:
            raise MCPError(INVALID_PARAMS, no_such("tool", params.name, self._tools.list.names))
        call = _call(ctx, params.request_state, _plain(params.input_responses))
        _continue_trace(ctx)
        with _Errors(), observed_tool(params.name, call.principal.id):
            return await self._tools.call(params.name, call, params.arguments or {})

    async def _list_resources(self, ctx: Context, params: Any) -> Json:
        with _Errors():
            found = await list_resources(self._router, _exchange(ctx).principal)
            return {"resultType": "complete", "resources": list(found)}

    async def _list_templates(self, ctx: Context, params: Any) -> Json:
        return {"resultType": "complete", "resourceTemplates": TEMPLATES}

    async def _read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> Json:
        unknown = INVALID_PARAMS if _is_modern(ctx) else NO_RESOURCE
        with _Errors(unknown, {"uri": params.uri}):
            return await read_resource(self._router, params.uri, _exchange(ctx).principal)

    def _task(
        self, method: Callable[[str, Call], Awaitable[Json]]
    ) -> Callable[[Context, Any], Awaitable[Json]]:
        """The handler of a method of the extension. The library knows neither the extension, nor
        the revisions without it, nor the header."""

        async def handle(ctx: Context, params: _TaskParams) -> Json:
            if not _is_modern(ctx):
                raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
            call = _call(ctx, None, getattr(params, "input_responses", {}))
            if not call.tasks:
                needed: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
                text = f"The client must declare the extension {EXTENSION}."
                raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, text, needed)
            name = _exchange(ctx).headers.get("Mcp-Name")
            if decode_header_value(name) != params.task_id:
                raise MCPError(HEADER_MISMATCH, "The header Mcp-Name must be the taskId.")
            with _Errors():
                return await method(params.task_id, call)

        return handle


class _Server(Server[Any]):
    def create_initialization_options(self, *args: Any, **kwargs: Any) -> InitializationOptions:
        """The answer to `initialize`: revisions with sessions have no extension for tasks."""
        return super().create_initialization_options(*args, **{**kwargs, "extensions": {}})


class _TaskParams(types.RequestParams):
    task_id: str


class _UpdateParams(_TaskParams):
    input_responses: dict[str, Any]  # responses to unknown keys have any shape


class _Errors:
    """A context that raises errors of the runtime as errors of MCP. `unknown`, `data`: the code and
    the data of the error for an unknown task or resource."""

    def __init__(self, unknown: int = INVALID_PARAMS, data: Json | None = None) -> None:
        self._unknown = unknown
        self._data = data

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        match error:
            case Unavailable():
                text = f"{error} Retry in {error.seconds} s."
                raise MCPError(INTERNAL_ERROR, text, {"retryAfterMs": error.seconds * 1000})
            case DataLoss():
                raise MCPError(INTERNAL_ERROR, str(error))
            case TaskNotFound():
                raise MCPError(self._unknown, str(error), self._data)
            case RequestError():
                raise MCPError(INVALID_PARAMS, str(error))


async def _hint(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware that adds the similar method to the error for an unknown one."""
    try:
        return await call_next(ctx)
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND and error.data == ctx.method:
            raise MCPError(METHOD_NOT_FOUND, not_found(ctx.method), ctx.method) from None
        raise


def _exchange(ctx: Context) -> Exchange:
    assert ctx.request is not None
    found: Exchange = ctx.request.scope[EXCHANGE]
    REQUEST.set(found.info)  # the library runs a call in a task of its session
    return found


def _continue_trace(ctx: Context) -> None:
    """A call is a span below the one that its `_meta` names, else below that of the headers."""
    traceparent, info = dict(ctx.meta or {}).get("traceparent"), observed()
    if isinstance(traceparent, str) and info.trace:
        info = replace(info, trace=TRACES.request(traceparent))
    REQUEST.set(replace(info, subject=RequestSubject()))


def _is_modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def _call(ctx: Context, state: str | None, answers: Mapping[str, Any]) -> Call:
    exchange, declared = _exchange(ctx), ctx.session.client_capabilities
    elicitation = declared.elicitation if declared else None
    forms = elicitation is not None and (elicitation.form is not None or elicitation.url is None)
    modern = _is_modern(ctx)
    info = ctx.session.client_params.client_info if ctx.session.client_params else None
    meta: Mapping[str, Any] = dict(ctx.meta or {})
    key = meta.get("claudecode/toolUseId")
    return Call(
        principal=exchange.principal,
        client=f"{info.name} {info.version}"[:MOST_NAME] if info else "unknown",
        revision=ctx.protocol_version,
        modern=modern,
        tasks=modern and EXTENSION in ((declared and declared.extensions) or {}),
        forms=forms,
        key=key if isinstance(key, str) else exchange.headers.get("Bridge-Call"),
        cwd=exchange.headers.get("Bridge-Cwd"),
        depth=_depth(exchange.headers.get("baggage", "")),
        caller=exchange.caller,
        response=exchange,
        elicit=_elicit(ctx) if forms and not modern else None,
        progress=_progress(ctx) if meta.get("progress_token") is not None else None,
        state=state,
        answers=answers,
    )


def _depth(baggage: str) -> int:
    """The number of agents that the request passed, from the member `bridge.depth`."""
    for member in baggage.split(","):
        name, _, value = member.partition(";")[0].partition("=")
        if name.strip() == "bridge.depth" and value.strip().isdigit():
            return int(value.strip()[:MOST_DEPTH_TEXT])
    return 0


def _elicit(ctx: Context) -> Elicit:
    async def elicit(params: Json) -> Mapping[str, Any]:
        found = await ctx.session.elicit_form(
            params["message"], params["requestedSchema"], related_request_id=ctx.request_id
        )
        return found.model_dump(by_alias=True, exclude_none=True)

    return elicit


def _progress(ctx: Context) -> Callable[[float, str], Awaitable[None]]:
    async def report(count: float, message: str) -> None:
        await ctx.session.report_progress(count, message=message)

    return report


def _plain(responses: types.InputResponses | None) -> Mapping[str, Mapping[str, Any]]:
    return {
        key: response.model_dump(by_alias=True, exclude_none=True)
        for key, response in (responses or {}).items()
    }
