"""Secrets in the output of a CLI: in one piece, in several pieces, encoded, and inside of any
value."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.session.redaction import MARK, Redactor, Secrets, secrets_of
from bridge.task.events import (
    AgentEvent,
    ArtifactChunk,
    Done,
    Failed,
    FileChange,
    Option,
    Question,
    Retracted,
    Status,
    Text,
    Thought,
    ToolCall,
    ToolResult,
)
from bridge.task.message import DataPart, TextPart
from tests.support.bridge_process import bridge, scripted
from tests.support.cases import each
from tests.support.client import Client, artifact_text, context_id, state, streamed_text, task_id
from tests.support.liveness import listening
from tests.support.secret_corpus import CORPUS
from tests.support.served import serving

SECRET = "sesame-open-77"
OTHER = 'se"cr\net\\with/all + of it'
SECRETS = Secrets([SECRET, OTHER])


def told(*events: AgentEvent, secrets: Secrets = SECRETS) -> list[AgentEvent]:
    """The redacted output for `events`, one by one, to the end of the turn."""
    redactor = Redactor(secrets)
    said = [one for event in (*events, Done()) for one in redactor.clean([event])]
    assert said[-1] == Done()
    return said[:-1]


def texts(events: Iterable[AgentEvent]) -> str:
    """The final answer of these events."""
    answer = ""
    for event in events:
        if isinstance(event, Text) and event.parent is None:
            answer += event.text
        elif isinstance(event, Retracted):
            answer = answer[: -event.length]
    return answer


# --- text ----------------------------------------------------------------------------------------


def splits() -> list[tuple[str, ...]]:
    text = f"before {SECRET} after {OTHER}."
    return [*((text[:at], text[at:]) for at in range(len(text) + 1)), tuple(text)]


@each("pieces", splits(), ids=lambda pieces: str(len(pieces[0])))
def test_a_secret_is_found_wherever_it_is_split(pieces: tuple[str, ...]) -> None:
    assert texts(told(*map(Text, pieces))) == f"before {MARK} after {MARK}."
    between = [one for piece in pieces for one in (Text(piece), Status("busy"))]
    assert texts(told(*between)) == f"before {MARK} after {MARK}."


@each("pieces", splits(), ids=lambda pieces: str(len(pieces[0])))
def test_the_same_of_thoughts_subagents_and_artifacts(pieces: tuple[str, ...]) -> None:
    wanted = f"before {MARK} after {MARK}."
    thoughts = told(*map(Thought, pieces))
    assert "".join(one.text for one in thoughts if isinstance(one, Thought)) == wanted
    parents = told(*(Text(piece, parent="t") for piece in pieces))
    assert {one.parent for one in parents if isinstance(one, Text)} == {"t"}
    assert "".join(one.text for one in parents if isinstance(one, Text)) == wanted
    chunks = told(
        *(ArtifactChunk("a", (TextPart(piece),), append=True, last_chunk=False) for piece in pieces)
    )
    parts = [part for one in chunks if isinstance(one, ArtifactChunk) for part in one.parts]
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == wanted


def test_the_beginning_of_a_secret_is_released_at_the_end() -> None:
    assert told(Text("open sesame")) == [Text("open "), Text("sesame")]
    assert told(Text("sesam"), Text("e street")) == [Text("sesame street")]
    first, second = told(Text("sesame"), Text("B", new_block=True))
    assert (first, second) == (Text("sesame"), Text("B", new_block=True))


def test_the_beginning_of_a_secret_is_released_before_a_question() -> None:
    question = Question("q", "permission", "Open?")
    assert told(Text("open sesame"), question) == [Text("open "), Text("sesame"), question]


def test_a_redacted_artifact_keeps_its_other_members() -> None:
    part = TextPart("sesame", "text/x-diff", filename="a.diff", metadata={"a": 1})
    whole = ArtifactChunk("a", (part,), "Name", "What it is")
    assert told(whole) == [whole]
    begun = replace(whole, last_chunk=False)
    empty = replace(begun, parts=(replace(part, text=""),))
    assert told(begun) == [empty, replace(begun, append=True)]
    ends = replace(whole, parts=(TextPart("-open-77"),), append=True)
    assert told(begun, ends) == [empty, replace(ends, parts=(TextPart(MARK),))]


def test_a_turn_begins_with_nothing_of_the_last_one() -> None:
    redactor = Redactor(SECRETS)
    assert redactor.clean([Text("sesame-"), Done()]) == [Text("sesame-"), Done()]
    assert redactor.clean([Text("open-77"), Done()]) == [Text("open-77"), Done()]


def test_held_text_can_be_retracted() -> None:
    assert told(Text("a sesame"), Retracted(2), Text("!")) == [Text("a "), Text("sesa!")]
    assert told(Text("a sesame"), Retracted(7)) == [Text("a "), Retracted(1)]
    assert told(Text(f"ab{SECRET}cd"), Retracted(3)) == [
        Text(f"ab{MARK}cd"),
        Retracted(len(MARK) + 2),
    ]
    after = told(Text(f"ab{SECRET}"), Retracted(len(SECRET) + 1))
    assert after == [Text(f"ab{MARK}"), Retracted(len(MARK) + 1)]
    redactor = Redactor(SECRETS)
    redactor.clean([Text(f"{SECRET}{SECRET}"), Done()])
    second = redactor.clean([Text("0123456789qqq"), Retracted(12)])
    assert second == [Text("0123456789qqq"), Retracted(12)]


@given(
    st.lists(
        st.one_of(
            st.text(alphabet="sesam-op7 x", max_size=6).map(Text),
            st.sampled_from([Text(SECRET), Text(SECRET[:6]), Text(SECRET[6:]), Status("s")]),
            st.integers(1, 8).map(Retracted),
        ),
        max_size=30,
    )
)
@example([Text("sesame"), Text("7"), Retracted(1), Text("-open-77")])
@example([Text("sesame"), Text("7"), Retracted(1), Text("!")])
def test_text_and_retractions_never_reveal_a_secret(events: list[AgentEvent]) -> None:
    raw, ever = "", False
    kept: list[AgentEvent] = []
    for event in events:
        if isinstance(event, Retracted):
            length = min(event.length, len(raw))
            raw = raw[: len(raw) - length]
            kept += [Retracted(length)] if length else []
        else:
            raw += event.text if isinstance(event, Text) else ""
            kept.append(event)
        ever = ever or SECRET in raw
    answer = texts(told(*kept))
    assert SECRET not in answer
    if not ever:
        assert answer == raw  # nothing was taken out, so that nothing may be missing


# --- everything else -----------------------------------------------------------------------------


@each(
    "event",
    [
        Status(SECRET, {"a": [SECRET, {SECRET: 1}]}),
        ToolCall("1", "Bash", {"command": f"echo {SECRET}"}),
        ToolResult("1", [SECRET], changes=(FileChange("a", "update", f"+{SECRET}"),)),
        Question("q", "text", SECRET, (Option("o", SECRET),), {"input": SECRET}),
        ArtifactChunk("a", (TextPart(SECRET), DataPart({"k": SECRET}))),
        Failed(SECRET, "exit", {"stderr": SECRET}),
    ],
    ids=lambda event: type(event).__name__,
)
def test_it_is_found_in_every_kind_of_event(event: AgentEvent) -> None:
    (clean,) = Redactor(SECRETS).clean([event])
    assert SECRET not in repr(clean)
    assert MARK in repr(clean)
    assert type(clean) is type(event)


def test_an_event_without_a_secret_is_unchanged() -> None:
    event = ToolResult("1", {"output": ["much", 5, None, True]})
    assert Redactor(SECRETS).clean([event])[0] is event


@each(
    "form",
    [
        OTHER,
        json.dumps(OTHER),
        quote(OTHER, safe=""),
        base64.b64encode(OTHER.encode()).decode(),
    ],
)
def test_it_is_found_however_it_is_encoded(form: str) -> None:
    assert MARK in SECRETS.clean(f"it is {form}")


@each("secret", CORPUS)
def test_patterns_are_found_where_they_are_wanted(secret: str) -> None:
    text = f"x {secret} y"
    assert Secrets(patterns=True).clean(text) == f"x {MARK} y"
    assert SECRETS.clean(text) == text


def test_short_values_and_names_that_are_not_secrets_are_left() -> None:
    assert not Secrets(["short", ""])
    given = {"API_KEY": "k1", "GITHUB_TOKEN": "k2", "db_password": "k3", "HOME": "/x"}
    others = {"SSH_AUTH_SOCK": "/s", "KEY_FILE": "/f", "TOKEN_URL": "u", "BRIDGE_AUTH": "auto"}
    others |= {"GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_KEY_12": "core.hooksPath"}
    assert secrets_of({**given, **others}) == {"k1", "k2", "k3"}


# --- through the server --------------------------------------------------------------------------


async def test_a_server_that_attaches_to_an_agent_restores_the_held_text(
    workspace: Path, http: aiohttp.ClientSession
) -> None:
    """One server gets the first half of a secret, and the next server the second half."""
    settings = scripted(workspace) | {"SOME_SECRET": "canary-0123456789"}
    async with listening() as live:
        async with bridge(workspace, **settings) as server:
            client = Client(http, server.url)
            lines = ["text <canary-01", f"wait {live.path} agent", "text 23456789>"]
            task = await client.send_now("\n".join(lines))
            await live.pid("agent")
            async with client.subscribe(task["id"]) as items:
                async for item in items:
                    if "<" in json.dumps(item):
                        break
            assert await server.stop(signal.SIGKILL) == -signal.SIGKILL
        async with bridge(workspace, **settings) as server:
            client = Client(http, server.url)
            async with client.subscribe(task["id"]) as items:
                await live.release("agent")
                async for _ in items:
                    pass
            assert artifact_text(await client.get(task["id"])) == f"<{MARK}>"


async def test_held_text_is_released_when_the_turn_is_canceled(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "canary-0123456789")
    async with listening() as live, serving(workspace, agent_env=("MY_API_KEY",)) as server:
        client = server.client()
        task = await client.send_now(
            f'line {{"type":"text","text":"<canary"}}\nwait {live.path} agent'
        )
        await live.pid("agent")
        canceled = await client.cancel(task["id"])
    assert state(canceled) == "canceled"
    assert artifact_text(canceled) == "<canary"


async def test_a_key_of_the_agent_is_in_nothing_that_a_client_gets(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "canary-0123456789")
    halves = [json.dumps({"type": "text", "text": half}) for half in ("<canary-01", "23456789>")]
    lines = ["env", *(f"line {half}" for half in halves), "ask q is it $MY_API_KEY"]
    async with serving(workspace, agent_env=("MY_API_KEY",)) as server:
        client = server.client()
        asked = await client.collect("\n".join(lines))
        answer = {"taskId": task_id(asked[0]), "contextId": context_id(asked[0])}
        rest = await client.collect("canary-0123456789", **answer)
        task = await client.get(task_id(asked[0]))
    answered = artifact_text(task)
    assert f'"MY_API_KEY": "{MARK}"' in answered  # the agent has it, and says it
    assert f"<{MARK}>" in answered
    assert streamed_text(asked) + streamed_text(rest[1:]) == answered
    # What a client says itself is shown to it; the agent's echo of it is not.
    said = json.dumps([task["artifacts"], task["status"], asked[1:], rest[1:]])
    assert "canary-0123456789" not in said
