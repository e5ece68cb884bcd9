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
_EMPTY: Mapping[str, Any] = {"": "", "~": False, "?": None, "[]": [], "{}": {}}


def _shape(members: str, **objects: Member) -> Shape:
    """Members without objects by name, with `~` for a flag, `[]` for a list, `{}` for a map, and
    `?` if the presence has a meaning; `!` marks a required member."""
    shape = {}
    for member in members.split():
        name, kind, required = re.findall(r"(\w+)(\W*?)(!?)$", member)[0]
        shape[name] = Member(_EMPTY[kind], bool(required))
    return {**shape, **objects}


def _object(shape: Shape, required: bool = False) -> Member:
    return Member({} if required else None, required, shape)


def _list_of(shape: Shape, required: bool = False) -> Member:
    return Member([], required, shape, "list")


def _map_of(shape: Shape) -> Member:
    return Member({}, False, shape, "map")


_REQUIREMENTS = _list_of({"schemes": _map_of(_shape("list[]"))})
_CODE = "authorizationUrl! tokenUrl! refreshUrl scopes{}! pkceRequired~"
FLOWS: Shape = {
    "authorizationCode": _object(_shape(_CODE)),
    "clientCredentials": _object(_shape("refreshUrl tokenUrl! scopes{}!")),
    "deviceCode": _object(_shape("refreshUrl tokenUrl! scopes{}! deviceAuthorizationUrl!")),
    "implicit": _object(_shape("authorizationUrl refreshUrl scopes{}")),
    "password": _object(_shape("tokenUrl refreshUrl scopes{}")),
}
_OAUTH2 = _shape("description oauth2MetadataUrl", flows=_object(FLOWS, required=True))
SCHEME: Shape = {
    "apiKeySecurityScheme": _object(_shape("description location! name!")),
    "httpAuthSecurityScheme": _object(_shape("description scheme! bearerFormat")),
    "oauth2SecurityScheme": _object(_OAUTH2),
    "openIdConnectSecurityScheme": _object(_shape("description openIdConnectUrl!")),
    "mtlsSecurityScheme": _object(_shape("description")),
}
_EXTENSION = _shape("uri description required~ params?")
_INTERFACE = _shape("url! protocolBinding! protocolVersion! tenant")
_SKILL = _shape(
    "id! name! description! tags[]! examples[] inputModes[] outputModes[]",
    securityRequirements=_REQUIREMENTS,
)
_CAPABILITIES = _shape(
    "streaming? pushNotifications? extendedAgentCard?", extensions=_list_of(_EXTENSION)
)
CARD: Shape = _shape(
    "name! description! version! documentationUrl? iconUrl? "
    "defaultInputModes[]! defaultOutputModes[]!",
    supportedInterfaces=_list_of(_INTERFACE, required=True),
    provider=_object(_shape("url! organization!")),
    capabilities=_object(_CAPABILITIES, required=True),
    securitySchemes=_map_of(SCHEME),
    securityRequirements=_REQUIREMENTS,
    skills=_list_of(_SKILL, required=True),
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
