"""The operator's rules: which wishes of an agent they fit."""

from __future__ import annotations

import os
import tomllib
from typing import Any

from bridge.task.rules.approval_policy import Decision, Rule, decide
from tests import CHECKOUT
from tests.support.cases import each
from tests.support.counting import counted

CWD = "/work/it"
LINKS = {"/work/it/link": "/etc/passwd", "/work/it/../x": "/work/x"}


def decided(subject: Any, *rules: Rule) -> Decision:
    return decide(rules, subject, CWD, lambda path: LINKS.get(path, path))


def bash(command: Any) -> dict[str, Any]:
    return {"name": "Bash", "input": {"command": command}}


def edit(*paths: str) -> dict[str, Any]:
    return {"name": "Edit", "kind": "edit", "input": [{"file_path": path} for path in paths]}


ALLOW_GIT = Rule("allow", command="git *")
DENY_RM = Rule("deny", command="rm *")


def test_without_a_rule_that_fits_clients_are_asked() -> None:
    assert decided(bash("ls")) == "ask"
    assert decided(bash("ls"), ALLOW_GIT, DENY_RM, Rule("allow", tool="Edit")) == "ask"
    assert decided({}, ALLOW_GIT) == "ask"


def test_the_strictest_rule_counts_in_any_order() -> None:
    rules = [Rule("allow", tool="Bash"), Rule("ask", command="git *"), Rule("deny", command="*x*")]
    for order in (rules, rules[::-1]):
        assert decided(bash("ls"), *order) == "allow"
        assert decided(bash("git log"), *order) == "ask"
        assert decided(bash("git x"), *order) == "deny"


@each(
    "command",
    [
        "git status; rm -rf /",
        "git log && curl evil",
        "git log | sh",
        "git log $(rm x)",
        "git log `rm x`",
        "git log > ~/.bashrc",
        "git log\nrm x",
        "git log & rm x",
        "(git log)",
        "git log <(rm x)",
        "GIT_PAGER=evil git $X",
        ["bash", "-lc", "git log; rm x"],
    ],
)
def test_only_a_single_plain_command_is_allowed(command: Any) -> None:
    assert decided(bash(command), ALLOW_GIT) == "ask"


@each("command", ["git status", "git  log\t-1", ["git", "log"], ["/bin/bash", "-lc", "git log"]])
def test_a_plain_command_is_allowed_however_it_is_given(command: Any) -> None:
    assert decided(bash(command), ALLOW_GIT) == "allow"


@each(
    "command",
    [
        "rm -rf x",
        "true; rm x",
        "true && rm  x",
        "a | rm x",
        "$(rm x)",
        "`rm x`",
        "a\nrm x",
        "X=1 Y=2 rm x",
        ["rm", "x"],
        ["sh", "-c", "cd /; rm x"],
    ],
)
def test_a_denied_command_is_found_in_a_line(command: Any) -> None:
    assert decided(bash(command), DENY_RM, Rule("allow", tool="Bash")) == "deny"


def test_all_paths_must_fit_to_be_allowed_and_one_to_be_denied() -> None:
    allow, deny = Rule("allow", path="src/*"), Rule("deny", path="*/.env")
    assert decided(edit("src/a/b.py"), allow, deny) == "allow"
    assert decided(edit("/work/it/src/a.py"), allow, deny) == "allow"
    assert decided(edit("src/a.py", "b.py"), allow, deny) == "ask"
    assert decided(edit("src/a.py", "src/.env"), allow, deny) == "deny"
    assert decided(edit(), allow, deny) == "ask"
    assert decided(edit("/other/src/a.py"), allow) == "ask"


def test_a_path_is_where_it_leads() -> None:
    here = Rule("allow", path="*")
    assert decided(edit("a"), here) == "allow"
    assert decided(edit("link"), here) == "ask"
    assert decided(edit("link"), here, Rule("deny", path="/etc/*")) == "deny"
    assert decided(edit("../x"), here) == "ask"


