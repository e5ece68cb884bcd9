"""The commands without a task: the card, the agents, the tokens and the settings."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from typing import Any

from bridge.cli.client.messages import stdin_line
from bridge.cli.client.output import Fields, print_json
from bridge.cli.client.session import CommandSession
from bridge.client import bindings, config
from bridge.client.agent import page_of
from bridge.client.card import AgentCard, address_of, problems
from bridge.client.credentials import CredentialStore, origin_of, socket_of
from bridge.client.failure import CARD_INVALID, NOT_A_TERMINAL, ClientError, usage
from bridge.client.local_server import choose
from bridge.client.values import SETTINGS


async def card(session: CommandSession) -> int:
    """Show the card, and the binding that requests use."""
    options = session.options
    async with session.connect() as agent:
        found = agent.card
        if options.extended:
            if not found.has("extendedAgentCard"):
                text = "the card declares no extended card"
                raise ClientError("ExtendedAgentCardNotConfiguredError", text)
            content = await agent.call(bindings.EXTENDED_CARD, {})
            found = AgentCard(content, found.url)
        chosen = f"{agent.binding.name} {agent.binding.version} {agent.binding.url}"
    wrong = problems(found.content) if options.validate else []
    if session.json and not wrong:
        print_json(found.content, lines=session.stream)
    elif not wrong:
        _show_card(found, chosen)
    if wrong:
        raise ClientError(CARD_INVALID, "\n".join(["the card is not valid:", *wrong]))
    return 0


def _show_card(card: AgentCard, chosen: str) -> None:
    content, fields = card.content, Fields()
    for label, name in (("Name", "name"), ("Description", "description"), ("Version", "version")):
        fields.field(label, content.get(name, ""))
    for one in card.interfaces:
        tenant = f" tenant {one.tenant}" if one.tenant else ""
        fields.field("Interface", f"{one.binding} {one.version} {one.url}{tenant}")
    fields.field("Chosen", chosen)
    capabilities = ("streaming", "pushNotifications", "extendedAgentCard")
    fields.field("Capabilities", ", ".join(filter(card.has, capabilities)) or "none")
    schemes = content.get("securitySchemes")
    fields.field(
        "Security", ", ".join(schemes) if isinstance(schemes, dict) and schemes else "none"
    )
    for skill in content.get("skills") or ():
        if isinstance(skill, dict):
            fields.field("Skill", f"{skill.get('id')}: {skill.get('description', '')}")


async def agents(session: CommandSession) -> int:
    """List the agents of a server of this bridge."""
    async with session.connect() as agent:
        base = agent.base
        if base is None or not agent.card.is_bridge:
            raise usage("only a coding-agent-bridge lists its agents")
        found = await agent.get(page_of(base, "/agents"))
    if session.json:
        print_json(found)
        return 0
    fields = Fields()
    for one in found.get("agents") or ():
        default = " (default)" if one.get("default") else ""
        fields.field("Agent", f"{one.get('id')}{default}")
        fields.field("Name", one.get("name", ""))
        fields.field("Description", one.get("description", ""))
        for server in one.get("nodes") or ():
            slots = server.get("capabilities", {}).get("slots", "?")
            fields.field("Server", f"{server.get('name')}, {slots} slots")
    return 0


# --- tokens -----------------------------------------------------------------------------------


async def login(session: CommandSession) -> int:
    """Store a token for one origin."""
    origin = _origin(session)
    if session.options.token_stdin:
        token = stdin_line()
    elif sys.stdin.isatty():
        token = getpass.getpass(f"Token for {origin}: ").strip()
    else:
        raise ClientError(NOT_A_TERMINAL, "the token is read from a terminal, or --token-stdin")
    if not token or not token.isascii() or not token.isprintable():
        raise usage("the token is empty or has characters that a header cannot carry")
    store = CredentialStore(config.credentials_file())
    store.save({**store.tokens(), origin: token})
    _told(session, {"origin": origin, "stored": str(store.path)})
    return 0


async def logout(session: CommandSession) -> int:
    """Remove the token of one origin."""
    origin = _origin(session)
    store = CredentialStore(config.credentials_file())
    tokens = store.tokens()
    known = tokens.pop(origin, None) is not None
    if known:
        store.save(tokens)
    _told(session, {"origin": origin, "removed": known})
    return 0


async def status(session: CommandSession) -> int:
    """Show the origins with a token, never the token."""
    store = CredentialStore(config.credentials_file())
    tokens = store.tokens()
    local = [one for one in session.target().servers if one.token_file]
    rows = [{"origin": origin, "source": str(store.path)} for origin in tokens]
    rows += [{"origin": origin_of(one.url), "source": str(one.token_file)} for one in local]
    for name in ("bearer", "api_key"):
        if session.value(name):
            rows.append({"origin": "of the agent card", "source": session.settings[name].source})
    if session.json:
        print_json({"credentials": rows})
        return 0
    for row in rows:
        _told(session, row)
    return 0


def _told(session: CommandSession, facts: Mapping[str, Any]) -> None:
    if session.json:
        print_json(facts)
        return
    fields = Fields()
    for name, value in facts.items():
        fields.field(name.capitalize(), str(value).lower() if isinstance(value, bool) else value)


def _origin(session: CommandSession) -> str:
    """The origin of the URL, of the agent card, or of the local server."""
    reference = session.options.url or session.value("agent_card")
    if reference is None:
        target = session.target()
        return origin_of(choose(target.servers, target.cwd).url)
    url = reference if socket_of(reference) else address_of(reference)
    if url is None:
        raise usage("a file has no origin: name the URL of the agent")
    return origin_of(url)


# --- settings ---------------------------------------------------------------------------------


async def show_config(session: CommandSession) -> int:
    """Show each setting with its source. Credentials are not shown."""
    shown = {}
    for name, setting in SETTINGS.items():
        found = session.settings[name]
        value = found.value
        if setting.secret and value:
            value = "[REDACTED]"
        shown[name] = {"value": value, "source": found.source}
    if session.json:
        print_json({"settings": shown})
        return 0
    fields = Fields()
    for name, one in shown.items():
        flag, value = name.replace("_", "-"), one["value"]
        text = "unset" if value is None or value == () else value
        fields.field(
            flag, f"{str(text).lower() if isinstance(text, bool) else text} ({one['source']})"
        )
    return 0
