"""The shapes of the answers in openapi.json. They are stricter than the protocol: they allow no
other members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.a2a.codec import ERROR_DOMAIN
from bridge.a2a.v1_0 import V1_0
from bridge.transports.negotiation import JSON

Schema = dict[str, Any]
CONFIG = "TaskPushNotificationConfig"


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(name: str, least: int = 1) -> Schema:
    return {"type": "array", "items": ref(name), "minItems": least}


def _object(required: str, optional: str = "", own: Mapping[str, Schema] = {}) -> Schema:
    """An object with exactly these members, from `own` or MEMBERS."""
    known = {**MEMBERS, **own}
    return {
        "type": "object",
        "properties": {name: known[name] for name in f"{required} {optional}".split()},
        "required": required.split(),
        "additionalProperties": False,
    }


def _one_of(names: str) -> Schema:
    """An object with exactly one of these members."""
    return {**_object("", names), "minProperties": 1, "maxProperties": 1}


def _type(name: str) -> dict[str, Schema]:
    return {"@type": {"const": f"type.googleapis.com/google.rpc.{name}"}}


TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"type": "array", "items": TEXT}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_ANY: Schema = {"type": "object"}
_TEXTS_BY_NAME: Schema = {"type": "object", "additionalProperties": TEXT}
_ANYS: Schema = {"type": "array", "items": _ANY}
_TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
_DELAY: Schema = {"type": "string", "pattern": "^[0-9]+s$"}
_ITEM = {"type": "string", "contentMediaType": JSON, "contentSchema": ref("StreamResponse")}
# A stream is described by one of its events.
EVENT = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^[0-9]+$"}, "data": _ITEM},
    "required": ["id", "data"],
}
_DETAILS: Schema = {
    "type": "array",
    "items": {"oneOf": [ref("ErrorInfo"), ref("BadRequest"), ref("RetryInfo")]},
    "contains": ref("ErrorInfo"),
    "maxItems": 2,
}
# Most members have the same schema in all objects.
MEMBERS: Mapping[str, Schema] = {
    **dict.fromkeys(("id", "contextId", "taskId", "messageId", "artifactId"), NAME),
    **dict.fromkeys(("url", "scheme", "uri", "protocolBinding", "reason", "field"), NAME),
    **dict.fromkeys(("text", "raw", "mediaType", "filename"), TEXT),
    **dict.fromkeys(("name", "description", "version", "documentationUrl"), NAME),
    **dict.fromkeys(("append", "lastChunk", "streaming", "pushNotifications"), _FLAG),
    **dict.fromkeys(("extendedAgentCard", "required"), _FLAG),
    **dict.fromkeys(("tags", "examples", "inputModes", "outputModes"), _TEXTS),
    **dict.fromkeys(("defaultInputModes", "defaultOutputModes"), _TEXTS),
    **dict.fromkeys(("referenceTaskIds", "extensions"), _TEXTS),
    **dict.fromkeys(("metadata", "params", "securitySchemes"), _ANY),
    **dict.fromkeys(("securityRequirements", "signatures"), _ANYS),
    **dict.fromkeys(("pageSize", "totalSize", "code"), _COUNT),
    "data": {},
    "nextPageToken": TEXT,
    "domain": {"const": ERROR_DOMAIN},
    "timestamp": _TIME,
    "protocolVersion": {"const": V1_0.version},
    "state": {"enum": list(V1_0.states.values())},
    "role": {"enum": list(V1_0.roles.values())},
    "task": ref("Task"),
    "message": ref("Message"),
    "status": ref("TaskStatus"),
    "artifact": ref("Artifact"),
    "statusUpdate": ref("TaskStatusUpdateEvent"),
    "artifactUpdate": ref("TaskArtifactUpdateEvent"),
    "parts": _list("Part"),
    "history": _list("Message"),
    "artifacts": _list("Artifact"),
    "tasks": _list("Task", least=0),
    "configs": _list(CONFIG, least=0),
    "supportedInterfaces": _list("AgentInterface"),
    "skills": _list("AgentSkill"),
    "capabilities": ref("AgentCapabilities"),
    "fieldViolations": _list("FieldViolation"),
}
COMPONENTS: Mapping[str, Schema] = {
    "Task": _object("id contextId status", "history artifacts metadata"),
    "TaskStatus": _object("state timestamp", "message"),
    "Message": _object(
        "messageId role parts", "taskId contextId referenceTaskIds extensions metadata"
    ),
    "Artifact": _object("artifactId parts", "name description metadata"),
    "Part": {
        **_object("", "text raw url data mediaType filename metadata", {"url": TEXT}),
        "oneOf": [{"required": [name]} for name in ("text", "raw", "url", "data")],
    },
    "SendMessageResponse": _one_of("task message"),
    "StreamResponse": _one_of("task message statusUpdate artifactUpdate"),
    "TaskStatusUpdateEvent": _object("taskId contextId status", "metadata"),
    "TaskArtifactUpdateEvent": _object("taskId contextId artifact append lastChunk"),
    "ListTasksResponse": _object("tasks nextPageToken pageSize totalSize"),
    CONFIG: _object("taskId id url", "authentication", {"authentication": _object("scheme")}),
    f"List{CONFIG}sResponse": _object("configs nextPageToken"),
    "Empty": _object(""),
    "AgentCard": _object(
        "name description version supportedInterfaces capabilities defaultInputModes "
        "defaultOutputModes skills",
        "documentationUrl securitySchemes securityRequirements signatures",
    ),
    "AgentInterface": _object("url protocolBinding protocolVersion"),
    "AgentCapabilities": _object(
        "streaming pushNotifications extendedAgentCard extensions",
        own={"extensions": _list("AgentExtension")},
    ),
    "AgentExtension": _object("uri description required", "params"),
    "AgentSkill": _object("id name description tags examples inputModes outputModes"),
    "Error": _object("error", own={"error": ref("Status")}),
    # Of google.rpc:
    "Status": _object(
        "code status message details",
        own={"status": NAME, "message": NAME, "details": _DETAILS},
    ),
    "ErrorInfo": _object(
        "@type reason domain metadata",
        own={**_type("ErrorInfo"), "metadata": _TEXTS_BY_NAME},
    ),
    "BadRequest": _object("@type fieldViolations", own=_type("BadRequest")),
    "FieldViolation": _object("field description"),
    "RetryInfo": _object("@type retryDelay", own={**_type("RetryInfo"), "retryDelay": _DELAY}),
}
