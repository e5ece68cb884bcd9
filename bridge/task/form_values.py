"""The words of a person as a value of a form's member (JSON schema, as MCP restricts it)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

Schema = Mapping[str, Any]
_MOST_DIGITS = 400


def type_of(schema: Schema) -> str:
    """The type of the member; of several, the first one that is not `null`."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return next((str(one) for one in kinds if one not in (None, "null")), "string")


def value_of(schema: Schema, text: str) -> Any:
    """The text as a value of the schema. Raises ValueError with a reason for the person."""
    match type_of(schema):
        case "integer" | "number" as kind:
            return _number(schema, text.strip(), kind)
        case "boolean":
            words = {"true": True, "yes": True, "false": False, "no": False}
            if text.strip().lower() not in words:
                raise ValueError("is neither yes nor no")
            return words[text.strip().lower()]
        case "array":
            items = schema.get("items")
            given = [one.strip() for one in text.replace("\n", ",").split(",")]
            items = items if isinstance(items, dict) else {}
            return [value_of(items, one) for one in given if one]
    return _string(schema, text)


def describe(schema: Schema) -> str:
    """The value that the schema needs, such as `a whole number from 1 to 9`; "" for any text."""
    low, high = schema.get("minimum"), schema.get("maximum")
    reach = f" from {low}" * (low is not None) + f" to {high}" * (high is not None)
    match type_of(schema):
        case "integer":
            return f"a whole number{reach}"
        case "number":
            return f"a number{reach}"
        case "array":
            return "a list with commas"
    forms = {"email": "an e-mail address", "uri": "an address (URI)"}
    forms |= {"date": "a date (2026-01-31)", "date-time": "a time (2026-01-31T12:00:00Z)"}
    return forms.get(str(schema.get("format")), "")


def _number(schema: Schema, text: str, kind: str) -> int | float:
    try:
        value = int(text) if kind == "integer" else float(text)
    except ValueError:
        raise ValueError(f"is not {describe(schema)}") from None
    low, high = _bound(schema, "minimum", -math.inf), _bound(schema, "maximum", math.inf)
    if len(text) > _MOST_DIGITS or not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"is not {describe(schema)}")
    return value


def _string(schema: Schema, text: str) -> str:
    least, most = _bound(schema, "minLength", 0), _bound(schema, "maxLength", math.inf)
    if len(text) < least:
        raise ValueError(f"has fewer than {least} characters")
    if len(text) > most:
        raise ValueError(f"has more than {most} characters")
    if not _has_format(str(schema.get("format")), text.strip()):
        raise ValueError(f"is not {describe(schema)}")
    return text


def _has_format(name: str, text: str) -> bool:
    match name:
        case "email":
            before, _, host = text.rpartition("@")
            return bool(before and host) and not any(map(str.isspace, text))
        case "uri":
            try:
                return bool(urlsplit(text).scheme)
            except ValueError:
                return False
        case "date" | "date-time":
            try:
                (date if name == "date" else datetime).fromisoformat(text)
            except ValueError:
                return False
    return True


def _bound(schema: Schema, name: str, otherwise: float) -> float:
    value = schema.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return otherwise
