"""The operator's home for agents in a sandbox: programs, and settings without secrets.

Most programs keep secrets somewhere below a dot-folder of the home or an XDG folder. So these
places are hidden by default, with everything that appears there later, and SHOWN lists the paths
that agents read. docs/security.md has the same table.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.sandbox.homes import resolve
from bridge.sandbox.landlock import DOTS, covers, is_inside

_CONFIG = "${XDG_CONFIG_HOME:-~/.config}"
_DATA = "${XDG_DATA_HOME:-~/.local/share}"
_STATE = "${XDG_STATE_HOME:-~/.local/state}"
_CACHE = "${XDG_CACHE_HOME:-~/.cache}"
_XDG = (_CONFIG, _DATA, _STATE, _CACHE)
_PRIVATE = (f"~/{DOTS}", "~/snap", *_XDG)
OF_CLIENT = (f"{_CONFIG}/coding-agent-bridge", "~/.config/a2a-cli")
"""Folders in which the client of the bridge keeps tokens and keys."""
_OF_SERVICES = ("/run/secrets", "/run/credentials", "/var/backups")
"""Secrets of containers and of services, and backups."""


def _below(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


@dataclass(frozen=True, slots=True)
class Shown:
    """Paths that agents read although they lie in a private place."""

    what: str
    paths: tuple[str, ...]


SHOWN = (
    Shown(
        "settings of git, which must have no tokens (`insteadOf`, `extraheader`)",
        (
            *_below("~", ".gitconfig .gitignore .gitignore_global .gitattributes .gitmessage"),
            *_below(_CONFIG, "git/config git/ignore git/attributes"),
        ),
    ),
    Shown(
        # Tools look for them in the workspace and in each folder above it.
        "settings of editors and checkers",
        _below(
            "~",
            ".editorconfig .prettierrc .eslintrc .eslintrc.js .eslintrc.json .clang-format "
            ".clang-tidy .rustfmt.toml .tool-versions .node-version .nvmrc .python-version "
            ".ruby-version .yarnrc",
        ),
    ),
    Shown(
        "programs and libraries of the user",
        (
            *_below("~/.local", "bin lib lib64 libexec include opt"),
            *_below("~", ".nix-profile .linuxbrew .fonts .terminfo"),
            *_below(_DATA, "fonts mime man"),
            *_below(_STATE, "nix/profiles"),
            *_below(_CONFIG, "fontconfig"),
        ),
    ),
    Shown(
        "Python",
        (
            *_below("~", ".pyenv .virtualenvs .venv .venvs .local/pipx .rye/shims .rye/py"),
            *_below(_DATA, "uv/python uv/tools pipx virtualenvs pypoetry hatch/env hatch/pythons"),
            *_below(_CACHE, "pypoetry/virtualenvs"),
        ),
    ),
    Shown(
        "Node.js",
        (
            *_below("~", ".nvm .volta .fnm .nodenv .n .npm-global .npm-packages .node_modules"),
            *_below("~", ".bun .deno .yarn"),
            *_below(_DATA, "pnpm fnm nvm npm"),
            *_below(_STATE, "fnm_multishells"),
            *_below(_CONFIG, "yarn/global"),
        ),
    ),
    Shown(
        "Rust and Go",
        (
            *_below("~", ".cargo/bin .cargo/env .cargo/config .cargo/config.toml .rustup"),
            *_below("~", ".goenv .gvm"),
            *_below(_CONFIG, "go/env"),
        ),
    ),
    Shown(
        "Java, .NET and other languages",
        (
            *_below("~", ".m2/repository .m2/wrapper .m2/toolchains.xml .gradle/caches"),
            *_below("~", ".gradle/wrapper .gradle/jdks .ivy2/cache .sdkman .jenv .jdks .konan"),
            *_below("~/.dotnet", "dotnet host packs sdk sdk-manifests shared tools"),
            *_below("~", ".nuget/packages .rbenv .rvm .gem/ruby .phpenv .composer/vendor"),
            *_below("~", ".mix .hex/packages .ghcup .cabal/bin .cabal/packages .cabal/store"),
            *_below("~", ".stack/programs .stack/snapshots .opam .plenv .pub-cache/bin"),
            *_below("~", ".pub-cache/hosted .juliaup .julia/juliaup .julia/packages"),
            *_below("~", ".julia/artifacts .julia/compiled .swiftly .zvm"),
            *_below(_DATA, "gem/ruby coursier/bin swiftly"),
            *_below(_STATE, "cabal/store"),
            *_below(_CONFIG, "composer/vendor"),
        ),
    ),
    Shown(
        "asdf and mise",
        (
            *_below("~", ".asdf .asdfrc .proto/bin .proto/shims .proto/tools"),
            *_below(_DATA, "mise/installs mise/shims mise/plugins rtx/installs rtx/shims"),
            *_below(_CONFIG, "mise/config.toml"),
            *_below(_STATE, "mise"),
        ),
    ),
    Shown(
        # Browsers, compilers and models that are slow to download.
        "caches that builds and tests only read",
        _below(
            _CACHE,
            "ms-playwright puppeteer Cypress selenium node node-gyp pre-commit coursier bazelisk "
            "ccache fontconfig huggingface/hub huggingface/datasets torch",
        ),
    ),
    Shown(
        "programs of coding agents, and skills that several of them share",
        (
            *_below("~", ".agents/skills .claude/local .opencode/bin .kilo/bin"),
            *_below(_DATA, "claude/versions cursor-agent/versions"),
        ),
    ),
)

CREDENTIALS = (
    *_below("~", ".ssh .gnupg .password-store .netrc .vault-token .pgpass .my.cnf .aws .azure"),
    *_below("~", ".kube .docker/config.json .git-credentials .npmrc .pypirc .mozilla"),
    *_below(_CONFIG, "gh gcloud git/credentials google-chrome chromium coding-agent-bridge"),
    *_below(_DATA, "keyrings"),
    *_below(_STATE, "coding-agent-bridge"),
)
"""A home with one of them cannot be a workspace: nothing in a writable folder can be hidden."""

# A CLI with the variables of a cloud may read the credentials for that cloud.
_TOLD = {
    "AWS_": "~/.aws",
    "AZURE_": "~/.azure",
    "GOOGLE_CLOUD_": f"{_CONFIG}/gcloud",
    "CLOUDSDK_": f"{_CONFIG}/gcloud",
}
# Variables that name files or folders with credentials in other places.
_NAMED = (
    "AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE AWS_WEB_IDENTITY_TOKEN_FILE AZURE_CONFIG_DIR "
    "BUNDLE_USER_CONFIG CLOUDSDK_CONFIG CONDARC CREDENTIALS_DIRECTORY DOCKER_CONFIG "
    "GH_CONFIG_DIR GLAB_CONFIG_DIR GNUPGHOME GOOGLE_APPLICATION_CREDENTIALS HELM_REGISTRY_CONFIG "
    "HISTFILE HF_TOKEN_PATH KUBECONFIG NETRC NPM_CONFIG_USERCONFIG OCI_CLI_CONFIG_FILE "
    "PASSWORD_STORE_DIR PGPASSFILE PGSERVICEFILE PGSSLKEY PIP_CONFIG_FILE RCLONE_CONFIG "
    "REGISTRY_AUTH_FILE SOPS_AGE_KEY_FILE TF_CLI_CONFIG_FILE VAULT_CONFIG_PATH XAUTHORITY"
).split()
# Tools that fail where they cannot read their file, each with the variable for another one and
# what that is: nothing, or the name of one in the scratch folder, which need not exist.
_INSTEAD = {
    "~/.npmrc": ("NPM_CONFIG_USERCONFIG", "npmrc"),
    f"{_CONFIG}/pip": ("PIP_CONFIG_FILE", os.devnull),
    "~/.pip": ("PIP_CONFIG_FILE", os.devnull),
    "~/.kube": ("KUBECONFIG", "kubeconfig"),
    "~/.docker/config.json": ("DOCKER_CONFIG", "docker"),
    f"{_CONFIG}/gh": ("GH_CONFIG_DIR", "gh"),
    "~/.bundle": ("BUNDLE_USER_HOME", "bundle"),
    "~/.wgetrc": ("WGETRC", os.devnull),
    "~/.zshenv": ("ZDOTDIR", "zsh"),
    "~/.zshrc": ("ZDOTDIR", "zsh"),
}


@dataclass(frozen=True, slots=True)
class Privacy:
    """The private places for one agent: real paths as in `hide` of sandbox/confine.py. `homes`: the
    real homes. `reads`: absolute paths that the agent may read there anyway. `shown`: further
    ones, by folder and by the first name below it. `instead`: files of tools that fail if they
    cannot read them, each with a variable and its value, relative to the scratch folder."""

    places: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    shown: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    instead: tuple[tuple[str, str, str], ...] = ()

    def hidden(self, others: Iterable[str], written: Sequence[str]) -> Iterator[str]:
        """The paths to hide from an agent that may write to the real paths `written`; `others`:
        places of other servers. What lies in one of `written` cannot be hidden; credentials there
        are named, so that confine.py refuses them."""
        for place in (*self.places, *others):
            if not any(is_inside(place, one) for one in written):
                yield place
        for home in self.homes:
            if any(is_inside(home, one) for one in written):
                paths = (resolve(one, {"HOME": home}) for one in CREDENTIALS)
                yield from filter(os.path.exists, paths)

    def visible(self) -> list[str]:
        """The paths of `reads` and `shown` that exist. One look at a folder spares most of the
        looks at the paths below it."""
        found = list(self.reads)
        for folder, tops in self.shown.items():
            with contextlib.suppress(OSError):
                for top in tops.keys() & set(os.listdir(folder)):
                    found += tops[top]
        return list(filter(os.path.exists, found))

    def variables(self, scratch: str) -> dict[str, str]:
        """Variables for tools that fail if they cannot read hidden files."""
        return {
            name: os.path.join(scratch, value)
            for path, name, value in self.instead
            if os.path.exists(path)
        }


def privacy(
    environment: Mapping[str, str],
    reads: Iterable[str],
    programs: Iterable[str] = (),
    same_user: bool = True,
) -> Privacy:
    """For a CLI with this `environment`. `reads`: private paths that it needs or the operator
    allows, with `~` and variables; `programs`: real paths with programs that it runs. `same_user`:
    it runs as the user of the server, so that modes of files do not protect the server's home."""
    told = [
        path for name, path in _TOLD.items() if any(one.startswith(name) for one in environment)
    ]
    open_ = tuple(resolve(one, environment).rstrip("/") for one in (*reads, *told))
    homes = _homes(environment, same_user)
    found, shown = [*_OF_SERVICES], []
    for number, home in enumerate(homes):
        # The XDG variables are those of the CLI. Its home is the first one.
        known = {**({} if number else environment), "HOME": home.rstrip("/")}
        private = (os.path.realpath(resolve(one, known)) for one in _PRIVATE)
        found += [one for one in private if not is_inside(home, one)]
        shown += [resolve(one, known) for row in SHOWN for one in row.paths]
    places = _places(found, open_)
    top = {*homes, *places, *(f"{home}/.local" for home in homes)}  # too much for one program
    needed = {one for one in programs if any(covers(place, one) for place in places)}
    return Privacy(
        tuple(places),
        homes,
        open_,
        _by_folder((*shown, *sorted(needed - top)), homes),
        tuple(_instead(open_, environment)),
    )


