"""The task that the items of a stream add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.client.shapes import UNSPECIFIED, Json, state_of


class Snapshot:
    """`task` and `message`: the object that the agent answered with, as known so far. The parts of
    an artifact are kept as they came: adjacent texts are not joined."""

    def __init__(self) -> None:
        self.task: Json | None = None
        self.message: Json | None = None

    @property
    def state(self) -> str:
        return state_of(self.task) if self.task else UNSPECIFIED

    def apply(self, item: Mapping[str, Any]) -> None:
        """Add an item of a stream in the shape of 1.0."""
        if isinstance(item.get("message"), dict):
            self.message = item["message"]
        elif isinstance(item.get("task"), dict):
            self.task = dict(item["task"])
        elif isinstance(item.get("statusUpdate"), dict):
            self._apply_status(item["statusUpdate"])
        elif isinstance(item.get("artifactUpdate"), dict):
            self._apply_artifact(item["artifactUpdate"])

    def _apply_status(self, update: Json) -> None:
        task = self._known(update)
        task["status"] = update.get("status") or {}
        if update.get("metadata"):
            task["metadata"] = {**(task.get("metadata") or {}), **update["metadata"]}

    def _apply_artifact(self, update: Json) -> None:
        task, given = self._known(update), update.get("artifact") or {}
        artifacts: list[Json] = list(task.get("artifacts") or ())
        same = [
            place
            for place, one in enumerate(artifacts)
            if one.get("artifactId") == given.get("artifactId")
        ]
        if not same:
            artifacts.append(given)
        elif update.get("append"):
            old = artifacts[same[0]]
            parts = [*(old.get("parts") or ()), *(given.get("parts") or ())]
            artifacts[same[0]] = {**old, **given, "parts": parts}
        else:
            artifacts[same[0]] = given
        task["artifacts"] = artifacts

    def _known(self, update: Json) -> Json:
        if self.task is None:
            self.task = {"id": update.get("taskId"), "contextId": update.get("contextId")}
        return self.task