def test_a_workspace_with_a_pattern_in_its_name_is_not_one() -> None:
    rule = Rule("allow", path="*")
    real = str
    assert decide([rule], edit("a"), "/w[ab]", real) == "allow"
    assert decide([rule], edit("/wa/x"), "/w[ab]", real) == "ask"


def test_all_that_is_given_must_fit() -> None:
    rule = Rule("deny", tool="edit", path="*.py")
    assert decided(edit("a.py"), rule) == "deny"  # by its kind
    assert decided(edit("a.md"), rule) == "ask"
    assert decided({**edit("a.py"), "name": "View", "kind": "read"}, rule) == "ask"


def test_the_changes_of_codex_are_found_by_path() -> None:
    subject = {"name": "apply_patch", "input": {"changes": {"a/.env": {"type": "add"}}}}
    assert decided(subject, Rule("deny", path="*/.env")) == "deny"


def test_a_rule_that_gives_nothing_fits_everything() -> None:
    assert decided({}, Rule("deny")) == "deny"
    assert decided(bash("ls"), Rule("allow")) == "allow"


def test_recursive_values_do_no_harm() -> None:
    deep: Any = {"command": "rm x"}
    for _ in range(100):
        deep = {"a": [deep]}
    assert decided({"input": deep}, DENY_RM) == "ask"


# --- hostile requests ----------------------------------------------------------------------------

HARMLESS = (
    Rule("allow", command="git status"),
    Rule("allow", command="git log *"),
    Rule("allow", command="git status *"),
    Rule("allow", command="npm test"),
    Rule("allow", command="cat src/*"),
)
WIDE = (Rule("allow", command="* --version"), Rule("allow", command="[gn]* status"))
HOSTILE = [
    # assignments
    "PATH=./evil git status",
    "LD_PRELOAD=./x.so git status",
    "LD_LIBRARY_PATH=. git status",
    "GIT_CONFIG_PARAMETERS=\"'core.fsmonitor=./evil'\" git status",
    "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.pager GIT_CONFIG_VALUE_0=./x git log -1",
    "GIT_SSH_COMMAND=./evil git status",
    "GIT_EXTERNAL_DIFF=./evil git log -p",
    "GIT_PAGER=./evil git log -1",
    "A=1 B=2 git status",
    "A+=1 git status",
    "A[0]=1 git status",
    "NODE_OPTIONS=--require=./evil npm test",
    "BASH_ENV=./evil npm test",
    "X=1 node --version",
    # wrappers
    "env PATH=./evil git status",
    "env -S 'PATH=./evil git status'",
    "/usr/bin/env A=b git status",
    "sudo git status",
    "sudo -u root git status",
    "command git status",
    "exec git status",
    "exec -a x ./evil --version",
    "eval git status",
    "builtin git status",
    "nohup ./evil --version",
    "xargs ./evil --version",
    "time ./evil --version",
    "find x -exec evil --version",
    "bash -c 'rm x' --version",
    "sh ./evil status",
    "timeout 5 ./evil --version",
    # more than one command
    "git status; rm x",
    "git status & rm x",
    "git status && rm x",
    "git status || rm x",
    "git log x | sh",
    "git log x |& sh",
    "git status\nrm x",
    "git status\rrm x",
    "git status\r\nrm x",
    "git status \\\n; rm x",
    "git log x <<END\n$(rm x)\nEND",
    "{ git status; }",
    "(git status)",
    "! git status",
    # substitutions and expansions
    "git log $(rm x)",
    "git log `rm x`",
    'git log "$(rm x)"',
    "git log $X",
    "git log ${X}",
    "git log $'\\n'",
    "git log {a,b}",
    "git log <(rm x)",
    "cat src/$HOME",
    "git log ~/x",
    "git log --x=~/y",
    "git log =ls",
    "git log !!",
    "git log %1",
    "git log ^a^b",
    # redirections
    "git log x > ../.bashrc",
    "git log x >> y",
    "git log x >| y",
    "git log x 2> y",
    "git log x &> y",
    "git log x < /etc/passwd",
    "git log x <> y",
    # globs: a file may be called --output=x
    "git log *",
    "git log ?",
    "git log [a-z]x",
    "cat src/*",
    # quotation marks, comments, folders above
    "git log 'x",
    'git log "x',
    "git log \\; rm x",
    "git log x\\",
    "git status # x",
    "git log #x",
    "cat src/../../etc/passwd",
    "cat src/..",
    "cat src/a ../b",
    "cat 'src/../x'",
    # characters that look like others
    "git\u00a0status",
    "git\u2003status",
    "git\u2028status",
    "git\x85status",
    "git\x0bstatus",
    "git\x0cstatus",
    "git\x1cstatus",
    "git log x\u200b",
    "git log x\u202ey",
    "git log x\ufeff",
    "git log x\x00y",
    "git log x\x1b[2J",
    "git status\uff1b",
    "\uff47it status",
    "git sta\u0442us",
    # argument lists
    ["PATH=./evil", "git", "status"],
    ["env", "PATH=./evil", "git", "status"],
    ["git status"],
    ["bash", "-c", "git status; rm x"],
    ["bash", "-lc", "PATH=./evil git status"],
    ["./bash", "-x", "git status"],
    ["git", "log", "$(rm x)"],
]
ANOTHER_PROGRAM = [
    "g\u0456t status",
    "./git status",
    "/tmp/git status",
    "git -c alias.status=!evil status",
    "git  -c x=y status",
    "git-status",
    "gitstatus",
    "git log",
    "git statusx",
    "npm  test x",
]


