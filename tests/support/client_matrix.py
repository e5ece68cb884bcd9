"""The clients of other ecosystems, the output that each shows its user, and their matrix in
docs/integrations.md. tests/real/test_clients.py compares the texts and so proves the matrix."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

from tests import CHECKOUT, NODE

DOCUMENT = CHECKOUT / "docs/integrations.md"
DRIVERS = CHECKOUT / "tests/ecosystems"

WIDTH = 100  # of lines in documents
COLUMNS = {
    "answer once": "the last block of an answer is shown, and only once",
    "question": "a question is shown, with how to answer it",
    "answered": "the next message of the conversation answers the question",
    "failure": "the reason of a failure is shown",
    "stop": "a client that stops ends the agent, with `BRIDGE_ON_DISCONNECT=cancel`",
    "no JSON": "no JSON is in the text",
}
TOOL = json.dumps({"type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "ls"}})
BROKE = json.dumps({"type": "failed", "text": "It broke."})
PROMPTS = {
    "answer": f"text I look.\nline {TOOL}\ntext It is fine.",
    "question": "permit q May I?",
    "reply": "Go on.",
    "failure": f"line {BROKE}",
}
"""The prompts for the agent of tests/support/agent.py, in order, in one conversation."""
ANSWER = "I look.\n\nIt is fine."
QUESTION = 'May I?\nReply with exactly one of: "Go on", "Do not". Or reply in your own words.'
REPLY = 'answered ["q", "Go on.", "yes"]'
FAILURE = "It broke."
ARTIFACT = "\n\nArtifact (Assistant response):\n"  # Gemini CLI's heading


@dataclass(frozen=True, slots=True)
class A2AClient:
    """A row of the matrix. `section`: its heading in docs/integrations.md, which has the snippet.
    `python`: its environment in .venvs; `package`: its npm package. `shown`: its texts that are
    not the plain ones above, by prompt. `no`: why a cell is no."""

    name: str
    title: str
    section: str
    driver: str
    requirements: str
    python: str = ""
    package: str = ""
    wire: str = "1.0"
    soak: bool = True
    reads_both: bool = False
    shown: dict[str, str] = field(default_factory=dict)
    no: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """As pinned: the first requirement of the file, or the dependency of package.json."""
        text = (DRIVERS / self.requirements).read_text()
        if self.package:
            return str(json.loads(text)["dependencies"][self.package])
        found = re.search(r"==(\S+)", text)
        assert found, self.requirements
        return found[1]

    @property
    def program(self) -> Path:
        """The command that runs the driver."""
        if self.python:
            return CHECKOUT / ".venvs" / self.python / "bin/python"
        return NODE / "node" if self.driver.endswith(".mjs") else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """Whether scripts/install has installed it."""
        modules = (DRIVERS / self.requirements).parent / "node_modules"
        return self.program.exists() and (not self.package or (modules / self.package).exists())

    @property
    def snippet(self) -> str:
        """The first code block of its section."""
        section = DOCUMENT.read_text().partition(f"## {self.section}\n")[2].partition("\n## ")[0]
        return section.partition("```")[2].partition("\n")[2].partition("```")[0]

    def expected(self, prompt: str) -> str:
        """The output that its user sees for a prompt of PROMPTS."""
        plain = {"answer": ANSWER, "question": QUESTION, "reply": REPLY, "failure": FAILURE}
        return self.shown.get(prompt, plain[prompt])


TOOL_RESULTS = json.loads((DRIVERS / "langgraph_shown.json").read_text())

CLIENTS = [
    A2AClient(
        "gemini",
        "Gemini CLI",
        "Gemini CLI",
        "gemini_client.py",
        "../clis/package.json",
        package="@google/gemini-cli",
        wire="0.3",
        soak=False,
        shown={
            "answer": f"Using tool: Bash\nIt is fine.{ARTIFACT}{ANSWER}",
            "reply": f"{REPLY}{ARTIFACT}{REPLY}",
        },
        no={"answer once": "it joins the final status and the artifact"},
    ),
    A2AClient(
        "adk",
        "Google ADK, `RemoteA2aAgent`",
        "Google ADK",
        "adk_client.py",
        "requirements-adk.txt",
        "adk",
        soak=False,
        reads_both=True,
    ),
    A2AClient(
        "adk-tool",
        "Google ADK, `AgentTool`",
        "Google ADK",
        "adk_tool_client.py",
        "requirements-adk.txt",
        "adk",
        shown={
            "answer": "It is fine.",
            "question": "Error: agent 'coder' stopped waiting on unresolved long-running tool "
            "call(s) (pending call ids: ['ID']), which AgentTool cannot resume.",
            "reply": "unknown Go",
        },
        no={
            "question": "ADK ends such a call with an error of its own; use `[[rules]]`",
            "answered": "each call of the tool begins a conversation; use `[[rules]]`",
        },
        reads_both=True,
    ),
    A2AClient(
        "agent-framework",
        "Microsoft Agent Framework",
        "Microsoft Agent Framework",
        "agent_framework_client.py",
        "requirements-agent-framework.txt",
        "agent-framework",
        reads_both=True,
    ),
    A2AClient(
        "agent-framework-stream",
        "Microsoft Agent Framework, streamed run",
        "Microsoft Agent Framework",
        "agent_framework_stream_client.py",
        "requirements-agent-framework.txt",
        "agent-framework",
        shown={"answer": "I look.\n\nIt is fine.It is fine.", "reply": REPLY * 2},
        no={"answer once": "it joins the artifact and the final status"},
        reads_both=True,
    ),
    A2AClient(
        "crewai",
        "CrewAI, the model of an agent",
        "CrewAI",
        "crewai_client.py",
        "requirements-crewai.txt",
        "crewai",
        wire="0.3",
        shown={
            "answer": 'Using tool: Bash\n{"bridge": {"type": "tool_call", "id": "1", "name": '
            '"Bash", "status": "running", "input": {"command": "ls"}}}\nIt is fine.',
            "question": f'{QUESTION}\n{{"bridge": {{"type": "question", '
            '"questionId": "QUESTION", "kind": "permission", "options": [{"id": "yes", '
            '"name": "Go on", "kind": "allow_once"}, '
            '{"id": "no", "name": "Do not", "kind": "reject_once"}], "freeText": true, '
            '"multiple": false, "until": "TIME", "then": "deny"}}',
        },
        no={"no JSON": "it shows its model each message as JSON, with the `metadata`"},
    ),
    A2AClient(
        "beeai",
        "BeeAI, `A2AAgent`",
        "BeeAI",
        "beeai_client.py",
        "requirements-beeai.txt",
        "beeai",
        wire="0.3",
        shown={"answer": "It is fine."},
    ),
    A2AClient(
        "strands",
        "AWS Strands, `A2AAgent`",
        "AWS Strands",
        "strands_client.py",
        "requirements-strands.txt",
        "strands",
        wire="0.3",
        shown={"answer": "It is fine.", "reply": "unknown Go"},
        no={"answered": "each call begins a conversation; use `[[rules]]`"},
    ),
    A2AClient(
        "ag2",
        "AG2",
        "AG2",
        "ag2_client.py",
        "requirements-ag2.txt",
        "ag2",
        shown={
            "answer": "I look.\n\nIt is fine.It is fine.",
            "reply": REPLY * 2,
            "failure": "A2ATaskFailedError: Task ID ended in state TASK_STATE_FAILED",
        },
        no={
            "answer once": "it joins the artifact and the final status",
            "failure": "the text of its error names the state alone",
        },
    ),
    A2AClient(
        "langgraph",
        "LangGraph, `langgraph-a2a-client`",
        "LangGraph",
        "langgraph_client.py",
        "requirements-langgraph.txt",
        "langgraph",
        wire="0.3",
        soak=False,
        shown={prompt: json.dumps(result) for prompt, result in TOOL_RESULTS.items()},
        no={
            "answer once": "the task has it in the artifact, the final status and the history",
            "answered": "each call of the tool begins a conversation; use `[[rules]]`",
            "no JSON": "the result of the tool is the whole task as JSON",
        },
    ),
    A2AClient(
        "ai-sdk",
        "Vercel AI SDK, `generateText`",
        "Vercel AI SDK",
        "js/ai_sdk_client.mjs",
        "js/package.json",
        package="a2a-ai-provider",
        wire="0.3",
        shown={"answer": f"It is fine.{ANSWER}", "reply": REPLY * 2},
        no={
            "answer once": "it joins the final status and the artifact",
            "stop": "the provider ignores the signal to abort; cancel the task",
        },
    ),
    A2AClient(
        "ai-sdk-stream",
        "Vercel AI SDK, `streamText`",
        "Vercel AI SDK",
        "js/ai_sdk_stream_client.mjs",
        "js/package.json",
        package="a2a-ai-provider",
        wire="0.3",
        shown={"question": "", "failure": ""},
        no={
            "question": "the provider leaves status messages out of a stream; use `generateText`",
            "failure": "the provider leaves status messages out of a stream; use `generateText`",
            "stop": "the provider ignores the signal to abort; cancel the task",
        },
    ),
    A2AClient(
        "ag-ui",
        "AG-UI (CopilotKit), `A2AAgent`",
        "AG-UI and CopilotKit",
        "js/ag_ui_client.mjs",
        "js/package.json",
        package="@ag-ui/a2a",
        wire="0.3",
        shown={"answer": "Using tool: Bash\nIt is fine."},
        no={"stop": "`abortRun` of its agent does nothing; cancel the task"},
    ),
]
BY_NAME = {client.name: client for client in CLIENTS}


def table() -> str:
    """The matrix as Markdown, with a note for each cell that is no."""
    lines = [
        f"| client | A2A | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
    ]
    for client in CLIENTS:
        cells = " | ".join("no" if column in client.no else "yes" for column in COLUMNS)
        lines.append(f"| {client.title} {client.version} | {client.wire} | {cells} |")
    meanings = [f"{name}: {meaning}" for name, meaning in COLUMNS.items()]
    notes = [
        textwrap.fill(f"* {client.title}, {column}: {why}.", WIDTH, subsequent_indent="  ")
        for client in CLIENTS
        for column, why in client.no.items()
    ]
    legend = textwrap.fill(f"{'; '.join(meanings)}.", WIDTH)
    return "\n".join([*lines, "", legend, "", *notes]) + "\n"
