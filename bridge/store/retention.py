"""The choice of the finished tasks that a store removes. Pure: heads in, ids out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

from bridge.store.protocol import Retention, TaskHead

DAY = 24 * 3600 * 1_000_000  # microseconds
KEEP_UNDELIVERED = DAY  # after the end of a task


def expired(
    finished: Mapping[str, Sequence[TaskHead]],
    retention: Retention,
    *,
    now: int,
    stored: int,
    undelivered: Container[str] = (),
) -> list[str]:
    """Ids of the tasks to remove. `finished`: the finished tasks of each owner, in the order in
    which they ended; `stored`: the bytes of the whole store.

    The limits of contexts, owners and age remove the oldest tasks of each. Above the number of
    tasks, the owner with the most tasks loses its oldest one. Above the bytes, one task in ten is
    removed, since the size is measured again later.

    `undelivered`: ids of tasks with undelivered notifications. They are kept for KEEP_UNDELIVERED,
    but not above the bytes of the store: an absent receiver must not fill the disk.
    """
    gone: list[str] = []
    full = 0 < retention.bytes < stored
    held = now - KEEP_UNDELIVERED
    left = {
        owner: [
            head
            for head in reversed(heads)
            if full or head.changed < held or head.task_id not in undelivered
        ]
        for owner, heads in finished.items()
    }
    oldest = now - retention.days * DAY
    for owner, heads in left.items():
        if 0 < retention.of_context < len(heads):
            gone += _trim(heads, retention.of_context)
        most, size = retention.of_owner(owner), sum(head.size for head in heads)
        while heads and (0 < most < size or (retention.days and heads[-1].changed < oldest)):
            size -= heads[-1].size
            gone.append(heads.pop().task_id)
    kept = sum(map(len, left.values()))
    excess = max(0, kept - retention.tasks)
    if full:
        excess = max(excess, 1 + kept // 10)
    for _ in range(min(excess, kept)):
        gone.append(max(left.values(), key=len).pop().task_id)
    return gone


def _trim(heads: list[TaskHead], most: int) -> list[str]:
    """Take all but the newest `most` tasks of each context of one owner from `heads`, the newest
    first. Returns the ids, the oldest first."""
    left = Counter([head.context.id for head in heads])
    if max(left.values()) <= most:  # this runs after each task
        return []
    kept: list[TaskHead] = []
    gone: list[str] = []
    for head in reversed(heads):  # the oldest first
        if left[head.context.id] > most:
            left[head.context.id] -= 1
            gone.append(head.task_id)
        else:
            kept.append(head)
    heads[:] = reversed(kept)
    return gone
