"""The commands on tasks that exist: get, cancel, list, subscribe, wait, and push configs."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

from bridge.cli.client.folding import width_of
from bridge.cli.client.messages import stdin_line
from bridge.cli.client.output import Fields, JsonOutput, TextOutput, print_json, warn
from bridge.cli.client.session import CommandSession, trace
from bridge.cli.client.task_table import Details, ordered, table, today
from bridge.client import bindings
from bridge.client.agent import RemoteAgent, page_of
from bridge.client.conversation import find, pages
from bridge.client.failure import AUTH_FAILED, NOT_A_TERMINAL, ClientError, needs_extension, usage
from bridge.client.follow import Follower
from bridge.client.shapes import INTERRUPTED, STATES, TERMINAL, Json, short, state_of

_MOST = 100  # tasks of a page


async def get(session: CommandSession) -> int:
    """Show a task. --wait polls until it ends or asks."""
    options = session.options
    async with session.connect() as agent:
        follower = session.follow(agent)
        if session.settings["wait"].source == "flag":
            async with aclosing(follower.poll(options.task)) as items:
                async for _ in items:
                    pass
        params = {"id": options.task, "historyLength": options.history or 0}
        task = await agent.call(bindings.GET, params)
    if session.json:
        print_json(task, lines=session.stream)
        return 0
    output = TextOutput(stream=False, verbose=session.value("verbose"))
    for message in task.get("history") or ():
        author = "User" if message.get("role") == "ROLE_USER" else "Agent"
        text = "".join(str(part.get("text", "")) for part in message.get("parts") or ())
        output.fields.block(f"{author} message", text)
    output.finish({"task": task}, session.resume({"task": task}))
    return 0


async def subscribe(session: CommandSession) -> int:
    """Follow a task until it ends or asks; of `attach`, also the newest task of a context."""
    options = session.options
    if options.after is not None and not options.after.isdigit():
        raise usage("--from is the number of an event")
    async with session.connect() as agent:
        if options.after is not None and not agent.card.is_bridge:
            raise needs_extension("--from")
        task_id = options.task
        if options.command == "attach":
            _, task = await find(agent, task_id)
            task_id = task["id"]
        follower = session.follow(agent)
        output = session.output(bare=True)
        if isinstance(output, TextOutput):
            output = TextOutput(stream=True, verbose=session.value("verbose"))
        async with aclosing(follower.subscribe(task_id, options.after)) as items:
            async for item in items:
                output.item(item)
        output.finish(follower.final, session.resume(follower.final))
        return session.exit_status(follower.final)


async def wait(session: CommandSession) -> int:
    """Wait until all tasks have ended or one asks."""
    async with session.connect() as agent:
        works = [asyncio.create_task(_end(session, agent, one)) for one in session.options.tasks]
        done: list[Json] = []
        try:
            for next_one in asyncio.as_completed(works):
                task = await next_one
                done.append(task)
                if not session.json:
                    _print_fields(task)
                elif session.stream:
                    print_json(task, lines=True)
                if state_of(task) in INTERRUPTED:
                    break
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
    if session.json and not session.stream:
        print_json(done[0] if len(session.options.tasks) == 1 else {"tasks": done})
    for task in done:
        warn(short(state_of(task)))
    return session.exit_status({"task": done[-1]})


async def _end(session: CommandSession, agent: RemoteAgent, task_id: str) -> Json:
    """The task when it has ended or asks."""
    follower = Follower(agent, poll_interval=session.value("poll_interval"))
    async with aclosing(follower.subscribe(task_id)) as items:
        async for _ in items:
            pass
    task: Json = follower.final["task"]
    return task


def _print_fields(task: Json) -> None:
    """The ids and the state of one of several tasks, and an empty line."""
    print(f"Task: {task.get('id')}\nContext: {task.get('contextId')}")
    print(f"State: {short(state_of(task))}\n", flush=True)


async def list_tasks(session: CommandSession) -> int:
    """List tasks: those that ask first, then running ones, then ended ones."""
    async with session.connect() as agent:
        if session.options.watch:
            return await _print_changes(session, agent)
        page = await agent.call(bindings.LIST, list_params(session))
        tasks, details = page.get("tasks") or [], Details()
        if not session.json:
            await details.read(agent, ordered(tasks))
    if session.json:
        for task in tasks if session.stream else ():
            print_json(task, lines=True)
        if not session.stream:
            print_json(page)
        return 0
    if tasks:
        print("\n".join(table(ordered(tasks), details, today(), width_of(sys.stdout))), flush=True)
    if page.get("nextPageToken"):
        Fields().field("Next page", session.command(*_again(session, page["nextPageToken"])))
    return 0


async def _print_changes(session: CommandSession, agent: RemoteAgent) -> int:
    """Print each task that is new or has changed as a line of JSON, until a signal comes."""
    shown: dict[str, Json] = {}
    while True:
        page = await agent.call(bindings.LIST, list_params(session))
        for task in page.get("tasks") or ():
            if shown.get(task["id"]) != task:
                shown[task["id"]] = task
                print_json(task, lines=True)
        await asyncio.sleep(session.value("poll_interval"))


def list_params(session: CommandSession) -> Json:
    """The parameters of a list. Raises ClientError."""
    options = session.options
    params: Json = {"pageSize": min(options.limit, _MOST), "historyLength": 0}
    if options.status:
        params["status"] = _full(options.status)
    if session.value("context_id"):
        params["contextId"] = session.value("context_id")
    if options.page_token:
        params["pageToken"] = options.page_token
    return params


def _again(session: CommandSession, token: str) -> tuple[str, ...]:
    given = ("--status", session.options.status) if session.options.status else ()
    context = session.settings["context_id"]
    chosen = ("--context-id", context.value) if context.source == "flag" else ()
    return ("task", "list", *given, *chosen, "--page-token", token)


def _full(state: str) -> str:
    full = STATES.get(state.lower().replace("_", "-"), state)
    if full not in STATES.values():
        raise usage(f"{state!r} is not a state: {', '.join(STATES)}")
    return full


async def cancel(session: CommandSession) -> int:
    """Cancel tasks. A task that has ended stays as it is."""
    options = session.options
    context_id = session.value("context_id")
    if not (options.tasks or options.all or context_id):
        raise usage("a TASK, --context-id or --all is necessary")
    async with session.connect() as agent:
        ids = options.tasks or await _unfinished(agent, None if options.all else context_id)
        if options.all and not options.yes:
            _confirm(len(ids))
        tasks = [await _cancel(agent, one) for one in ids]
    if session.json:
        for task in tasks if session.stream else ():
            print_json(task, lines=True)
        if not session.stream:
            print_json(tasks[0] if len(tasks) == 1 else {"tasks": tasks})
        return 0
    for task in tasks:
        _print_fields(task)
    return 0


def _confirm(count: int) -> None:
    """Raises ClientError unless a person agrees."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ClientError(NOT_A_TERMINAL, f"--all would cancel {count} tasks: add --yes")
    trace(f"cancel {count} tasks? Type yes:")
    if sys.stdin.readline().strip() != "yes":
        raise usage("nothing was canceled")


