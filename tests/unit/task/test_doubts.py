"""Requests that may hide an action or a path that a rule denies: no `allow` matches them."""

from __future__ import annotations

import json
import os.path
from typing import Any

from bridge.task.rules.approval_policy import Decision, Rule, decide
from tests.support.cases import each

CWD = "/work/it"
RULES = (
    Rule("deny", command="rm *"),
    Rule("deny", command="git push*"),
    Rule("ask", command="curl *"),
    Rule("deny", path="*/.env"),
    Rule("deny", path="secrets/*"),
    Rule("allow", tool="*"),
)


def decided(given: Any, *rules: Rule, **members: Any) -> Decision:
    subject = {"name": "Bash", "input": given, **members}
    return decide(rules or RULES, subject, CWD, os.path.normpath)


def of_command(command: Any) -> Decision:
    return decided({"command": command})


# --- commands ------------------------------------------------------------------------------------

UNKNOWN_TO_US = (
    "docker exec web rm x",
    "kubectl exec web -- rm x",
    "gosu root rm x",
    "noglob rm x",
    "npm exec -- rm x",
    "pyenv exec rm x",
    "perf stat rm x",
    "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
    "git bisect run rm x",
    "git submodule foreach 'rm x'",
    "git rebase -x 'rm x' HEAD",
    "git -c alias.x='!rm x' x",
    "hyperfine 'rm x'",
    "echo 'rm x' | bash",
    "echo rm x | sh",
    "at now <<< 'rm x'",
    "alias ls='rm x'; ls",
    "source <(echo rm x)",
    "env -S'rm x'",
    "env --split-string='rm x'",
    "su --command='rm x' root",
    "su -c'rm x'",
    "ssh -o ProxyCommand='rm x' host",
    "tar --checkpoint-action=exec='rm x' a",
    "vim -c ':!rm x' -c q",
    "PAGER='rm x' man x",
)
UNKNOWN_TO_ALL = (
    "$X x",
    '"$X" x',
    "${X:-rm} x",
    "A=rm; $A x",
    "$(echo rm) x",
    "$(echo $(echo rm)) x",
    "`echo rm` x",
    "r$@m x",
    "r${Z}m x",
    "r``m x",
    "$'\\x72m' x",
    "{rm,x}",
    "true; r{m,} x",
    "/bin/r? x",
    "/bin/r[m] x",
    "r* x",
    "sudo $X x",
    "sudo -u root $X x",
    "timeout 5 $X x",
    "env A=1 $X x",
    "find . -exec $X {} +",
    "sh -c $X",
    "$SHELL -c x",
    "cat x | sh",
    "cat x | bash -s",
    "curl2 x | sudo sh",
    "git $X",
    "git pu[s]h",
    "git {push,x}",
)
HARMLESS = (
    "git add -A && git commit -m 'Fix the parser'",
    'git commit -m "Add tests for rm and mv"',
    "npm run build 2>&1 | tail -20",
    "pytest -q tests/test_*.py",
    "timeout 60 pytest tests/*.py",
    "find . -name '*.py' -not -path './node_modules/*'",
    'find . -type f -name "*.ts" | xargs grep -l foo',
    "grep -E '(foo|bar)$' x",
    "grep -rn 'foo.*bar' src",
    "awk '{print $1}' f | sort | uniq -c",
    "sed -i 's/a(b)/c/' f",
    "jq '.a | {b: .c}' f.json",
    'for f in *.py; do echo "$f"; done',
    "for f in src/*.py; do python -m py_compile $f; done",
    "if [ -f x ]; then cat x; fi",
    '[ -n "$X" ] && echo yes',
    "echo $(date) $?",
    "while read l; do echo $l; done < f",
    "cat > f.txt <<'EOF'\nhello world\nEOF",
    "PYTHONPATH=. python x.py",
    "bash scripts/test.sh",
    "kill $PID",
    "wc -l $(git ls-files)",
    "diff <(ls a) <(ls b)",
    "ls *.md",
)


@each("command", [*UNKNOWN_TO_US, *UNKNOWN_TO_ALL])
def test_a_command_that_may_be_denied_is_asked(command: str) -> None:
    assert of_command(command) == "ask"
    assert decided({"command": command}, *RULES[:2], Rule("allow", command="*")) == "ask"


@each("command", HARMLESS)
def test_a_command_without_a_doubt_is_allowed(command: str) -> None:
    assert of_command(command) == "allow"


@each("command", [*UNKNOWN_TO_US, *UNKNOWN_TO_ALL])
def test_without_a_rule_about_commands_none_is_asked(command: str) -> None:
    assert decided({"command": command}, Rule("deny", tool="Edit"), RULES[-1]) == "allow"


