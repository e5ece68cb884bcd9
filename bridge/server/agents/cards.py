"""The card of each agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge import __version__
from bridge.a2a.card import Card, Skill
from bridge.a2a.card_shapes import can_sign, shapes
from bridge.adapter import Adapter
from bridge.auth.config import discovery
from bridge.errors import ConfigurationError
from bridge.server.agents.configured import UNVERIFIED, ConfiguredAgent, agent_id_of
from bridge.server.agents.grpc_port import GrpcPlace
from bridge.server.extras import card_signer
from bridge.server.settings.broker import redis_prefix
from bridge.server.settings.root import Settings

SKILLS = (
    Skill(
        "code",
        "Coding",
        "Reads, writes and runs code in a workspace: implement, fix, refactor, test, explain.",
        ("code", "edit", "refactor", "test", "debug", "review"),
        ("Add a test for the date parser and fix its bugs.", "Explain how login works."),
    ),
)


def make_card(
    agent: ConfiguredAgent,
    address: str,
    *,
    details: dict[str, object] | None = None,
    more_skills: tuple[Skill, ...] = (),
    grpc: GrpcPlace | None = None,
) -> Card:
    """The agent's card. `address`: the part of its URLs before /a2a."""
    settings = agent.settings
    required, issuer = settings.auth.config.required, settings.auth.oidc_issuer
    return Card(
        name=settings.agent.name or f"{title_of(agent)} (coding-agent-bridge)",
        description=settings.agent.description or _description(agent),
        version=__version__,
        url=f"{address}/a2a/jsonrpc",
        rest_url=f"{address}/a2a/rest",
        skills=(*(settings.agent.skills or SKILLS), *more_skills),
        input_modes=_input_modes(agent.adapter),
        output_modes=("text/plain", "application/json"),
        provider=_provider(settings.agent.provider),
        icon_url=settings.agent.icon_url,
        bearer=required,
        oidc=issuer and discovery(issuer),
        push=settings.has_push,
        extended=required,
        details=details,
        grpc=grpc.url(address) if grpc else None,
        tenant=agent.id if grpc and agent.id != grpc.default else None,
        websocket=f"ws{address.removeprefix('http')}/a2a/ws" if settings.server.websocket else None,
        # The root answers requests through Redis. Its prefix is for clients with a token.
        redis=redis_prefix(settings.redis, settings.auth.tokens) if details is not None else None,
    )


def make_signer(settings: Settings) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """A function that signs cards with BRIDGE_CARD_KEYS. Raises ConfigurationError."""
    if settings.agent.card_keys is None:
        return None
    if not can_sign(settings.agent.card):
        able = " or ".join(filter(can_sign, shapes()))
        raise ConfigurationError(f"Only a pure {able} card can be signed: set BRIDGE_CARD={able}.")
    return card_signer(settings.agent.card_keys)


def as_skill(agent: ConfiguredAgent) -> Skill:
    """The agent as a skill on the card of the agent at the root."""
    about = f"Runs {agent.adapter.title}: send metadata.bridge.agent = {agent.id!r}."
    described = agent.settings.agent.description
    return Skill(
        agent.id,
        agent.settings.agent.name or title_of(agent),
        f"{described} {about}" if described else about,
        ("code",),
    )


def offer_of(agent: ConfiguredAgent) -> dict[str, list[str]]:
    """The choices that the agent offers, as GET /agents lists them for each server."""
    settings = agent.settings.agent
    return {
        "skills": [skill.id for skill in settings.skills or SKILLS],
        "models": [*settings.models],
        "modes": [*agent.adapter.modes],
    }


def make_details(agent: ConfiguredAgent, version: str) -> dict[str, object]:
    """The members of the extended card. They contain no paths: paths concern only the operator."""
    settings = agent.settings
    unverified = {} if agent.adapter.verified else {"verified": False}
    return {
        "adapter": agent.adapter.name,
        **unverified,
        "cliVersion": version,
        "model": settings.agent.model or "the CLI's own choice",
        "models": list(settings.agent.models),
        "modes": list(agent.adapter.modes),
        "thoughts": settings.agent.thoughts,
        "asksForPermission": not settings.agent.force,
        "lacks": dict(agent.adapter.limitations),
        "limits": {
            "turnMs": settings.agent.timeout_ms,
            "silenceMs": settings.agent.idle_exit_ms,
            "sessions": settings.server.max_sessions,
            "bodyBytes": settings.server.max_body_bytes,
        },
    }


def _provider(configured: str | None) -> tuple[str, str] | None:
    """The organization and its URL, which is the last word."""
    organization, _, url = (configured or "").rpartition(" ")
    return (organization.strip(), url) if url else None


def _description(agent: ConfiguredAgent) -> str:
    """The default description. Clients put it into the prompt of a model that delegates tasks."""
    asks = not agent.settings.agent.force and "questions" not in agent.adapter.limitations
    return (
        f"{agent.adapter.title}, a coding agent that reads, writes and runs code in a repository. "
        "Send a whole task in one message; the agent keeps its conversation for the next one."
        + (
            " It may ask before it edits a file or runs a command: reply with one of the options "
            "that the question names."
            if asks
            else ""
        )
        + ("" if agent.adapter.verified else f" Unverified: {UNVERIFIED}.")
    )


def title_of(agent: ConfiguredAgent) -> str:
    """The adapter's title, with the agent's id if the operator chose one: the names on the cards of
    one server must differ."""
    title = agent.adapter.title
    return title if agent.id == agent_id_of(agent.adapter.name) else f"{title} {agent.id}"


def _input_modes(adapter: type[Adapter]) -> tuple[str, ...]:
    """The media types that the CLI reads, and any other file, if it takes files: the bridge saves
    it and names its path in the prompt."""
    every = "application/octet-stream"
    known = {every, "*/*"} & set(adapter.input_modes)
    whole = known or not adapter.takes_files
    return adapter.input_modes if whole else (*adapter.input_modes, every)
