"""What is fuzzed: functions of bytes that must not fail, whatever the bytes are.

`scripts/fuzz` runs them with coverage guidance (atheris) for as long as one likes,
tests/system/test_fuzz.py for a short while in every run. Again with a file on which one has failed:
`python -m tests.support.fuzzing NAME FILE`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import orjson

from bridge import errors
from bridge.a2a.codec import Operation
from bridge.a2a.codecs import CODECS
from bridge.adapter import Adapter, AgentConfig, Lines, Prompt, SessionStart
from bridge.adapter.testing import check
from bridge.process.line_splitter import LineSplitter, LongLine
from bridge.server import registry
from bridge.session.redaction import MARK, Redactor, Secrets
from bridge.task.answers import read_answer
from bridge.task.events import ENDINGS, AgentEvent, Done, Text
from bridge.task.message import Message, Role, TextPart
from bridge.task.nearest import nearest
from bridge.task.rules.approval_policy import Rule, decide
from bridge.transports import sse
from bridge.transports.grpc import messages
from bridge.transports.grpc.service import methods
from bridge.transports.grpc.status import status_of
from bridge.transports.json_body import decode_json
from bridge.transports.redis import request as redis_request
from bridge.transports.redis.names import CORRELATION
from bridge.workspace.paths import Workspaces
from tests.support.fuzzed_connections import framing, websocket
from tests.support.grpc_client import to_bytes
from tests.support.recordings import RECORDINGS, Play, name_of, rows_of

Target = Callable[[bytes], None]
RECORDED = {f"recorded-{name_of(path).replace('/', '-')}": path for path in RECORDINGS}
NOT_LINES = frozenset({"aider", "generic"})
"""Adapters of CLIs whose words are the dialect: what ends a turn of theirs is no JSON."""


class Bytes:
    """Takes values from the beginning of some bytes; zeros after their end."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def number(self, below: int) -> int:
        """Two bytes of it."""
        taken, self.rest = self.rest[:2], self.rest[2:]
        return int.from_bytes(taken, "big") % below

    def pieces(self, most: int) -> Iterator[bytes]:
        """The rest in pieces of up to `most` bytes."""
        while self.rest:
            size = self.number(most) + 1
            yield self.rest[:size]
            self.rest = self.rest[size:]


# --- what comes from a CLI -----------------------------------------------------------------------


def lines(data: bytes) -> None:
    """However a stream is cut, its lines are the same; long ones are cut and counted."""
    source = Bytes(data)
    limit = source.number(64) + 1
    splitter, heard, whole = LineSplitter(limit), [], b""
    for piece in source.pieces(40):
        whole += piece
        heard += splitter.feed(piece)
    heard += splitter.end()
    wanted = whole.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    assert len(heard) == len(wanted)
    for one, line in zip(heard, wanted, strict=True):
        if isinstance(one, LongLine):
            assert len(line) > limit and (one.head, one.length) == (line[:limit], len(line))
        else:
            assert one == line


def adapter(path: Path) -> Target:
    """A CLI whose recorded output is damaged at some place."""
    rows = rows_of(path)
    beginning = next(number for number, row in enumerate(rows) if "prompt" in row) + 1

    def run(data: bytes) -> None:
        source = Bytes(data)
        play = Play()
        said: list[AgentEvent] = []
        for row in rows[: beginning + source.number(len(rows) - beginning + 1)]:
            said += play.row(row)
        assert play.adapter
        for line in source.rest.split(b"\n"):
            heard = list(play.adapter.receive_line(line))
            if not _is_json(line) and play.adapter.name not in NOT_LINES:
                assert not any(isinstance(one, ENDINGS) for one in heard), line
            said += heard
            play.adapter.data_to_send()
        check(said)

    return run


def silent(name: str) -> Target:
    """A CLI without a recording, from its first prompt on."""
    kind = registry.load(name)

    def run(data: bytes) -> None:
        made = _new(kind)
        made.launch()
        made.greet()
        message = Message("m", Role.USER, (TextPart("go"),), "task", "context")
        made.prompt(Prompt.of(message))
        check([event for line in data.split(b"\n") for event in made.receive_line(line)])
        made.data_to_send()

    return run


def _new(kind: type[Adapter]) -> Adapter:
    config = AgentConfig("/bin/true", runner=("/bin/true",), lines=Lines(end="^>"))
    start = SessionStart("/", "00000000-0000-4000-8000-000000000000")
    return kind.variant_for(config)(config, start)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


# --- what comes from a client --------------------------------------------------------------------


def request(data: bytes) -> None:
    """A body is refused by name or can be encoded again; then it is decoded."""
    try:
        decoded = decode_json(data)
    except (errors.ParseError, errors.InvalidRequest):
        return
    orjson.dumps(decoded)
    params = decoded.get("params", decoded) if isinstance(decoded, dict) else None
    if not isinstance(params, dict):
        return
    _decode_params(params)


def _decode_params(params: dict[str, Any]) -> None:
    for codec in CODECS:
        for decode in (codec.decode_send, codec.decode_task, codec.decode_list, _push(codec)):
            try:
                decode(params)
            except errors.RequestError as error:
                orjson.dumps(codec.encode_error(error))


