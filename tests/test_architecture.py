"""The rooms of the product and the imports between them. ROOMS is the diagram of docs/design.md
as a table: a room imports only the rooms in its row, which lie on lower floors."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests import CHECKOUT
from tests.support.cases import each

ROOMS = {
    # room: the rooms that it may import, from the top floor to the bottom
    "cli": "errors task adapter a2a auth workspace sandbox process session transports server "
    "client",
    "server": "errors task adapter a2a auth workspace sandbox telemetry process store session push "
    "runtime transports files",
    "transports": "errors task a2a auth telemetry store push runtime",
    "runtime": "errors task adapter a2a auth workspace telemetry store session",
    "session": "errors task adapter auth workspace sandbox process",
    "push": "errors task store",
    "process": "errors sandbox",
    "store": "errors task adapter files",
    "adapter": "task files",
    "a2a": "errors task",
    "auth": "errors",
    "client": "errors task a2a",
    "workspace": "errors task files",
    "sandbox": "errors files",
    "telemetry": "errors task",
    "task": "",
    "files": "",
    "errors": "",
}
MOST_FILES, MOST_IN_A_ROOM = (
    3,
    15,
)  # directly in bridge/; in a room, where a subfolder counts as one
MOST_BOXES, MOST_ARROWS, MOST_FLOORS = 19, 78, 8  # the adapters are a box, too

PURE = {"task", "adapter", "a2a"}
PURE_LIBRARIES = {"orjson", "pydantic", "pydantic.alias_generators"}
SIGNING = "bridge/a2a/signing.py"  # and its libraries, which an extra installs
SIGNING_LIBRARIES = {"rfc8785", "joserfc", "joserfc.errors", "joserfc.jwk", "joserfc.util"}
SPEAKS_HTTP = {"auth", "client", "push", "transports", "server", "cli"}
IMPORTS_LATE = {
    "bridge/cli/main.py",
    "bridge/cli/client/command.py",
    "bridge/cli/client/failures.py",
    "bridge/cli/mcp/command.py",
    "bridge/server/extras.py",
    "bridge/process/held_ports.py",  # in the launcher, which starts with the first task
}
IMPORTS_BY_NAME = {"bridge/server/registry.py"}
READS_ENVIRONMENT = {
    "bridge/client/config.py": None,
    "bridge/server/settings/env_file.py": None,
    "bridge/server/settings/load.py": None,
    "bridge/server/settings/root.py": None,
    "bridge/server/settings/sections.py": None,
    "bridge/server/settings/supervision.py": None,
    "bridge/process/pty_runner.py": None,  # a program: it passes its own environment on
    "bridge/process/spawn.py": "os.environ.get(LIBRARIES",  # without it, interpreters do not start
}

# Standard library that neither waits nor reads or writes anything.
CALM = {
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "collections.abc",
    "copy",
    "dataclasses",
    "datetime",
    "difflib",
    "enum",
    "fnmatch",
    "functools",
    "hashlib",
    "hmac",
    "html",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "shlex",
    "string",
    "textwrap",
    "typing",
    "urllib.parse",
    "uuid",
}
ACTS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}
CLOCKS = {"now", "utcnow", "today"}


PRODUCT = sorted((CHECKOUT / "bridge").rglob("*.py"))
ADAPTERS = sorted((CHECKOUT / "adapters").glob("*.py"))
ALL_FILES = [*PRODUCT, *ADAPTERS]


def label(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def room_of(path: Path) -> str:
    """bridge/a2a/codec.py is in the room a2a."""
    top, *rest = path.relative_to(CHECKOUT).with_suffix("").parts
    return rest[0] if top == "bridge" else top


PURE_FILES = [path for path in PRODUCT if room_of(path) in PURE] + ADAPTERS
PURE_FILES.append(CHECKOUT / "bridge/files/home.py")  # which adapters import


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    """A file has thousands of nodes, and several tests read all of them."""
    return list(ast.walk(tree(path)))


@cache
def imported(path: Path) -> Sequence[str]:
    """Full names of the modules that are imported, wherever in the file."""
    return list(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 1 and path in ADAPTERS:  # whose package has two names
                continue
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (
                    inner if (CHECKOUT / f"{inner.replace('.', '/')}.py").exists() else node.module
                )


def modules(path: Path) -> set[str]:
    """The modules of the product that are imported. The package itself has only its version."""
    return {name for name in imported(path) if name.startswith("bridge.")}


def rooms(path: Path) -> set[str]:
    """The other rooms that are imported."""
    return {name.split(".")[1] for name in modules(path)} - {room_of(path)}


def others(path: Path) -> set[str]:
    return {name for name in imported(path) if name.partition(".")[0] != "bridge"}


def arrows() -> set[tuple[str, str]]:
    """Which room imports which, as the code has it."""
    return {
        (room_of(path), room)
        for path in ALL_FILES
        for room in rooms(path)
        if label(path) not in ("bridge/__init__.py", "bridge/__main__.py")
    }


def floor(room: str) -> int:
    """1 for a room that imports no other one. Raises RecursionError for a cycle."""
    return 1 + max((floor(below) for below in ROOMS[room].split()), default=0)


@each("room", ROOMS)
def test_a_room_imports_only_the_rooms_of_its_row(room: str) -> None:
    for path in PRODUCT:
        if room_of(path) == room:
            assert rooms(path) <= set(ROOMS[room].split()), label(path)


def test_only_codecs_render_updates() -> None:
    """The state machine and the stores do not, so that an update without a reader costs nothing.
    The tools of MCP have a form of their own."""
    users = {label(path) for path in ALL_FILES if "bridge.task.render" in modules(path)}
    assert users == {
        "bridge/a2a/codec.py",
        "bridge/transports/mcp/news.py",
    }


def test_every_file_is_in_a_room() -> None:
    inside = {room_of(path) for path in PRODUCT} - {"__init__", "__main__"}
    assert inside == set(ROOMS)
    assert len(list((CHECKOUT / "bridge").glob("*.py"))) <= MOST_FILES
    for room in set(ROOMS) - {"errors"}:
        entries = [
            entry
            for entry in (CHECKOUT / "bridge" / room).iterdir()
            if entry.suffix == ".py" or (entry / "__init__.py").exists()
        ]
        assert len(entries) - 1 <= MOST_IN_A_ROOM, room  # __init__.py is the room itself


def test_the_house_has_few_rooms_arrows_and_floors() -> None:
    found = arrows()
    figures = (len(ROOMS) + 1, len(found), max(map(floor, ROOMS)))
    print("boxes, arrows, floors:", *figures)
    assert all(
        figure <= most
        for figure, most in zip(figures, (MOST_BOXES, MOST_ARROWS, MOST_FLOORS), strict=True)
    )


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {
        label(path).removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): {
            name for name in modules(path) if name != "bridge.adapter"
        }
        for path in PRODUCT
    }
    while left:
        free = {name for name, edges in left.items() if not edges & set(left)}
        assert free, f"a circle in {sorted(left)}"
        left = {name: edges for name, edges in left.items() if name not in free}


def test_the_package_itself_imports_nothing() -> None:
    """Nor do the rooms with programs that run with `python -I -S`, or the pure room of adapters."""
    for name in ("", "sandbox/", "process/"):
        assert not list(imported(CHECKOUT / f"bridge/{name}__init__.py"))


@each("path", ADAPTERS, ids=label)
def test_adapters_import_only_pure_rooms(path: Path) -> None:
    assert rooms(path) <= {*PURE, "errors"}


@each("path", PURE_FILES, ids=label)
def test_pure_modules_do_no_input_or_output(path: Path) -> None:
    third_party = {"orjson"} if path in ADAPTERS else PURE_LIBRARIES
    if label(path) == SIGNING:
        third_party = SIGNING_LIBRARIES
    assert others(path) <= CALM | third_party
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            called = node.func
            assert not (isinstance(called, ast.Name) and called.id in ACTS), label(path)
            assert not (isinstance(called, ast.Attribute) and called.attr in CLOCKS), label(path)
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), label(path)


@each("path", ALL_FILES, ids=label)
def test_few_rooms_speak_http(path: Path) -> None:
    speaks = {name.partition(".")[0] for name in others(path)} & {"aiohttp", "yarl"}
    assert not speaks or room_of(path) in SPEAKS_HTTP


@each("path", ALL_FILES, ids=label)
def test_only_the_settings_read_the_environment(path: Path) -> None:
    if label(path) in READS_ENVIRONMENT:
        line = READS_ENVIRONMENT[label(path)]
        assert line is None or path.read_text().count("os.environ") == path.read_text().count(line)
        return
    names = [node for node in nodes_of(path) if isinstance(node, ast.Attribute)]
    assert not [node for node in names if node.attr in ("environ", "environb", "getenv")]
    assert not others(path) & {"dotenv"}


def test_only_one_module_imports_the_store_on_postgresql() -> None:
    """Else a server with another store would load the driver."""
    users = {
        label(path)
        for path in ALL_FILES
        if any(name.startswith("bridge.store.postgres") for name in modules(path))
    }
    inside = {label(path) for path in (CHECKOUT / "bridge/store/postgres").glob("*.py")}
    assert users - inside == {"bridge/server/extras.py"}


def test_only_the_binding_imports_grpc() -> None:
    """And only extras.py imports the modules of the binding that need the library."""
    folder = CHECKOUT / "bridge/transports/grpc"
    for path in ALL_FILES:
        if path.parent == folder:
            continue
        assert not {one.partition(".")[0] for one in others(path)} & {"google", "grpc"}, label(path)
        if label(path) not in ("bridge/server/extras.py", "bridge/server/agents/grpc_port.py"):
            assert not any("transports.grpc" in one for one in modules(path)), label(path)


def test_few_modules_import_redis() -> None:
    """And only extras.py imports them from other places: a server without Redis loads no client."""
    users = {
        path for path in ALL_FILES if any(one.partition(".")[0] == "redis" for one in others(path))
    }
    needing = {f"bridge.{label(path)[7:-3].replace('/', '.')}" for path in users}
    listed = {"bridge/store/redis_address.py", "bridge/store/postgres/redis_bus.py"}
    listed |= {f"bridge/push/{one}.py" for one in ("broker", "redis_report", "relay", "worker")}
    listed |= {f"bridge/transports/redis/{one}.py" for one in ("replies", "server")}
    assert {label(path) for path in users} == listed
    for path in ALL_FILES:
        inside = path in users or "transports/redis/" in label(path)
        if not inside and label(path) not in ("bridge/server/extras.py", REDIS_PORT):
            assert not modules(path) & needing, label(path)


REDIS_PORT = "bridge/server/agents/redis_port.py"  # for types alone


def test_only_the_registry_imports_by_name() -> None:
    users = {label(path) for path in PRODUCT if others(path) & {"importlib", "importlib.util"}}
    assert users == IMPORTS_BY_NAME


@each("path", ALL_FILES, ids=label)
def test_no_import_hides_in_a_function(path: Path) -> None:
    if label(path) in IMPORTS_LATE:
        return
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                hidden = isinstance(inner, ast.Import | ast.ImportFrom)
                assert not hidden, f"{label(path)}:{getattr(inner, 'lineno', 0)}"


@each("path", [*ALL_FILES, *sorted((CHECKOUT / "tests").rglob("*.py"))], ids=label)
def test_no_module_imports_the_name_of_another_distribution(path: Path) -> None:
    """By a search in the text, which takes a tenth of the time of a parser."""
    if "node_modules" not in path.parts:
        text = path.read_text("utf-8")
        assert not re.search(r"^\s*(?:import|from) adapters\b", text, re.MULTILINE)


# Import names that are not the names of their distributions.
BROUGHT_BY = {
    "dotenv": "python-dotenv",
    "google": "protobuf",
    "markdown_it": "rich",
    "grpc": "grpcio",
    "jsonschema": "mcp",
    "opentelemetry": "opentelemetry-sdk",
    "multidict": "aiohttp",
    "prometheus_client": "prometheus-client",
    "requests": "opentelemetry-exporter-otlp-proto-http",
    "yarl": "aiohttp",
}


def test_what_is_imported_is_declared_as_a_dependency() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    optional = [one for group in project["optional-dependencies"].values() for one in group]
    lines = [*project["dependencies"], *optional]
    declared = {re.split(r"[^\w-]", line)[0] for line in lines}
    tops = {name.partition(".")[0] for path in ALL_FILES for name in others(path)}
    needed = {BROUGHT_BY.get(name, name) for name in tops - sys.stdlib_module_names}
    assert needed <= declared


# --- the tests themselves ------------------------------------------------------------------------

TESTS = [
    path
    for path in sorted((CHECKOUT / "tests").rglob("*.py"))
    if "node_modules" not in path.parts and path != Path(__file__)
]
MOST_IMPORTED_TESTS = 0  # of other test files
MOST_PRIVATE = 10  # attributes of the product in all tests
MOST_PATCHED = 0  # names of the product in all tests


def assigned(node: ast.AST) -> Iterator[str]:
    """The names that a statement defines, and those of attributes that it assigns."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


