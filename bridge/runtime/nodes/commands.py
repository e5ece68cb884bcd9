"""The commands that a server gives to the server that has a context, and their answers."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from bridge import errors
from bridge.a2a.requests import SendParams
from bridge.auth.principal import Principal
from bridge.errors import BridgeError, RequestError, Unavailable
from bridge.store.changes import CommandDone, ContextKey
from bridge.store.cluster import Command, Holder
from bridge.store.serialization import dump, load

Kind = Literal["send", "cancel", "push"]


class Elsewhere(BridgeError):
    """Another server has the context. The text is for clients, if that server is away."""

    def __init__(self, key: ContextKey, holder: Holder | None) -> None:
        server = f"The server {holder.name}" if holder else "Another server"
        super().__init__(f"{server} works in this context: send this there, or try again later.")
        self.key = key
        self.holder = holder


@dataclass(frozen=True, slots=True)
class TaskCommand:
    """`cancel`: end the task. `push`: its push config with the id `config_id` has changed."""

    task_id: str
    config_id: str = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to an accepted message: see Sent."""

    task_id: str
    after: int = 0
    again: bool = False


def send_command(key: ContextKey, sender: str, params: SendParams, principal: Principal) -> Command:
    # The client listens at this server, so the other one would take it for absent.
    params = replace(params, attends=False, push=None)
    return _command(key, sender, "send", principal, dump(params))


def task_command(
    kind: Kind, key: ContextKey, sender: str, principal: Principal, named: TaskCommand
) -> Command:
    return _command(key, sender, kind, principal, dump(named))


def _command(key: ContextKey, sender: str, kind: str, principal: Principal, body: bytes) -> Command:
    return Command(uuid.uuid4().hex, key, sender, kind, principal=dump(principal.bare()), body=body)


def done(command: Command, accepted: Accepted) -> CommandDone:
    return CommandDone(command.id, command.sender, dump(accepted))


def refused(command: Command, error: RequestError) -> CommandDone:
    members: dict[str, Any] = {"message": str(error), "details": dict(error.details)}
    for name in ("fields", "seconds"):
        if hasattr(error, name):
            members[name] = getattr(error, name)
    answer = orjson.dumps({"error": type(error).__name__, **members})
    return CommandDone(command.id, command.sender, answer)


def read_answer(answer: bytes) -> Accepted:
    """Raises the RequestError with which the command was refused."""
    members = orjson.loads(answer)
    if "error" in members:
        raise _error(members)
    return load(Accepted, answer)


def _error(members: dict[str, Any]) -> RequestError:
    kind = getattr(errors, str(members["error"]), None)
    if not (isinstance(kind, type) and issubclass(kind, RequestError)):
        kind = Unavailable  # a kind of a later version
    error = kind(members["message"])
    error.details = members["details"]
    for name in ("fields", "seconds"):
        if name in members:
            setattr(error, name, members[name])
    return error
