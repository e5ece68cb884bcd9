"""The form of an agent card that is signed (1.0 §8.4.1).

Of the members that 1.0 defines, required ones are always present, optional ones if they were set,
and the others unless they are empty. Members that 1.0 does not define are part of the form, so that
nothing can be added to a signed card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from bridge.errors import BridgeError
from bridge.task.text import is_deep

MAX_DEPTH = 100  # of a card; the JSON reader of protobuf allows as much


class SignatureError(BridgeError):
    """A card, or a signature of it, that cannot be signed or verified."""


class Member(NamedTuple):
    """A member of an object of the card. `empty`: the default of its type; None if its presence
    has a meaning. `shape`: of the member or, in a list or map, of each item."""

    empty: Any
    required: bool = False
    shape: Mapping[str, Member] | None = None
    container: str = ""  # "list" or "map"


Shape: TypeAlias = Mapping[str, Member]
_EMPTY: Mapping[str, Any] = {"": "", "~": False, "?": None, "?!": {}, "[]": [], "{}": {}}
_CONTAINERS = {"[]": "list", "{}": "map"}


def _shape(members: str, **objects: Shape) -> Shape:
    """Members by name, with `~` for a flag, `[]` for a list, `{}` for a map, and `?` if the
    presence has a meaning; `!` marks a required member. `objects`: the shapes of the members that
    are objects, or lists or maps of objects."""
    shape = {}
    for member in members.split():
        name, kind, required = re.findall(r"(\w+)(\W*?)(!?)$", member)[0]
        empty = _EMPTY[kind + required if kind == "?" else kind]
        container = _CONTAINERS.get(kind, "") if name in objects else ""
        shape[name] = Member(empty, bool(required), objects.get(name), container)
    return shape


_REQUIREMENT = _shape("schemes{}", schemes=_shape("list[]"))
_FLOWS = _shape(
    "authorizationCode? clientCredentials? deviceCode? implicit? password?",
    authorizationCode=_shape("authorizationUrl! tokenUrl! refreshUrl scopes{}! pkceRequired~"),
    clientCredentials=_shape("refreshUrl tokenUrl! scopes{}!"),
    deviceCode=_shape("refreshUrl tokenUrl! scopes{}! deviceAuthorizationUrl!"),
    implicit=_shape("authorizationUrl refreshUrl scopes{}"),
    password=_shape("tokenUrl refreshUrl scopes{}"),
)
_SCHEME = _shape(
    "apiKeySecurityScheme? httpAuthSecurityScheme? oauth2SecurityScheme? "
    "openIdConnectSecurityScheme? mtlsSecurityScheme?",
    apiKeySecurityScheme=_shape("description location! name!"),
    httpAuthSecurityScheme=_shape("description scheme! bearerFormat"),
    oauth2SecurityScheme=_shape("description oauth2MetadataUrl flows?!", flows=_FLOWS),
    openIdConnectSecurityScheme=_shape("description openIdConnectUrl!"),
    mtlsSecurityScheme=_shape("description"),
)
CARD = _shape(
    "name! description! version! documentationUrl? iconUrl? supportedInterfaces[]! provider? "
    "capabilities?! defaultInputModes[]! defaultOutputModes[]! securitySchemes{} "
    "securityRequirements[] skills[]!",
    supportedInterfaces=_shape("url! protocolBinding! protocolVersion! tenant"),
    provider=_shape("url! organization!"),
    capabilities=_shape(
        "streaming? pushNotifications? extendedAgentCard? extensions[]",
        extensions=_shape("uri description required~ params?"),
    ),
    securitySchemes=_SCHEME,
    securityRequirements=_REQUIREMENT,
    skills=_shape(
        "id! name! description! tags[]! examples[] inputModes[] outputModes[] "
        "securityRequirements[]",
        securityRequirements=_REQUIREMENT,
    ),
)


def normalize(card: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The card with the members of its signed form, and the names that 1.0 does not define. Raises
    SignatureError for a card that is nested too deeply."""
    if is_deep(card, MAX_DEPTH):
        raise SignatureError(f"The card is nested more than {MAX_DEPTH} deep.")
    unknown: list[str] = []
    rest = {name: value for name, value in card.items() if name != "signatures"}
    return _members(rest, CARD, unknown), unknown


def _members(value: Any, shape: Shape, unknown: list[str]) -> Any:
    if not isinstance(value, dict):
        return value  # the wrong type, unchanged: all readers of 1.0 reject it
    strange = {name: inner for name, inner in value.items() if name not in shape}
    unknown += strange
    known = {name: _member(value.get(name), member, unknown) for name, member in shape.items()}
    return {**strange, **{name: inner for name, inner in known.items() if inner is not None}}


def _member(value: Any, member: Member, unknown: list[str]) -> Any:
    """A member of the payload, or None for an omitted one. null means absent (ProtoJSON)."""
    if value is None:
        if not member.required:
            return None
        value = member.empty
    if not member.required and type(value) is type(member.empty) and value == member.empty:
        return None
    if member.shape is None:
        return value
    if member.container == "list" and isinstance(value, list):
        return [_members(item, member.shape, unknown) for item in value]
    if member.container == "map" and isinstance(value, dict):
        return {name: _members(item, member.shape, unknown) for name, item in value.items()}
    return value if member.container else _members(value, member.shape, unknown)


def without_empty(value: Any) -> Any:
    """The form of the official SDKs: "", [], {} and null are omitted, from the inside out. None
    for an empty result."""
    if isinstance(value, dict):
        pairs = ((name, without_empty(inner)) for name, inner in value.items())
        return {name: inner for name, inner in pairs if inner is not None} or None
    if isinstance(value, list):
        return [inner for inner in map(without_empty, value) if inner is not None] or None
    return None if value == "" else value
