"""Encryption of the secrets of push configs, which leave the machine with a remote database."""

from __future__ import annotations

import orjson
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from bridge.errors import ConfigurationError
from bridge.store.changes import PushConfig


class Seal:
    """`keys`: Fernet keys, separated by commas. The first one encrypts, all of them decrypt, so
    that an operator can replace a key. Raises ConfigurationError for an invalid key."""

    def __init__(self, keys: str) -> None:
        try:
            self._keys = MultiFernet([Fernet(key.strip()) for key in keys.split(",")])
        except ValueError:
            raise ConfigurationError(
                "BRIDGE_PUSH_KEY: a Fernet key (32 bytes in URL-safe base64) is expected. Make one "
                "with: python -c 'from cryptography.fernet import Fernet; "
                "print(Fernet.generate_key().decode())'"
            ) from None

    def close(self, config: PushConfig) -> bytes:
        """The URL and the secrets of the config, encrypted."""
        secrets = (config.url, config.token, config.scheme, config.credentials)
        return self._keys.encrypt(orjson.dumps(secrets))

    def open(self, sealed: bytes) -> tuple[str, str | None, str | None, str | None]:
        """URL, token, scheme and credentials. Raises ValueError if no key fits."""
        try:
            url, token, scheme, credentials = orjson.loads(self._keys.decrypt(sealed))
        except InvalidToken:
            raise ValueError("no key of BRIDGE_PUSH_KEY fits") from None
        return url, token, scheme, credentials
