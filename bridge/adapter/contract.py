"""What a CLI adapter must say. It never acts: it is told what happened and asked what to write.

One adapter object serves one child process. The session that owns it calls, in this order:

    launch()                     once, before the process is started
    greet()                      maybe, before the first turn
    prompt(prompt)               at the beginning of each turn
    steer(prompt)                when a further message joins the turn (only where `steers`)
    receive_line(line)           for each line of stdout; returns what the agent said
    answer(question, answer)     when the client answered a question that receive_line returned
    interrupt()                  when the turn is to be cancelled
    receive_exit(exit_status)    once, when the process is gone; returns what that means
    data_to_send()               after each of the above: the bytes that stdin is owed

A turn begins with prompt() and ends with the first event of events.ENDINGS; what the CLI prints
between two turns is passed to receive_line() too, and the events are ignored. An exception in an
adapter ends the turn as `failed`, never the server.

An adapter that is told the same says the same: after a crash of the server, a new one is told
everything again, up to where the CLI was, and must have written the same bytes. So it has no
clock, and draws no random ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

import orjson

from bridge.files.home import Home
from bridge.task.events import AgentEvent, Answer, Failed, Question
from bridge.task.message import DataPart, Message, Part, RawPart, TextPart, UrlPart

Handlers = Mapping[str, Callable[[Any, Mapping[str, Any]], Iterable[AgentEvent]]]
"""Methods of an adapter by the type of line that they read. They are a table of its class: one of
each adapter's own would be one with it, and garbage that only a collector finds."""


class Stdin(Enum):
    """What the child finds on stdin."""

    LINES = "lines"  # a pipe, open as long as the session lives
    CLOSED = "closed"  # nothing: end of file at once


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the CLI. `argv[0]` is a path; `env` is added to the child's environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: Stdin = Stdin.LINES


@dataclass(frozen=True, slots=True)
class Lines:
    """How a CLI is talked to whose dialect is only lines; see adapters/generic.py.

    `question`, `end`: regular expressions. `answers`: what allows, and what denies. `text`: the
    member of a JSON line that is the agent's words, with dots for what is inside others.
    """

    json: bool = False
    text: str = "text"
    question: str | None = None
    answers: tuple[str, ...] = ("y", "n")
    end: str | None = None
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What the operator chose for an agent; the same for all of its sessions.

    `binary` is the path of the CLI, `args` come right after it. `env` is the part of the
    server's environment that the CLI may see. `superuser`: the server runs as root. `runner` is
    the command of process/pty_runner.py; `lines` is for CLIs that have no adapter of their own.
    `project_config`: use what a repository brings along and the CLI would run.
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


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a client chose for its context, among what it may. None: as the operator has it."""

    model: str | None = None
    mode: str | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class SessionStart:
    """Where a session runs, and the conversation it is: a new one, or one to resume. `folder`
    holds files that came with its messages; the CLI must be able to read them. `owner` is the id
    of the principal whose conversation it is. `trusted`: whether a client said that it may use what
    the repository brings along; None where nobody was asked."""

    cwd: str
    session_id: str
    resume: bool = False
    options: SessionOptions = field(default_factory=SessionOptions)
    folder: str | None = None
    owner: str = ""
    trusted: bool | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A turn's message. `parts` keep everything; `text` is what a text-only CLI needs. Files are
    either parts that the CLI takes (input_modes), or `file://` URLs."""

    task_id: str
    context_id: str
    message: Message

    @classmethod
    def of(cls, message: Message) -> Prompt:
        """The prompt that a message is which has a task and a context by now."""
        assert message.task_id and message.context_id
        return cls(message.task_id, message.context_id, message)

    @property
    def text(self) -> str:
        return "\n\n".join(map(as_text, self.parts))

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.message.parts