def rpc(data: bytes) -> None:
    """A message of gRPC is refused by name or becomes JSON; then it is decoded."""
    for method in methods():
        try:
            params = messages.decode(method.request, data)
        except errors.RequestError as error:
            status_of(error)
            continue
        orjson.dumps(params)
        _decode_params(params)


def redis_entry(data: bytes) -> None:
    """The fields of an entry are refused by name, or are a request. An id is a valid one."""
    fields = dict(zip((b"id", b"payload", b"parameters"), data.split(b"\0", 2), strict=False))
    try:
        content = redis_request.read_fields(fields)
        body = content.decode(4096)
        call = redis_request.read_call(body, content.parameters)
        redis_request.check_message(call.operation, call.params)
    except redis_request.UnusableEntry as problem:
        assert problem.correlation is None or CORRELATION.fullmatch(problem.correlation)
    except errors.RequestError as error:
        orjson.dumps(CODECS[0].encode_error(error))
    else:
        orjson.dumps([call.id, call.params, call.seen])


def _push(codec: Any) -> Callable[[Any], Any]:
    return lambda params: codec.decode_push(Operation.PUSH_CREATE, params)


@cache
def _tree() -> tuple[str, Workspaces]:
    """A workspace with ways out of it, and a file outside."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="fuzz-"))
    inside = Path(folder) / "inside"
    (inside / "deep").mkdir(parents=True)
    (Path(folder) / "inside2").mkdir()
    (inside / "file").write_text("x")
    (Path(folder) / "outside").write_text("secret")
    (inside / "out").symlink_to("../outside")
    (inside / "up").symlink_to("..")
    (inside / "loop").symlink_to("loop")
    return folder, Workspaces(str(inside), ())


def paths(data: bytes) -> None:
    """No directory and no file outside is ever found."""
    folder, workspaces = _tree()
    text = data.decode("utf-8", "surrogateescape")
    for one in (text, f"{folder}/inside/{text}", f"../{text}"):
        try:
            assert workspaces.contains(workspaces.resolve(one))
        except errors.InvalidParams as refusal:
            assert folder not in str(refusal)
    for url in (text, f"file://{folder}/inside/{text}", f"file:///{text}"):
        try:
            path, _ = workspaces.file(url)
        except errors.RequestError as refusal:
            assert folder not in str(refusal)
        else:
            assert os.path.realpath(path).startswith(f"{folder}/inside/")


def answers(data: bytes) -> None:
    """A valid answer chooses among the existing options."""
    from tests.support.questions import CHOICE, PERMISSION, PLAN, SEVERAL

    text = data.decode("utf-8", "replace")
    for question in (PERMISSION, CHOICE, SEVERAL, PLAN):
        answer = read_answer(question, Message("m", Role.USER, (TextPart(text),)))
        if answer:
            assert set(answer.options) <= set(question.options)
            assert answer.options or question.free_text


def rules(data: bytes) -> None:
    """A rule that denies everything is never talked round, and none that allows goes beyond its
    one plain command."""
    try:
        subject = orjson.loads(data)
    except ValueError:
        return
    if not isinstance(subject, dict):
        return
    every = Rule("deny")
    assert decide([Rule("allow"), every], subject, "/w", os.path.normpath) == "deny"
    wish = {"input": {"command": subject.get("command")}}
    if decide([Rule("allow", command="git *")], wish, "/w", os.path.normpath) == "allow":
        words = subject["command"]
        line = words if isinstance(words, str) else " ".join(words)
        assert not set(";&|`$<>\n") & set(line) or not isinstance(words, str)


# --- what goes out -------------------------------------------------------------------------------


def events(data: bytes) -> None:
    """An independent decoder reads the encoded items from a stream."""
    source = Bytes(data)
    times = (1, 1000)[source.number(2)]  # long ones are sent in pieces
    texts = [piece.decode("utf-8", "replace") * times for piece in source.pieces(2000)]
    batch = [(number, orjson.dumps({"text": text})) for number, text in enumerate(texts, 1)]
    before, after = b'{"result":', b"}"
    stream = b"".join(map(bytes, sse.pieces(batch, before, after)))
    read = list(_decode(stream.decode()))
    assert read == [
        (str(number), {"result": {"text": text}}) for number, text in enumerate(texts, 1)
    ]


def _decode(stream: str) -> Iterator[tuple[str, Any]]:
    """As the HTML standard has it (§9.2.6), with all three kinds of line ends."""
    text, name = "", ""
    for line in stream.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "" and text:
            yield name, json.loads(text.removesuffix("\n"))
            text = ""
        elif field == "data":
            text += f"{value}\n"
        elif field == "id":
            name = value


SECRET = "sesame-77"


def redactor(data: bytes) -> None:
    """The output never contains a secret, for each division into pieces; all other text is
    complete."""
    source = Bytes(data)
    pieces = [piece.decode("utf-8", "replace") for piece in source.pieces(12)]
    said = "".join(pieces)
    told = Redactor(Secrets([SECRET]))
    events = [one for piece in pieces for one in told.clean([Text(piece)])]
    events += told.clean([Done()])
    text = "".join(one.text for one in events if isinstance(one, Text))
    assert SECRET not in text
    if not any(form in said for form in Secrets([SECRET]).values):
        assert text == said
    elif said.count(SECRET) and MARK not in said:
        assert text.count(MARK) >= said.count(SECRET)


TARGETS: dict[str, Target] = {
    "lines": lines,
    "request": request,
    "rpc": rpc,
    "redis": redis_entry,
    "paths": paths,
    "answers": answers,
    "rules": rules,
    "events": events,
    "redactor": redactor,
    "framing": framing,
    "websocket": websocket,
    **{name: adapter(path) for name, path in RECORDED.items()},
    **{f"adapter-{name}": silent(name) for name in registry.names() if name != "replay"},
}


def seeds(name: str) -> list[bytes]:
    """Valid inputs of a target."""
    recorded = [
        path for path in RECORDINGS if name == f"recorded-{name_of(path).replace('/', '-')}"
    ]
    if recorded:
        rows = [row for row in rows_of(recorded[0]) if "line" in row]
        said = [row["line"].encode(errors="surrogateescape") for row in rows]
        return [b"\0\0" + b"\n".join(said), *(b"\0\7" + line for line in said[:40])]
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": SECRET}], "contextId": "c"}
    return {
        "request": [orjson.dumps({"jsonrpc": "2.0", "id": 1, "params": {"message": message}})],
        "rpc": [
            to_bytes(one, {"message": message, "id": "t", "taskId": "t", "pageSize": 3})
            for one in methods()
        ],
        "redis": [
            b'r\0{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t"}}\0{"A2A-Version":"1.0"}',
            b'r\0{"jsonrpc":"2.0","method":"message/send","params":{"message":{"messageId":"m"}}}',
            b'r/s\0[]\0{"Last-Event-ID":"7"}',
        ],
        "paths": [
            b"../inside2",
            b"2",
            b"deep/../out",
            b"%2e%2e/outside",
            b"up/inside/file",
            b"loop",
            b"\0",
        ],
        "answers": [b"yes", b"no, use pytest", b"Red, Dark blue", b"allow_always"],
        "rules": [b'{"command":"git log; rm x"}', b'{"command":["bash","-lc","git log"]}'],
        "events": [b"\0\1" + (b"\0\x7f" + b"12345\r\n8" * 16) * 4, b"\0\0\0\5a\r\nb"],
        "framing": [
            b"\x07" + b'{"id":1}\r\n\n' + b"x" * 91 + b'\n{"id":2}',
            b'\x03Content-Length: 8\r\n\r\n{"id":1}Content-Length: 2\r\nOther: x\r\n\r\n{}',
            b"\x31content-length: 900\r\n\r\n" + b"x" * 900 + b"{}\r\n",
        ],
        "websocket": [
            b't{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}\nphi\nt[]\nx\x03\xe8',
            b'f{"jsonrpc":"2.0","id":"a","method":"SubscribeToTask",\nc"params":{"id":"t"}}\nbx',
            b't{"jsonrpc":"2.0","id":2,"cancelStream":true}\nt{"jsonrpc":"2.0","method":"GetTask"}',
            b't{"jsonrpc":"2.0","id":3,"method":"SendMessage","params":{"message":{"parts":[]}},'
            b'"a2a-service-parameters":{"A2A-Version":"0.3","traceparent":"00-"}}',
            b"t" + b"x" * 5000,
        ],
        "redactor": [b"\0\3sesa\0\3me-7\0\0007", b"\0\10sesame-77"],
    }.get(name, [b'{"type":"text","text":"x"}\n{"id":1,"result":{}}', b"\0\1a\nb\r\n\0"])


def main(argv: list[str]) -> int:
    """`NAME FILE` runs a target on a file once; `NAME` alone fuzzes it with libFuzzer's options."""
    name, *rest = argv
    if name == "--list":
        print("\n".join(TARGETS))
        return 0
    if name not in TARGETS:
        print(f"tests.support.fuzzing: no target {name}.{nearest(name, TARGETS)}", file=sys.stderr)
        return 2
    if rest and os.path.isfile(rest[0]):
        TARGETS[name](Path(rest[0]).read_bytes())
        return 0
    return _fuzz(name, rest)


def _ours() -> list[Any]:
    """The functions of the bridge, for which coverage counts."""
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, FunctionType) and str(one.__module__).startswith("bridge.")
    ]


def _fuzz(name: str, options: list[str]) -> int:
    try:
        import atheris
    except ImportError:
        print(
            "tests.support.fuzzing: atheris is missing; scripts/fuzz installs it", file=sys.stderr
        )
        return 2
    folder = Path(".fuzz") / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (folder / f"seed-{number}").write_bytes(seed)
    for function in _ours():
        atheris.instrument_func(function)
    atheris.Setup([name, *options, str(folder)], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
