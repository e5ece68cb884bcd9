"""Signatures of notifications in the form of Standard Webhooks, for which receivers have libraries:
HMAC-SHA256 of `ID.TIME.BODY`. The process that sends a request signs it, so that its time is that
of the attempt, however long the request waited before."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Mapping

from bridge.store.changes import PushConfig

SCHEME = "HMAC-SHA256"
"""The scheme of a config with a secret that signs and is never sent."""
PREFIX = "whsec_"
SHORTEST = 24  # bytes of such a secret, as Standard Webhooks requires
ID = "A2A-Notification-Id"


def signs(config: PushConfig) -> bool:
    """Whether the credentials of the config sign its notifications, and are not sent."""
    return (config.scheme or "").upper() == SCHEME


def secret_of(config: PushConfig) -> str | None:
    """The secret that signs the notifications of the config; None for no signature."""
    return config.credentials if signs(config) else config.token


def key_of(secret: str) -> bytes:
    """The key that the secret means: base64 behind PREFIX, otherwise the text itself. Raises
    ValueError for invalid base64."""
    if secret.startswith(PREFIX):
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    return secret.encode()


def signed(headers: Mapping[str, str], body: bytes, secret: str | None) -> Mapping[str, str]:
    """The headers of an attempt that begins now, with its signature. `headers` has the id of the
    notification."""
    if not secret:
        return headers
    name, sent = headers[ID], str(int(time.time()))
    digest = hmac.digest(key_of(secret), f"{name}.{sent}.".encode() + body, "sha256")
    signature = f"v1,{base64.b64encode(digest).decode()}"
    own = {"webhook-id": name, "webhook-timestamp": sent, "webhook-signature": signature}
    return {**headers, **own}
