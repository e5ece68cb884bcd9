"""`coding-agent-bridge card verify`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from bridge.a2a.canonical_card import SignatureError
from bridge.a2a.signing import MAX_BYTES, CardKeys, judge, parse_json
from bridge.errors import ConfigurationError
from bridge.server.extras import load_card_keys, read_card_keys, read_file

FETCH_WITHIN = 10.0  # seconds
PUBLISHED = "Make new keys, and publish only the public parts: without the member d."
WELL_KNOWN = "/.well-known/agent-card.json"


def verify_command(argv: Sequence[str]) -> int:
    """Print a verdict for each signature. Exit status: 0 if one counts, 1 if none does, 2 if the
    card or the keys are not available."""
    parser = argparse.ArgumentParser(
        prog="coding-agent-bridge card verify",
        description="Verify each signature of an agent card. Exit status: 0 if one is good, 1 if "
        "none is, 2 if the card or the keys are not available.",
    )
    parser.add_argument("card", metavar="URL_OR_FILE", help="a card, or the address of its server")
    parser.add_argument(
        "--keys",
        metavar="URL_OR_FILE",
        required=True,
        help="JWK Set of the trusted keys: a file, or an https URL",
    )
    options = parser.parse_args(argv)
    try:
        verdicts = judge(read_card(options.card), trusted_keys(options.keys))
    except (ConfigurationError, SignatureError) as error:
        print(f"coding-agent-bridge: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    for verdict in verdicts:
        print(f"{verdict.kid} {verdict.alg}: {verdict.says}")
    return 0 if any(verdict.counts for verdict in verdicts) else 1


def trusted_keys(place: str) -> CardKeys:
    """The keys of a JWK Set at an https URL or in a file. Raises ConfigurationError."""
    scheme, separator, _ = place.partition("://")
    if not separator:
        return load_card_keys(Path(place), signing=False)
    # The answer decides which cards are good, so it must come from this address, over TLS.
    if scheme.lower() != "https":
        raise ConfigurationError(f"{place} is not an https URL: others could replace the keys.")
    data = asyncio.run(fetch(place, redirects=0))
    return read_card_keys(data, place, signing=False, remedy=PUBLISHED)


def read_card(place: str) -> dict[str, Any]:
    """The card at a URL or in a file. Raises ConfigurationError."""
    if place.startswith(("http://", "https://")):
        data = asyncio.run(fetch(_card_address(place)))
    else:
        data, _ = read_file(Path(place), MAX_BYTES)
    try:
        card = parse_json(data)
    except SignatureError as error:
        raise ConfigurationError(f"{place} has no card: {error}") from None
    if not isinstance(card, dict):
        raise ConfigurationError(f"{place} has no card: it is not a JSON object.")
    return card


def _card_address(address: str) -> str:
    """The URL, or that of the card of the server for a URL without a path."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise ConfigurationError(f"Cannot fetch {address}: {error}") from None
    bare = parts.path in ("", "/") and not parts.query
    return address.rstrip("/") + WELL_KNOWN if bare else address


async def fetch(address: str, within: float = FETCH_WITHIN, redirects: int = 3) -> bytes:
    """The document at a URL. `within`: seconds for the whole answer; `redirects`: that are
    followed at most. Raises ConfigurationError."""
    data, follows = bytearray(), redirects > 0
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=within)) as session,
            session.get(address, allow_redirects=follows, max_redirects=redirects) as response,
        ):
            if 300 <= response.status < 400:
                raise ConfigurationError(f"{address} redirects, which is not followed.")
            if response.status != 200:
                raise ConfigurationError(f"{address} answers {response.status}.")
            async for chunk in response.content.iter_chunked(65536):
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ConfigurationError(f"{address} is larger than {MAX_BYTES} bytes.")
    except TimeoutError:
        raise ConfigurationError(f"{address} did not answer within {within:g} s.") from None
    except aiohttp.ClientConnectorCertificateError as error:
        cause = error.certificate_error
        reason = getattr(cause, "verify_message", cause)
        raise ConfigurationError(f"{address} has no valid certificate: {reason}.") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise ConfigurationError(f"Cannot fetch {address}: {error}") from None
    return bytes(data)
