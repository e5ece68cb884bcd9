"""Notifications as jobs in Redis: their keys, and their encrypted content. Needs the extra
`redis`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from bridge.errors import ConfigurationError

JOB, TAG, SEALED = b"job", b"tag", b"sealed"
"""The fields of a job: its id, a code of its content, and the encrypted content."""
RESULT, STATUS = b"result", b"status"
"""The further fields of an outcome: `ok` or the class of the failure, and the HTTP status."""
OK = b"ok"
JobKey = tuple[bytes, bytes]
"""The id and the tag of a job. The tag differs after a change of its config."""


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys with this prefix. `server`: the id of the server that waits for the outcome."""

    prefix: str

    @property
    def jobs(self) -> str:
        return f"{self.prefix}:push"

    @property
    def group(self) -> str:
        """The consumer group of the workers."""
        return f"{self.prefix}-push"

    @property
    def dead(self) -> str:
        return f"{self.prefix}:push:dead"

    def done(self, server: str) -> str:
        return f"{self.prefix}:push:done:{server}"


@dataclass(frozen=True, slots=True)
class PushJob:
    """One attempt to send a notification. `id`: TASK/CONFIG/NUMBER/ATTEMPT; `server`: as in
    JobKeys. `secret`: the worker signs with it."""

    id: str
    server: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    secret: str | None = field(default=None, repr=False)


class UnreadableJob(Exception):
    """A job that another key has encrypted, or that was changed."""


class JobSeal:
    """Encrypts jobs. `keys`: Fernet keys, separated by commas: the first one encrypts, all decrypt.
    Raises ConfigurationError."""

    def __init__(self, keys: str) -> None:
        listed = [one.strip() for one in keys.split(",")]
        try:
            self._fernet = MultiFernet([Fernet(one) for one in listed])
        except ValueError:
            raise ConfigurationError(
                "BRIDGE_PUSH_KEY: keys of 32 bytes in URL-safe base64 are expected, separated by "
                "commas"
            ) from None
        self._code = hashlib.sha256(b"tag of a job " + listed[0].encode()).digest()

    def seal(self, job: PushJob) -> Mapping[bytes, bytes]:
        """The fields of the job."""
        facts: dict[str, Any] = {"id": job.id, "server": job.server, "url": job.url}
        facts |= {"headers": dict(job.headers), **({"secret": job.secret} if job.secret else {})}
        content = orjson.dumps(facts, option=orjson.OPT_SORT_KEYS) + b"\n" + job.body
        tag = hmac.digest(self._code, content, "sha256").hex()[:32]
        return {JOB: job.id.encode(), TAG: tag.encode(), SEALED: self._fernet.encrypt(content)}

    def open(self, fields: Mapping[bytes, bytes]) -> PushJob:
        """The job of these fields. Raises UnreadableJob."""
        try:
            content = self._fernet.decrypt(fields.get(SEALED, b""))
            facts, _, body = content.partition(b"\n")
            job = PushJob(**orjson.loads(facts), body=body)
        except (InvalidToken, ValueError, TypeError) as error:
            raise UnreadableJob from error
        if job.id.encode() != fields.get(JOB):
            raise UnreadableJob
        return job


def key_of(fields: Mapping[bytes, bytes]) -> JobKey:
    """The key of a job or of an outcome."""
    return fields.get(JOB, b""), fields.get(TAG, b"")