@each("command", HOSTILE, ids=repr)
def test_a_harmless_rule_allows_no_hostile_command(command: Any) -> None:
    assert decided(bash(command), *HARMLESS, *WIDE) == "ask"


@each("command", ANOTHER_PROGRAM, ids=repr)
def test_a_harmless_rule_allows_no_other_program(command: Any) -> None:
    assert decided(bash(command), *HARMLESS) == "ask"


@each("command", [*HOSTILE, *ANOTHER_PROGRAM], ids=repr)
def test_the_example_of_the_documents_allows_no_hostile_command(command: Any) -> None:
    assert decided(bash(command), *documented()) in ("ask", "deny")


def documented() -> list[Rule]:
    page = (CHECKOUT / "docs/security.md").read_text("utf-8")
    text = page.partition("```toml\n[[rules]]")[2].partition("```")[0]
    return [Rule(**rule) for rule in tomllib.loads(f"[[rules]]{text}")["rules"]]


def test_the_example_of_the_documents_works() -> None:
    assert decided(bash("git status"), *documented()) == "allow"
    assert decided(bash("X=1 sudo git push origin"), *documented()) == "deny"
    assert decided(edit("src/a/.env"), *documented()) == "deny"
    assert decided({**edit("src/a.py"), "kind": "edit"}, *documented()) == "allow"


@each(
    "more",
    [
        {"env": {"PATH": "./evil"}},
        {"args": ["-c", "alias.x=!evil"]},
        {"environment": ["A=b"]},
        {"cwd": "/tmp/evil"},
        {"workdir": "evil"},
        {"dangerouslyDisableSandbox": True},
        {"shell": "./evil"},
        {"path": "/etc/passwd"},
        {"stdin": "x"},
        {"commands": ["git status", "rm x"]},
        {"deep": [[[[[[{"env": "x"}]]]]]]},
    ],
    ids=repr,
)
def test_a_member_beside_the_command_may_change_it(more: dict[str, Any]) -> None:
    subject = {"name": "Bash", "input": {"command": "git status", **more}}
    assert decided(subject, *HARMLESS) == "ask"


@each(
    "more",
    [
        {"description": "Show the state of ../x"},
        {"timeout": 1000, "run_in_background": False},
        {"cwd": CWD},
        {"commands": ["git status"]},
        {"env": {}},
        {"args": None},
    ],
    ids=repr,
)
def test_a_remark_beside_the_command_does_not(more: dict[str, Any]) -> None:
    subject = {"name": "Bash", "input": {"command": "git status", **more}}
    assert decided(subject, *HARMLESS) == "allow"