@cache
def private_names() -> frozenset[str]:
    nodes = (node for path in ALL_FILES for node in nodes_of(path))
    names = (name for node in nodes for name in assigned(node))
    return frozenset(name for name in names if re.match("_[a-z]", name, re.IGNORECASE))


def has(path: Path, pattern: str) -> bool:
    """Whether the file may be of interest: to parse all of them takes seconds."""
    return bool(re.search(pattern, path.read_text("utf-8"), re.MULTILINE))


def private_uses(path: Path) -> Iterator[str]:
    """Where a test reads or writes what is private in the product. A file may use names of its
    own."""
    if not has(path, r"[\w)\]]\._[a-zA-Z]|import .*\b_[a-zA-Z]"):
        return
    own = {name for node in nodes_of(path) for name in assigned(node)}
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and node.attr in private_names():
            itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os")
            if not itself and node.attr not in own:
                yield f"{label(path)}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bridge"):
            hidden = [alias.name for alias in node.names if alias.name in private_names()]
            yield from (f"{label(path)}:{node.lineno}: {name}" for name in hidden)


def test_tests_use_few_private_attributes_of_the_product() -> None:
    found = [use for path in TESTS for use in private_uses(path)]
    print("private attributes in tests:", len(found))
    assert len(found) <= MOST_PRIVATE, "\n".join(found)