def _places(found: Iterable[str], open_: Iterable[str]) -> list[str]:
    """Those that no other one covers and that are not open."""
    real = [os.path.realpath(one) for one in open_]
    kept = [one for one in found if not any(is_inside(one, path) for path in real)]
    dots = [one for one in kept if one.endswith(f"/{DOTS}")]
    return [*dots, *(one for one in kept if not any(covers(dot, one) for dot in dots))]


def _by_folder(paths: Iterable[str], homes: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    grouped: dict[str, dict[str, list[str]]] = {}
    for path in dict.fromkeys(paths):
        parent, name = os.path.split(path)
        folder = next((one for one in homes if path.startswith(f"{one}/")), parent)
        top = path[len(folder) + 1 :].partition("/")[0] if folder != parent else name
        grouped.setdefault(folder, {}).setdefault(top, []).append(path)
    return grouped


def _instead(
    open_: Iterable[str], environment: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    for written, (name, value) in _INSTEAD.items():
        path = resolve(written, environment)
        if not any(is_inside(path, one) for one in open_):
            yield path, name, value


def named(variables: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """The files with credentials that `variables` of the server name, except those that a CLI with
    this `environment` knows."""
    home = environment.get("HOME") or "/"
    given = (variables.get(name, "") for name in _NAMED if name not in environment)
    for path in filter(None, (path for value in given for path in value.split(os.pathsep))):
        place = os.path.abspath(os.path.expanduser(path))
        if place != os.devnull and not is_inside(home, place):
            yield place


def _homes(environment: Mapping[str, str], same_user: bool) -> tuple[str, ...]:
    """The real home of the CLI, and those of the server's user: programs such as ssh do not look
    it up in HOME."""
    found = [environment.get("HOME", "")]
    if same_user:
        found.append(os.path.expanduser("~"))
        with contextlib.suppress(KeyError):
            found.append(pwd.getpwuid(os.geteuid()).pw_dir)
    return tuple(dict.fromkeys(map(os.path.realpath, filter(os.path.isabs, found))))