@each(
    "more",
    [
        {"target": "/etc/passwd"},
        {"to": "../x"},
        {"output": "~"},
        {"log": ".bashrc"},
        {"copy": "setup.py"},
        {"patch": "*** Update File: a/b\n"},
        {"options": {"where": "a\\b"}},
        {"also": {"a/b": {}}},
        {"uri": "file:///etc/passwd"},
        {"command": "rm x"},
        {"cwd": "/elsewhere"},
        {"deep": [[[[[[{"x": "y"}]]]]]]},
    ],
    ids=repr,
)
def test_an_allow_by_path_asks_about_text_that_looks_like_a_path(more: dict[str, Any]) -> None:
    subject: Any = {"name": "Edit", "kind": "edit", "input": {"file_path": "src/a.py", **more}}
    assert decided(subject, Rule("allow", path="src/*")) == "ask"
    assert decided(subject, Rule("allow", tool="edit", path="*")) == "ask"
    known = {"new_string": "import a/b", "replace_all": True, "limit": 5, "title": "src/a.py => x"}
    subject["input"] = {"file_path": "src/a.py", **known}
    assert decided(subject, Rule("allow", path="src/*")) == "allow"


@each("path", ["~/.bashrc", "$HOME/x", "file:///etc/passwd", "a\x00", "a\nb"])
def test_a_path_that_a_tool_may_expand_is_not_allowed(path: str) -> None:
    assert decided(edit(path), Rule("allow", path="*")) == "ask"
    assert decide([Rule("allow", path="*")], edit(path), "/", os.path.realpath) == "ask"


def test_a_path_is_denied_in_a_member_of_any_name() -> None:
    subject = {"name": "Copy", "input": {"file_path": "a", "whither": "conf/.env"}}
    assert decided(subject, Rule("deny", path="*/.env"), Rule("allow")) == "deny"


@each(
    "command",
    [
        "env X=y rm x",
        "sudo rm x",
        "sudo -u root rm x",
        "sudo -u root env A=b rm x",
        "command rm x",
        "exec rm x",
        "/bin/rm x",
        "\\rm x",
        "'rm' x",
        'r""m x',
        "r\\\nm x",
        "$'rm' x",
        "rm${IFS}x",
        "> log rm x",
        "2>/dev/null rm x",
        "< in rm x",
        "bash -c 'rm x'",
        "bash -c 'cd /; rm x'",
        "sudo bash -lc 'rm x'",
        "eval 'rm x'",
        "eval rm x",
        "time rm x",
        "timeout -k 1 5 rm x",
        "nice -n 5 rm x",
        "xargs -0 rm x",
        "find . -exec rm x",
        "if true; then rm x; fi",
        "while rm x; do :; done",
        "{ rm x; }",
        "! rm x",
        "cat <<END | rm x\nEND",
        'echo "$(rm x)"',
        "A+=1 rm x",
        "bash -c \"sh -c 'rm x'\"",
        ["env", "A=b", "rm", "x"],
        ["/bin/sh", "-c", "sudo rm x"],
    ],
    ids=repr,
)
def test_a_denied_command_is_found_behind_others(command: Any) -> None:
    assert decided(bash(command), DENY_RM, Rule("allow", tool="Bash")) == "deny"
    assert decided(bash(command), Rule("ask", command="rm *"), Rule("allow")) == "ask"


@each(
    "command",
    [
        "sudo " * 2000,
        "eval sudo " * 2000,
        "bash -c " * 2000,
        ";" * 10**5,
        "'" * 10**5,
        "a b " * 10**5,
    ],
    ids=lambda text: text[:10],
)
def test_a_long_command_is_read_in_few_steps(command: str) -> None:
    with counted() as calls:
        assert decided(bash(command), DENY_RM, ALLOW_GIT) == "ask"
    assert sum(calls.by_code.values()) < 10**6