async def _cancel(agent: RemoteAgent, task_id: str) -> Json:
    try:
        task: Json = await agent.call(bindings.CANCEL, {"id": task_id})
    except ClientError as error:
        if error.code != "TaskNotCancelableError":
            raise
        task = await agent.call(bindings.GET, {"id": task_id, "historyLength": 0})
    return task


async def _unfinished(agent: RemoteAgent, context_id: str | None) -> list[str]:
    """The ids of all tasks of the principal that have not ended."""
    base = agent.base
    if agent.card.is_bridge and base and not context_id:
        # ListTasks has the tasks of all principals, if the token has the scope `admin`.
        try:
            found = await agent.get(page_of(base, "/monitor/tasks?owner=self"))
            return [one["id"] for one in found["tasks"] if STATES[one["state"]] not in TERMINAL]
        except ClientError as error:
            if error.code != AUTH_FAILED:
                raise
    params: Json = {"contextId": context_id} if context_id else {}
    found = [one async for page in pages(agent, params) for one in page]
    return [one["id"] for one in found if state_of(one) not in TERMINAL]


# --- push notification configs -----------------------------------------------------------------


async def push_config(session: CommandSession) -> int:
    """Create, get, list or delete configs of push notifications."""
    options = session.options
    word = options.command.rpartition(" ")[2]
    params: Json = {"taskId": options.task}
    if getattr(options, "config_id", None):
        params["id"] = options.config_id
    if word == "create":
        params |= {"url": options.url}
        params |= {"token": options.push_token} if options.push_token else {}
        if options.auth_scheme:
            params["authentication"] = {"scheme": options.auth_scheme}
            if options.auth_credentials_stdin:
                params["authentication"]["credentials"] = stdin_line()
    operation = {
        "create": bindings.PUSH_CREATE,
        "get": bindings.PUSH_GET,
        "list": bindings.PUSH_LIST,
        "delete": bindings.PUSH_DELETE,
    }[word]
    async with session.connect() as agent:
        if not agent.card.has("pushNotifications"):
            text = "the card of the agent declares no push notifications"
            raise ClientError("PushNotificationNotSupportedError", text)
        result = await agent.call(operation, params)
    if session.json:
        JsonOutput(session.stream).finish(result or {}, "")
        return 0
    fields = Fields()
    for config in (result or {}).get("configs") or ([result] if result and word != "list" else ()):
        fields.field("Task", config.get("taskId") or options.task)
        fields.field("Config", config.get("id"))
        fields.field("URL", config.get("url"))
    if word == "delete":
        fields.field("Task", options.task)
        fields.field("Deleted", options.config_id)
    return 0
