"""Credentials of the operator that agents in a sandbox do not read, unless their adapter or
BRIDGE_SANDBOX_READ says so. docs/security.md has the same list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from bridge.sandbox.homes import resolve
from bridge.sandbox.landlock import is_inside

_CONFIG = "${XDG_CONFIG_HOME:-~/.config}"
_DATA = "${XDG_DATA_HOME:-~/.local/share}"


def _below(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


KEYS = _below("~", ".ssh .gnupg .password-store .netrc .vault-token .pgpass .my.cnf")
CODE = (
    *_below("~", ".git-credentials .npmrc .pypirc .pip .gem/credentials .composer/auth.json"),
    *_below("~", ".cargo/credentials .cargo/credentials.toml .m2/settings.xml"),
    *_below(_CONFIG, "git/credentials gh hub glab-cli pip composer/auth.json"),
)
CLOUDS = (
    *_below("~", ".aws .azure .kube .docker/config.json .oci .boto .s3cfg"),
    *_below("~", ".terraformrc .terraform.d/credentials.tfrc.json"),
    *_below(_CONFIG, "gcloud doctl rclone containers/auth.json"),
)
PEOPLE = (
    *_below("~", ".mozilla .thunderbird .bash_history .zsh_history .python_history"),
    *_below("~", ".node_repl_history .psql_history .mysql_history .sqlite_history"),
    *_below(_CONFIG, "google-chrome chromium BraveSoftware microsoft-edge"),
    *_below(_DATA, "keyrings kwalletd fish/fish_history"),
)
CLIS = (
    *_below("~", ".claude .claude.json .codex .gemini .qwen .copilot .cursor .cline .kimi .vibe"),
    *_below("~", ".factory .augment .kiro .aider/oauth-keys.env"),
    *_below(_CONFIG, "cursor goose"),
    *_below(_DATA, "opencode kilo goose kiro-cli"),
)
STATES = ("${XDG_STATE_HOME:-~/.local/state}/coding-agent-bridge",)  # of this and other servers
HIDDEN = (*KEYS, *CODE, *CLOUDS, *PEOPLE, *CLIS, *STATES)

# A CLI with the variables of a cloud may read the credentials for that cloud.
_TOLD = {
    "AWS_": "~/.aws",
    "AZURE_": "~/.azure",
    "GOOGLE_CLOUD_": f"{_CONFIG}/gcloud",
    "CLOUDSDK_": f"{_CONFIG}/gcloud",
}
# Tools that fail where they cannot read their file, each with the variable for another one and
# what that is: nothing, or the name of one in the scratch folder, which need not exist.
_INSTEAD = {
    "~/.npmrc": ("NPM_CONFIG_USERCONFIG", "npmrc"),
    f"{_CONFIG}/pip": ("PIP_CONFIG_FILE", os.devnull),
    "~/.pip": ("PIP_CONFIG_FILE", os.devnull),
    "~/.kube": ("KUBECONFIG", "kubeconfig"),
    "~/.docker/config.json": ("DOCKER_CONFIG", "docker"),
    f"{_CONFIG}/gh": ("GH_CONFIG_DIR", "gh"),
}


def hidden(environment: Mapping[str, str], reads: Iterable[str]) -> tuple[str, ...]:
    """The paths to hide from a CLI with this `environment`. `reads`: paths that it must read."""
    told = [
        path for name, path in _TOLD.items() if any(one.startswith(name) for one in environment)
    ]
    open_ = [resolve(one, environment).rstrip("/") for one in (*reads, *told)]

    def shut(written: str) -> bool:
        path = resolve(written, environment)
        return not any(is_inside(path, one) for one in open_)

    return tuple(filter(shut, HIDDEN))


def instead(paths: Iterable[str], environment: Mapping[str, str], scratch: str) -> dict[str, str]:
    """Variables for tools that fail if they cannot read hidden files."""
    found = {}
    for written in paths:
        if written in _INSTEAD and os.path.exists(resolve(written, environment)):
            name, path = _INSTEAD[written]
            found[name] = os.path.join(scratch, path)
    return found
