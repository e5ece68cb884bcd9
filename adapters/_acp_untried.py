"""Agents over ACP that follow their documentation: no test has run a turn of them.

The handshakes of auggie 0.36.0 and qoder 1.1.52 were run; both then require a login."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from bridge.adapter import Ability, AgentConfig

from . import _homes
from . import _project_files as files
from ._acp import Acp

_OPENAI = ("OPENAI_*",)


class Goose(Acp):
    name = "goose"
    title = "Goose"
    binary = "goose"
    arguments = ("acp",)
    environment = ("GOOSE_*", "ANTHROPIC_*", *_OPENAI)
    project_files = always_loaded = files.GOOSE
    verified = False
    homes = _homes.GOOSE
    reads = _homes.of_xdg("goose")
    install = "see https://block.github.io/goose"
    login = "goose configure"


class Auggie(Acp):
    name = "auggie"
    title = "Auggie"
    binary = "auggie"
    arguments = ("--acp",)
    environment = ("AUGMENT_*",)
    project_files = always_loaded = files.AUGGIE
    verified = False
    writable_paths = ("~/.augment/sessions/", "~/.augment/logs/")
    reads = ("~/.augment",)
    install = "npm install -g @augmentcode/auggie"
    login = "auggie login"


class Kiro(Acp):
    name = "kiro"
    title = "Kiro CLI"
    binary = "kiro-cli"
    arguments = ("acp",)
    environment = ("KIRO_*", "AWS_*")
    project_files = always_loaded = files.KIRO
    verified = False
    writable_paths = ("~/.kiro/sessions/", "~/.local/share/kiro-cli/")
    reads = ("~/.kiro", "${XDG_DATA_HOME:-~/.local/share}/kiro-cli")
    install = "see https://kiro.dev/cli"
    login = "kiro-cli login"


class Qoder(Acp):
    name = "qoder"
    title = "Qoder CLI"
    binary = "qodercli"
    arguments = ("--acp",)
    environment = ("QODER_*",)
    project_files = always_loaded = files.QODER
    verified = False
    writable_paths = ("~/.qoder/projects/", "~/.qoder/logs/")
    reads = ("~/.qoder",)
    install = "npm install -g @qoder-ai/qodercli"
    login = "run `qodercli` once and type /login, or set QODER_PERSONAL_ACCESS_TOKEN"


class Junie(Acp):
    name = "junie"
    title = "Junie"
    binary = "junie"
    arguments = ("--acp=true",)
    environment = ("JUNIE_*",)
    project_files = always_loaded = files.JUNIE
    verified = False
    writable_paths = ("~/.junie/sessions/", "~/.junie/logs/")
    reads = ("~/.junie", "~/.local/share/junie")
    install = "npm install -g @jetbrains/junie"
    login = "run `junie` once and log in, or set JUNIE_API_KEY"


class Pi(Acp):
    name = "pi"
    title = "pi"
    binary = "pi-acp"
    environment = ("PI_*", "ANTHROPIC_*", "GEMINI_*", *_OPENAI)
    limitations: ClassVar[Mapping[Ability, str]] = {"questions": "it asks for no permission"}
    project_files = always_loaded = files.PI
    verified = False
    writable_paths = ("~/.pi/agent/sessions/", "~/.pi/pi-acp/")
    reads = ("~/.pi",)
    install = "npm install -g pi-acp @earendil-works/pi-coding-agent"
    login = "run `pi` once and type /login, or set the key of the model's provider"

    @classmethod
    def unsupported_reason(cls, config: AgentConfig) -> str | None:
        text = "pi acts without permission requests: set AGENT_FORCE=true if that is wanted."
        return None if config.force else text


UNTRIED = (Goose, Auggie, Kiro, Qoder, Junie, Pi)
