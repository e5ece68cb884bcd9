"""No document denies a feature that exists. The features come from the code: bindings, extras,
stores, adapters, commands and settings. A new one fails here until it has its name in prose."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

from bridge.cli.client.arguments import BUILDERS
from bridge.server import registry
from bridge.server.settings.root import VARIABLES
from bridge.telemetry.metrics.catalog import BINDINGS
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.prose import DOCUMENTS, blocks

IN_PROSE = {
    "jsonrpc": "JSON-RPC",
    "rest": r"HTTP\+JSON|REST",
    "grpc": "gRPC",
    "websocket": "WebSockets?",
    "stdio": "stdio",
    "redis": "Redis(?: Streams)?",
    "mcp": "MCP",
    "signing": "signed cards?|signatures? of cards?|signing",
    "oidc": "OIDC|OpenID Connect|single sign-on",
    "postgres": "PostgreSQL|Postgres",
    "sqlite": "SQLite",
    "metrics": "metrics|Prometheus",
    "otel": "OpenTelemetry|OTLP|tracing|traces",
}
"""The names of bindings, extras and stores, as a document writes them."""

BY_SETTING = {
    "BRIDGE_UNIX_SOCKET": "Unix (?:domain )?sockets?",
    "BRIDGE_PUSH_ALLOW_PRIVATE": "push notifications?|webhooks?",
    "BRIDGE_WARM_SESSIONS": "prewarmed sessions?",
    "BRIDGE_MAX_SESSIONS": "queues?",
    "BRIDGE_REDACT": "redaction",
    "BRIDGE_AUTH": "authentication",
    "BRIDGE_NODE": "several servers|clusters?",
    "BRIDGE_CARD": r"A2A 0\.3|A2A 1\.0",
    "BRIDGE_SANDBOX": "sandbox(?:es)?",
    "BRIDGE_ON_STOP": "restarts?",
}
"""Further features, each by a setting that only this feature has."""

DENIED = (
    r"\b(?:ha(?:s|ve|d)|offers?|speaks?|serves?|there (?:is|are)) (?:still )?no (?:\w+ )?"
    r"FEATURE(?!\w)",
    r"\b(?:does not|do not|don't|doesn't|cannot|can't) (?:yet )?(?:support|speak|offer|have|serve"
    r"|implement|do|use|know) (?:\w+ )?FEATURE(?!\w)",
    r"\bno (?:support for |support of )FEATURE(?!\w)",
    r"\b(?:no|without) FEATURE (?:support|server|endpoint|binding|integration)\b",
    r"FEATURE(?: \w+)? (?:is|are) (?:not|missing|planned)\b(?! (?:affected|necessary|needed))",
    r"\b(?:no|not)\b[^.;:]{0,40}\bFEATURE(?!\w)[^.;:]{0,40}\byet\b",
)
NEGATION = re.compile(r"\b(?:no|not|cannot|missing|planned)\b|n't")
CONDITION = re.compile(r"\b(?:if|unless|without|while|where|when)\b[^.;]*$", re.IGNORECASE)
"""The beginning of a sentence that denies nothing: "without a key, there is no MCP"."""


def features() -> dict[str, str]:
    """The name of each feature in the code, and the pattern of its name in prose."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "tests", "fuzz"}
    stores = {path.parent.name for path in (CHECKOUT / "bridge/store").glob("*/__init__.py")}
    named = {*extras, *BINDINGS, *stores}
    assert named == set(IN_PROSE), "IN_PROSE needs the same features"
    variables = {name.upper(): f"`{name.upper()}`" for name in VARIABLES}
    assert BY_SETTING.keys() <= variables.keys()
    titles = {name: re.escape(registry.load(name).title) for name in registry.names()}
    commands = {f"cab {name}": rf"(?:command )?`(?:cab )?{name}`" for name in BUILDERS}
    return {**variables, **IN_PROSE, **BY_SETTING, **titles, **commands}


@cache
def denial() -> re.Pattern[str]:
    name = f"(?:{'|'.join(features().values())})"
    return re.compile("|".join(DENIED).replace("FEATURE", name))


def denials(text: str) -> list[str]:
    """The parts of a text that deny a feature."""
    text = " ".join(text.split())
    found = denial().finditer(text) if NEGATION.search(text) else ()
    return [one[0] for one in found if not CONDITION.search(text, 0, one.start())]


@each("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_denies_no_feature(path: Path) -> None:
    """Half a second: each paragraph, for 200 features."""
    found = [f"{path.name}:{line}: {one}" for line, text in blocks(path) for one in denials(text)]
    assert not found, found


@each(
    "text",
    [
        "Codex speaks MCP and not A2A; the bridge has no MCP server yet.",
        "The server does not support PostgreSQL.",
        "There is no support for gRPC.",
        "Push notifications are sent, but OpenID Connect is not supported.",
        "The client has no command `attach`.",
        "A WebSocket is planned.",
        "The bridge cannot use `BRIDGE_SHARE`.",
        "Goose is not supported.",
    ],
)
def test_a_denial_is_found(text: str) -> None:
    assert denials(text), text


@each(
    "text",
    [
        "Without a key, a server with a database has no push notifications.",
        "Agents are refused, unless they have no sandbox.",
        "gRPC opens its own port.",
        "`bridge_store_bytes` is 0 for PostgreSQL.",
    ],
)
def test_a_condition_is_no_denial(text: str) -> None:
    assert not denials(text), text
