"""The artifacts of a task besides its answer, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from bridge.errors import InvalidParams
from bridge.task.artifact import ANSWER_ID, GAP, SUBAGENT, Artifact
from bridge.task.message import DataPart, Part, RawPart, TextPart, media_type
from bridge.task.state import Task
from bridge.task.text import one_line

SHOWN = 20  # names of artifacts in a result


def named(task: Task) -> Mapping[str, Artifact]:
    """The artifacts besides the answer, by their names; by its id if the name is not unique."""
    others = [one for one in task.artifacts.values() if one.id != ANSWER_ID]
    names = [one.name for one in others]
    return {
        one_line(one.name if one.name and names.count(one.name) == 1 else one.id): one
        for one in others
    }


def text_of(artifact: Artifact) -> str:
    """The texts of an artifact, and a line for each part of another kind."""
    return "".join(map(_shown, artifact.parts))


def words_of(task: Task) -> str:
    """The text of an agent that delivers only artifacts: those of their parts that are texts."""
    own = [one for one in named(task).values() if not one.id.startswith(SUBAGENT)]
    texts = ("".join(part.text for part in one.parts if isinstance(part, TextPart)) for one in own)
    return GAP.join(filter(None, texts))


def artifact_text(task: Task, name: str | None) -> str:
    """The artifact with this name or id. Without a name: the only one. Raises InvalidParams."""
    known = named(task)
    found = known.get(name) or task.artifacts.get(name) if name else None
    if name is None and len(known) == 1:
        (found,) = known.values()
    if found is None:
        text = f"The task has these artifacts: {', '.join(known) or 'none'}."
        raise InvalidParams(text, [("artifact", text)])
    return text_of(found)


def _shown(part: Part) -> str:
    match part:
        case TextPart(text):
            return text
        case DataPart(data):
            return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        case RawPart():
            size = len(part.base64) // 4 * 3 - part.base64[-2:].count("=")
            return f"[{part.filename or 'a file'}, {media_type(part)}, {size} bytes]\n"
    return f"[{part.filename or urlsplit(part.url).path}, {media_type(part)}, {part.url}]\n"
