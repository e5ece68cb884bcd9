"""The rows of the a2a-cli specification that the client claims, with the tests that show them.
`python -m tests.support.documents` writes docs/evidence/client-compliance.md and .yaml from them.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import __version__
from tests import CHECKOUT

PAGE = CHECKOUT / "docs/evidence/client-compliance.md"
REPORT = CHECKOUT / "docs/evidence/client-compliance.yaml"
REVISION = "2026-08-17"
PREFIX = "A2ACLI_"
FILES: Mapping[str, str] = {
    "arguments": "tests/unit/cli/test_arguments.py",
    "attach": "tests/system/test_client_attach.py",
    "breaks": "tests/system/test_client_breaks.py",
    "card": "tests/unit/client/test_card.py",
    "client": "tests/system/test_client.py",
    "documents": "tests/system/test_client_documents.py",
    "files": "tests/unit/client/test_local_files.py",
    "others": "tests/component/client/test_other_servers.py",
    "peers": "tests/real/test_client_peers.py",
    "shapes": "tests/unit/client/test_shapes.py",
    "start": "tests/system/test_client_start.py",
    "terminal": "tests/system/test_client_terminal.py",
}


@dataclass(frozen=True, slots=True)
class Row:
    """`tests`: `FILE::NAME`, where FILE is a key of FILES and NAME a test without `test_`. `note`:
    the reason, unless the status is `pass`."""

    name: str
    tier: int
    spec: str
    requirement: str
    tests: tuple[str, ...] = ()
    status: str = "pass"
    note: str | None = None

    @property
    def paths(self) -> list[str]:
        """The tests as pytest names them."""
        parts = (one.split("::") for one in self.tests)
        return [f"{FILES[file]}::test_{name}" for file, name in parts]


ROWS = (
    Row(
        *("CARD_GET_001", 1, "§10.1, §13", "a card by host, URL or file selects the transport"),
        ("card::a_reference_is_a_host_a_url_or_a_file", "others::a_card_may_be_a_file"),
    ),
    Row(
        *("SEND_001", 1, "§10.2", "send begins a task"),
        ("client::a_send_prints_the_ids_the_answer_the_state_and_the_next_command",),
    ),
    Row(
        *("SEND_002", 1, "§10.2, §6.5", "send waits; --async and its aliases do not"),
        ("client::a_send_without_waiting_prints_the_ids", "arguments::a_flag_may_have_aliases"),
    ),
    Row(
        *("SEND_003", 1, "§10.2, §9.2", "--stream never hangs; a message without a task is fine"),
        (
            "client::a_stream_of_json_is_one_object_a_line",
            "others::a_server_without_streams_is_polled",
            "others::a_message_without_a_task_ends_the_send",
        ),
    ),
    Row(
        *("SEND_004", 1, "§10.2", "each part of an artifact is shown"),
        (
            "client::each_kind_of_part_is_shown",
            "peers::a_send_has_the_answer_as_text_bytes_and_stream",
        ),
    ),
    Row(
        *("SEND_005", 1, "§10.2", "--media-type belongs to the part before it"),
        ("client::a_message_has_its_parts_in_order_with_their_types",),
    ),
    Row(
        *("SEND_006", 1, "§10.2", "--text, --file, --data are repeatable and keep their order"),
        ("client::a_message_has_its_parts_in_order_with_their_types",),
    ),
    Row(
        *("TASK_GET_001", 1, "§10.3", "task get shows state, artifacts and history"),
        ("client::json_is_one_document_of_a2a_1_0", "peers::tasks_are_read_and_listed"),
    ),
    Row(
        *("TASK_CANCEL_001", 1, "§10.4", "task cancel is idempotent and shows the state"),
        ("client::a_cancel_is_idempotent_and_can_name_all_tasks",),
    ),
    Row(
        *("INTERACT_001", 1, "§8.1", "--context-id continues a conversation"),
        ("client::a_send_prints_the_ids_the_answer_the_state_and_the_next_command",),
    ),
    Row(
        *("INTERACT_002", 1, "§8.1", "--task-id continues a task; a refused id begins none"),
        (
            "client::a_rejected_id_starts_no_task_and_names_debug",
            "peers::a_question_is_answered_in_words",
        ),
    ),
    Row(
        *("INTERACT_003", 1, "§4.1, §4", "the client invents no ids of the server"),
        ("client::the_ids_are_those_of_the_server_and_are_not_stored",),
    ),
    Row(
        *("INTERACT_004", 1, "§8.2", "the ids, the state and the command that resumes"),
        ("client::the_resume_command_answers_the_question",),
    ),
    Row(
        *("INTERACT_005", 1, "§6.3, §4.1, §8.3", "no state of a task is stored"),
        ("client::the_ids_are_those_of_the_server_and_are_not_stored",),
    ),
    Row(
        *("TASK_POLL_001", 1, "§9.3", "task get, and with --wait until the end"),
        ("client::a_send_without_waiting_prints_the_ids",),
    ),
    Row(
        *("TASK_POLL_002", 1, "§9.3", "--poll-interval, --timeout, longer pauses, interruptible"),
        (
            "client::a_send_without_waiting_prints_the_ids",
            "client::an_interrupted_reader_leaves_the_task",
            "others::a_server_without_streams_is_polled",
        ),
    ),
    Row(
        *("TASK_POLL_003", 1, "§9.1, §9.3", "a wait ends at a question, not at UNSPECIFIED"),
        (
            "client::wait_ends_with_the_last_task_or_the_first_question",
            "others::a_server_without_streams_is_polled",
        ),
    ),
    Row(
        *("TASK_POLL_004", 1, "§9.3", "a wait polls if a stream fails"),
        ("others::a_server_that_cannot_resume_is_polled",),
    ),
    Row(
        *("OUT_001", 1, "§11.1, §11.5, §8.2", "ids and state in each mode; diagnostics on stderr"),
        (
            "client::a_send_prints_the_ids_the_answer_the_state_and_the_next_command",
            "client::the_exit_status_is_of_the_command_or_of_the_state",
        ),
    ),
    Row(
        *("OUT_002", 1, "§11.3, App. B", "-o json is one document, the terminal object"),
        ("client::json_is_one_document_of_a2a_1_0",),
    ),
    Row(
        *("OUT_003", 1, "§11.3, §11.4, App. B", "-o json --stream is JSON Lines, also the error"),
        (
            "client::a_stream_of_json_is_one_object_a_line",
            "client::an_error_that_ends_a_stream_is_its_last_line",
        ),
    ),
    Row(
        *("OUT_004", 1, "§11.4, App. B, D", "errors have one name over all bindings"),
        ("shapes::an_error_has_one_name_over_both_bindings", "start::a_failure_has_one_form"),
    ),
    Row(
        *("OUT_005", 1, "§11.2, §6.1", "one field a line, blocks, no control sequences"),
        (
            "client::an_answer_cannot_look_like_a_field",
            "attach::without_a_terminal_attach_subscribes_and_chat_names_send",
        ),
    ),
    Row(
        *("OUT_006", 1, "§11.5", "--async prints the ids"),
        ("client::a_send_without_waiting_prints_the_ids",),
    ),
    Row(
        *("EXIT_001", 1, "§11.6, App. D", "0, 1, 2; 3, 4, 5 as reserved"),
        (
            "start::a_failure_has_one_form",
            "others::a_401_is_an_authentication_failure",
            "breaks::a_server_that_stays_away_is_unreachable",
        ),
    ),
    Row(
        *("EXIT_002", 1, "§6.6, §11.6", "0 also for a failed task, with a warning"),
        ("client::the_exit_status_is_of_the_command_or_of_the_state",),
    ),
    Row(
        *("AUTH_001", 1, "§12.1", "bearer and API key go where the card says"),
        (
            "card::an_api_key_goes_where_the_card_says",
            "others::a_credential_is_sent_to_its_origin_only",
            "files::a_service_parameter_cannot_add_a_header",
        ),
    ),
    Row(
        *("AUTH_002", 1, "§12.1, §6.5", "variables for credentials; help warns of the flags"),
        (
            "arguments::help_names_defaults_and_the_exposure_of_credentials",
            "files::a_flag_precedes_a_variable_a_file_and_the_global_file",
        ),
    ),
    Row(
        *("AUTH_003", 1, "§12.1, §6.5", "--insecure warns"),
        ("client::an_unverified_connection_is_named",),
    ),
    Row(
        *("AUTH_004", 1, "§12.1, §7.2", "credentials are redacted, also with --debug"),
        ("others::the_trace_has_no_secrets",),
    ),
    Row(
        *("TX_001", 1, "§13.1", "the transport comes from the card, in its order"),
        ("card::the_first_interface_that_the_client_speaks_is_chosen",),
    ),
    Row(
        *("TX_002", 1, "§13.1, §6.5", "--transport is repeatable and ordered"),
        ("card::the_first_interface_that_the_client_speaks_is_chosen",),
    ),
    Row(
        *("TX_003", 1, "§13.1", "the tenant of the interface is repeated exactly"),
        (
            "card::the_tenant_of_the_interface_is_kept_exactly",
            "shapes::the_tenant_is_in_every_request_and_absent_without_one",
        ),
    ),
    Row(
        *("VER_001", 1, "§13.2", "A2A-Version is always sent; 0.3 only if asked for"),
        ("others::a_stream_ends_with_the_task", "card::0_3_is_spoken_only_if_the_caller_says_so"),
    ),
    Row(
        *("DEFAULT_001", 1, "§6.5", "the six defaults, each with a flag (below)"),
        (
            "files::the_defaults_are_those_of_the_specification",
            "arguments::help_names_defaults_and_the_exposure_of_credentials",
        ),
    ),
    Row(
        *("CONFIG_001", 1, "§8.3", "private files, shown by config show, no state"),
        (
            "start::tokens_are_stored_shown_and_removed_by_origin",
            "start::a_repository_cannot_choose_the_server",
        ),
    ),
    Row(
        *("CLI_001", 1, "§7.1, §7.2, §6.5", "help, --help with defaults, --version"),
        ("start::help_and_version_print_and_exit",),
    ),
    Row(
        *("SKILL_001", 1, "§14.1, §14.2", "one skill, without a list of commands"),
        ("start::the_skill_is_printed_and_installed_and_a_changed_copy_stays",),
    ),
    Row(
        *("SKILL_002", 1, "§14.3", "the skill does not repeat the specification"),
        ("start::the_skill_names_only_flags_that_exist",),
    ),
    Row(
        *("CARD_GET_002", 2, "§10.1", "card get --validate"),
        ("card::a_validation_names_each_problem",),
    ),
    Row(
        *("TASK_LIST_001", 2, "§7.1, App. A", "task list has pages and filters"),
        ("client::a_list_has_the_tasks_that_ask_first",),
    ),
    Row(
        *("TASK_SUBSCRIBE_001", 2, "§7.1, §9.2", "task subscribe follows a task"),
        (
            "client::a_subscription_begins_where_it_is_told",
            "peers::a_subscription_ends_with_the_cancel_of_its_task",
        ),
    ),
    Row(
        *("TASK_SUBSCRIBE_002", 2, "§9.4, §9.2", "a broken stream is resumed"),
        (
            "breaks::a_server_that_is_killed_leaves_no_trace_in_the_output",
            "breaks::a_cut_stream_is_resumed_without_gap_and_repetition",
        ),
    ),
    Row(
        *("AUTH_005", 2, "§12.2", "auth login by OAuth device code"),
        status="fail",
        note="OAuth is not built: auth login stores a token that its issuer has made",
    ),
    Row(
        *("AUTH_006", 2, "§12.2", "auth login by OAuth client credentials"),
        status="fail",
        note="OAuth is not built: auth login stores a token that its issuer has made",
    ),
    Row(
        *("AUTH_007", 2, "§12.2", "tokens are stored privately and attached later"),
        (
            "files::tokens_are_stored_by_origin_in_a_private_file",
            "others::a_stored_token_is_found_by_the_origin",
        ),
    ),
    Row(
        *("TX_004", 2, "§13.1", "two transports"),
        ("peers::a_send_has_the_answer_as_text_bytes_and_stream",),
    ),
    Row(
        *("VER_003", 2, "§13.3", "a capability is read from the card before its operation"),
        ("others::a_server_without_streams_is_polled", "peers::a_missing_capability_is_no_request"),
    ),
    Row(
        *("CONFIG_002", 2, "§8.3", "flag, variable, local file, global file, default"),
        ("files::a_flag_precedes_a_variable_a_file_and_the_global_file",),
        status="partial",
        note="no local .env is read: a repository could send a stored token to its own server. "
        "--config names a file; its settings do not depend on the agent card",
    ),
    Row(
        *("DOWNLOAD_001", 2, "§7.1", "task download saves artifacts"),
        ("client::a_download_keeps_names_in_the_folder_and_overwrites_nothing",),
    ),
    Row(
        *("OUT_007", 2, "§7.2", "--debug shows the messages of the protocol"),
        ("others::the_trace_has_no_secrets",),
    ),
    Row(
        *("CONFORM_001", 2, "§7.1", "conformance checks an agent with the TCK"),
        status="fail",
        note="the TCK is a program of its own; the tests of this project run it",
    ),
    Row(
        *("CLI_002", 2, "§7.1", "completion prints a script of a shell"),
        ("start::completion_prints_a_script_of_the_shell",),
    ),
    Row(
        *("PUSH_001", 2, "§7.1, App. A", "task push-config create, get, list, delete"),
        ("client::push_configs_are_created_read_listed_and_deleted",),
    ),
)
DEFAULTS = {
    "transport_server_preference_order": ("--transport", "the order of the card"),
    "task_completion_wait": ("--async", "wait"),
    "output_text": ("-o", "text"),
    "detail_level_concise": ("--verbose", "concise"),
    "protocol_version_highest_mutual_min_1_0": ("--a2a-version", "1.0"),
    "transport_security_tls_on": ("--insecure", "verified; --insecure warns"),
}
ERRORS = tuple(
    f"A2ACLI_ERR_{name}"
    for name in (
        *("USAGE", "CARD_NOT_FOUND", "CARD_INVALID", "UNREACHABLE"),
        *("CREDENTIALS_MISSING", "AUTH_FAILED", "TIMEOUT", "INTERNAL"),
    )
)


def missing() -> Iterator[str]:
    """The tests that rows name and no file has."""
    functions = {}
    for path in FILES.values():
        tree = ast.parse((CHECKOUT / path).read_text("utf-8"))
        functions[path] = {getattr(one, "name", "") for one in tree.body}
    for path in (path for row in ROWS for path in row.paths):
        file, _, name = path.partition("::")
        if name not in functions[file]:
            yield path


def table() -> str:
    """The rows as a table of Markdown."""
    lines = [
        "| requirement | tier | section | meaning | result | shown by |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        shown = ", ".join(f"`{one.split('::')[1]}`" for one in row.tests) or ""
        result = row.status if row.note is None else f"{row.status}: {row.note}"
        cells = (f"`{PREFIX}{row.name}`", str(row.tier), row.spec, row.requirement, result, shown)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def report() -> str:
    """The report in the published form: YAML, whose values are JSON."""
    identity = {
        "tool": "coding-agent-bridge",
        "tool_version": __version__,
        "language": "Python",
        "spec_version": "0.2",
        "spec_revision": REVISION,
        "a2a_versions": ["1.0", "0.3"],
        "agent_tested": "coding-agent-bridge, and servers of the official Python and JS SDKs",
        "agent_tck_conformant": "yes",
        "transports_covered": ["HTTP+JSON", "JSON-RPC"],
        "tier_claimed": 1,
    }
    requirements = {
        PREFIX + row.name: {
            "tier": row.tier,
            "area": row.name.rpartition("_")[0],
            "spec": row.spec,
            "requirement": row.requirement,
            "status": row.status,
            "note": row.note,
            "evidence": ", ".join(row.paths) or None,
        }
        for row in ROWS
    }
    sections: dict[str, dict[str, Any]] = {
        "report": identity,
        "summary": {f"tier_{tier}": _summary(tier) for tier in (1, 2)},
        "requirements": requirements,
        "default_001_breakdown": {
            name: {"shipped": "yes", "overridable": "yes", "note": f"{flag}: {what}"}
            for name, (flag, what) in DEFAULTS.items()
        },
        "error_codes": {code: {"emitted": "yes", "note": None} for code in ERRORS},
        "attestation": {"statement": "The tier claimed reflects the evidence recorded above."},
    }
    return "".join(
        f"{line}\n" for name, members in sections.items() for line in _yaml(name, members)
    )


def _yaml(name: str, members: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}:"
    for key, value in members.items():
        yield f"  {key}: {json.dumps(value, ensure_ascii=False)}"


def _summary(tier: int) -> dict[str, Any]:
    rows = [row for row in ROWS if row.tier == tier]
    counts = Counter(row.status for row in rows)
    statuses = ("pass", "partial", "fail", "not_measured", "na")
    return {
        "total": len(rows),
        **{status: counts[status] for status in statuses},
        "satisfied": counts["pass"] + counts["na"] == len(rows),
    }
