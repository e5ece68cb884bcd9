"""The checks of the database of BRIDGE_STORE, and of Redis. They change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.cli.doctor.report import Check, failed, note, ok
from bridge.errors import ConfigurationError
from bridge.server.extras import check_broker, probe_bus, probe_database
from bridge.server.settings.root import Settings

SLOW = 5.0  # milliseconds of a round trip; the start of a task needs some of them


async def database(settings: Settings) -> Sequence[Check]:
    """Whether the server reaches its database, and how fast; empty without a database."""
    if settings.store.database is None:
        return []
    try:
        found = await probe_database(settings)
    except ConfigurationError as error:
        problem, _, step = str(error).partition(". ")
        return [failed("database", problem, step or "correct BRIDGE_STORE")]
    facts = {"version": found.version, "milliseconds": round(found.milliseconds, 2)}
    text = f"{found.place}: PostgreSQL {found.version}, {found.milliseconds:.1f} ms for an answer"
    checks = [ok("database", text, **facts)]
    if found.milliseconds > SLOW:
        checks.append(note("database", "it is far away: each task waits for several answers"))
    if not found.durable:
        step = "set fsync and full_page_writes to on in postgresql.conf"
        text = "it does not write to the disk: a power cut loses acknowledged tasks"
        checks.append(failed("database", text, step))
    if found.exposed:
        text = "prompts and output cross the network without protection"
        checks.append(note("database", f"{text}: add sslmode=verify-full to BRIDGE_STORE"))
    if not settings.has_push:
        checks.append(note("push", "no push notifications without BRIDGE_PUSH_KEY"))
    return [*checks, *await _bus(settings)]


async def _bus(settings: Settings) -> Sequence[Check]:
    """Whether the server reaches the Redis that carries its hints."""
    if settings.store.redis is None:
        return []
    try:
        place, milliseconds = await probe_bus(settings.store.redis)
    except ConfigurationError as error:
        step = "start Redis, or correct BRIDGE_BUS: streams at other servers are a second late"
        return [failed("bus", str(error), step)]
    text = f"{place}: {milliseconds:.1f} ms for an answer"
    return [ok("bus", text, milliseconds=round(milliseconds, 2))]


async def broker(settings: Settings) -> Sequence[Check]:
    """Whether the server reaches the Redis of BRIDGE_REDIS_URL, has the rights that it needs, and
    loses nothing there; empty without it."""
    if settings.redis.url is None:
        return []
    try:
        place, report, refused = await check_broker(settings)
    except ConfigurationError as error:
        problem, _, step = str(error).partition(". ")
        return [failed("redis", problem, step or "start Redis, or correct BRIDGE_REDIS_URL")]
    version = report.facts.get("version", "of an unknown version")
    text = f"{place}: Redis {version}, {report.milliseconds:.1f} ms for an answer"
    facts = {"milliseconds": round(report.milliseconds, 2), **report.facts}
    checks = [ok("redis", text, **facts), *(note("redis", one) for one in report.notes)]
    if refused:
        step = "give the user the rights of docs/bindings.md (ACL SETUSER)"
        checks.append(failed("redis", f"the user may not use {', '.join(refused)}", step))
    return checks
