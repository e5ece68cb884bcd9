"""Changes of the configuration without a restart: all sources are read and checked, compared with
the present settings, and applied. An error keeps the present configuration."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from bridge.auth.authentication import Identity, TokenIssuer
from bridge.auth.credentials import tokens_of, users_of
from bridge.errors import ConfigurationError, Unavailable
from bridge.push.notifier import Push
from bridge.server.agents.configured import configure_agents
from bridge.server.agents.fleet import FleetPlan
from bridge.server.extras import token_issuer
from bridge.server.settings.load import Loaded, check
from bridge.server.settings.root import SECTIONS, Settings
from bridge.server.token_file import OperatorToken, read_again

log = logging.getLogger(__name__)

HOT = frozenset(
    {
        *(
            "public_url",
            "log_level",
            "log_format",
            "log_requests",
            "bridge_allowed_hosts",
            "bridge_allowed_origins",
        ),
        *("bridge_max_connections", "bridge_max_connections_per_peer"),
        *("bridge_max_connections_per_second", "bridge_trusted_proxies"),
        "bridge_stall_timeout_ms",
        *("bridge_token", "tokens", "unix_users"),
        *("bridge_oidc_issuer", "bridge_oidc_audience", "bridge_oidc_claim"),
        *("bridge_oidc_workspaces_claim", "bridge_oidc_scopes"),
        *("bridge_drain_ms", "bridge_on_stop", "agents", "profiles"),
        *(
            field.alias or name
            for kind in SECTIONS.values()
            if kind.per_agent
            for name, field in kind.model_fields.items()
            if name != "card_keys"
        ),
    }
)
"""The settings that a reload applies. Files of settings keep their paths, because the sandboxes of
running agents hide these; their contents are read again."""
TABLES = ("tokens", "unix_users", "agents", "profiles")
_LONGEST = 3600.0  # seconds of one timer; the clock of the machine may be set meanwhile


@dataclass(frozen=True, slots=True)
class Changes:
    """The names of settings (LOG_LEVEL) and of tables (tokens.ide). `needs_restart` were changed
    and are not applied."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(asdict(self).values())


def compare(old: Settings, new: Settings) -> Changes:
    """The changes between two settings. Values are not named: they may be secrets."""
    found: dict[str, list[str]] = {"added": [], "removed": [], "changed": [], "needs_restart": []}
    for section, kind in SECTIONS.items():
        before, after = getattr(old, section), getattr(new, section)
        for member, field in kind.model_fields.items():
            setting = field.alias or member
            one, other = getattr(before, member), getattr(after, member)
            if one == other:
                continue
            if setting not in HOT:
                found["needs_restart"] += _names(setting, one, other)
            elif setting in TABLES:
                for name in sorted(one.keys() | other.keys()):
                    if one.get(name) != other.get(name):
                        how = "added" if name not in one else "changed"
                        found["removed" if name not in other else how].append(f"{setting}.{name}")
            else:
                found["changed"].append(_shown(setting))
    return Changes(**{name: tuple(names) for name, names in found.items()})


def applied(old: Settings, new: Settings) -> Settings:
    """`new`, with the values of `old` for all settings that need a restart."""
    kept: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        for member, field in kind.model_fields.items():
            setting = field.alias or member
            if setting not in HOT:
                kept[setting] = getattr(getattr(old, section), member)
    if old.auth.token_file != new.auth.token_file:  # the token of the other file
        kept["bridge_token"] = old.auth.token
    return new.updated(kept)


def _names(setting: str, one: Any, other: Any) -> list[str]:
    if setting not in TABLES:
        return [_shown(setting)]
    names = sorted(one.keys() | other.keys())
    return [f"{setting}.{name}" for name in names if one.get(name) != other.get(name)]


def _shown(setting: str) -> str:
    return setting if setting in ("rules", "agent_skills") else setting.upper()


class ReloadTarget(Protocol):
    """The parts of the server that get new settings."""

    async def prepare(self, loaded: Loaded) -> FleetPlan:
        """Make all that can fail. Raises ConfigurationError; nothing has changed then."""

    def apply(self, loaded: Loaded, plan: FleetPlan) -> None:
        """Use new settings from the next request on. Raises nothing."""


