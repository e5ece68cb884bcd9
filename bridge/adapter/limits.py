"""The reasons of turns that failed because of a model, from the words of CLIs and providers.

    rate-limit      too many requests, or the window of a subscription is used up: waiting helps
    quota           no credit, or a limit of the account: only its owner can help
    context-window  the conversation is too long for the model
    overloaded      the provider is overloaded
    auth            no login, or the key is not accepted
    model-error     any other failure of the model or of the way to it

The time of the next attempt comes from a CLI or a provider, and is never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from bridge.task.events import Failed

RATE_LIMIT, QUOTA, CONTEXT_WINDOW = "rate-limit", "quota", "context-window"
OVERLOADED, AUTH, MODEL_ERROR = "overloaded", "auth", "model-error"
REASONS = (RATE_LIMIT, QUOTA, CONTEXT_WINDOW, OVERLOADED, AUTH, MODEL_ERROR)

_LOOKED_AT = 4000  # characters of a text
_WORDS: Mapping[str, Iterable[str]] = {
    RATE_LIMIT: ("ratelimit", "ratelimitexceeded", "usagelimitreached", "toomanyrequests"),
    QUOTA: (
        *("billing", "creditbalancetoolow", "insufficientquota", "insufficientbalance"),
        *("quotaexceeded", "usagenotincluded"),
    ),
    CONTEXT_WINDOW: (
        *("contextwindowexceeded", "contextlengthexceeded", "contextoverflow", "prompttoolong"),
        "requesttoolarge",
    ),
    OVERLOADED: ("overloaded", "serveroverloaded", "serverisoverloaded", "serviceunavailable"),
    AUTH: (
        *("auth", "authentication", "authenticationfailed", "unauthenticated", "unauthorized"),
        *("permission", "permissiondenied", "providerauth"),
    ),
    MODEL_ERROR: ("api", "apiconnection", "server", "internalserver", "badrequest", "timeout"),
}
"""Types of errors in small letters, without `error` at their ends."""
_KINDS = {word: reason for reason, words in _WORDS.items() for word in words}
_STATUSES = {
    401: AUTH,
    402: QUOTA,
    403: AUTH,
    413: CONTEXT_WINDOW,
    429: RATE_LIMIT,
    503: OVERLOADED,
    529: OVERLOADED,
}
_STATUS = re.compile(
    r"(?:^|\(|\b(?:error|status|code|http)\b)[\W_]{0,4}([45]\d\d)\b", re.IGNORECASE
)
# The first ones also explain errors whose type or status says less.
_SAYS = (
    (
        CONTEXT_WINDOW,
        r"prompt is too long|input is too long|context[ _-]?(?:window|length|limit)|maximum context"
        r"|too many (?:input )?tokens",
    ),
    (
        QUOTA,
        r"credit balance|insufficient[ _](?:balance|quota|credits?|funds)|exceeded your current "
        r"quota|quota exceeded|payment required|(?:specified API|monthly|spending) usage limit"
        r"|check your plan|out of credits",
    ),
)
_SAYS_AT_LAST = (
    (RATE_LIMIT, r"rate[ _-]?limit|usage limit|too many requests|hit your [\w -]{0,40}limit"),
    (OVERLOADED, r"overloaded|over capacity"),
    (AUTH, r"invalid api key|incorrect api key|unauthorized|authentication (?:failed|required)"),
)
_PATTERNS = [
    [(reason, re.compile(pattern, re.IGNORECASE)) for reason, pattern in says]
    for says in (_SAYS, _SAYS_AT_LAST)
]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT = r"(\d{1,7}(?:\.\d{1,9})?) ?(ms|s|m|h)(?:ec(?:ond)?s?|in(?:ute)?s?|ours?)?(?![a-z])"
_NEXT = r"(?:(?:retry|try again) (?:after|in)|retry-?(?:after|delay)[\"']?[:=] ?[\"']?)"
_AFTER = re.compile(rf"{_NEXT} ?((?:{_UNIT} ?){{1,3}})", re.IGNORECASE)
_AT = re.compile(
    r"(?:access|again|resets?|retry)(?: on| at| after)? (\d{4}-\d\d-\d\d)(?:T| at )"
    r"(\d\d:\d\d(?::\d\d)?) ?(?:UTC|Z)\b"
)


def model_failure(
    text: str,
    *,
    kinds: Iterable[Any] = (),
    status: Any = None,
    resets_at: Any = None,
    details: Mapping[str, Any] | None = None,
    otherwise: str = MODEL_ERROR,
) -> Failed:
    """The failure of a turn by its model. `kinds`: words for the error, the best one first.
    `status`: of HTTP. `resets_at`: seconds since 1970. `otherwise`: the reason of an unknown
    error."""
    retry = _retry(text[:_LOOKED_AT], resets_at)
    reason = _reason(text[:_LOOKED_AT], kinds, status) or otherwise
    if reason == QUOTA and "retryAfter" in retry:  # a quota for each minute (Gemini)
        reason = RATE_LIMIT
    facts = {name: one for name, one in (details or {}).items() if one is not None}
    return Failed(text, reason, {**facts, **retry} or None)


def moment(seconds: Any) -> str | None:
    """Seconds since 1970 in RFC 3339; None for any other value."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 < seconds < 2**33:
        return None
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _reason(text: str, kinds: Iterable[Any], status: Any) -> str | None:
    known = (_KINDS.get(_normal(one)) for one in kinds if isinstance(one, str))
    kind = next(filter(None, known), None)
    if kind in (QUOTA, CONTEXT_WINDOW, AUTH, OVERLOADED):
        return kind
    said = _said(text, _PATTERNS[0])
    if said or kind == RATE_LIMIT:
        return said or kind
    found = _STATUS.search(text)
    if not (isinstance(status, int) and 400 <= status < 600):
        status = int(found[1]) if found else None
    if status:
        return _STATUSES.get(status, MODEL_ERROR)
    return _said(text, _PATTERNS[1]) or kind


def _normal(kind: str) -> str:
    return re.sub(r"[^a-z0-9]", "", kind[:100].casefold()).removesuffix("error")


def _said(text: str, patterns: Iterable[tuple[str, re.Pattern[str]]]) -> str | None:
    return next((reason for reason, pattern in patterns if pattern.search(text)), None)


def _retry(text: str, resets_at: Any) -> dict[str, Any]:
    """The time of the next attempt: `retryAt`, or the seconds until then."""
    at = moment(resets_at)
    if at:
        return {"retryAt": at}
    if date := _AT.search(text):
        clock = date[2] if len(date[2]) > 5 else f"{date[2]}:00"
        return {"retryAt": f"{date[1]}T{clock}Z"}
    after = _AFTER.search(text)
    if after is None:
        return {}
    units = re.findall(_UNIT, after[1], re.IGNORECASE)
    return {"retryAfter": sum(float(count) * _UNITS[unit.lower()] for count, unit in units)}