def patches(path: Path) -> Iterator[str]:
    """Where a test replaces a name of a module or of a class. `os` may lack what it lacks on other
    systems."""
    if not has(path, "(attr|item)\\("):
        return
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_patch = node.func.attr in ("setattr", "delattr", "setitem", "delitem")
            if is_patch and ast.unparse(node.args[0]) != "os":
                yield f"{label(path)}:{node.lineno}: {ast.unparse(node)}"


def test_tests_patch_no_names_of_the_product() -> None:
    found = [patch for path in TESTS for patch in patches(path)]
    print("patched names in tests:", len(found))
    assert len(found) <= MOST_PATCHED, "\n".join(found)
    assert not any(has(path, r"^\s*(from|import) unittest\b") for path in TESTS)


def test_test_files_import_no_test_files() -> None:
    """Helpers that several files need are in tests/support."""
    found = [
        f"{label(path)}: {name}"
        for path in TESTS
        if has(path, r"^\s*(from|import) tests\b.*\btest_")
        for name in imported(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]
    print("imports of test files:", len(found))
    assert len(found) <= MOST_IMPORTED_TESTS, "\n".join(found)


def test_no_two_files_define_a_public_class_of_the_same_name() -> None:
    places: dict[str, list[str]] = {}
    for path in ALL_FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(label(path))
    assert not {name: files for name, files in places.items() if len(files) > 1}


TESTED_ELSEWHERE = {
    # test file: (why not a unit test of its own, the modules by room)
    "tests/component/process/test_agent_process.py": (
        "needs children",
        "process: agent_process cgroup line_splitter pipes process_tree procfs",
    ),
    "tests/component/process/test_fork_server.py": (
        "needs children",
        "process: fork_server spawn",
    ),
    "tests/component/process/test_psutil_table.py": (
        "reads the process table",
        "process: psutil_table",
    ),
    "tests/component/process/test_pty_runner.py": (
        "needs a terminal and children",
        "process: pty_runner",
    ),
    "tests/component/process/test_replayer.py": (
        "needs children",
        "process: replayer; server: recording",
    ),
    "tests/component/process/test_spool.py": ("needs children", "process: spool"),
    "tests/component/process/test_stdout.py": ("needs children and pipes", "process: pump"),
    "tests/component/sandbox/test_confine.py": (
        "needs the kernel's boundaries",
        "sandbox: bwrap confine kernel landlock",
    ),
    "tests/component/sandbox/test_credentials.py": (
        "needs files and a server",
        "sandbox: credentials",
    ),
    "tests/component/sandbox/test_denied.py": ("needs the kernel's messages", "sandbox: denied"),
    "tests/component/sandbox/test_homes.py": ("needs files", "sandbox: homes; files: folders home"),
    "tests/component/sandbox/test_mark.py": ("needs processes of other users", "sandbox: mark"),
    "tests/component/sandbox/test_own_files.py": (
        "needs files and a server",
        "sandbox: own_files; server: token_file",
    ),
    "tests/component/sandbox/test_profile.py": (
        "needs the kernel's boundaries",
        "sandbox: profile trusted_programs; server/agents: sandboxes",
    ),
    "tests/component/session/test_session.py": (
        "needs children",
        "session: session factory time_limits turn",
    ),
    "tests/component/session/test_first_start.py": ("needs children", "session: first_start"),
    "tests/unit/sandbox/test_seccomp.py": ("the filter is its user", "sandbox: system_calls"),
    "tests/unit/session/test_pool.py": ("the pool is its only user", "session: slot_queue"),
    "tests/component/session/test_redaction.py": ("also with real children", "session: redaction"),
    "tests/component/session/test_attachments.py": (
        "needs files and links",
        "workspace: attachments paths",
    ),
    "tests/component/session/test_contexts.py": (
        "needs sessions with children",
        "runtime: agent audience context contexts removal tasks turn; runtime/sending: send start",
    ),
    "tests/component/store/test_contract.py": (
        "is one suite over all stores",
        "store: changes handle index memory protocol retention; store/sqlite: schema store",
    ),
    "tests/component/store/test_postgres.py": (
        "needs a PostgreSQL server",
        "store/postgres: claims connect notify_bus pooler queries reader reads schema "
        "sealing statements store writer",
    ),
    "tests/component/store/test_redis_bus.py": (
        "needs Redis",
        "store: redis_address; store/postgres: redis_bus",
    ),
    "tests/component/push/test_relay.py": ("needs Redis", "push: broker jobs relay worker"),
    "tests/server/protocol/test_redis.py": (
        "needs Redis",
        "transports/redis: inbox names owner replies server service; server/agents: redis_port",
    ),
    "tests/system/test_redis.py": ("needs the program", "cli: push_worker; push: redis_report"),
    "tests/component/store/test_cluster.py": (
        "needs a PostgreSQL server",
        "store: cluster; store/postgres: cluster",
    ),
    "tests/system/test_nodes.py": (
        "needs several servers",
        "runtime/nodes: asking cooperation inbox placement",
    ),
    "tests/system/test_roles.py": ("needs several servers", "runtime/nodes: roles"),
    "tests/component/store/test_mirrors.py": ("needs a PostgreSQL server", "runtime/nodes: mirror"),
    "tests/component/store/test_membership.py": (
        "needs a PostgreSQL server",
        "store/postgres: membership takeover",
    ),
    "tests/component/process/test_guard.py": ("needs children and groups", "process: guard"),
    "tests/component/store/test_backup.py": (
        "needs databases on disk",
        "store/sqlite: backup upgrade",
    ),
    "tests/component/server/test_backup_folder.py": (
        "needs files",
        "server/operate: backup_folder restore upgrade",
    ),
    "tests/component/server/test_ports.py": (
        "needs sockets and children",
        "process: held_ports; server/operate: port_users ports",
    ),
    "tests/server/protocol/test_administration.py": (
        "needs requests",
        "server/operate: admin backup",
    ),
    "tests/system/test_backup.py": (
        "needs the program",
        "cli/operate: backup migrate restore rollback running",
    ),
    "tests/component/store/test_databases.py": (
        "needs databases on disk",
        "store/sqlite: database",
    ),
    "tests/component/store/test_journal.py": (
        "needs a database on disk",
        "store: journal; store/sqlite: journal_file",
    ),
    "tests/component/store/test_read_back.py": ("needs a database on disk", "store: replay"),
    "tests/component/push/test_egress.py": ("needs sockets", "push: egress"),
    "tests/component/push/test_notifier.py": (
        "needs sockets",
        "push: attempts configs delivery notifier signature updates",
    ),
    "tests/server/auth/test_identity.py": (
        "needs requests",
        "auth: authentication config credentials principal",
    ),
    "tests/server/auth/test_oidc.py": ("needs a provider over HTTP", "auth: oidc"),
    "tests/server/auth/test_refusals.py": ("needs requests", "auth: advice"),
    "tests/server/auth/test_operator.py": (
        "needs local sockets",
        "auth: peercred; server: local_peer",
    ),
    "tests/server/auth/test_gate.py": ("needs requests", "transports/listener: origin refusals"),
    "tests/server/limits/test_quotas.py": ("needs requests", "auth: quotas"),
    "tests/server/limits/test_rate.py": (
        "needs a clock and requests",
        "auth: token_bucket; transports/listener: rate_limit",
    ),
    "tests/server/limits/test_timers.py": (
        "needs slow connections",
        "transports/listener: connection_limits",
    ),
    "tests/server/protocol/test_websocket.py": (
        "needs connections",
        "transports/envelope: answers connection websocket",
    ),
    "tests/server/limits/test_costs.py": ("needs a whole server", "telemetry: gc_tuning"),
    "tests/server/protocol/test_blocking.py": ("needs a connection", "transports: blocking"),
    "tests/server/protocol/test_cards.py": (
        "needs requests",
        "a2a: card; server/agents: cards cli_info",
    ),
    "tests/server/protocol/test_agents.py": ("needs requests", "server/agents: configured"),
    "tests/server/protocol/test_server.py": (
        "needs requests",
        "server: assemble; server/app: application documents middlewares sites; "
        "transports: negotiation operation push_notifications",
    ),
    "tests/server/protocol/test_json_rpc.py": ("needs requests", "transports: jsonrpc"),
    "tests/server/protocol/test_rest.py": ("needs requests", "transports: rest"),
    "tests/server/protocol/test_grpc.py": (
        "needs connections",
        "transports/grpc: health server service",
    ),
    "tests/server/protocol/test_streams.py": ("needs connections", "transports: sse stream"),
    "tests/server/protocol/test_options.py": ("needs requests", "runtime: extension"),
    "tests/server/protocol/test_sent_again.py": ("needs requests", "runtime/sending: idempotency"),
    "tests/server/protocol/test_routing.py": ("needs requests", "runtime: router"),
    "tests/server/protocol/test_monitor.py": ("needs a feed", "server/operate: health monitor"),
    "tests/server/operate/test_metrics_page.py": (
        "needs requests",
        "server/operate: metrics_page pages readings; session: tally",
    ),
    "tests/server/operate/test_readiness.py": ("needs requests", "server/operate: readiness"),
    "tests/unit/telemetry/test_task_metrics.py": (
        "the registry shows the figures",
        "telemetry/metrics: catalog exposition requests tasks tools",
    ),
    "tests/unit/telemetry/test_turn_spans.py": (
        "one set of events has all spans",
        "telemetry/tracing: catalog content spans turns",
    ),
    "tests/server/operate/test_tracing.py": (
        "needs requests and a collector",
        "telemetry/tracing: exporter requests tasks; server/operate: tracing; "
        "server/settings: traces",
    ),
    "tests/system/test_health_command.py": ("needs a server", "cli: health"),
    "tests/system/test_starting.py": ("needs servers", "cli: starter; cli/operate: servers"),
    "tests/server/protocol/test_openapi.py": (
        "compares the answers of a server",
        "server: openapi",
    ),
    "tests/server/protocol/test_list.py": ("needs requests", "a2a: pagination"),
    "tests/server/protocol/test_signature.py": (
        "signs the cards of a server",
        "a2a: canonical_card card_shapes signing; server: extras; cli: card",
    ),
    "tests/server/runtime/test_prewarm.py": ("needs children", "session: prewarm"),
    "tests/server/runtime/test_project_config.py": (
        "needs a conversation",
        "workspace: project_config",
    ),
    "tests/system/test_command_line.py": (
        "needs the program",
        "cli: main; server: banner; server/lifecycle: parts serve site",
    ),
    "tests/system/test_client.py": (
        "needs a server",
        "cli/client: command download messages output question_policy "
        "sending session tasks; client: config questions",
    ),
    "tests/system/test_client_export.py": (
        "needs a server",
        "cli/client: export markdown",
    ),
    "tests/system/test_client_start.py": (
        "needs the program",
        "cli/client: account failures skill_file; client: failure values",
    ),
    "tests/system/test_client_terminal.py": (
        "needs a terminal",
        "cli/client: interactive screen transcript watch",
    ),
    "tests/system/test_client_attach.py": (
        "needs terminals",
        "cli/client: attach; client: conversation",
    ),
    "tests/component/client/test_other_servers.py": (
        "needs servers",
        "client: agent bindings connection follow",
    ),
    "tests/unit/cli/test_arguments.py": ("the commands use these parsers", "cli/client: parser"),
    "tests/unit/cli/test_keys.py": (
        "a key and the card have one subject",
        "cli/client: card keyboard line_editor",
    ),
    "tests/unit/client/test_local_files.py": ("needs files", "client: credentials local_server"),
    "tests/unit/client/test_shapes.py": ("items have these shapes", "client: snapshot"),
    "tests/system/test_doctor.py": (
        "needs the program",
        "cli/doctor: adapters agent command machine mcp report talk",
    ),
    "tests/system/test_postgres.py": ("needs a PostgreSQL server", "cli/doctor: database"),
    "tests/server/mcp/test_same_call.py": (
        "needs calls",
        "transports/mcp: calls delegation waiting",
    ),
    "tests/server/mcp/test_asking.py": ("needs conversations", "transports/mcp: questions"),
    "tests/server/mcp/test_polled_tasks.py": ("needs conversations", "transports/mcp: tasks"),
    "tests/server/mcp/test_tools.py": (
        "needs requests",
        "server/agents: delegates; "
        "transports/mcp: artifacts delegates news outcome results toolbox tools",
    ),
    "tests/server/mcp/test_wire.py": ("needs requests", "transports/mcp: endpoint server"),
    "tests/server/mcp/test_asgi.py": ("needs connections", "transports/mcp: asgi"),
    "tests/server/mcp/test_stdio.py": (
        "needs the program",
        "cli/mcp: command connections proxy stdio",
    ),
    "tests/system/test_mcp_stdio.py": (
        "needs the program",
        "cli/mcp: finder front; transports/mcp: announced",
    ),
    "tests/system/test_stdio.py": (
        "needs the program",
        "cli: stdio; server/operate: parent_pipes parent_process",
    ),
    "tests/system/test_stdio_proxy.py": (
        "needs the program",
        "cli: stdio_proxy; transports/envelope: forwarding",
    ),
    "tests/system/test_state_folder.py": (
        "needs the program",
        "server: state_dir; server/operate: sockets",
    ),
    "tests/component/server/test_own_modes.py": ("needs files", "files: own_modes"),
    "tests/server/auth/test_approvals.py": ("needs a conversation", "telemetry: audit"),
    "tests/system/test_logs.py": ("needs the program", "server/operate: log_output"),
    "tests/server/operate/test_reloaded_settings.py": (
        "needs requests",
        "server/agents: fleet; server/operate: live",
    ),
    "tests/system/test_reload.py": (
        "needs the program",
        "cli/operate: local reload token; server/operate: signals token_admin",
    ),
    "tests/unit/server/test_settings.py": (
        "the sections are one object",
        "server/settings: bindings broker constants env_file library_files load operate places "
        "root sections storage values",
    ),
    "tests/unit/a2a/test_codec.py": (
        "the versions share one table of cases",
        "a2a: codecs requests v0_3 v1_0",
    ),
    "tests/unit/adapters/test_adapters.py": (
        "each adapter uses it",
        "adapter: contract diff exit_status fields testing; server: registry; "
        "adapters: _acp_untried _homes _project_files _tools replay",
    ),
    "tests/unit/adapters/test_print_adapters.py": (
        "the adapters of print modes share their cases",
        "adapter: print_mode; adapters: aider",
    ),
    "tests/unit/store/test_serialization.py": ("it is stored as JSON", "adapter: input"),
    "tests/unit/task/test_state.py": (
        "the state machine is made of it",
        "task: artifact events message render transitions",
    ),
    "tests/unit/task/test_approval_policy.py": (
        "rules read commands and paths with it",
        "task/rules: commands paths",
    ),
    "tests/unit/adapters/test_acp.py": (
        "a part of this adapter",
        "adapters: _acp_agent _acp_handshake _acp_questions _acp_tools _acp_turn _asking _forms; "
        "task: form_values",
    ),
    "tests/unit/adapters/test_claude_code.py": (
        "a part of this adapter",
        "adapters: _claude_questions _claude_switches _claude_turn",
    ),
    "tests/unit/adapters/test_codex.py": (
        "a part of this adapter",
        "adapters: _codex_items _codex_questions _codex_trust _codex_turn",
    ),
    "tests/unit/adapter/test_wish.py": (
        "the text of a permission is made of it",
        "task: inputs subject",
    ),
    "tests/unit/adapters/test_jsonl.py": ("its questions have them", "adapter: question_ids"),
    "tests/server/runtime/test_cursor.py": ("needs its processes", "adapters: cursor"),
    "tests/server/runtime/test_generic.py": ("needs processes", "adapters: generic"),
}
"""The modules without a unit test file of their name; those of a subfolder belong to its room."""


def unit_test(path: Path) -> Path:
    """tests/unit/ROOM/test_MODULE.py, without the subfolder of a room and the first underscore."""
    room = "adapters" if path in ADAPTERS else path.relative_to(CHECKOUT).parts[1]
    return CHECKOUT / "tests/unit" / room / f"test_{path.stem.lstrip('_')}.py"


def listed_modules() -> Iterator[str]:
    for _, listed in TESTED_ELSEWHERE.values():
        for group in listed.split("; "):
            room, _, names = group.partition(": ")
            folder = {"adapters": "adapters/"}.get(room, f"bridge/{room}/")
            yield from (f"{folder}{name}.py" for name in names.split())


def test_each_module_has_a_unit_test_file_or_a_reason() -> None:
    modules = [path for path in ALL_FILES if path.stem not in ("__init__", "__main__")]
    without = sorted(label(path) for path in modules if not unit_test(path).exists())
    assert sorted(listed_modules()) == without
    assert all((CHECKOUT / path).exists() for path in TESTED_ELSEWHERE)