LAST_WORDS = 2000  # characters of stderr in the failure of a CLI that ended
LAST_LINE = 6000  # of its last line, if that is longer: less than is shown of a failure
_SIGXFSZ = 25  # the same wherever control groups and such limits are


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the process ended: `code` as subprocess gives it (negative: killed by that signal),
    and the last bytes of its stderr as text. `limit`: the one of its control group that it met."""

    code: int
    stderr: str = ""
    limit: str | None = None

    @property
    def exceeded(self) -> str | None:
        """What it took too much of, where that is known."""
        return "file size" if self.code == -_SIGXFSZ else self.limit

    def __str__(self) -> str:
        return f"signal {-self.code}" if self.code < 0 else f"exit status {self.code}"


def as_text(part: Part) -> str:
    """The part for a CLI, or for a model, that reads nothing but text."""
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
    """What the operator has to do with a CLI, and what `doctor` looks for.

    `install` and `login` say how, in a command where one will do. With the arguments `status` the
    CLI tells by its exit status whether it is logged in; with `help` it lists its flags, `flags`
    among them.
    """

    install: str = ""
    login: str = ""
    status: tuple[str, ...] = ()
    help: tuple[str, ...] = ("--help",)
    flags: tuple[str, ...] = ()


Ability = Literal["questions", "deltas", "resume", "interrupt", "models"]
"""What most CLIs can: ask the client, tell their text as it is made, go on with a conversation in
a new process, cancel a turn without ending the process, and use the model that is asked for."""


class Adapter(ABC):
    """One CLI's dialect. Subclasses live in adapters/, one file each."""

    name: ClassVar[str]
    title: ClassVar[str]
    """What people call the CLI."""

    binary: ClassVar[str] = ""
    """The program's name on PATH; empty where the operator must name one (AGENT_BINARY)."""

    binary_setting: ClassVar[str] = "AGENT_BINARY"
    """The setting that overrides the path of the program."""

    environment: ClassVar[tuple[str, ...]] = ()
    """Names (or prefixes, with a `*` at the end) of the server's variables that it may see."""

    input_modes: ClassVar[tuple[str, ...]] = ("text/plain",)
    """Media types of message parts that prompt() can carry; `image/*` is a pattern. Files of any
    other kind reach it as `file://` parts."""

    modes: ClassVar[tuple[str, ...]] = ()
    """Permission modes that a client may choose; none of them may switch permissions off."""

    takes_budget: ClassVar[bool] = False
    """Whether a client may set a limit to what a session costs."""

    takes_urls: ClassVar[bool] = False
    """Whether a file may be given by its address. The bridge itself never fetches one."""

    may_reply: ClassVar[bool] = False
    """Whether the first event of a turn may be a Reply, so that no task is shown before it."""

    warms: ClassVar[Literal["greeted", "started", "no"]] = "greeted"
    """How far a process of it can get before there is a prompt: `started` only, where its greeting
    would have it remember what the workspace was like then; `no` where it runs its CLI anew for
    each turn."""

    remembers: ClassVar[tuple[str, ...]] = ()
    """What it has read of a workspace by then all the same, besides `project_files`, and tells its
    model later: patterns as those."""

    steers: ClassVar[bool] = False
    """Whether a further message can join the turn that is running; see steer()."""

    writable_paths: ClassVar[tuple[str, ...]] = ()
    """What the CLI writes besides its workspace and TMPDIR, for a sandbox to allow: paths, in which
    `~` and `${NAME:-default}` are read as in its environment. One that ends in `/` is a folder
    that is made. What the CLI executes or trusts is not among them; see `homes`."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Of the credentials that agents in a sandbox do not read (sandbox/credentials.py), those that
    the CLI needs, besides what is in `homes`: paths as in `writable_paths`."""

    homes: ClassVar[tuple[Home, ...]] = ()
    """Folders with both, of which an agent in a sandbox has private ones."""

    project_files: ClassVar[tuple[str, ...]] = ()
    """What the CLI runs of a repository without being asked to, or lets decide where its work goes:
    patterns for workspace/project_config.py. Text that is only for the model is not listed."""

    always_loaded: ClassVar[tuple[str, ...]] = ()
    """Those of them that it uses even without `project_config`: it has no switch for them."""

    uses_any_port: ClassVar[bool] = False
    """Whether it talks to itself over a TCP port that nobody knows beforehand."""

    resumes_next_minute: ClassVar[bool] = False
    """Whether a conversation cannot be gone on with in the minute in which it began."""

    verified: ClassVar[bool] = True
    """Whether the CLI itself was run with it, or only what its documentation says of it."""

    limitations: ClassVar[Mapping[Ability, str]] = {}
    """What this CLI cannot do, each with the reason, for those who have to choose."""

    cli_info: ClassVar[CliInfo] = CliInfo()

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        self.config = config
        self.start = start
        self._outgoing = bytearray()

    @classmethod
    def unsupported_reason(cls, config: AgentConfig) -> str | None:
        """Why this CLI cannot run with `config`; asked once, when the server starts."""
        return None

    @classmethod
    def variant_for(cls, config: AgentConfig) -> type[Adapter]:
        """The adapter that serves `config`: another one where the CLI has several dialects."""
        return cls

    @abstractmethod
    def launch(self) -> Launch:
        """How to start the CLI for this session."""

    @property
    def handshaking(self) -> bool:
        """Whether a prompt waits, or would wait now, for the end of a handshake."""
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
        """What one line of stdout, without its newline, says. It need not be what was hoped."""

    def receive_exit(self, status: ExitStatus) -> Iterable[AgentEvent]:
        """What it means that the process ended before the turn did."""
        yield Failed(*explain_exit(self.title, status))

    def answer(self, question: Question, answer: Answer) -> None:
        """Tell the CLI the client's answer; only for questions that this adapter asked."""
        raise NotImplementedError(f"{self.name} asked a question that it cannot take an answer to")

    def steer(self, prompt: Prompt) -> None:
        """Add a message to the running turn, which ends when all of them have been heard."""
        raise NotImplementedError(f"{self.name} takes one message per turn")

    def interrupt(self) -> bool:
        """Ask the CLI to abandon the turn, in its own dialect. False: it has no such word."""
        return False

    def data_to_send(self) -> bytes:
        """What stdin is owed since the last call."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def send(self, data: bytes) -> None:
        """For subclasses: owe `data` to stdin."""
        self._outgoing += data


def explain_exit(title: str, status: ExitStatus) -> tuple[str, str, dict[str, Any]]:
    """The text, reason and details of a Failed for a process that ended too early."""
    tail = _last_lines(status.stderr.strip())
    text = f"{title} ended before it had answered ({status})."
    text += f" Its last words: {tail}" if tail else " It said nothing on stderr."
    details: dict[str, Any] = {"exitCode": status.code, "stderr": tail}
    if status.exceeded:
        text = f"{title} met a limit of the server ({status.exceeded}). {text}"
        return text, "limit", {**details, "limit": status.exceeded}
    return text, "exit", details


def _last_lines(words: str) -> str:
    """The end of what a program said: whole lines, as many as LAST_WORDS take. The last line, which
    most often has the reason, is there whole, up to LAST_LINE."""
    if len(words) <= LAST_WORDS:
        return words
    end = words[-LAST_WORDS:]
    last = words.rpartition("\n")[2]
    return last[-LAST_LINE:] if len(last) >= LAST_WORDS else end.partition("\n")[2]
