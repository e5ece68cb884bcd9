"""The properties of a Redis server that decide the cost of an outage. Needs the extra `redis`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from bridge.store.redis_address import (
    ANSWER_WITHIN,
    REDIS_ERRORS,
    RedisAddress,
    cause_of,
    ping,
)


@dataclass(frozen=True, slots=True)
class RedisReport:
    """`milliseconds`: of an answer. `notes`: unusual properties, for operators. `facts`: for
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


REQUEST_COMMANDS = (
    *("xadd", "xread", "xreadgroup", "xack", "xdel", "xclaim", "xautoclaim", "xpending"),
    *("xrevrange", "exists", "pexpire", "get", "set", "del", "watch", "multi", "exec"),
    "xgroup|create",
)
"""The commands of a server that reads requests."""
RELAY_COMMANDS = (
    *("xadd", "xread", "xrange", "xpending", "xack", "xdel", "multi", "exec"),
    *("xgroup|create", "xgroup|delconsumer", "xinfo|consumers"),
)
"""The commands of a server that relays push notifications."""


async def refused(
    address: RedisAddress, prefix: str, names: Sequence[str], *, relay: bool
) -> Sequence[str]:
    """The commands that the user of the address may not use, as far as it may ask: on keys of the
    principals `names`, and of the relay. Raises REDIS_ERRORS."""
    commands = {*(REQUEST_COMMANDS if names else ()), *(RELAY_COMMANDS if relay else ())}
    client = address.client(1, repeats=False)
    found = []
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            try:
                user = await client.acl_whoami()
                for one in sorted(commands):
                    keys = [f"{prefix}:requests:{name}" for name in names] or [f"{prefix}:push"]
                    if not await _may(client, user, one, keys[0]):
                        found.append(one)
            except ResponseError:  # it may not ask
                return []
    finally:
        await client.aclose()
    return found


ARGUMENTS = {
    "xreadgroup": ("GROUP", "g", "c", "STREAMS", "{}", ">"),
    "xread": ("STREAMS", "{}", "0"),
    "xadd": ("{}", "*", "f", "v"),
    "xack": ("{}", "g", "0-1"),
    "xdel": ("{}", "0-1"),
    "xclaim": ("{}", "g", "c", "0", "0-1"),
    "xautoclaim": ("{}", "g", "c", "0", "0-0"),
    "xpending": ("{}", "g"),
    "xrange": ("{}", "-", "+"),
    "xrevrange": ("{}", "+", "-"),
    "pexpire": ("{}", "1"),
    "set": ("{}", "v"),
    "xgroup|create": ("{}", "g", "0"),
    "xgroup|delconsumer": ("{}", "g", "c"),
    "xinfo|consumers": ("{}", "g"),
    "multi": (),
    "exec": (),
}


async def _may(client: Any, user: bytes, command: str, key: str) -> bool:
    """Whether the user may run a command on the key."""
    arguments = [one.format(key) for one in ARGUMENTS.get(command, ("{}",))]
    words = [*command.split("|"), *arguments]
    answer = await client.execute_command("ACL", "DRYRUN", user, *words)
    return bool(answer in (b"OK", "OK", True))


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
