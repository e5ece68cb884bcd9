"""The properties of a Redis server that decide what an outage costs. Needs the extra `redis`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from bridge.store.redis_address import (
    ANSWER_WITHIN,
    REDIS_ERRORS,
    RedisAddress,
    cause_of,
    ping,
)


@dataclass(frozen=True, slots=True)
class RedisReport:
    """`milliseconds`: of an answer. `notes`: what is unusual, for operators. `facts`: for
    programs."""

    milliseconds: float
    facts: dict[str, Any]
    notes: list[str]


async def report(address: RedisAddress) -> RedisReport:
    """Ask Redis. Raises REDIS_ERRORS if it does not answer."""
    client = address.client(1, repeats=False)
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            milliseconds = await ping(client)
            facts, notes = {}, []
            try:
                found = await client.info("everything")
            except REDIS_ERRORS as error:
                notes.append(f"INFO is refused ({cause_of(error)}): its durability is not known")
            else:
                facts, notes = _facts(found), _notes(found)
    finally:
        await client.aclose()
    if address.exposed:
        notes.append("prompts and output cross the network without protection: use rediss://")
    return RedisReport(milliseconds, facts, notes)


def _facts(info: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": str(info.get("redis_version", "")),
        "role": str(info.get("role", "")),
        "replicas": int(info.get("connected_slaves", 0)),
        "appendonly": bool(info.get("aof_enabled", 0)),
        "maxmemory": int(info.get("maxmemory", 0)),
        "policy": str(info.get("maxmemory_policy", "")),
    }


def _notes(info: dict[str, Any]) -> list[str]:
    facts, notes = _facts(info), list[str]()
    if not facts["appendonly"]:
        notes.append("no append-only file: a restart of Redis loses requests (appendonly yes)")
    for name in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            notes.append(f"{name} is {info[name]}: Redis cannot write to its disk")
    if facts["policy"] not in ("noeviction", ""):
        notes.append(
            f"maxmemory-policy is {facts['policy']}: Redis may remove requests; set noeviction"
        )
    if facts["role"] not in ("master", ""):
        notes.append("it is a replica: writes are refused")
    elif facts["replicas"]:
        notes.append(
            f"{facts['replicas']} replicas, asynchronous: a failover may lose the last writes"
        )
    return notes