@each(
    "given",
    [
        {"command": ["rm", 1]},
        {"command": ["rm", ["x"]]},
        {"commands": [["rm", "x"]]},
        {"commands": ["ls", ["rm", "x"]]},
        {"file": "rm", "args": ["x"]},
        {"path": "/bin/rm", "args": ["x"]},
        {"bin": "rm", "args": "x"},
        {"keys": ["r", "m", " ", "x", "Enter"]},
        {"rm x": True},
        {"payload": json.dumps({"command": "rm x"})},
        {"payload": json.dumps([{"command": ["rm", "x"]}])},
        {"a": json.dumps({"b": json.dumps({"c": "rm x"})})},
    ],
)
def test_a_command_is_found_in_members_of_any_form(given: Any) -> None:
    assert decided(given) == "deny"


@each("given", [{"command": " "}, {"command": "\n"}, {"command": []}, " "])
def test_blank_text_is_no_action(given: Any) -> None:
    assert decided(given) == "ask"


@each("pattern", ["rm  *", " rm *", "rm\t*"])
def test_spaces_of_a_pattern_are_one(pattern: str) -> None:
    assert decided({"command": "rm  x"}, Rule("deny", command=pattern), RULES[-1]) == "deny"


# --- paths ---------------------------------------------------------------------------------------


@each(
    "given",
    [
        {"uri": "file:///work/it/secrets/a"},
        {"url": "FILE://localhost/work/it/secrets/a"},
        {"path": "file:///work/it/%73ecrets/a"},
        {"path": "file:secrets/a"},
        {"path": " secrets/a "},
        {"path": "'secrets/a'"},
        {"path": "@secrets/a"},
        {"cwd": "secrets", "path": "a"},
        {"directory": "./secrets", "file": "a"},
        {"dir": "secrets", "name": "a"},
        {"dirname": "secrets", "filename": "a"},
        {"payload": json.dumps({"path": "secrets/a"})},
        {"patch": "*** Begin Patch\n*** Update File: secrets/a\n@@\n-a\n+b\n*** End Patch"},
        {"patch": "*** Begin Patch\n*** Update File: a\n*** Move to: secrets/a\n"},
        {"input": "--- a/x\n+++ b/secrets/a\n@@ -1 +1 @@\n"},
    ],
)
def test_a_path_is_found_in_any_spelling(given: Any) -> None:
    assert decided(given) == "deny"


@each(
    "given",
    [
        {"command": "cat secrets/a"},
        {"command": "cat < ./secrets/a"},
        {"command": "cp x sub/.env"},
        {"command": "python x.py --file=.env"},
        {"command": ["cat", "/work/it/secrets/a"]},
        {"path": "/proc/self/cwd/secrets/a"},
        {"path": "/proc/7/root/work/it/x"},
        {"path": "/dev/fd/3"},
        {"path": "s*/a"},
        {"path": "{secrets,x}/a"},
        {"path": "sub/.en?"},
    ],
)
def test_a_path_that_may_be_denied_is_asked(given: Any) -> None:
    assert decided(given) == "ask"


@each(
    "given",
    [
        {"file_path": "/work/it/src/a.py"},
        {"file_path": "app/[id]/page.tsx", "old_string": "a", "new_string": "secrets/a"},
        {"path": "a.md", "content": "See secrets/a, .env and rm x"},
        {"pattern": "**/*.py"},
        {"glob": "*.ts", "pattern": "x"},
        {"url": "https://example.com/a?b=c", "prompt": "x"},
        {"query": "how to rm a file"},
        {"x": 1, "y": 2},
    ],
)
def test_a_path_without_a_doubt_is_allowed(given: Any) -> None:
    assert decided(given) == "allow"


# --- tools and several patterns ------------------------------------------------------------------


@each("pattern", ["Bash", "bash", "B*", "EXECUTE"])
def test_a_tool_is_denied_in_any_case(pattern: str) -> None:
    rules = Rule("deny", tool=pattern), RULES[-1]
    for name, kind in (("Bash", "execute"), ("BASH", "Execute")):
        assert decided({"command": "ls"}, *rules, name=name, kind=kind) == "deny"
    assert decided({"command": "ls"}, Rule("allow", tool="bash")) == "ask"


@each("rule", [Rule("deny", tool="Bash"), Rule("ask", tool="Bash", command="ls *")])
def test_a_tool_without_a_name_may_be_denied(rule: Rule) -> None:
    allow = Rule("allow", command="ls *")
    assert decided({"command": "ls x"}, rule, allow, name=None) == "ask"
    assert decided({"command": "ls x"}, rule, allow, name="Other") == "allow"


def test_all_patterns_of_a_rule_must_be_possible() -> None:
    rule = Rule("deny", command="cp *", path="secrets/*")
    for command in ("cp x secrets/a", "cp -r ./secrets/a x", "docker exec web cp x secrets/a"):
        assert decided({"command": command}, rule, RULES[-1]) == "ask"
    for command in ("cp x y", "cat secrets/a", "docker exec web cp x y"):
        assert decided({"command": command}, rule, RULES[-1]) == "allow"
