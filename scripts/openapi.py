"""Generates bridge/server/openapi.json: the HTTP+JSON binding of A2A 1.0 as OpenAPI 3.1.

Routes, statuses, error reasons, states and the shapes of requests come from the tables of the
server. Only the shapes of answers are defined beside it, in openapi_answers.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from bridge import errors
from bridge.a2a.card import EXTENSION
from bridge.a2a.codec import ERRORS, STREAMING, Operation
from bridge.a2a.requests import ListRequest, Params, TaskParams
from bridge.a2a.v1_0 import V1_0, PushConfigRequest, PushNameRequest, PushTaskRequest, SendRequest
from bridge.server.openapi import GENERATED, PUBLIC
from bridge.transports.listener.refusals import REFUSALS
from bridge.transports.negotiation import A2A_JSON, JSON
from bridge.transports.rest import ROUTES, STATUS
from scripts.openapi_answers import COMPONENTS, CONFIG, EVENT, NAME, TEXT, Schema, ref

Refusal = type[errors.RequestError]
Refused = tuple[int, str, str]  # status, code of google.rpc, reason


@dataclass(frozen=True, slots=True)
class Contract:
    """The parameters of an operation (None: only those of its path), the component of its answer
    or of each event of its stream, and its errors. `_anytime` has the errors of every request."""

    params: type[Params] | None
    answer: str
    refusals: tuple[Refusal, ...]


_NO_TASK = (errors.TaskNotFound,)
_OVER = (errors.InvalidParams, errors.TaskNotFound, errors.UnsupportedOperation)
_NO_SEND = (*_OVER, errors.ContentTypeNotSupported)
CONTRACTS: Mapping[Operation, Contract] = {
    Operation.SEND: Contract(SendRequest, "SendMessageResponse", _NO_SEND),
    Operation.STREAM: Contract(SendRequest, "StreamResponse", _NO_SEND),
    Operation.GET: Contract(TaskParams, "Task", (errors.InvalidParams, errors.TaskNotFound)),
    Operation.LIST: Contract(ListRequest, "ListTasksResponse", (errors.InvalidParams,)),
    Operation.CANCEL: Contract(TaskParams, "Task", (errors.TaskNotFound, errors.TaskNotCancelable)),
    Operation.SUBSCRIBE: Contract(None, "StreamResponse", _OVER),
    Operation.PUSH_CREATE: Contract(PushConfigRequest, CONFIG, _NO_TASK),
    Operation.PUSH_GET: Contract(PushNameRequest, CONFIG, _NO_TASK),
    Operation.PUSH_LIST: Contract(PushTaskRequest, f"List{CONFIG}sResponse", _NO_TASK),
    Operation.PUSH_DELETE: Contract(PushNameRequest, "Empty", _NO_TASK),
    Operation.EXTENDED_CARD: Contract(None, "AgentCard", ()),
}
NOT_JSON = 415  # the status for a body that is not declared as JSON


@dataclass(frozen=True, slots=True)
class Server:
    """The settings that change the document. `bearer`: requests need a token, and there is an
    extended card."""

    bearer: bool = True


def generate() -> dict[str, Any]:
    """The content of openapi.json: a document and the patches for other kinds of servers."""
    found = document(Server())
    found["x-variants"] = {PUBLIC: _patch(document(Server()), document(Server(bearer=False)))}
    return found


def _patch(old: Schema, new: Schema) -> Schema:
    """The JSON merge patch (RFC 7396) from one object to another, which has no null."""
    patch: Schema = {name: None for name in old.keys() - new.keys()}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            if inner := _patch(before, value):
                patch[name] = inner
        elif before != value:
            patch[name] = value
    return dict(sorted(patch.items()))


def document(server: Server) -> dict[str, Any]:
    """The document of such a server. The name, version and URL of the agent are empty."""
    paths: dict[str, Schema] = {}
    for method, route, operation in ROUTES:
        path = re.sub(r"\{(\w+):.*?\}", r"{\1}", route)  # without the patterns of aiohttp
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, server)
    components: Schema = {
        "schemas": {**COMPONENTS, **_NESTED},
        "parameters": _headers(server),
        "responses": {
            name: response for name, response in _responses(server).items() if name in str(paths)
        },
    }
    if server.bearer:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "", "description": "", "version": ""},
        "servers": [{"url": ""}],
        "security": [{"bearer": []}] if server.bearer else [],
        "paths": paths,
        "components": components,
    }


# --- requests ----------------------------------------------------------------------------------


def _operation(method: str, path: str, operation: Operation, server: Server) -> Schema:
    in_path = re.findall(r"\{(\w+)\}", path)
    parameters: list[Schema] = [
        {"$ref": f"#/components/parameters/{one}"} for one in _headers(server)
    ]
    parameters += [_parameter(name, "path", NAME, required=True) for name in in_path]
    described: Schema = {"operationId": _operation_id(method, operation), "parameters": parameters}
    told = _told(operation, in_path)
    if method == "POST":
        content = _json({"type": "object", **told})
        described["requestBody"] = {"required": "required" in told, "content": content}
    else:
        parameters += _query(told["properties"])
    described["responses"] = {"200": _answer(operation), **_errors(method, operation, server)}
    return described


def _headers(server: Server) -> dict[str, Schema]:
    """The parameters of all operations."""
    extension = _parameter(
        "A2A-Extensions", "header", TEXT | {"examples": [EXTENSION]}, required=False
    )
    version = _parameter("A2A-Version", "header", {"enum": [V1_0.version]}, required=True)
    return {"version": version, "extensions": extension}


def _parameter(name: str, place: str, schema: Schema, required: bool) -> Schema:
    return {"name": name, "in": place, "required": required, "schema": schema}


def _operation_id(method: str, operation: Operation) -> str:
    """The name of the operation; with the method for its second route."""
    (name,) = (name for name, named in V1_0.methods.items() if named is operation)
    first, *_ = (route for route in ROUTES if route[2] is operation)
    return name if first[0] == method else f"{name}-{method}"


def _told(operation: Operation, in_path: Sequence[str]) -> Schema:
    """The members of a request besides those in the path, which take precedence."""
    model = CONTRACTS[operation].params
    whole = INPUTS[_Inputs.called(model.__name__)] if model else {"properties": {}}
    properties = {name: one for name, one in whole["properties"].items() if name not in in_path}
    required = [name for name in whole.get("required", ()) if name not in in_path]
    return {"properties": properties} | ({"required": required} if required else {})


def _query(members: Mapping[str, Schema]) -> Iterator[Schema]:
    """The members that a query can have. A query has neither objects nor null."""
    for name, schema in members.items():
        kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
        if kinds[0].get("type") != "object":
            only = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
            yield _parameter(name, "query", only, required=False)


class _Inputs(GenerateJsonSchema):
    """Renames the models of requests: PartInput, for example, because answers have a Part."""

    @staticmethod
    def called(model: str) -> str:
        return f"{model.lstrip('_').removesuffix('Request')}Input"

    def normalize_name(self, name: str) -> str:
        return self.called(super().normalize_name(name))

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _inputs() -> dict[str, Schema]:
    """The models of CONTRACTS and their nested models, by name."""
    models = dict.fromkeys(one.params for one in CONTRACTS.values() if one.params)
    validation: Literal["validation"] = "validation"
    _, generated = models_json_schema(
        [(model, validation) for model in models],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Inputs,
    )
    inputs: dict[str, Schema] = generated["$defs"]
    for schema in inputs.values():
        del schema["title"]
        for name, member in schema["properties"].items():
            if name not in schema.get("required", ()) and "type" in member:  # null means absent
                schema["properties"][name] = {"anyOf": [member, {"type": "null"}]}
    # The checks of validators, which pydantic cannot export.
    part, listed = inputs["PartInput"], inputs["ListInput"]["properties"]
    texts = [{"required": [one], "properties": {one: TEXT}} for one in ("text", "raw", "url")]
    part["oneOf"] = [*texts, {"required": ["data"]}]
    part["properties"]["raw"]["anyOf"][0] |= {"contentEncoding": "base64", "pattern": _BASE64}
    listed["status"] = {"enum": [*V1_0.states.values(), *V1_0.numbers]}
    return inputs


# --- answers -----------------------------------------------------------------------------------


def _json(schema: Schema) -> Schema:
    return {A2A_JSON: {"schema": schema}, JSON: {"schema": schema}}


def _response(description: str, content: Schema, **headers: Schema) -> Schema:
    on = {"description": "The activated extensions.", "schema": {"const": EXTENSION}}
    return {
        "description": description,
        "headers": {"A2A-Extensions": on, **headers},
        "content": content,
    }


def _answer(operation: Operation) -> Schema:
    name = CONTRACTS[operation].answer
    streamed = {"text/event-stream": {"schema": EVENT}}
    return _response(name, streamed if operation in STREAMING else _json(ref(name)))


def _errors(method: str, operation: Operation, server: Server) -> dict[str, Schema]:
    own = _by_status(map(_refused, _refusals(method, operation, server)))
    anytime = _by_status(_anytime(server))
    if method == "POST":
        _, name, reason = _refused(errors.ContentTypeNotSupported)
        own[NOT_JSON] = [(NOT_JSON, name, reason)]
    described = {
        status: _refusal(own[status] + anytime.get(status, []))
        if status in own
        else {"$ref": f"#/components/responses/{_shared(status)}"}
        for status in sorted(own.keys() | anytime.keys())
    }
    return {str(status): response for status, response in described.items()}


def _refusals(method: str, operation: Operation, server: Server) -> Iterator[Refusal]:
    """The errors of the operation."""
    yield errors.VersionNotSupported
    yield from CONTRACTS[operation].refusals
    if method == "POST":
        yield from (errors.ParseError, errors.InvalidRequest)
        yield from (errors.BodyTooLarge, errors.InvalidParams)
    if operation is Operation.EXTENDED_CARD and not server.bearer:
        yield errors.UnsupportedOperation


def _anytime(server: Server) -> Iterator[Refused]:
    """The errors of every request, before or after routing."""
    for one in REFUSALS:
        yield one.status, one.name, one.reason
    yield _refused(errors.TooManyRequests)
    yield _refused(errors.Unavailable)
    if server.bearer:
        yield _refused(errors.Unauthenticated)
        yield _refused(errors.Forbidden)


def _refused(error: Refusal) -> Refused:
    return (*STATUS[error], ERRORS[error][1])


def _by_status(every: Iterable[Refused]) -> dict[int, list[Refused]]:
    found: dict[int, list[Refused]] = {}
    for one in every:
        found.setdefault(one[0], []).append(one)
    return found


def _shared(status: int) -> str:
    """The name of a response that all operations share."""
    return f"Refused{status}"


def _responses(server: Server) -> dict[str, Schema]:
    return {_shared(status): _refusal(why) for status, why in _by_status(_anytime(server)).items()}


def _refusal(refused: Sequence[Refused]) -> Schema:
    """The response for the errors with one status."""
    status = refused[0][0]
    reasons = sorted({reason for _, _, reason in refused})
    members = {
        "code": {"const": status},
        "status": {"enum": sorted({name for _, name, _ in refused})},
        "details": {
            "contains": {"properties": {"reason": {"enum": reasons}}, "required": ["reason"]}
        },
    }
    schema = {**ref("Error"), "properties": {"error": {"properties": members}}}
    return _response(", ".join(reasons), _json(schema), **_REFUSED_WITH.get(status, {}))


_LATER = {"schema": {"type": "string", "pattern": "^[0-9]+$"}}  # seconds
_ASKED = {"required": True, "schema": {"type": "string", "pattern": "^Bearer "}}
# The headers of answers with these statuses.
_REFUSED_WITH: Mapping[int, Mapping[str, Schema]] = {
    401: {"WWW-Authenticate": _ASKED},
    429: {"Retry-After": _LATER},
    503: {"Retry-After": _LATER},
}
_DIGIT = "[A-Za-z0-9+/_-]"  # of either alphabet of base64; padding may be missing
_BASE64 = f"^({_DIGIT}{{4}})*({_DIGIT}{{2}}(==?)?|{_DIGIT}{{3}}=?)?$"
INPUTS = _inputs()
# Only nested models are components; operations inline their own model without the path.
_NESTED = {name: one for name, one in INPUTS.items() if f"/{name}'" in str(INPUTS)}


if __name__ == "__main__":
    GENERATED.write_text(json.dumps(generate(), indent=1) + "\n", "utf-8")
