"""aider, with its output for a dumb terminal. Run against 0.86.2.

Facts that decide the code (measured, or read in aider's source):

* A turn ends when aider prints its prompt again. `--multiline` makes it `multi> `, which no model
  prints by accident, as it may print `> `.
* Questions are `… (Y)es/(N)o… [Yes]: `, with their subject in the lines above. The end of stdin
  counts as Yes: the runner keeps stdin open.
* `{tag` … `tag}` frames a prompt of several lines. A prompt that begins with an empty line is never
  a command.
* After the model's text comes `Tokens: …`, then aider's own lines: edits, commands, the files of
  the chat. If an edit does not fit, aider asks the model again.
* ^C ends the turn and not the process. Errors of the model are only text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bridge.adapter import (
    Ability,
    AgentConfig,
    CliInfo,
    Lines,
    Prompt,
    SessionStart,
    model_failure,
)
from bridge.adapter.fields import Said
from bridge.adapter.line_mode import TerminalAdapter
from bridge.adapter.wish import permission, subject_of
from bridge.task.events import (
    AgentEvent,
    Answer,
    Done,
    Failed,
    FileChange,
    Option,
    OptionKind,
    Question,
    Started,
    Status,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)

from . import _project_files as files
from ._tools import options

QUESTION = r"\(Y\)es/\(N\)o.*\[[^\]]*\]: $"
READY = r"^(?:[\w-]+ )?multi> $"
PROMPTS = re.compile(r"(?:(?:[\w-]+ )?multi> )+")
FLAGS = (
    # For readable output.
    *("--no-pretty", "--no-fancy-input", "--multiline", "--stream"),
    # Against actions that are not part of the task.
    *("--no-check-update", "--no-show-release-notes", "--no-show-model-warnings"),
    *("--no-analytics", "--no-gitignore", "--no-detect-urls"),
    # The client makes the commits.
    *("--no-auto-commits", "--no-dirty-commits"),
)
OPTIONS: Mapping[str, tuple[str, OptionKind] | tuple[str, OptionKind, str]] = {
    "Y": ("Yes", "allow_once"),
    "A": ("Yes to all", "allow_always", "allows the other questions of this group, too"),
    "N": ("No", "reject_once"),
    "S": ("Skip all", "reject_always"),
    "D": ("No, and don't ask again", "reject_always"),
}
_SHELL = "shell command"
TOKENS = re.compile(
    r"Tokens: ([\d.,]+[kM]?) sent,(?: .*,)? ([\d.,]+[kM]?) received\."
    r"(?: Cost: \$([\d.]+) message)?"
)
ERROR = re.compile(r"(?:litellm\.)?(\w*(?:Error|Exception))\b:? ?(.*)")


class Aider(TerminalAdapter):
    lines = Lines(question=QUESTION, end=READY, answers=("y", "n"), terminal=True)
    silence = float("inf")
    writable_paths = (
        *TerminalAdapter.writable_paths,
        "${XDG_STATE_HOME:-~/.local/state}/coding-agent-bridge/aider/",
    )
    reads = ("~/.aider", "~/.aider.conf.yml", "~/.aider.model.settings.yml")
    name = "aider"
    title = "aider"
    binary = "aider"
    environment = (
        *("AIDER_*", "OPENAI_*", "ANTHROPIC_*", "GEMINI_*", "OPENROUTER_*", "DEEPSEEK_*"),
        *("AZURE_*", "OLLAMA_*", "LM_STUDIO_*", "GROQ_*", "XAI_*", "MISTRAL_*"),
    )
    project_files = files.AIDER
    # It reads these files even if `--config` names another one.
    always_loaded = files.AIDER_SETTINGS
    limitations: ClassVar[Mapping[Ability, str]] = {}
    cli_info = CliInfo(
        "python -m pip install aider-chat",
        "set the key of your model's provider, such as OPENAI_API_KEY",
        flags=(*FLAGS, "--model", "--chat-history-file", "--restore-chat-history"),
    )

    def __init__(self, config: AgentConfig, start: SessionStart) -> None:
        super().__init__(config, start)
        self._facts: dict[str, str] = {}  # its version and model, from the first lines
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._answered = False  # the model's text is complete; aider's lines follow
        self._about: list[str] = []  # lines above a question
        self._own: list[str] = []  # lines since then that may be aider's or the model's
        self._tools = 0
        self._command: str | None = None  # id of the command that runs
        self._output: list[str] = []  # of it
        self._words: list[str] = []  # the model's, for the summary
        self._usage: dict[str, float] = {}
        self._error: Failed | None = None
        self._changed: dict[str, None] = {}  # paths, in order

    # --- calls of the session --------------------------------------------------------------------

    def prompt(self, prompt: Prompt) -> None:
        self._begin_turn()
        super().prompt(prompt)

    def closing(self) -> Mapping[str, str]:
        """No `.env` file: it would override the operator's variables, also for the commands that
        aider runs."""
        return {} if self.config.project_config else {"PYTHON_DOTENV_DISABLED": "1"}

    def arguments(self) -> Sequence[str]:
        args, start = self.config.args, self.start
        own = [flag for flag in FLAGS if not _has(args, flag)]
        # A file for each conversation: by default, all conversations in a folder share one.
        env = self.config.env
        state = env.get("XDG_STATE_HOME") or f"{env.get('HOME', '')}/.local/state"
        history = f"{state}/coding-agent-bridge/aider/{start.session_id}.md"
        own += [f"--chat-history-file={history}", "--input-history-file=/dev/null"]
        own += ["--restore-chat-history"] if start.resume else []
        return [*args, *own, *options({"--model": self.model})]

    def as_words(self, text: str) -> str:
        return text  # as_input() frames it

    def as_input(self, text: str) -> str:
        tag = "end"
        while f"{tag}}}" in text:
            tag += "0"
        lines = text.replace("\r\n", "\n")
        return f"{{{tag}\n\n{lines}\n{tag}}}\n"

    def written(self, answer: Answer) -> str:
        return answer.option.id if answer.option else super().written(answer)

    # --- output ----------------------------------------------------------------------------------

    def introduced(self, text: str) -> Said:
        for name, pattern in (("version", r"Aider v(\S+)"), ("model", r"Model: (\S+)")):
            found = re.match(pattern, text)
            if found:
                self._facts[name] = found[1]
        return ()

    def begun(self) -> Said:
        yield Started(self.start.session_id, self._facts.get("model"), self._facts.get("version"))

    def said(self, text: str) -> Said:
        line = text.removesuffix("\n")
        tokens = TOKENS.match(line)
        if tokens:
            yield from self._again()
            self._answered = True
            for name, value in zip(("input", "output", "cost"), tokens.groups(), strict=True):
                if value:
                    self._usage[name] = self._usage.get(name, 0) + _number(value)
        elif PROMPTS.fullmatch(line):
            pass  # one for each line of the prompt
        elif self._command:
            self._output.append(text)
        elif known := self._known(line):
            yield from known
        elif self._answered:
            self._own.append(text)
        elif self._words or line:
            self._words.append(text)
            yield Text(text)

    def _known(self, line: str) -> list[AgentEvent]:
        """The events of aider's own lines."""
        error = ERROR.match(line)
        if error:
            failed = model_failure(line, kinds=(error[1],), otherwise="agent-error")
            self._error = self._error or failed
            return [Status(line, {"type": "error", "text": line})]
        if line.startswith("Retrying in "):
            return [Status(line, {"type": "retry", "text": line})]
        if not self._answered:
            return []
        if line.startswith("Applied edit to "):
            path, tool = line.removeprefix("Applied edit to "), self._next_tool()
            self._changed[path] = None
            call = ToolCall(tool, "edit", {"path": path})
            changes = (FileChange(path, "update"),)
            return [call, ToolResult(tool, None, name="edit", changes=changes)]
        if line.startswith("Running "):
            self._command = self._next_tool()
            return [ToolCall(self._command, "shell", {"command": line.removeprefix("Running ")})]
        if line.startswith(("Skipping edits to ", "Added ", "Committing ", "Commit ")):
            return [Status(line, {"type": "output", "text": line})]
        return []

    def _again(self) -> Said:
        """The lines since the end of the model's text belong to it, too."""
        own, self._own = "".join(self._own), []
        if own.strip():
            self._words.append(own)
            yield Text(own, new_block=True)

    def _ran(self) -> Said:
        """The command has ended: aider continues, and does not print the exit status."""
        if self._command:
            yield ToolResult(self._command, "".join(self._output), False, "shell")
            self._command, self._output = None, []

    def _next_tool(self) -> str:
        self._tools += 1
        return f"tool-{self._tools}"

    # --- questions and prompts -------------------------------------------------------------------

    def ask(self, text: str) -> Said:
        yield from self._ran()
        about = self._block(whole=_SHELL in text)
        yield from self._again()
        self._about = about
        if self.introducing or text.startswith(("Open URL", "Open documentation")):
            # Before the first prompt it offers to create a repository or to open a browser.
            self.write("n\n")
            return
        yield from super().ask(text)

    def question(self, question_id: str, text: str) -> Question:
        about = "".join(self._about)
        wish, _, choices = text.partition(" (Y)es")
        letters = dict.fromkeys(re.findall(r"\(([A-Z])\)", f"(Y)es{choices}"))
        options = tuple(
            Option(letter.lower(), *OPTIONS[letter]) for letter in letters if letter in OPTIONS
        )
        member = "command" if _SHELL in wish else "text"
        given = {member: about.strip()} if about.strip() else {}
        subject = subject_of(wish, f"aider asks: {wish}", given)
        return permission(question_id, subject, options)

    def _block(self, *, whole: bool = False) -> list[str]:
        """Take the lines above the question or the prompt, up to an empty line; with `whole` up to
        the end of the model's text, because a command may have empty lines."""
        block: list[str] = []
        while self._own and ((line := self._own.pop()).strip() or whole):
            block.append(line)
        return block[::-1]

    def finished(self) -> Said:
        yield from self._ran()
        block = self._block()
        if any(" " in line.strip() for line in block):  # else the lines list the files of the chat
            self._own += block
        yield from self._again()
        if self._usage:
            tokens = [int(self._usage.get(name, 0)) for name in ("input", "output")]
            yield Usage(tokens[0], tokens[1], sum(tokens), self._usage.get("cost"))
        if self._error and not self._answered:
            yield self._error
            return
        details: dict[str, Any] = {"changedFiles": list(self._changed)} if self._changed else {}
        yield Done(summary="".join(self._words).strip(), details=details or None)


def _has(args: Sequence[str], flag: str) -> bool:
    """Whether the operator's arguments have the flag or its opposite."""
    name = flag.removeprefix("--").removeprefix("no-")
    return f"--{name}" in args or f"--no-{name}" in args


def _number(text: str) -> float:
    factor = {"k": 1000, "M": 1_000_000}.get(text[-1], 1)
    return float(text.rstrip("kM").replace(",", "")) * factor


ADAPTER = Aider
