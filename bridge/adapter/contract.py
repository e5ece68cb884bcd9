"""The contract of a CLI adapter. An adapter does no I/O: the session reports each event to it and
then writes the bytes that data_to_send() returns.

One adapter object serves one child process. The session that owns it calls, in this order:

    launch()                     once, before the process is started
    greet()                      for a diagnosis only, before the first turn
    prompt(prompt)               at the beginning of each turn
    steer(prompt)                when a further message joins the turn (only if `steers`)
    receive_line(line)           for each line of stdout; returns its events
    answer(question, answer)     when the client answered a question that receive_line returned
    interrupt()                  when the turn is to be cancelled
    conclude()                   after the end of a turn and a short quiet (only if `lingers`)
    stop_unasked()               when the CLI works between two turns
    receive_exit(exit_status)    once, when the process has ended; returns its events
    data_to_send()               after each of the above: the bytes to write to stdin

A turn begins with prompt() and ends with the first event of events.ENDINGS, or with conclude().
Lines between two turns are passed to receive_line() too. Their events reach no client: a question
is refused, tool calls and texts are logged, and a CLI that works is told to stop (stop_unasked). An
adapter that refuses a request by itself then, or knows that the CLI has begun a turn, returns an
unasked() status. An exception in an adapter ends the turn as `failed`, never the server.

Adapters are deterministic: after a crash of the server, a new adapter gets the same calls again
except conclude(), up to the position of the CLI, and must produce the same bytes. So it reads no
clock and draws no random ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

import orjson

from bridge.adapter.exit_status import ExitStatus, explain_exit
from bridge.adapter.fields import Json
from bridge.adapter.json_lines import Halves, read
from bridge.files.home import Home
from bridge.task.events import SESSION_LOST, AgentEvent, Answer, Failed, Question
from bridge.task.message import DataPart, Message, Part, RawPart, TextPart, UrlPart
from bridge.task.text import json_object

Handlers = Mapping[str, Callable[[Any, Mapping[str, Any]], Iterable[AgentEvent]]]
"""Methods of an adapter by the type of line that they read: a table of the class, shared by all
adapters."""


class Stdin(Enum):
    """The child's stdin."""

    LINES = "lines"  # a pipe, open as long as the session lives
    CLOSED = "closed"  # end of file at once


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the CLI. `argv[0]` is a path; `env` is added to the child's environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: Stdin = Stdin.LINES


