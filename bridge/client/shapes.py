"""Requests and answers in the shapes of A2A 1.0, and their translation to and from 0.3.

The client reads and prints the JSON of 1.0 only. It uses plain objects, not the models of `a2a/`:
those would double the time that a command needs to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXTENSION = "urn:coding-agent-bridge:v1"
"""The extension of the bridge (docs/extension.md)."""
Json = dict[str, Any]

TERMINAL = frozenset(
    f"TASK_STATE_{name}" for name in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
INTERRUPTED = frozenset({"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"})
_STATES = ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "AUTH_REQUIRED", "COMPLETED", "FAILED")
STATES: Mapping[str, str] = {
    name.lower().replace("_", "-"): f"TASK_STATE_{name}"
    for name in (*_STATES, "CANCELED", "REJECTED")
}
"""The names of 1.0 by the names of 0.3, which the text output has, too."""
UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
_ITEMS = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}


def short(state: str) -> str:
    """`input-required` for TASK_STATE_INPUT_REQUIRED. An unknown state stays as it is."""
    return next((name for name, full in STATES.items() if full == state), state)


def state_of(task: Mapping[str, Any]) -> str:
    """The state of a task or a status update."""
    return str((task.get("status") or {}).get("state") or UNSPECIFIED)


# --- from 0.3 ----------------------------------------------------------------------------------


def upgrade(value: Json) -> Json:
    """An object of 0.3 with `kind` as an item of a stream of 1.0: an object with one member."""
    kind = _ITEMS.get(str(value.get("kind")), "task" if "status" in value else "message")
    convert = {
        "task": upgrade_task,
        "message": _upgrade_message,
        "statusUpdate": upgrade_task,
        "artifactUpdate": _upgrade_artifact_update,
    }[kind]
    return {kind: convert(value)}


def upgrade_task(value: Json) -> Json:
    """A task or a status update of 0.3 in the shape of 1.0."""
    task = _without(value, "kind", "final")
    status = dict(value.get("status") or {})
    status["state"] = STATES.get(str(status.get("state")), UNSPECIFIED)
    if isinstance(status.get("message"), dict):
        status["message"] = _upgrade_message(status["message"])
    task["status"] = status
    if value.get("artifacts"):
        task["artifacts"] = [_upgrade_parts(one) for one in value["artifacts"]]
    if value.get("history"):
        task["history"] = [_upgrade_message(one) for one in value["history"]]
    return task


def _upgrade_message(value: Json) -> Json:
    message = _upgrade_parts(_without(value, "kind"))
    return {**message, "role": "ROLE_USER" if value.get("role") == "user" else "ROLE_AGENT"}


def _upgrade_artifact_update(value: Json) -> Json:
    return {**_without(value, "kind"), "artifact": _upgrade_parts(value.get("artifact") or {})}


def _upgrade_parts(value: Json) -> Json:
    return {**value, "parts": [_upgrade_part(part) for part in value.get("parts") or ()]}


def _upgrade_part(value: Json) -> Json:
    part = {"metadata": value["metadata"]} if value.get("metadata") else {}
    if value.get("kind") == "file":
        file = value.get("file") or {}
        part |= {"url": file["uri"]} if file.get("uri") else {"raw": file.get("bytes", "")}
        names = {"mediaType": file.get("mimeType"), "filename": file.get("name")}
        return {**part, **{name: given for name, given in names.items() if given}}
    kind = "data" if value.get("kind") == "data" else "text"
    return {**part, kind: value.get(kind)}


def upgrade_push(value: Json) -> Json:
    config = dict(value.get("pushNotificationConfig") or {})
    schemes = (config.get("authentication") or {}).get("schemes") or ()
    if schemes:
        config["authentication"] = {"scheme": schemes[0]}
    return {"taskId": value.get("taskId"), **config}


def upgrade_page(value: Json) -> Json:
    return {**value, "tasks": [upgrade_task(task) for task in value.get("tasks") or ()]}


# --- to 0.3 ------------------------------------------------------------------------------------


def downgrade_send(params: Json) -> Json:
    given = dict(params.get("configuration") or {})
    configuration = {"blocking": not given.pop("returnImmediately", False), **given}
    message = dict(params["message"])
    message |= {"kind": "message", "role": "user"}
    message["parts"] = [_downgrade_part(part) for part in message["parts"]]
    return {**params, "message": message, "configuration": configuration}


def _downgrade_part(part: Json) -> Json:
    if "text" in part or "data" in part:
        kind = "text" if "text" in part else "data"
        value = part[kind]
        if kind == "data" and not isinstance(value, dict):  # data of 0.3 is an object
            value = {"value": value}
        return {"kind": kind, kind: value}
    file = {"mimeType": part.get("mediaType"), "name": part.get("filename")}
    file |= {"uri": part["url"]} if "url" in part else {"bytes": part["raw"]}
    return {"kind": "file", "file": {name: given for name, given in file.items() if given}}


def downgrade_list(params: Json) -> Json:
    status = params.get("status")
    return {**params, **({"status": short(status)} if status else {})}


def downgrade_push(params: Json) -> Json:
    config = _without(params, "taskId")
    given = config.get("authentication")
    if given:
        config["authentication"] = {**_without(given, "scheme"), "schemes": [given["scheme"]]}
    return {"taskId": params["taskId"], "pushNotificationConfig": config}


def downgrade_push_name(params: Json) -> Json:
    named = {"pushNotificationConfigId": params["id"]} if "id" in params else {}
    return {"id": params["taskId"], **named}


def _without(value: Mapping[str, Any], *names: str) -> Json:
    return {name: member for name, member in value.items() if name not in names}
