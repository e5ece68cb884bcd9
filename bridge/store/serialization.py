"""The JSON form of stored values. The types themselves are the schema: a new member of a type needs
a default, so that values from an earlier version can still be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, get_args

import orjson
from pydantic import TypeAdapter

from bridge.task.events import AgentEvent, ControlEvent, Event

T = TypeVar("T")
EVENTS: dict[str, type[Any]] = {
    one.__name__: one for union in (AgentEvent, ControlEvent) for one in get_args(union)
}
_adapters: dict[type[Any], TypeAdapter[Any]] = {}
_writers: dict[type[Any], tuple[bytes, Callable[[Any], bytes]]] = {}
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def dump(value: Any) -> bytes:
    return _adapter(type(value)).dump_json(value)


def load(kind: type[T], data: bytes) -> T:
    loaded: T = _adapter(kind).validate_python(orjson.loads(data))
    return loaded


def dump_events(events: Sequence[Event]) -> bytes:
    """A JSON array that has each event as its name and its members."""
    written = []
    for event in events:  # one call for all, since events are many
        kind = type(event)
        name, to_json = _writers.get(kind) or _writer(kind)
        written.append(b'["%b",%b]' % (name, to_json(event)))
    return b"[%b]" % b",".join(written)


def load_events(data: bytes) -> list[Event]:
    return [_adapter(EVENTS[name]).validate_python(members) for name, members in orjson.loads(data)]


def micros(time: datetime) -> int:
    """Microseconds since 1970: exact, since this is the resolution of a datetime."""
    return (time - _EPOCH) // _MICROSECOND


def moment(number: int) -> datetime:
    return _EPOCH + timedelta(microseconds=number)


def _writer(kind: type[Any]) -> tuple[bytes, Callable[[Any], bytes]]:
    """The name of a kind of event, and the function that makes its JSON."""
    writer = _writers[kind] = kind.__name__.encode(), _adapter(kind).serializer.to_json
    return writer


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    known = _adapters.get(kind)
    if known is None:
        known = _adapters[kind] = TypeAdapter(kind)
    return known