@dataclass(frozen=True, slots=True)
class Lines:
    """The dialect of a CLI that reads and prints lines; see adapters/generic.py.

    `question`, `end`: regular expressions. `answers`: the word that allows, the word that denies.
    `text`: the path of the member of a JSON line with the agent's text, with dots between names.
    """

    json: bool = False
    text: str = "text"
    question: str | None = None
    answers: tuple[str, ...] = ("y", "n")
    end: str | None = None
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The operator's choices for an agent; the same for all of its sessions.

    `binary` is the path of the CLI, `args` come right after it. `env` is the part of the
    server's environment that the CLI may see. `superuser`: the server runs as root. `runner` is
    the command of process/pty_runner.py; `lines` is for CLIs that have no adapter of their own.
    `project_config`: the CLI may load the repository's configuration (see Adapter.project_files).
    `confined`: the server's sandbox confines the CLI, so that a sandbox of its own may not start.
    """

    binary: str
    args: tuple[str, ...] = ()
    model: str | None = None
    force: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    superuser: bool = False
    runner: tuple[str, ...] = ()
    lines: Lines = Lines()
    project_config: bool = False
    confined: bool = False


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """A client's choices for its context. None: the operator's choice; of a prompt: no change."""

    model: str | None = None
    mode: str | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The working directory of a session, and its conversation: a new one, or one to resume.
    `folder` holds the files that came with its messages; the CLI must be able to read them. `owner`
    is the id of the principal that owns the conversation. `trusted`: whether the CLI may load the
    repository's configuration, as the client has answered, or as a task has told it; None: neither.
    `mode`: the mode that the CLI reported last, if it is not the one of `options`
    (adapter/modes.py). `role`: of the server, if the client chose it."""

    cwd: str
    session_id: str
    resume: bool = False
    options: SessionOptions = field(default_factory=SessionOptions)
    folder: str | None = None
    owner: str = ""
    trusted: bool | None = None
    mode: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A turn's message. `parts` are all its parts; `text` is the whole message for a CLI that reads
    only text. Files are either parts that the CLI takes (input_modes), or `file://` URLs.
    `options`: the mode and the model from this turn on (see Adapter.changes)."""

    task_id: str
    context_id: str
    message: Message
    options: SessionOptions = field(default_factory=SessionOptions)

    @classmethod
    def of(cls, message: Message, options: SessionOptions | None = None) -> Prompt:
        """The prompt of a message that has a task id and a context id."""
        assert message.task_id and message.context_id
        return cls(message.task_id, message.context_id, message, options or SessionOptions())

    @property
    def text(self) -> str:
        return "\n\n".join(map(as_text, self.parts))

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.message.parts


CONFIGURATION = "configuration"
INTERRUPTED = Failed("The turn was interrupted.", "interrupted")


def as_text(part: Part) -> str:
    """The part as text."""
    match part:
        case TextPart(text):
            return text
        case DataPart(data):
            return orjson.dumps(data).decode()
        case UrlPart(url) if url.startswith("file:"):
            return f"Attached file: {unquote(urlsplit(url).path)}"
        case UrlPart(url):
            return f"Attached: {url}"
        case RawPart():
            content = part.content().decode(errors="replace")
            return f'<file name="{part.filename or "file"}">\n{content}\n</file>'


@dataclass(frozen=True, slots=True)
class CliInfo:
    """Facts of a CLI for the operator and for `doctor`.

    `install` and `login`: instructions, if possible a command. With the arguments `status`, the
    exit status of the CLI is 0 if it is logged in. With the arguments `help` it lists its flags;
    `flags` must be among them.
    """

    install: str = ""
    login: str = ""
    status: tuple[str, ...] = ()
    help: tuple[str, ...] = ("--help",)
    flags: tuple[str, ...] = ()


Ability = Literal["questions", "deltas", "resume", "interrupt", "models"]
"""Abilities of most CLIs: ask the client, stream text, resume a conversation in a new process,
cancel a turn without ending the process, and use the requested model."""


class Adapter(ABC):
    """One CLI's dialect. Subclasses live in adapters/, one file each."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The CLI's name for people."""

    binary: ClassVar[str] = ""
    """The program's name on PATH; empty if the operator must name one (AGENT_BINARY)."""

    environment: ClassVar[tuple[str, ...]] = ()
    """Variables of the server that the CLI may see: names, or prefixes with a `*` at the end."""

    input_modes: ClassVar[tuple[str, ...]] = ("text/plain",)
    """Media types of message parts that prompt() can carry; `image/*` is a pattern. Files of other
    kinds reach it as `file://` parts."""

    takes_files: ClassVar[bool] = True
    """Whether it takes files of other kinds than `input_modes`. Else they are refused."""

    modes: ClassVar[tuple[str, ...]] = ()
    """Permission modes that a client may choose. No mode may switch permissions off."""

    widths: ClassVar[tuple[str, ...]] = ()
    """`modes` from the narrowest to the widest; empty: that is their order."""

    changes: ClassVar[tuple[str, ...]] = ()
    """The choices (`mode`, `model`) of a later message that prompt() passes to the running CLI. For
    another one, a new process resumes the conversation. If the CLI does not take a choice, the turn
    ends as Failed with the reason CONFIGURATION."""

    takes_budget: ClassVar[bool] = False
    """Whether a client may limit the cost of a session."""

    takes_urls: ClassVar[bool] = False
    """Whether a file part may have an http(s) URL. The bridge itself never fetches one."""

    may_reply: ClassVar[bool] = False
    """Whether the first event of a turn may be a Reply, so that no task is shown before it."""

    can_prewarm: ClassVar[bool] = True
    """Whether a process can be started before there is a prompt for it; not if the CLI runs once
    for each turn. A change of `project_files`, instructions or the state of git replaces it."""

    steers: ClassVar[bool] = False
    """Whether a further message can join the turn that is running; see steer()."""

    writable_paths: ClassVar[tuple[str, ...]] = ()
    """Paths that the CLI writes besides its workspace and TMPDIR; the sandbox allows them. `~` and
    `${NAME:-default}` are expanded with the CLI's environment. A path that ends in `/` is a folder,
    which is made if missing. Files that the CLI executes or trusts are not listed; see `homes`."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Private paths of the home (sandbox/credentials.py) that the CLI must read, besides those in
    `homes`: paths as in `writable_paths`."""

    homes: ClassVar[tuple[Home, ...]] = ()
    """Folders with files that the CLI writes beside files that it executes or trusts. An agent in a
    sandbox has private ones."""

    project_files: ClassVar[tuple[str, ...]] = ()
    """Files of a repository that the CLI executes unasked, or that decide where it sends its work:
    patterns for workspace/project_config.py. Text that only the model reads is not listed."""

    always_loaded: ClassVar[tuple[str, ...]] = ()
    """Those of `project_files` that the CLI loads even without `project_config`: it has no switch
    for them."""

    instructions: ClassVar[tuple[str, ...]] = ()
    """Text for the model that the CLI does not read without `project_config`: patterns as in
    `project_files`."""

    uses_any_port: ClassVar[bool] = False
    """Whether the CLI connects to itself over a TCP port that it chooses at run time."""

    cache_apart: ClassVar[bool] = False
    """The input tokens of a Usage exclude those of the cache, as in the API of Anthropic."""

    lingers: ClassVar[bool] = False
    """The CLI may send a part of a turn just after its end, so the session waits for a short
    quiet. The events until then belong to the turn, and conclude() has its end."""

    understands_traces: ClassVar[bool] = False
    """The CLI continues the trace of the variable TRACEPARENT."""

    resumes_elsewhere: ClassVar[bool] = False
    """Whether the CLI can resume a conversation on another machine that shares its directory with
    this one. True only after a test with the CLI itself."""

    verified: ClassVar[bool] = True
    """Whether the adapter was run with the CLI itself; else it follows the documentation."""

    limitations: ClassVar[Mapping[Ability, str]] = {}
    """Missing abilities of the CLI, each with the reason."""

    cli_info: ClassVar[CliInfo] = CliInfo()

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        self.config = config
        self.start = start
        self._outgoing = bytearray()
        self.halves = Halves()

    @classmethod
    def unsupported_reason(cls, config: AgentConfig) -> str | None:
        """The reason why this CLI cannot run with `config`, or None; called once, when the server
        starts."""
        return None

    @classmethod
    def variant_for(cls, config: AgentConfig) -> type[Adapter]:
        """The adapter for `config`: another class if the CLI has several dialects."""
        return cls

    @abstractmethod
    def launch(self) -> Launch:
        """The command, environment and stdin of the CLI for this session."""

    @property
    def handshaking(self) -> bool:
        """Whether a prompt would wait for the end of a handshake now."""
        return False

    def greet(self) -> bool:
        """Begin the handshake before there is a prompt. How it went is the next Started or Failed.
        False: the CLI has none, and is ready."""
        return False

    @abstractmethod
    def prompt(self, prompt: Prompt) -> None:
        """Begin a turn."""

    @abstractmethod
    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        """The events of one line of stdout, without its newline. The line may be anything."""

    def receive_exit(self, status: ExitStatus) -> Iterable[AgentEvent]:
        """The events of a process that ended before its turn did."""
        yield Failed(*explain_exit(self.title, status))

    def conclude(self) -> Sequence[AgentEvent]:
        """The usage and the end of a turn that has ended, with the output since; see `lingers`.
        Later lines belong to no turn, and requests did not since the end that receive_line()
        returned. Empty: the events of receive_line(). A second call returns the same ones."""
        return ()

    def answer(self, question: Question, answer: Answer) -> None:
        """Pass the client's answer to the CLI; only for questions that this adapter returned."""
        raise NotImplementedError(f"{self.name} asked a question and has no answer()")

    def steer(self, prompt: Prompt) -> None:
        """Add a message to the running turn, which ends when the CLI has read all messages."""
        raise NotImplementedError(f"{self.name} takes one message per turn")

    def interrupt(self) -> bool:
        """Tell the CLI to abandon the turn, in its own dialect. False: it has no such command."""
        return False

    def stop_unasked(self) -> bool:
        """Tell a CLI to stop that works between two turns, as its interrupt does in a turn. False:
        it has no such command, and its session ends."""
        return False

    @property
    def spent(self) -> bool:
        """Whether the session must end after this turn, since the CLI might work on by itself."""
        return False

    @property
    def forgets(self) -> bool:
        """Whether an interrupt now removes the whole turn from the CLI's conversation."""
        return False

    def data_to_send(self) -> bytes:
        """The bytes to write to stdin since the last call."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def send(self, data: bytes) -> None:
        """For subclasses: write `data` to stdin."""
        self._outgoing += data

    def send_line(self, line: Mapping[str, Any]) -> None:
        """For subclasses: write a JSON line to stdin."""
        self._outgoing += orjson.dumps(line) + b"\n"

    @property
    def model(self) -> str | None:
        """The model of the client's choice, else the operator's. None: the CLI's default."""
        return self.start.options.model or self.config.model

    @property
    def mode(self) -> str | None:
        """The mode in which the process begins. None: the default of the CLI and its operator."""
        return self.start.mode or self.start.options.mode

    def choose(self, options: SessionOptions) -> None:
        """For subclasses: `model` and `mode` are those of the client's later choice, if any."""
        given = {name: getattr(options, name) for name in self.changes if getattr(options, name)}
        mode = None if "mode" in given else self.start.mode
        chosen = replace(self.start.options, **given)
        self.start = replace(self.start, mode=mode, options=chosen)

    def unless_set(self, variables: Mapping[str, str]) -> dict[str, str]:
        """For subclasses: those of the variables that the operator has not set."""
        return {name: one for name, one in variables.items() if name not in self.config.env}

    def conversation_lost(self, problem: str = "", *, session_id: str = "") -> Failed:
        """For subclasses: the failure of a turn whose conversation cannot be resumed."""
        session_id = session_id or self.start.session_id
        what = f"{self.title} no longer has the conversation {session_id}."
        if problem:
            what = f"{self.title} cannot load the conversation {session_id}: {problem}."
        text = f"{what} The message was not run; send it again to begin a new conversation."
        return Failed(text, SESSION_LOST)


class JsonLines(Adapter):
    """For CLIs that print a JSON object on each line. Lines without one are output for people."""

    @abstractmethod
    def receive_object(self, value: Json, line: bytes) -> Iterable[AgentEvent]:
        """The events of an object. `line`: its text, without other output that shares its line."""

    def receive_line(self, line: bytes) -> Iterable[AgentEvent]:
        value = json_object(line, self.halves.join)
        if value is not None:
            return self.receive_object(value, line)
        return read(line, self.receive_object, halves=self.halves)