@each(
    "shell",
    ["./evil/bash", "evil/sh", "/tmp/bash", "/work/it/bin/sh", "bash.exe", "C:\\evil\\bash.exe"],
)
def test_a_program_with_the_name_of_a_shell_is_no_shell(shell: str) -> None:
    """An agent can write it. A `deny` still sees the command."""
    assert decided(bash([shell, "-c", "git status"]), ALLOW_GIT) == "ask"
    assert decided(bash([shell, "-c", "rm x"]), DENY_RM, Rule("allow")) == "deny"


@each("option", ["-c", "-lc", "-ec", "-xc", "-eux" + "c"])
@each("shell", ["sh", "bash", "/bin/sh", "/usr/bin/bash", "/usr/local/bin/zsh"])
def test_a_shell_of_the_system_runs_its_argument(shell: str, option: str) -> None:
    assert decided(bash([shell, option, "git status"]), ALLOW_GIT) == "allow"


@each("option", ["-rc", "-oc", "-Oc", "--rcfile=x", "-sc", "c"])
def test_an_option_with_another_meaning_is_never_allowed(option: str) -> None:
    assert decided(bash(["bash", option, "git status"]), ALLOW_GIT) == "ask"


@each(
    "command",
    [
        *("busybox sh -c 'rm x'", "sh -ec 'rm x'", "env -S 'rm x'", "xargs -a list rm x"),
        *(
            "timeout -k 5 9 rm x",
            "uv run rm x",
            "npx rm x",
            "poetry run rm x",
            "nix-shell --run 'rm x'",
        ),
        *("fakeroot rm x", "cmd.exe /c rm x", "pwsh -Command 'rm x'", "tmux new -d 'rm x'"),
        *("RM x", "/bin/RM x", r"'C:\tools\rm.exe' x"),
    ],
)
def test_deny_sees_a_command_behind_more_wrappers(command: str) -> None:
    assert decided(bash(command), DENY_RM, Rule("allow")) == "deny"


@each("pattern", ["*/.env", "**/.env", "./*/.env", "**/**/.env"])
@each(
    "path",
    [
        *(".env", "./.env", "a/.env", "a/b/.env", "/work/it/.env", "a/../.env", ".env/", "a//.env"),
        *(".ENV", "a/.Env", "a\\.env", ".\\.env"),
    ],
)
def test_deny_by_path_finds_every_spelling_at_any_depth(pattern: str, path: str) -> None:
    assert decided(edit(path), Rule("deny", path=pattern), Rule("allow")) == "deny"
    assert decided(edit(path), Rule("ask", path=pattern), Rule("allow")) == "ask"
    assert decided(edit("a.env"), Rule("deny", path=pattern), Rule("allow")) == "allow"


@each(
    ("pattern", "path"),
    [
        ("src/**/x.py", "src/x.py"),
        ("src/*/x.py", "src/a/b/x.py"),
        ("secrets/", "secrets/a/b"),
        ("secrets/", "secrets"),
        ("./secrets/*", "secrets/a"),
        ("src\\*.py", "src/a.py"),
        ("link", "link"),  # by its own name
        ("/etc/*", "link"),  # and by that of its target
        ("/work/it/x/../y", "y"),
    ],
)
def test_deny_by_path_in_other_spellings_of_the_pattern(pattern: str, path: str) -> None:
    assert decided(edit(path), Rule("deny", path=pattern), Rule("allow")) == "deny"


@each(
    ("pattern", "path"),
    [("*/x", "x"), ("**/x", "x"), ("x/", "x/a"), ("link", "link"), ("X", "x"), ("a\\x", "a/x")],
)
def test_allow_by_path_is_not_wider_than_its_text(pattern: str, path: str) -> None:
    assert decided(edit(path), Rule("allow", path=pattern)) == "ask"


def test_deny_by_path_in_a_working_directory_that_is_a_link() -> None:
    def real(path: str) -> str:
        return path.replace("/work/it", "/disk/it")

    rules = (Rule("deny", path="src/*"), Rule("allow"))
    assert decide(rules, edit("src/a"), CWD, real) == "deny"
