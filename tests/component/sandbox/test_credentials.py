"""What an agent in a sandbox can read of the operator's home: programs, and settings without
secrets."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from bridge.sandbox.credentials import CREDENTIALS, SHOWN, Privacy, named, privacy
from bridge.sandbox.homes import resolve
from bridge.sandbox.landlock import abi as landlock_abi
from bridge.sandbox.landlock import covers, is_inside
from bridge.sandbox.profile import Sandbox
from bridge.server import registry
from bridge.server.agents.sandboxes import own_reads
from tests import CHECKOUT
from tests.support import programs
from tests.support.cases import each
from tests.support.client import artifact_text, said, state
from tests.support.confined import CONFINED, command
from tests.support.sandboxed import serving_shell

needs_landlock = pytest.mark.skipif(
    landlock_abi() < 3, reason="this kernel has no Landlock of ABI 3"
)
# Places of secrets in a home, most of which no list can know.
SECRETS = """
.ssh/id_ed25519 .gnupg/private-keys-v1.d/key .password-store/site.gpg .netrc .pgpass .my.cnf .env
.vault-token .aws/credentials .azure/msal_token_cache.json .kube/config .docker/config.json .s3cfg
.boto .oci/oci_api_key.pem .terraformrc .terraform.d/credentials.tfrc.json .fly/config.yml
.railway/config.json .vercel/auth.json .netlify/config.json .databrickscfg .snowflake/config.toml
.kaggle/kaggle.json .condarc .npmrc .yarnrc.yml .pypirc .gem/credentials .cargo/credentials.toml
.m2/settings.xml .gradle/gradle.properties .ivy2/.credentials .sbt/.credentials .bundle/config
.nuget/NuGet/NuGet.Config .hex/hex.config .dotnet/corefx/key .composer/auth.json .git-credentials
.bash_history .zsh_history .psql_history .bashrc .profile .zshenv .Renviron .wgetrc .curlrc
.Xauthority .ICEauthority .mozilla/firefox/logins.json .thunderbird/x/logins.json
.claude/.credentials.json .codex/auth.json .gemini/oauth_creds.json .pi/auth.json .grok/auth.json
.config/coding-agent-bridge/credentials.json .config/a2a-cli/.env .config/github-copilot/apps.json
.config/google-chrome/Default/Cookies .config/Bitwarden/data.json .config/op/config
.config/keepassxc/keepassxc.ini .config/gcloud/credentials.db .config/hub .config/gh/hosts.yml
.config/rclone/rclone.conf .config/doctl/config.yaml .config/pip/pip.conf .config/uv/uv.toml
.config/git/credentials .config/Code/User/globalStorage/state.vscdb .config/sops/age/keys.txt
.config/Slack/Cookies .config/configstore/firebase-tools.json .config/mise/age.txt
.local/share/keyrings/login.keyring .local/share/opencode/auth.json .local/share/uv/credentials/x
.local/share/TelegramDesktop/tdata/key .local/state/wireguard/key .local/share/atuin/key
.var/app/org.mozilla.firefox/.mozilla/logins.json snap/firefox/common/.mozilla/logins.json
snap/chromium/common/chromium/Default/Cookies .cache/huggingface/token .cache/google-chrome/x
.local/state/coding-agent-bridge/41242/token .local/state/coding-agent-bridge/places/x.json
""".split()
WORK = """
.gitconfig .config/git/config .config/git/ignore .cargo/bin/tool .rustup/toolchains/x/bin/rustc
.nvm/versions/node/v22/bin/node .pyenv/versions/3.12/bin/python .local/bin/tool
.local/lib/python3.12/site-packages/x.py .local/share/uv/python/x .bun/bin/bun .sdkman/bin/x
.m2/repository/x.jar .cache/ms-playwright/x .editorconfig notes.txt project/file .venv/bin/python
""".split()


READ_ALL = "cd {}; for one in {}; do cat $one 2> /dev/null; done; true"


def filled(home: Path) -> Path:
    for name in (*SECRETS, *WORK):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    return home


@pytest.fixture
def home() -> Iterator[Path]:
    """Not in /tmp, which is empty under bwrap."""
    with tempfile.TemporaryDirectory(dir=CHECKOUT, prefix=".home-") as folder:
        yield filled(Path(folder).resolve())


def rules(home: Path, profile: str) -> dict[str, Any]:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    for name in ("work", "scratch"):
        (home / name).mkdir()
    made = Sandbox(profile, environment, str(home / "scratch"), private=privacy(environment, ()))
    return {**made.rules(str(home / "work")), "scope": landlock_abi() >= 6}


@pytest.mark.parametrize("profile", CONFINED)
def test_places_of_secrets_are_hidden_and_the_tools_of_work_are_not(
    home: Path, profile: str
) -> None:
    (home / "linked.txt").symlink_to("notes.txt")
    line = READ_ALL.format(home, " ".join((*SECRETS, *WORK, "linked.txt")))
    argv = command(rules(home, profile), "/bin/sh", "-c", line)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [*WORK, "notes.txt"], done.stderr
    assert len(SECRETS) > 75


@pytest.mark.parametrize("profile", CONFINED)
def test_a_secret_that_appears_while_the_program_runs_is_hidden(home: Path, profile: str) -> None:
    later = (".new-tool/token", ".config/new/key", ".local/share/new/key", ".token", "snap/new/key")
    line = f"echo ready; read go; {READ_ALL.format(home, ' '.join((*later, 'notes.txt')))}"
    argv = command(rules(home, profile), "/bin/sh", "-c", line)
    with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        for name in later:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("secret\n")
        seen, _ = process.communicate("go\n", timeout=60)
    assert seen == "notes.txt\n"


@pytest.mark.parametrize("profile", CONFINED)
def test_a_hidden_path_that_is_missing_at_the_start_stays_hidden(home: Path, profile: str) -> None:
    """Such as the state folder of another server, in any place."""
    (home / "other/state").mkdir(parents=True)
    (home / "other/file").write_text("seen\n")
    made = rules(home, profile)
    made["hide"] += [f"{home}/other/.env", f"{home}/other/state/new"]
    line = f"echo ready; read go; {READ_ALL.format(home, 'other/.env other/state/new other/file')}"
    argv = command(made, "/bin/sh", "-c", line)
    with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        for name in (".env", "state/new"):
            (home / "other" / name).write_text("secret\n")
        seen, _ = process.communicate("go\n", timeout=60)
    assert seen == "seen\n"


@needs_landlock
async def test_the_operator_can_show_hidden_paths(workspace: Path) -> None:
    filled(workspace.parent / "home")
    line = READ_ALL.format("~", " ".join(SECRETS))
    read = {"BRIDGE_SANDBOX_READ": "~/.kube:~/.config:~/.local/state"}
    async with serving_shell(workspace, **read) as (client, _):
        seen = artifact_text(await client.send(line)).split()
    own = (".config/coding-agent-bridge/", ".config/a2a-cli/", ".local/state/coding-agent-bridge/")
    shown = (".kube/", ".config/", ".local/state/")
    assert set(seen) == {
        one for one in SECRETS if one.startswith(shown) and not one.startswith(own)
    }


@needs_landlock
async def test_other_folders_of_configuration_are_honoured(workspace: Path) -> None:
    home = workspace.parent / "home"
    (home / "conf/gh").mkdir(parents=True)
    (home / "conf/gh/hosts.yml").write_text("token")
    env = {"XDG_CONFIG_HOME": str(home / "conf")}
    async with serving_shell(workspace, **env) as (client, _):
        task = await client.send(f"cat {home}/conf/gh/hosts.yml 2> /dev/null; echo done")
        assert artifact_text(task) == "done\n"


@needs_landlock
async def test_files_with_credentials_that_variables_name_are_hidden(workspace: Path) -> None:
    """Except from a CLI that gets the variable."""
    key = workspace.parent / "elsewhere.json"
    key.write_text("secret\n")
    env = {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}
    line = f"cat {key} 2> /dev/null; echo done"
    async with serving_shell(workspace, **env) as (client, _):
        assert artifact_text(await client.send(line)) == "done\n"
    env["AGENT_ENV"] = "GOOGLE_APPLICATION_CREDENTIALS"
    async with serving_shell(workspace, **env) as (client, _):
        assert artifact_text(await client.send(line)) == "secret\ndone\n"


@needs_landlock
async def test_the_state_of_another_server_and_its_backup_are_hidden(workspace: Path) -> None:
    """Wherever it is, and also if that server starts later."""
    other, backup = workspace.parent / "elsewhere", workspace.parent / "copies" / "monday"
    beside = workspace.parent / "beside"
    beside.mkdir()
    backup.parent.mkdir()
    line = f"cat {other}/id {backup}/id 2> /dev/null; echo done"
    async with serving_shell(workspace) as (client, _):
        assert artifact_text(await client.send(line)) == "done\n"
        async with serving_shell(beside, BRIDGE_STATE_DIR=str(other)) as (there, _):
            wanted = {"folder": str(backup)}
            async with there.session.post(f"{there.url}/admin/backup", json=wanted) as answer:
                assert answer.status == 200, await answer.text()
            assert (other / "id").exists() and (backup / "id").exists()
            assert artifact_text(await client.send(line)) == "done\n"


TOOLS = {
    "npm": "mkdir tiny && cd tiny && npm init -y > /dev/null && npm config get registry",
    "pip": "python3 -m pip config list && echo listed",
    "git": "git init -q . && git config user.name",
}


@needs_landlock
@pytest.mark.timeout(90)  # npm starts slowly
@pytest.mark.parametrize("tool", TOOLS)
async def test_tools_work_without_the_credentials(workspace: Path, tool: str) -> None:
    programs.require("python3" if tool == "pip" else tool)
    home = workspace.parent / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://token@host/\n")
    (home / ".npmrc").write_text("//registry/:_authToken=secret\n")
    (home / ".git-credentials").write_text("https://me:secret@host\n")
    (home / ".gitconfig").write_text("[user]\nname = me\n[credential]\nhelper = store\n")
    folders = f"{CHECKOUT / '.venv/bin'}:{os.environ['PATH']}"
    async with serving_shell(workspace, PATH=folders) as (client, _):
        task = await client.send(TOOLS[tool])
        assert state(task) == "completed", said(task)
        assert "secret" not in artifact_text(task)
        assert "token" not in artifact_text(task)
        assert artifact_text(task).strip()


OWN_PATHS = {
    "claude-code": {"~/.claude", "~/.claude.json"},
    "claude-agent-acp": {"~/.claude", "~/.claude.json"},
    "codex": {"~/.codex"},
    "gemini": {"~/.gemini", "~/.gemini/.env"},
    "qwen": {"~/.qwen"},
    "copilot": {"~/.copilot", "~/.cache/copilot", "~/.config/gh"},
    "opencode": {"~/.config/opencode", "~/.local/share/opencode"},
    "kilo": {"~/.config/kilo", "~/.local/share/kilo"},
    "cursor": {"~/.cursor", "~/.config/cursor"},
    "aider": {"~/.aider", "~/.aider.conf.yml", "~/.aider.model.settings.yml"},
    "generic": set(),
}


@each("name", OWN_PATHS)
def test_a_cli_reads_its_own_settings_and_no_others(name: str) -> None:
    assert set(places_of(name).reads) == {one.replace("~", "/home/me") for one in OWN_PATHS[name]}


def places_of(name: str, *reads: str, **env: str) -> Privacy:
    adapter = registry.load(name)
    return privacy({"HOME": "/home/me", **env}, (*own_reads(adapter), *reads))


@each(
    ("variable", "path"),
    [("AWS_REGION", "/home/me/.aws"), ("AZURE_CLIENT_ID", "/home/me/.azure")],
)
def test_a_cli_with_the_variables_of_a_cloud_reads_its_credentials(
    variable: str, path: str
) -> None:
    assert places_of("generic").reads == ()
    assert places_of("generic", **{variable: "x"}).reads == (path,)


def test_a_home_that_is_shown_hides_nothing() -> None:
    assert "/home/me/.*" in places_of("generic").places
    assert not [one for one in places_of("generic", "~").places if one.startswith("/home/me")]


@each("home", ["/", "", "/nonexistent"])
def test_a_strange_home_hides_no_more_than_its_dot_files(home: str) -> None:
    found = privacy({"HOME": home}, ()).places
    assert home not in found and "/" not in found
    assert not home or f"{home.rstrip('/')}/.*" in found


def test_variables_that_name_nothing_hide_nothing() -> None:
    given = {"KUBECONFIG": "/a:/b", "NETRC": "", "PIP_CONFIG_FILE": os.devnull, "OTHER": "/c"}
    assert list(named(given, {})) == ["/a", "/b"]
    assert list(named({"GNUPGHOME": "/home", "NETRC": "/home/me"}, {"HOME": "/home/me"})) == []
    assert list(named(given, {"KUBECONFIG": "/a"})) == []


def test_shown_paths_are_private_ones_and_none_has_a_known_credential() -> None:
    """Else the row has no effect, or shows too much."""
    home = {"HOME": "/home/me"}
    paths = [resolve(one, home) for row in SHOWN for one in row.paths]
    assert len(paths) == len(set(paths))
    secrets = [f"/home/me/{one}" for one in SECRETS] + [resolve(one, home) for one in CREDENTIALS]
    for path in paths:
        assert any(covers(one, path) for one in places_of("generic").places), path
        assert not [one for one in secrets if is_inside(one, path)], path