class Reloader:
    """`read` reads all sources. `identity` and `push` get the new credentials, and `target` the
    other settings. `operator`: the token of the state folder. `counted` gets each outcome;
    `announced` is the context of each reload."""

    def __init__(
        self,
        loaded: Loaded,
        read: Callable[[], Loaded],
        *,
        identity: Identity,
        push: Push,
        operator: OperatorToken | None,
        target: ReloadTarget,
    ) -> None:
        self.loaded = loaded
        self.time = time.time()
        self._read = read
        self.identity = identity
        self._push = push
        self._operator = operator
        self._target = target
        self.counted: Callable[[bool], None] = lambda ok: None
        self.announced: Callable[[], AbstractContextManager[None]] = nullcontext
        self._lock = asyncio.Lock()
        self._waiting: asyncio.Task[None] | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._watch_expiry()

    def request(self) -> None:
        """Reload soon, for a signal. Requests that come before its begin are one reload."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._requested())
            self._running.add(self._waiting)
            self._waiting.add_done_callback(self._running.discard)

    def close(self) -> None:
        """Stop the timer, and reloads that have not begun to apply."""
        if self._timer:
            self._timer.cancel()
        for one in self._running:
            one.cancel()

    async def reload(self) -> Changes:
        """Read and apply all sources. Raises ConfigurationError if one is invalid; then nothing has
        changed."""
        async with self._lock:
            return await self._reload()

    async def _requested(self) -> None:
        async with self._lock:
            self._waiting = None
            try:
                await self._reload()
            except ConfigurationError:
                pass  # it is in the log

    async def _reload(self) -> Changes:
        ok = False
        try:
            with self.announced():
                changes = await self._changed()
            ok = True
        except ConfigurationError as problem:
            facts = {"event": "config.reload_failed", "problem": str(problem)}
            log.error("the configuration was not reloaded", extra=facts)
            raise
        except Exception as error:
            facts = {"event": "config.reload_failed", "problem": "internal error"}
            log.exception("the configuration was not reloaded", extra=facts)
            raise ConfigurationError("internal error; the server's log has it") from error
        finally:
            self.counted(ok)
        self.time = time.time()
        facts = {"event": "config.reloaded", **asdict(changes)}
        log.warning("the configuration was reloaded", extra=facts)
        return changes

    async def _changed(self) -> Changes:
        old = self.loaded.settings
        found = await asyncio.to_thread(self._checked)
        changes = compare(old, found.settings)
        new = replace(found, settings=applied(old, found.settings))
        await asyncio.to_thread(check, new)
        operator = self._operator
        if operator:
            operator = await asyncio.to_thread(read_again, operator)
        auth = new.settings.auth
        tokens_of(auth.config), users_of(auth.config)  # these raise, before anything is applied
        issuer = self._issuer(new.settings)
        plan = await self._target.prepare(new)
        # No await and no error from here on: a request sees the old or the new configuration.
        self.identity.change(auth.config, issuer, operator.value if operator else None)
        self._operator, self.loaded = operator, new
        for warning in found.warnings:
            log.warning(warning)
        self._target.apply(new, plan)
        self._watch_expiry()
        await self._notify()
        return changes

    def _checked(self) -> Loaded:
        """All sources, which are valid as a whole."""
        loaded = self._read()
        configure_agents(loaded)
        return loaded

    def _issuer(self, settings: Settings) -> TokenIssuer | None:
        """A new issuer, which reads its keys again; the present one if nothing of it can differ."""
        old, new = self.loaded.settings.auth, settings.auth
        names = [name for name in type(new).model_fields if name.startswith("oidc_")]
        from_file = new.oidc_jwks is not None and "://" not in new.oidc_jwks
        if not from_file and all(getattr(old, name) == getattr(new, name) for name in names):
            return self.identity.issuer
        return token_issuer(settings)

    async def _notify(self) -> None:
        """Stop and continue push notifications by the credentials of their owners."""
        try:
            await self._push.revoke()
            await self._push.restart()
        except Unavailable as error:
            log.warning("push notifications were not checked", extra={"reason": str(error)})

    # --- expiry ----------------------------------------------------------------------------------

    def _watch_expiry(self) -> None:
        """Stop push notifications when a token expires; streams have timers of their own."""
        if self._timer:
            self._timer.cancel()
        expires = self.identity.next_expiry
        if expires is not None:
            left = min(max(expires - time.time(), 0.0) + 0.01, _LONGEST)
            self._timer = asyncio.get_running_loop().call_later(left, self._expired)

    def _expired(self) -> None:
        task = asyncio.create_task(self._notify())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        self._watch_expiry()
