"""The contract between the bridge and the dialect of one CLI: all that an author of an adapter
imports, besides `bridge.adapter.print_mode` and `bridge.adapter.testing`."""

from bridge.adapter.contract import (
    CONFIGURATION as CONFIGURATION,
    INTERRUPTED as INTERRUPTED,
    Ability as Ability,
    Adapter as Adapter,
    AgentConfig as AgentConfig,
    CliInfo as CliInfo,
    Handlers as Handlers,
    JsonLines as JsonLines,
    Launch as Launch,
    Lines as Lines,
    Prompt as Prompt,
    SessionOptions as SessionOptions,
    SessionStart as SessionStart,
    Stdin as Stdin,
    as_text as as_text,
)
from bridge.adapter.exit_status import ExitStatus as ExitStatus, explain_exit as explain_exit
from bridge.adapter.fields import (
    Json as Json,
    Said as Said,
    as_dict as as_dict,
    as_list as as_list,
    as_string as as_string,
    as_word as as_word,
    output_status as output_status,
)
from bridge.adapter.input import AdapterInput as AdapterInput
from bridge.adapter.limits import model_failure as model_failure
from bridge.adapter.unasked import unasked as unasked
from bridge.files.home import Home as Home, Index as Index
from bridge.task.events import (
    SESSION_LOST as SESSION_LOST,
    AgentEvent as AgentEvent,
    Answer as Answer,
    ArtifactChunk as ArtifactChunk,
    Done as Done,
    Failed as Failed,
    FileChange as FileChange,
    Option as Option,
    Plan as Plan,
    PlanEntry as PlanEntry,
    Question as Question,
    QuestionWithdrawn as QuestionWithdrawn,
    Rejected as Rejected,
    Reply as Reply,
    Retracted as Retracted,
    Started as Started,
    Status as Status,
    Text as Text,
    Thought as Thought,
    ToolCall as ToolCall,
    ToolResult as ToolResult,
    Usage as Usage,
)
from bridge.task.message import (
    DataPart as DataPart,
    Message as Message,
    Part as Part,
    RawPart as RawPart,
    Role as Role,
    TextPart as TextPart,
    UrlPart as UrlPart,
)
from bridge.task.text import json_object as json_object, readable as readable
