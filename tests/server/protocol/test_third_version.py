"""A third protocol version is one file with a codec, and one adapter is one file with a class: no
other module knows versions or adapters by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from bridge.a2a.codec import Codec, Operation
from bridge.a2a.codecs import CODECS, EXTENDED
from bridge.a2a.v1_0 import V1_0
from tests.support.client import METHODS, Client, Json, artifact_text, state, streamed_text
from tests.support.served import serving

WORDS = ("Say", "SayAll", "Look", "Halt", "Follow")
OPERATIONS = (
    Operation.SEND,
    Operation.STREAM,
    Operation.GET,
    Operation.CANCEL,
    Operation.SUBSCRIBE,
)


class V9_9(V1_0):
    """Version 1.0 with other names of methods."""

    version: ClassVar[str] = "9.9"
    methods: ClassVar = dict(zip(WORDS, OPERATIONS, strict=True))


@pytest.fixture
def third_version() -> Iterator[None]:
    METHODS["9.9"] = WORDS
    added: list[tuple[list[Codec], Codec]] = [(CODECS, V9_9()), (EXTENDED, V9_9(extended=True))]
    for codecs, codec in added:
        codecs.insert(0, codec)
    yield
    for codecs, codec in added:
        codecs.remove(codec)
    del METHODS["9.9"]


@pytest.mark.usefixtures("third_version")
@pytest.mark.parametrize("shape", ["9.9", "both"])
async def test_a_third_version_serves_a_card_a_send_and_a_stream(
    workspace: Path, shape: str
) -> None:
    async with serving(workspace, bridge_card=shape) as server:
        async with server.http.get(f"{server.url}/.well-known/agent-card.json") as response:
            card = await response.json()
        spoken = {one["protocolVersion"] for one in card["supportedInterfaces"]}
        assert "9.9" in spoken
        client = server.client("9.9")
        task = await client.send("text one")
        assert (state(task), artifact_text(task)) == ("completed", "one")
        assert streamed_text(await client.collect("text two")) == "two"


@pytest.mark.usefixtures("third_version")
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_other_versions_are_as_before(workspace: Path, version: str) -> None:
    async with serving(workspace) as server:
        client: Client = server.client(version)
        assert artifact_text(await client.send("text one")) == "one"
        assert streamed_text(await client.collect("text two")) == "two"


DUMMY = """
from typing import ClassVar

from bridge.adapter import Adapter, Done, Launch, Text


class Dummy(Adapter):
    name: ClassVar[str] = "dummy"
    title: ClassVar[str] = "Dummy"
    binary: ClassVar[str] = "cat"

    def launch(self):
        return Launch((self.config.binary,))

    def prompt(self, prompt):
        self.send(prompt.text.encode() + b"\\n")

    def receive_line(self, line):
        return [Text(line.decode()), Done()]
"""


async def test_an_adapter_is_one_file(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dummy_of_a_test.py").write_text(DUMMY)
    monkeypatch.syspath_prepend(tmp_path)
    settings: Json = {
        "agent_adapter": "dummy_of_a_test:Dummy",
        "agent_binary": None,
        "agent_args": (),
    }
    async with serving(workspace, **settings) as server:
        assert artifact_text(await server.client().send("meow")) == "meow"
