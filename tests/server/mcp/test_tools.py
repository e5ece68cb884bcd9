"""The list of tools, their arguments, and the size of their results."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.server.mcp import SPECIFIED
from tests.support.mcp import Json, Mcp, McpError, shown, text_of
from tests.support.served import Server, serving

NOT_YET = {"change", "verify", "budget", "workspace"}
MOST = 20 * 1024


def without_later_features(value: Any) -> Any:
    if isinstance(value, list):
        return [without_later_features(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: without_later_features(one) for name, one in value.items()}
    if isinstance(properties := found.get("properties"), dict):
        found["properties"] = {k: one for k, one in properties.items() if k not in NOT_YET}
    return found


def resolved(value: Any, definitions: Json) -> Any:
    if isinstance(value, list):
        return [resolved(one, definitions) for one in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return resolved(definitions[value["$ref"].removeprefix("#/$defs/")], definitions)
    return {name: resolved(one, definitions) for name, one in value.items()}


def specified() -> list[Json]:
    """The tools of the specification, without the features that come later."""
    document = json.loads(SPECIFIED.read_text())
    tools = without_later_features(resolved(document["tools"], document["$defs"]))
    tools = [tool for tool in tools if tool["name"] not in NOT_YET]
    result = next(tool for tool in tools if tool["name"] == "result")
    result["inputSchema"]["properties"]["part"]["enum"] = ["summary", "text", "log", "artifact"]
    result["description"] = (
        "Read the outcome of a task in pieces: summary, text (the whole answer), log, or an "
        "artifact by its name. Pass next_offset as offset to read on."
    )
    return tools


async def test_the_served_list_is_the_specified_one(client: Mcp) -> None:
    served = (await client.call("tools/list", {}))["tools"]
    assert served == specified()
    for one, other in zip(served, specified(), strict=True):
        for schema in ("inputSchema", "outputSchema"):
            assert list(one[schema]["properties"]) == list(other[schema]["properties"])


async def test_the_list_is_short(client: Mcp) -> None:
    served = (await client.call("tools/list", {}))["tools"]
    sent = [{k: t[k] for k in ("name", "description", "inputSchema")} for t in served]
    assert len(json.dumps(sent)) <= 8 * 1024
    assert max(len(tool["description"]) for tool in served) <= 350
    assert most_tokens(json.dumps(sent)) <= 2_500


def most_tokens(text: str) -> int:
    """More tokens than the tokenizers of today's models make of it: they keep an English word of
    six letters whole, and most groups of punctuation marks."""
    pieces = re.findall(r" ?[A-Za-z]+|[0-9]{1,3}|[^A-Za-z0-9]{1,2}", text)
    return sum(math.ceil(len(one) / 6) for one in pieces)


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("delegate", {}, "delegate needs prompt."),
        ("delegate", {"prompt": 5}, "prompt must be of the type string."),
        ("delegate", {"prompt": "x", "wait_seconds": 51}, "wait_seconds has the maximum 50."),
        ("delegate", {"prompt": "x", "agent": "nope"}, "No agent nope. Agents: jsonl."),
        ("delegate", {"prompt": "x", "model": "m"}, "Possible for model: none"),
        ("delegate", {"prompt": "x", "colour": "red"}, "delegate has no argument colour"),
        (
            "delegate",
            {"prompt": "x", "files": ["a"]},
            "Pass an absolute cwd, or absolute paths in files.",
        ),
        ("result", {"task_id": "x", "part": "all"}, "part must be one of: summary, text, log, "),
        ("result", {"task_id": "x", "part": "log"}, "Call list_tasks to find your tasks."),
        ("wait", {"task_id": "x"}, "Call list_tasks to find your tasks."),
        ("cancel", {"task_id": "x"}, "Call list_tasks to find your tasks."),
        ("list_tasks", {"page_token": "x"}, "token"),
    ],
)
async def test_a_refused_argument_is_a_result_with_a_sentence(
    client: Mcp, tool: str, arguments: Json, sentence: str
) -> None:
    result = await client.tool(tool, arguments)
    assert result["isError"]
    assert sentence in text_of(result)
    assert "metadata" not in text_of(result)


async def test_a_directory_outside_the_roots_names_the_roots(client: Mcp, workspace: Path) -> None:
    result = await client.tool("delegate", {"prompt": "x", "cwd": "/"})
    assert result["isError"]
    assert str(workspace) in text_of(result)
    via_header = Mcp(client.http, client.url.removesuffix("/mcp"), headers={"Bridge-Cwd": "/"})
    assert (await via_header.tool("delegate", {"prompt": "x"}))["isError"]


async def test_files_are_named_in_the_prompt(client: Mcp, workspace: Path) -> None:
    (workspace / "notes.txt").write_text("hello")
    script = {"prompt": "prompt\ndone", "cwd": str(workspace), "files": ["notes.txt"]}
    done = shown(await client.tool("delegate", script))
    assert (workspace / "notes.txt").as_uri() in done["text"]
    outside = await client.tool("delegate", {**script, "files": ["../secret.txt"]})
    assert outside["isError"]


async def test_an_unknown_tool_is_an_error(client: Mcp) -> None:
    with pytest.raises(McpError) as caught:
        await client.tool("change", {})
    assert (caught.value.status, caught.value.code) == (400, -32602)


async def test_every_result_fits_its_schema(client: Mcp) -> None:
    schemas = {t["name"]: t["outputSchema"] for t in (await client.call("tools/list", {}))["tools"]}
    done = shown(await client.tool("delegate", {"prompt": "text a\nstatus b\ndone"}))
    asks = shown(await client.tool("delegate", {"prompt": "ask q Which one?"}))
    named = {"task_id": asks["task_id"]}
    answered = {**named, "question_id": asks["question"]["question_id"], "text": "this"}
    calls: list[tuple[str, Json]] = [
        ("list_agents", {}),
        ("wait", {**named, "wait_seconds": 0}),
        ("answer", answered),
        ("wait", {**named, "wait_seconds": 5}),
        ("result", {"task_id": done["task_id"], "part": "text"}),
        ("result", {"task_id": done["task_id"], "part": "log"}),
        ("result", {"task_id": done["task_id"], "part": "summary"}),
        ("list_tasks", {}),
        ("cancel", named),
    ]
    for shown_task in (done, asks):
        Draft202012Validator(schemas["delegate"]).validate(shown_task)
    for name, arguments in calls:
        Draft202012Validator(schemas[name]).validate(shown(await client.tool(name, arguments)))


@pytest.mark.parametrize(
    "word", ["word", "\N{GRINNING FACE}", '"\\', "\N{CJK UNIFIED IDEOGRAPH-4E2D}"]
)
async def test_no_result_is_large(client: Mcp, word: str) -> None:
    asked = f"{word} " * 5_000
    script = f"repeat 50000 {word}\nask q {asked}\nrepeat 50000 {word} "
    done = await client.tool("delegate", {"prompt": script})
    task_id, question = shown(done)["task_id"], shown(done)["question"]["question_id"]
    answer = {"task_id": task_id, "question_id": question, "text": "go on"}
    results = [
        done,
        await client.tool("answer", answer),
        await client.tool("wait", {"task_id": task_id, "after": 1_000_000, "wait_seconds": 5}),
        await client.tool("wait", {"task_id": task_id}),
        await client.tool("result", {"task_id": task_id, "part": "text"}),
        await client.tool("result", {"task_id": task_id, "part": "log"}),
        await client.tool("result", {"task_id": task_id, "part": "summary"}),
        await client.tool("list_tasks", {}),
    ]
    for result in results:
        assert len(json.dumps(result)) <= MOST, result["structuredContent"].keys()


def artifact(name: str, *parts: Json, **members: Any) -> str:
    """The line of a prompt with which the agent delivers an artifact."""
    line = {"type": "artifact", "name": name, "parts": list(parts), **members}
    return f"line {json.dumps(line)}"


async def test_artifacts_are_named_and_read_by_their_names(client: Mcp) -> None:
    script = "\n".join(
        (
            artifact("report", {"text": "one "}),
            artifact("report", {"text": "two"}, append=True),
            artifact("data", {"data": {"a": 1}}, {"raw": "AAAA", "filename": "x.bin"}),
            artifact("twice", {"text": "first"}, artifactId="t1"),
            artifact("twice", {"text": "second"}, artifactId="t2"),
        )
    )
    called = await client.tool("delegate", {"prompt": script})
    done = shown(called)
    assert done["artifacts"] == ["report", "data", "t1", "t2"]
    assert done["text"] == "one two\n\nfirst\n\nsecond"
    assert "report, data, t1, t2" in called["content"][0]["text"]

    async def read(**arguments: Any) -> str:
        found = await client.tool("result", {"task_id": done["task_id"], **arguments})
        return str(shown(found)["content"])

    assert await read(part="text") == done["text"]
    assert await read(part="artifact", artifact="report") == "one two"
    assert await read(part="artifact", artifact="t2") == "second"
    assert '"a": 1' in await read(part="artifact", artifact="data")
    assert "[x.bin, application/octet-stream, 3 bytes]" in await read(
        part="artifact", artifact="data"
    )
    assert "Artifacts: report, data, t1, t2" in await read(part="summary")
    for wrong in ({}, {"artifact": "x"}, {"artifact": "twice"}):
        arguments = {"task_id": done["task_id"], "part": "artifact", **wrong}
        refused = await client.tool("result", arguments)
        assert refused["isError"]
        assert "report, data, t1, t2" in refused["content"][0]["text"]


async def test_the_answer_is_no_artifact_with_a_name(client: Mcp) -> None:
    script = f"text the answer\n{artifact('report', {'text': 'r'})}"
    done = shown(await client.tool("delegate", {"prompt": script}))
    assert (done["text"], done["artifacts"]) == ("the answer", ["report"])
    only = await client.tool("result", {"task_id": done["task_id"], "part": "artifact"})
    assert shown(only)["content"] == "r"
    plain = shown(await client.tool("delegate", {"prompt": "text a"}))
    assert "artifacts" not in plain


async def test_a_long_artifact_is_read_in_pieces(client: Mcp) -> None:
    script = artifact("long", {"text": "x" * 100_000})
    done = shown(await client.tool("delegate", {"prompt": script}))
    whole, offset = "", 0
    while offset < 100_000:
        arguments = {"task_id": done["task_id"], "part": "artifact", "offset": offset}
        found = await client.tool("result", arguments)
        assert len(json.dumps(found)) <= MOST
        whole += shown(found)["content"]
        offset = shown(found).get("next_offset", 100_000)
    assert whole == "x" * 100_000


async def test_many_tasks_fit_into_a_result(client: Mcp) -> None:
    for number in range(30):
        await client.tool("delegate", {"prompt": f"done {number}\n{'x' * 200}"})
    result = await client.tool("list_tasks", {"limit": 50})
    assert len(json.dumps(result)) <= MOST
    first = shown(await client.tool("list_tasks", {"limit": 10}))
    more = {"limit": 50, "page_token": first["next_page_token"]}
    second = shown(await client.tool("list_tasks", more))
    ids = [one["task_id"] for one in first["tasks"] + second["tasks"]]
    assert len(set(ids)) == 30


async def test_long_names_of_tasks_make_shorter_pages(client: Mcp) -> None:
    """The ids of contexts and the titles are words of the client. A page that does not fit is
    halved."""
    words = "\N{GRINNING FACE}" * 20
    contexts = [f"{number:03}{'-' * 125}" for number in range(50)]
    calls = [{"prompt": words, "context_id": one} for one in contexts]
    await asyncio.gather(*(client.tool("delegate", one) for one in calls))  # until all have ended
    token, ids = "", []
    while True:
        asked = {"limit": 50, "page_token": token} if token else {"limit": 50}
        result = await client.tool("list_tasks", asked)
        assert len(json.dumps(result)) <= MOST
        ids += [one["context_id"] for one in shown(result)["tasks"]]
        token = shown(result).get("next_page_token", "")
        if not token:
            break
    assert len(set(ids)) == len(ids) == 50


async def test_an_agent_with_long_lists_fits_into_a_result(workspace: Path) -> None:
    models = tuple(f"a-model-with-a-long-name-{number}" for number in range(1_000))
    async with serving(workspace, agent_models=models) as server:
        client = Mcp(server.http, server.url)
        result = await client.tool("list_agents")
    assert len(json.dumps(result)) <= MOST
    (agent,) = shown(result)["agents"]
    assert agent["models"] == list(models[: len(agent["models"])]) != []


async def test_a_question_with_many_options_is_no_form(server: Server) -> None:
    """The option that a person needs could be one that a form does not show."""
    client = Mcp(server.http, server.url, forms=True)
    options = [{"id": str(number), "name": f"Choice {number}"} for number in range(17)]
    asked = {"type": "question", "id": "q", "text": "Which?", "options": options}
    script = {"prompt": f"line {json.dumps(asked)}\nanswers 1"}
    question = shown(await client.tool("delegate", script))["question"]
    assert len(question["options"]) == 16
    assert question["answered_by"] == "model"


async def test_a_long_answer_is_read_in_pieces(client: Mcp) -> None:
    long = "\\n".join(f"line {number} " + "x" * 50 for number in range(1000))
    line = json.dumps({"type": "text", "text": long.replace("\\n", "\n")})
    done = shown(await client.tool("delegate", {"prompt": f"line {line}\ndone"}))
    assert done["text"].endswith("\n")  # cut at the end of a line
    assert f'Call result with task_id "{done["task_id"]}" and part "text"' in done["next"]
    pieces: list[str] = []
    offset: int | None = 0
    while offset is not None:
        arguments = {"task_id": done["task_id"], "part": "text", "offset": offset}
        result = await client.tool("result", arguments)
        assert len(json.dumps(result)) <= MOST
        pieces.append(shown(result)["content"])
        links = [one for one in result["content"] if one["type"] == "resource_link"]
        assert bool(links) == ("next_offset" in shown(result))
        offset = shown(result).get("next_offset")
    assert "".join(pieces) == long.replace("\\n", "\n")
    uri = links[0]["uri"] if links else f"bridge://tasks/{done['task_id']}/text"
    read = await client.call("resources/read", {"uri": uri})
    assert read["contents"][0]["text"] == long.replace("\\n", "\n")


async def test_a_resource_has_a_limit(client: Mcp) -> None:
    done = shown(await client.tool("delegate", {"prompt": "repeat 400000 x\ndone"}))
    for part in ("text", "log"):
        uri = f"bridge://tasks/{done['task_id']}/{part}"
        (content,) = (await client.call("resources/read", {"uri": uri}))["contents"]
        assert len(content["text"]) <= 256 * 1024
    assert (
        shown(await client.tool("result", {"task_id": done["task_id"], "part": "text"}))["total"]
        == 400_000
    )


async def test_a_failed_task_is_an_error_with_a_reason(client: Mcp) -> None:
    result = await client.tool("delegate", {"prompt": "text so far\nfail It broke."})
    assert result["isError"]
    assert result["structuredContent"]["state"] == "failed"
    assert result["structuredContent"]["reason"] == "agent-error"
    assert "It broke." in text_of(result)


async def test_a_long_task_does_not_flood_its_caller(client: Mcp) -> None:
    begun = shown(await client.tool("delegate", {"prompt": "steps 5000\nask q Go on?"}))
    assert len(begun["news"]) < 300
    assert "not shown" in begun["news"][0]["text"]
    assert begun["next_after"] > 5000
    nothing = {"task_id": begun["task_id"], "after": begun["next_after"], "wait_seconds": 0}
    assert "news" not in shown(await client.tool("wait", nothing))


async def test_resources_are_the_own_tasks_that_ended(client: Mcp) -> None:
    done = shown(await client.tool("delegate", {"prompt": "text hello\ndone"}))
    await client.tool("delegate", {"prompt": "ask q Well?"})
    listed = (await client.call("resources/list", {}))["resources"]
    assert [one["uri"] for one in listed] == [f"bridge://tasks/{done['task_id']}/text"]
    templates = (await client.call("resources/templates/list", {}))["resourceTemplates"]
    assert [one["uriTemplate"] for one in templates] == [
        "bridge://tasks/{id}/text",
        "bridge://tasks/{id}/log",
    ]
    with pytest.raises(McpError) as caught:
        await client.call("resources/read", {"uri": "bridge://tasks/nope/text"})
    assert caught.value.code == -32602
