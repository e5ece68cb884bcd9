"""The requirements of A2A 1.0.1 and 0.3 for a server, and the tests that prove them. Run as a
program (`python -m tests.support.requirements`), it writes docs/evidence/conformance.md."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests import CHECKOUT

DOCUMENT = CHECKOUT / "docs/evidence/conformance.md"

Version = Literal["1.0", "0.3", "both"]
Level = Literal["MUST", "SHOULD", "MAY"]
LEVELS: tuple[Level, ...] = ("MUST", "SHOULD", "MAY")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A sentence about the server, in the words of this project. `id` begins with its area.
    `tests`: the tests that fail if the sentence is false, as `tests/test_x.py::test_name`.
    `deferred`: the reason for a requirement without tests."""

    id: str
    version: Version
    section: str
    level: Level
    text: str
    tests: tuple[str, ...] = ()
    deferred: str = ""


AREAS = {
    "send": "Sending",
    "ids": "Tasks, contexts and messages",
    "wait": "Tasks that wait for their client",
    "get": "Getting, history, canceling",
    "list": "Listing",
    "stream": "Streams",
    "push": "Push notifications",
    "version": "Versions and extensions",
    "card": "Agent cards",
    "json": "JSON shapes",
    "rpc": "The JSON-RPC binding",
    "http": "The HTTP+JSON binding",
    "grpc": "The gRPC binding",
    "error": "Errors",
    "safe": "Access and limits",
}


def _in(module: str, *names: str) -> tuple[str, ...]:
    folder, _, file = module.rpartition("/")
    return tuple(f"tests/{folder}/test_{file}.py::{name}" for name in names)


SENDING = (
    Requirement(
        "send-operations",
        "both",
        "§3.1, §9.4; 0.3 §3.5.6",
        "MUST",
        "Every operation of the version answers to its own method name, and no name belongs to "
        "both versions.",
        (
            *_in("server/protocol/conformance", "test_every_operation_has_its_name"),
            *_in("unit/a2a/codec", "test_the_methods_of_the_versions_do_not_overlap"),
        ),
    ),
    Requirement(
        "send-answer",
        "both",
        "§3.1.1; 0.3 §7.1",
        "MUST",
        "A send is answered with a Task, or with a Message where the agent replies directly.",
        _in(
            "server/protocol/server",
            "test_a_blocking_send_answers_with_the_finished_task",
            "test_the_agent_may_answer_with_a_message",
        ),
    ),
    Requirement(
        "send-blocks",
        "1.0",
        "§3.2.2",
        "MUST",
        "Unless told to return at once, a send waits until its task has ended or waits for the "
        "client, and the answer has everything so far.",
        (
            *_in(
                "server/protocol/server",
                "test_a_blocking_send_answers_with_the_finished_task",
                "test_a_blocking_send_answers_when_the_agent_asks",
                "test_a_login_is_asked_for_as_auth_required",
            ),
            *_in("unit/a2a/codec", "test_a_send_waits_for_the_task_by_default"),
        ),
    ),
    Requirement(
        "send-returns",
        "1.0",
        "§3.2.2, §3.3.3",
        "MUST",
        "With `returnImmediately` the answer is the task in its first state, and the "
        "task continues.",
        (
            *_in("server/protocol/server", "test_a_non_blocking_send_answers_at_once"),
            *_in("server/protocol/rest", "test_a_send_that_does_not_wait_returns_the_task_at_once"),
        ),
    ),
    Requirement(
        "send-blocking-old",
        "0.3",
        "0.3 §7.1.1",
        "SHOULD",
        "`blocking` decides whether a send waits; without it, it does.",
        (
            *_in("unit/a2a/codec", "test_a_send_waits_for_the_task_by_default"),
            *_in("server/protocol/server", "test_a_non_blocking_send_answers_at_once"),
        ),
    ),
    Requirement(
        "send-streams-alike",
        "1.0",
        "§3.2.2",
        "MUST",
        "A stream does not depend on the client's wish to wait.",
        _in("server/protocol/conformance", "test_a_stream_is_one_whether_its_client_waits_or_not"),
    ),
    Requirement(
        "send-independent",
        "both",
        "§3.5.2; 0.3 §7.1",
        "MUST",
        "A client that disconnects during a send ends only its own wait.",
        _in("server/protocol/server", "test_a_client_that_goes_away_does_not_end_its_task"),
    ),
    Requirement(
        "send-media",
        "both",
        "§3.1.1, §3.3.2; 0.3 §8.2",
        "MUST",
        "A part of a media type that the agent cannot read is refused with "
        "ContentTypeNotSupported.",
        (
            *_in("server/protocol/server", "test_a_medium_that_the_agent_cannot_read_is_refused"),
            *_in("server/protocol/inputs", "test_an_agent_without_files_refuses_them"),
            *_in(
                "server/protocol/conformance",
                "test_the_agent_of_the_official_suite_behaves_as_it_asks",
            ),
            *_in(
                "server/protocol/rest",
                "test_a_part_that_the_agent_cannot_read_is_not_a_matter_of_http",
            ),
        ),
    ),
    Requirement(
        "send-once",
        "both",
        "§3.3.1; 0.3 §7.1",
        "MAY",
        "A message with the id and the content of an earlier one joins the task of that"
        " one while the task is open and, for a client that shows that it retries, "
        "after its end. Other content makes a new message. Ids shorter than 16 "
        "characters are not remembered.",
        _in(
            "server/protocol/sent_again",
            "test_the_same_message_joins_its_task_as_long_as_that_is_open",
            "test_a_message_that_is_sent_again_begins_nothing",
            "test_after_the_end_the_same_message_is_a_new_one",
            "test_another_content_under_a_known_id_is_a_new_message",
            "test_an_answer_that_is_sent_again_is_given_once",
            "test_ids_that_cannot_be_unique_mean_a_new_message_each_time",
        ),
    ),
    Requirement(
        "send-output-modes",
        "both",
        "§3.2.2; 0.3 §7.1.1",
        "SHOULD",
        "The answer suits the output modes that the client accepts.",
        deferred="A coding agent answers in text and JSON; the server reads the wish and does "
        "not act on it.",
    ),
)

IDENTITY = (
    Requirement(
        "ids-task",
        "both",
        "§3.4.2; 0.3 §6.1",
        "MUST",
        "The server creates the ids of tasks, each of them once.",
        _in("server/protocol/conformance", "test_the_server_makes_the_ids_of_tasks"),
    ),
    Requirement(
        "ids-unknown-task",
        "both",
        "§3.4.2; 0.3 §8.2",
        "MUST",
        "A message to an unknown task is refused with TaskNotFound and begins none.",
        (
            *_in("server/protocol/conformance", "test_the_server_makes_the_ids_of_tasks"),
            *_in("server/protocol/server", "test_unknown_tasks_are_not_found"),
            *_in("server/protocol/equivalence", "test_an_unknown_task_is_not_found"),
        ),
    ),
    Requirement(
        "ids-context",
        "both",
        "§3.4.1; 0.3 §6.1",
        "MUST",
        "A task without a context gets a new one, and the answer has its id.",
        (
            *_in("server/protocol/conformance", "test_the_server_makes_the_ids_of_tasks"),
            *_in("component/session/contexts", "test_without_a_context_id_each_task_has_its_own"),
        ),
    ),
    Requirement(
        "ids-client-context",
        "1.0",
        "§3.4.1",
        "MUST",
        "A context id from the client is kept unchanged, or refused; it is never replaced.",
        (
            *_in(
                "server/protocol/conformance", "test_a_context_id_of_the_client_is_kept_or_refused"
            ),
            *_in(
                "component/session/contexts",
                "test_a_context_id_of_the_client_is_kept",
                "test_other_context_ids_are_refused",
            ),
        ),
    ),
    Requirement(
        "ids-inferred-context",
        "1.0",
        "§3.4.3",
        "MUST",
        "A message that names only its task belongs to the context of that task; a "
        "message that names another context as well is refused.",
        (
            *_in(
                "server/protocol/conformance",
                "test_an_answer_that_names_only_its_task_is_of_the_tasks_context",
            ),
            *_in("server/protocol/server", "test_a_context_that_is_not_the_tasks_is_refused"),
            *_in("server/protocol/equivalence", "test_a_task_of_another_context_is_refused"),
        ),
    ),
    Requirement(
        "ids-conversation",
        "both",
        "§3.4.1, §3.4.3; 0.3 §6.1",
        "SHOULD",
        "Tasks of one context are one conversation: the agent remembers, and tasks run in the "
        "order in which they were sent.",
        (
            *_in("server/protocol/server", "test_the_same_context_continues_in_the_same_process"),
            *_in(
                "component/session/contexts",
                "test_tasks_of_a_context_run_one_after_the_other_in_order",
            ),
            *_in("server/protocol/rest", "test_contexts_are_known_over_both_bindings"),
        ),
    ),
    Requirement(
        "ids-ended",
        "both",
        "§3.1.1, §3.4.3; 0.3 §7.1",
        "MUST",
        "An ended task takes no message and never changes; later work is another task "
        "of its context.",
        (
            *_in(
                "server/protocol/conformance",
                "test_a_task_that_has_ended_never_changes_and_is_followed_by_another",
            ),
            *_in(
                "server/protocol/server", "test_a_finished_task_takes_no_message_and_no_subscriber"
            ),
            *_in(
                "server/protocol/equivalence", "test_a_message_to_a_task_that_has_ended_is_refused"
            ),
            *_in("unit/task/state", "test_nothing_happens_after_the_end"),
        ),
    ),
    Requirement(
        "ids-busy",
        "both",
        "§3.3.3; 0.3 §7.1",
        "MAY",
        "A message to a working task, or to its context, waits for its turn, or is "
        "refused if the operator configures that.",
        (
            *_in(
                "server/protocol/conformance",
                "test_a_message_to_a_working_task_is_for_the_next_turn",
            ),
            *_in(
                "server/protocol/options",
                "test_messages_to_a_context_that_works_wait_their_turn",
                "test_a_context_that_works_refuses_messages_if_the_operator_says_so",
            ),
            *_in("server/protocol/streams", "test_a_task_in_the_queue_streams_from_the_beginning"),
        ),
    ),
    Requirement(
        "ids-message-kept",
        "both",
        "§3.2.5, §4.1.4; 0.3 §6.4",
        "SHOULD",
        "The history has a message unchanged, with its metadata, extensions and references.",
        (
            *_in("server/protocol/conformance", "test_a_message_is_kept_as_it_was_sent"),
            *_in("server/protocol/server", "test_parts_and_metadata_of_a_message_reach_the_agent"),
            *_in("unit/a2a/codec", "test_a_message_survives_the_way_out_and_in_again"),
        ),
    ),
    Requirement(
        "ids-agent-message",
        "both",
        "§4.1.4; 0.3 §6.4",
        "MUST",
        "Messages of the agent name their context, and their task if there is one.",
        (
            *_in(
                "server/protocol/server", "test_history_holds_the_messages_of_both_sides_in_order"
            ),
            *_in("unit/a2a/codec", "test_messages_of_the_agent_name_their_task_and_context"),
        ),
    ),
    Requirement(
        "ids-artifacts",
        "both",
        "§3.7; 0.3 §6.1",
        "SHOULD",
        "Results are artifacts; messages are progress, questions and final texts.",
        (
            *_in("server/protocol/server", "test_a_blocking_send_answers_with_the_finished_task"),
            *_in("unit/task/state", "test_the_answer_is_one_artifact_that_grows"),
        ),
    ),
    Requirement(
        "ids-states",
        "both",
        "§4.1.3; 0.3 §6.3",
        "MUST",
        "A task goes through the states of the protocol; completed, failed, canceled and rejected "
        "are the last ones.",
        (
            *_in("server/protocol/server", "test_the_agent_may_fail_or_reject"),
            *_in(
                "unit/task/state",
                "test_exactly_the_four_terminal_states_have_no_exits",
                "test_every_state_can_be_reached",
            ),
            *_in("unit/a2a/codec", "test_every_state_has_its_name_in_both_versions"),
        ),
    ),
)

WAITING = (
    Requirement(
        "wait-question",
        "both",
        "§3.4.3; 0.3 §6.3",
        "SHOULD",
        "The status message of a task that needs input has the question; the next "
        "message to the task is the answer.",
        _in(
            "server/protocol/server",
            "test_a_blocking_send_answers_when_the_agent_asks",
            "test_an_answer_by_option_id_reaches_the_agent",
        ),
    ),
    Requirement(
        "wait-login",
        "both",
        "§7.6.1; 0.3 §4.5",
        "MUST",
        "A task that needs a login is auth-required, and its status message has the purpose.",
        (
            *_in("server/protocol/server", "test_a_login_is_asked_for_as_auth_required"),
            *_in("unit/task/state", "test_a_login_is_waited_for_in_a_state_of_its_own"),
        ),
    ),
    Requirement(
        "wait-consent",
        "1.0",
        "§7.6.3",
        "MUST",
        "Only the client's answer decides a permission. The question is repeated if the"
        " answer cannot be matched.",
        (
            *_in(
                "component/session/contexts",
                "test_an_answer_that_is_not_understood_is_asked_for_again",
            ),
            *_in(
                "unit/task/answers",
                "test_an_unknown_id_is_not_helped_with_a_guess",
                "test_yes_never_means_always",
                "test_an_approval_may_not_carry_conditions_and_nothing_is_guessed",
            ),
            *_in("server/protocol/equivalence", "test_a_question_is_answered_in_the_same_way"),
        ),
    ),
    Requirement(
        "wait-login-rights",
        "1.0",
        "§7.6.4",
        "MUST",
        "A task that is auth-required gives no client a right: a message to it needs the rights of "
        "any other message.",
        _in("server/auth/ownership", "test_the_scope_read_allows_only_reads"),
    ),
    Requirement(
        "wait-login-stream",
        "1.0",
        "§7.6.1",
        "SHOULD",
        "Streams stay open while a task waits for a login, and messages are accepted.",
        _in("server/protocol/streams", "test_the_stream_stays_open_while_a_login_is_waited_for"),
    ),
)

GETTING = (
    Requirement(
        "get-task",
        "both",
        "§3.1.3; 0.3 §7.3",
        "MUST",
        "A get returns the current task: status, artifacts and history.",
        (
            *_in("server/protocol/server", "test_a_blocking_send_answers_with_the_finished_task"),
            *_in(
                "server/protocol/rest",
                "test_a_message_is_sent_and_its_task_got_and_found_in_the_list",
            ),
        ),
    ),
    Requirement(
        "get-unknown",
        "both",
        "§3.1.3, §3.1.5, §3.1.6; 0.3 §8.2",
        "MUST",
        "Every operation on an unknown task is refused: TaskNotFound.",
        (
            *_in("server/protocol/server", "test_unknown_tasks_are_not_found"),
            *_in("server/protocol/equivalence", "test_an_unknown_task_is_not_found"),
            *_in("server/protocol/rest", "test_operations_on_an_unknown_task_are_not_found"),
        ),
    ),
    Requirement(
        "get-history-all",
        "both",
        "§3.2.4; 0.3 §7.3.1",
        "MAY",
        "Without `historyLength` the whole history is returned.",
        (
            *_in("server/protocol/server", "test_history_is_cut_to_the_newest_messages"),
            *_in("server/protocol/equivalence", "test_history_is_cut_in_the_same_way"),
        ),
    ),
    Requirement(
        "get-history-some",
        "both",
        "§3.2.4; 0.3 §7.3.1",
        "MUST",
        "With `historyLength`, an answer has at most that many messages, the newest, in"
        " their order, and for zero no such member: of a get, a send, a list and the "
        "Task that begins a stream.",
        (
            *_in("server/protocol/server", "test_history_is_cut_to_the_newest_messages"),
            *_in(
                "server/protocol/conformance",
                "test_the_task_that_begins_a_stream_has_so_much_history",
            ),
            *_in("server/protocol/list", "test_so_much_history_is_listed_as_is_asked_for"),
            *_in("server/protocol/rest", "test_a_task_is_got_with_so_much_history"),
            *_in(
                "unit/a2a/codec", "test_history_is_the_most_recent_in_order_and_left_out_for_zero"
            ),
        ),
    ),
    Requirement(
        "get-history-wrong",
        "both",
        "§3.2.4; 0.3 §8.1",
        "MUST",
        "A negative or fractional length is invalid.",
        (
            *_in("server/protocol/server", "test_a_history_length_that_is_none_is_refused"),
            *_in(
                "server/protocol/equivalence",
                "test_a_wrong_history_length_is_refused_for_the_same_reason",
            ),
        ),
    ),
    Requirement(
        "get-cancel",
        "both",
        "§3.1.5; 0.3 §7.4",
        "MUST",
        "A cancel ends the task in any state, and the answer is the canceled task.",
        (
            *_in(
                "server/protocol/server",
                "test_cancel_answers_with_the_canceled_task",
                "test_a_cancel_ends_a_blocking_send",
            ),
            *_in("component/session/contexts", "test_a_task_that_asks_is_canceled"),
            *_in("server/protocol/rest", "test_a_task_is_canceled_with_or_without_a_body"),
        ),
    ),
    Requirement(
        "get-cancel-ended",
        "both",
        "§3.1.5; 0.3 §8.2",
        "MUST",
        "An ended task, also a canceled one, cannot be canceled: TaskNotCancelable.",
        (
            *_in("server/protocol/server", "test_cancel_answers_with_the_canceled_task"),
            *_in("server/protocol/equivalence", "test_a_canceled_task_looks_the_same"),
        ),
    ),
    Requirement(
        "get-cancel-process",
        "both",
        "§3.1.5; 0.3 §7.4",
        "SHOULD",
        "The processes of a canceled task end with it.",
        (
            *_in("server/protocol/server", "test_cancel_answers_with_the_canceled_task"),
            *_in(
                "component/session/contexts",
                "test_a_working_task_is_canceled_with_all_its_processes",
            ),
        ),
    ),
)

LISTING = (
    Requirement(
        "list-order",
        "1.0",
        "§3.1.4",
        "MUST",
        "Tasks are listed by the time of their status, the newest first; ids decide between "
        "equals.",
        _in(
            "component/store/contract",
            "test_pages_follow_the_newest_status_and_stay_stable",
            "test_equal_times_are_listed_by_id_in_any_pages",
        ),
    ),
    Requirement(
        "list-members",
        "1.0",
        "§3.1.4, §5.7",
        "MUST",
        "Tasks, next page token, page size and total size are in every answer; the "
        "token is empty on the last page.",
        _in(
            "server/protocol/list",
            "test_a_list_has_all_its_members_even_if_it_is_empty",
            "test_the_last_page_has_no_token_and_the_first_one_needs_none",
        ),
    ),
    Requirement(
        "list-pages",
        "1.0",
        "§3.1.4",
        "MUST",
        "The pages of successive tokens are the complete list, without repetitions and gaps.",
        (
            *_in(
                "component/store/contract",
                "test_equal_times_are_listed_by_id_in_any_pages",
                "test_no_task_is_listed_twice_while_all_of_them_change",
            ),
            *_in(
                "server/protocol/list",
                "test_pages_go_through_all_tasks_while_new_ones_come",
            ),
            *_in("server/protocol/equivalence", "test_pages_are_the_same"),
        ),
    ),
    Requirement(
        "list-total",
        "1.0",
        "§3.1.4",
        "MUST",
        "The total counts the filtered tasks of all pages.",
        _in("component/store/contract", "test_filters_add_up"),
    ),
    Requirement(
        "list-size",
        "1.0",
        "§3.1.4, §6.5",
        "MUST",
        "A page has 1 to 100 tasks, 50 by default; other sizes, and tokens that the "
        "server did not create, are invalid.",
        (
            *_in("unit/a2a/codec", "test_all_tasks_are_listed_unless_a_filter_is_given"),
            *_in(
                "server/protocol/list",
                "test_the_error_names_the_invalid_parameter_of_a_list",
                "test_a_token_of_another_principal_is_refused",
            ),
            *_in("server/protocol/rest", "test_a_query_that_makes_no_sense_names_its_parameter"),
        ),
    ),
    Requirement(
        "list-filters",
        "1.0",
        "§3.1.4",
        "MUST",
        "A context, a state and the time of the last status are filters, alone and "
        "together; an unknown state is invalid.",
        (
            *_in("component/store/contract", "test_filters_add_up"),
            *_in(
                "server/protocol/list",
                "test_tasks_are_found_by_the_state_that_they_are_in",
                "test_the_time_that_a_task_shows_finds_it_again",
            ),
            *_in("server/protocol/equivalence", "test_a_list_has_the_same_tasks"),
            *_in("unit/a2a/codec", "test_a_filter_that_makes_no_sense_is_named"),
        ),
    ),
    Requirement(
        "list-artifacts",
        "1.0",
        "§3.1.4",
        "MUST",
        "Listed tasks have no member `artifacts` unless the client requests artifacts.",
        (
            *_in("server/protocol/list", "test_artifacts_are_left_out_unless_they_are_asked_for"),
            *_in("unit/a2a/codec", "test_a_page_has_artifacts_only_where_they_are_asked_for"),
        ),
    ),
)

STREAMS = (
    Requirement(
        "stream-sse",
        "both",
        "§9.4.2, §11.7; 0.3 §3.3.1",
        "MUST",
        "A stream is server-sent events with status 200; over JSON-RPC each is a whole response "
        "with the id of the request.",
        (
            *_in("server/protocol/streams", "test_a_stream_is_server_sent_events"),
            *_in("server/protocol/rest", "test_a_stream_is_of_bare_items_with_the_task_first"),
        ),
    ),
    Requirement(
        "stream-one-member",
        "1.0",
        "§3.2.3",
        "MUST",
        "An item has exactly one member: task, message, statusUpdate or artifactUpdate.",
        (
            *_in(
                "server/protocol/streams", "test_the_task_comes_first_and_the_terminal_status_last"
            ),
            *_in("server/protocol/rest", "test_a_stream_is_of_bare_items_with_the_task_first"),
        ),
    ),
    Requirement(
        "stream-message",
        "both",
        "§3.1.2; 0.3 §7.2",
        "MUST",
        "If the agent replies directly, that Message is the only item.",
        (
            *_in("server/protocol/streams", "test_a_direct_reply_is_the_whole_stream"),
            *_in(
                "server/protocol/rest",
                "test_a_direct_reply_is_a_message_and_the_only_item_of_its_stream",
            ),
        ),
    ),
    Requirement(
        "stream-task-first",
        "1.0",
        "§3.1.2",
        "MUST",
        "Any other stream begins with the Task, continues with updates, and ends after "
        "the last state.",
        (
            *_in(
                "server/protocol/streams",
                "test_the_task_comes_first_and_the_terminal_status_last",
                "test_a_canceled_task_ends_its_streams",
            ),
            *_in("server/protocol/equivalence", "test_a_stream_has_the_same_items"),
        ),
    ),
    Requirement(
        "stream-final",
        "0.3",
        "0.3 §7.2.2",
        "MUST",
        "`final` is in every status update: true in the last one of the stream, a question "
        "included, and false in all others.",
        (
            *_in(
                "server/protocol/streams",
                "test_the_task_comes_first_and_the_terminal_status_last",
                "test_the_stream_of_a_send_ends_at_a_question",
            ),
            *_in(
                "unit/a2a/codec",
                "test_the_last_update_of_a_stream_is_marked_in_the_old_version_only",
            ),
        ),
    ),
    Requirement(
        "stream-question",
        "both",
        "§11.7; 0.3 §7.2.2",
        "SHOULD",
        "The stream of a send ends at a question; the answer may be streamed in turn.",
        _in(
            "server/protocol/streams",
            "test_the_stream_of_a_send_ends_at_a_question",
            "test_an_answer_that_is_not_understood_ends_its_stream_with_the_question",
        ),
    ),
    Requirement(
        "stream-subscribe-first",
        "1.0",
        "§3.1.6",
        "MUST",
        "A subscription begins with the current Task, continues without gaps and "
        "repetitions, and lasts until the end of the task, across questions.",
        (
            *_in(
                "server/protocol/streams",
                "test_a_later_subscriber_begins_with_the_current_task",
                "test_a_task_that_ends_while_its_stream_begins_loses_nothing",
                "test_a_subscription_stays_open_at_a_question",
            ),
            *_in("server/protocol/rest", "test_a_task_is_subscribed_to_with_either_verb"),
            *_in("server/protocol/equivalence", "test_a_subscription_has_the_same_items"),
        ),
    ),
    Requirement(
        "stream-subscribe-ended",
        "both",
        "§3.1.6; 0.3 §7.9",
        "MUST",
        "A client cannot subscribe to an ended task: UnsupportedOperation.",
        (
            *_in(
                "server/protocol/server", "test_a_finished_task_takes_no_message_and_no_subscriber"
            ),
            *_in("server/protocol/rest", "test_a_task_that_has_ended_takes_nothing_more"),
        ),
    ),
    Requirement(
        "stream-resubscribe",
        "0.3",
        "0.3 §7.9",
        "MUST",
        "A client that lost its stream can receive all updates from now on.",
        _in(
            "server/protocol/streams",
            "test_a_subscriber_that_goes_away_ends_nothing",
            "test_resubscribing_again_and_again_costs_nothing_that_stays",
        ),
    ),
    Requirement(
        "stream-several",
        "1.0",
        "§3.5.2",
        "MUST",
        "All streams of a task have the same items in the same order; a stream that is "
        "closed or not read affects neither the others nor the task.",
        _in(
            "server/protocol/streams",
            "test_all_subscribers_see_the_same_updates_in_the_same_order",
            "test_a_subscriber_that_goes_away_ends_nothing",
            "test_a_client_that_never_reads_slows_no_other_client_and_is_cut_off",
        ),
    ),
    Requirement(
        "stream-chunks",
        "both",
        "§4.2.1, §4.2.2; 0.3 §7.2.2, §7.2.3",
        "MUST",
        "Updates name their task and context. The first piece of an artifact creates "
        "it, later ones are appended, the last one is marked; together they are the "
        "artifact of the task.",
        (
            *_in("server/protocol/streams", "test_chunks_of_an_artifact_add_up_to_it"),
            *_in("server/protocol/server", "test_ids_of_a_task_are_in_each_of_its_updates"),
            *_in(
                "unit/task/state",
                "test_an_artifact_is_appended_to_or_replaced",
                "test_a_part_that_cannot_be_appended_begins_an_artifact",
            ),
        ),
    ),
    Requirement(
        "stream-refused",
        "both",
        "§9.4.2, §11.7; 0.3 §7",
        "MUST",
        "An error before the first item is an ordinary error without a stream; a client"
        " of 0.3 that accepts only streams gets it as a stream.",
        (
            *_in(
                "server/protocol/streams",
                "test_errors_of_streams_are_plain_json_in_1_0",
                "test_a_client_that_reads_streams_only_gets_the_error_as_one",
            ),
            *_in("server/protocol/rest", "test_a_task_that_has_ended_takes_nothing_more"),
        ),
    ),
    Requirement(
        "stream-silence",
        "both",
        "§3.5.2; 0.3 §3.3.1",
        "MAY",
        "A silent stream contains comments, so that clients can distinguish it from a dead one.",
        _in(
            "server/protocol/streams",
            "test_a_silent_stream_has_heartbeats",
            "test_a_client_hears_something_before_the_agent_has_said_a_word",
        ),
    ),
)

PUSH = (
    Requirement(
        "push-configs",
        "both",
        "§3.1.7, §3.1.9, §4.3.1; 0.3 §7.5",
        "MUST",
        "A task may have several configs; the server creates missing ids, and a "
        "repeated id replaces its config.",
        (
            *_in(
                "server/protocol/push_over_http",
                "test_a_config_is_made_got_listed_and_deleted",
                "test_configs_without_an_id_get_different_ids",
                "test_a_config_with_a_known_id_takes_its_place",
            ),
            *_in("server/protocol/rest", "test_push_configs_are_made_got_listed_and_deleted"),
            *_in("server/protocol/equivalence", "test_push_configs_are_the_same"),
        ),
    ),
    Requirement(
        "push-configs-old",
        "0.3",
        "0.3 §6.10, §7.6, §7.7, §7.8",
        "MUST",
        "Configs are nested, listed as an array and available without an id; a delete "
        "is answered with null.",
        _in(
            "server/protocol/push_over_http",
            "test_a_config_has_the_shape_of_each_version",
            "test_in_the_old_version_the_task_alone_may_name_a_config",
            "test_in_the_old_version_a_config_without_an_id_is_the_default",
            "test_deleting_a_missing_config_succeeds_with_null",
        ),
    ),
    Requirement(
        "push-delete",
        "1.0",
        "§3.1.8, §3.1.10",
        "MUST",
        "Unknown configs, and configs of unknown tasks, are not found. A second delete "
        "succeeds. A delete stops pending deliveries.",
        (
            *_in(
                "server/protocol/push_over_http",
                "test_unknown_tasks_and_configs_are_not_found",
                "test_deleting_a_missing_config_succeeds_with_null",
                "test_who_is_deleted_hears_no_more",
            ),
            *_in(
                "component/push/notifier",
                "test_deleting_stops_the_delivery_and_is_idempotent",
            ),
        ),
    ),
    Requirement(
        "push-in-send",
        "both",
        "§3.2.2; 0.3 §7.1.1",
        "MUST",
        "A message may contain a config, also one that joins its task; an invalid one begins no "
        "task.",
        _in(
            "server/protocol/push_over_http",
            "test_a_send_that_waits_may_ask_for_notifications",
            "test_an_answer_can_register_notifications",
            "test_a_message_that_joins_its_task_can_register_notifications",
            "test_a_send_with_a_config_that_is_wrong_begins_nothing",
        ),
    ),
    Requirement(
        "push-kept",
        "1.0",
        "§3.1.7",
        "MUST",
        "A config lasts until it is deleted or the task is evicted; with "
        "BRIDGE_STATE_DIR, pending notifications survive a crash.",
        _in(
            "component/push/notifier",
            "test_a_later_server_continues_at_the_cursor",
            "test_a_crash_in_the_middle_of_deliveries_loses_nothing_and_keeps_the_order",
        ),
    ),
    Requirement(
        "push-payload",
        "1.0",
        "§4.3.3",
        "MUST",
        "A notification is an item with the shape of a stream item, of A2A's own media type.",
        _in(
            "server/protocol/push_over_http",
            "test_the_receiver_gets_the_items_of_the_stream_in_order",
            "test_each_receiver_gets_the_version_of_its_registration",
        ),
    ),
    Requirement(
        "push-payload-old",
        "0.3",
        "0.3 §9.5",
        "SHOULD",
        "A notification is the whole Task, independent of the versions of other clients.",
        _in(
            "server/protocol/push_over_http",
            "test_in_0_3_each_notification_is_the_whole_task",
            "test_each_receiver_gets_the_version_of_its_registration",
        ),
    ),
    Requirement(
        "push-credentials",
        "both",
        "§4.3.3, §13.2; 0.3 §6.9",
        "MUST",
        "Notifications carry the credentials and the token of their config.",
        (
            *_in(
                "server/protocol/push_over_http",
                "test_the_receiver_gets_its_credentials_and_its_token",
            ),
            *_in(
                "component/push/notifier",
                "test_the_headers_have_the_media_type_and_the_secrets_of_the_config",
            ),
        ),
    ),
    Requirement(
        "push-deliver",
        "1.0",
        "§3.5.3, §4.3.3",
        "MUST",
        "Every update, questions and cancels included, is attempted at least once for "
        "every config, in order.",
        (
            *_in(
                "server/protocol/push_over_http",
                "test_every_config_of_a_task_gets_all_updates",
                "test_questions_and_cancels_are_notified",
            ),
            *_in(
                "component/push/notifier",
                "test_every_update_is_sent_once_and_in_order",
                "test_updates_during_the_creation_of_a_config_are_delivered",
            ),
        ),
    ),
    Requirement(
        "push-retry",
        "1.0",
        "§4.3.3",
        "SHOULD",
        "A delivery has a time limit and delays no other one; temporary failures are "
        "retried after growing pauses.",
        (
            *_in(
                "component/push/notifier",
                "test_temporary_failures_are_retried_in_order",
                "test_a_receiver_that_stalls_is_a_timeout",
                "test_pauses_double_up_to_the_longest_and_half_of_each_is_chance",
            ),
            *_in(
                "server/protocol/push_over_http",
                "test_a_receiver_that_does_not_answer_holds_up_no_other",
            ),
        ),
    ),
    Requirement(
        "push-ssrf",
        "both",
        "§13.2; 0.3 §6.8",
        "SHOULD",
        "Notifications never reach private networks, by any name or redirect, unless "
        "the operator allows it.",
        (
            *_in(
                "server/protocol/push_over_http",
                "test_private_addresses_are_refused_before_anything_begins",
            ),
            *_in(
                "component/push/egress",
                "test_a_value_that_is_not_on_the_internet_is_forbidden",
                "test_a_name_that_is_rebound_is_refused_at_its_second_connection",
                "test_redirects_are_not_followed",
            ),
        ),
    ),
    Requirement(
        "push-secrets",
        "both",
        "§13.2; 0.3 §6.9",
        "SHOULD",
        "Credentials and tokens are never shown again; only the owner can read them on the disk.",
        (
            *_in("server/protocol/push_over_http", "test_secrets_are_shown_in_no_answer"),
            *_in("component/push/notifier", "test_only_the_owner_can_read_the_files"),
        ),
    ),
    Requirement(
        "push-list-pages",
        "1.0",
        "§3.1.9",
        "MAY",
        "Lists of configs may come in pages.",
        deferred="The few configs of a task are one page, with an empty token.",
    ),
)

VERSIONS = (
    Requirement(
        "version-default",
        "1.0",
        "§3.6.2",
        "MUST",
        "No version, or an empty one, means 0.3.",
        (
            *_in("server/protocol/server", "test_the_header_of_the_client_decides_the_version"),
            *_in("server/protocol/rest", "test_without_a_version_the_binding_speaks_0_3"),
        ),
    ),
    Requirement(
        "version-requested",
        "1.0",
        "§3.6.2",
        "MUST",
        "A request is read in its major and minor version; the patch does not matter.",
        (
            *_in(
                "server/protocol/server",
                "test_the_header_of_the_client_decides_the_version",
                "test_both_versions_see_the_same_task",
            ),
            *_in("server/protocol/rest", "test_every_patch_version_of_1_0_is_accepted"),
        ),
    ),
    Requirement(
        "version-unsupported",
        "1.0",
        "§3.6.2, §3.3.2",
        "MUST",
        "Any other version is refused with VersionNotSupported, which names the supported ones.",
        (
            *_in(
                "server/protocol/server",
                "test_the_error_for_an_unknown_version_lists_the_known_ones",
            ),
            *_in("server/protocol/rest", "test_another_version_is_not_supported"),
        ),
    ),
    Requirement(
        "version-query",
        "1.0",
        "§3.6.1",
        "MAY",
        "The version may be in the query; a header takes precedence.",
        (
            *_in("server/protocol/server", "test_the_header_of_the_client_decides_the_version"),
            *_in("server/protocol/rest", "test_the_version_may_stand_in_the_query"),
        ),
    ),
    Requirement(
        "version-extensions",
        "both",
        "§3.2.6, §4.6, §14.2.2; 0.3 §5.5.2.1",
        "SHOULD",
        "Unknown extensions are ignored; the header of the answer names the active ones.",
        _in(
            "server/protocol/options",
            "test_the_extension_is_confirmed_under_the_name_that_asked",
            "test_an_unknown_extension_is_not_confirmed",
        ),
    ),
    Requirement(
        "version-required-extension",
        "1.0",
        "§3.3.4, §4.6.1",
        "MUST",
        "A request without an extension that the card requires is refused. The bridge "
        "requires none.",
        (
            *_in("server/protocol/cards", "test_the_extension_is_declared_as_not_required"),
            *_in("server/protocol/options", "test_choices_count_without_the_header"),
        ),
    ),
)

CARDS = (
    Requirement(
        "card-place",
        "both",
        "§8.2, §14.3; 0.3 §5.3",
        "MUST",
        "The card is at its well-known address, and at the address from before 0.3.",
        _in("server/protocol/server", "test_the_card_is_served_in_the_shape_that_is_set"),
    ),
    Requirement(
        "card-members",
        "1.0",
        "§4.4.1, §4.4.5",
        "MUST",
        "The card, its skills and its interfaces have all required members.",
        (
            *_in(
                "server/protocol/cards",
                "test_each_shape_has_exactly_the_members_of_its_version",
            ),
            *_in("unit/a2a/codec", "test_the_answers_equal_the_golden_files"),
        ),
    ),
    Requirement(
        "card-members-old",
        "0.3",
        "0.3 §5.5, §5.6.1",
        "MUST",
        "The card has all required members, the preferred transport of its address included.",
        (
            *_in(
                "server/protocol/cards",
                "test_each_shape_has_exactly_the_members_of_its_version",
            ),
            *_in("server/protocol/server", "test_the_card_is_served_in_the_shape_that_is_set"),
        ),
    ),
    Requirement(
        "card-interfaces",
        "1.0",
        "§8.3.1, §5.2",
        "MUST",
        "Each interface has its binding and version at its address; they are in the "
        "order of preference, 1.0 before 0.3.",
        (
            *_in("server/protocol/cards", "test_the_interfaces_are_where_they_are_said_to_be"),
            *_in(
                "server/protocol/rest", "test_the_address_on_the_card_is_where_the_binding_answers"
            ),
            *_in("unit/a2a/codec", "test_the_newest_version_is_offered_first"),
        ),
    ),
    Requirement(
        "card-interfaces-old",
        "0.3",
        "0.3 §5.6.2, §5.6.4",
        "MUST",
        "No address declares two transports, and the main one is among the interfaces.",
        _in("server/protocol/cards", "test_the_interfaces_are_where_they_are_said_to_be"),
    ),
    Requirement(
        "card-addresses",
        "both",
        "§8.3.1; 0.3 §5.6.1",
        "SHOULD",
        "The addresses are reachable for clients: the operator's address, or the one "
        "that the client used.",
        (
            *_in("server/protocol/server", "test_the_card_has_the_address_that_the_operator_gave"),
            *_in("server/protocol/cards", "test_without_one_they_are_those_that_the_client_used"),
        ),
    ),
    Requirement(
        "card-agents",
        "both",
        "§8.1; 0.3 §5.1",
        "MUST",
        "Every agent of a server has its own card, which leads to it.",
        _in(
            "server/protocol/agents",
            "test_each_agent_has_a_card_of_its_own",
            "test_each_agent_answers_where_its_card_says_over_every_binding",
        ),
    ),
    Requirement(
        "card-capabilities",
        "both",
        "§3.3.4; 0.3 §5.5.2",
        "MUST",
        "Every declared capability works: streaming, push notifications and, with a "
        "token, the extended card.",
        (
            *_in(
                "server/protocol/cards",
                "test_each_shape_has_exactly_the_members_of_its_version",
                "test_a_token_is_declared_in_both_versions_words",
            ),
            *_in(
                "server/protocol/streams", "test_the_task_comes_first_and_the_terminal_status_last"
            ),
            *_in("server/protocol/push_over_http", "test_a_config_is_made_got_listed_and_deleted"),
        ),
    ),
    Requirement(
        "card-state-history",
        "0.3",
        "0.3 §5.5.2",
        "MAY",
        "`stateTransitionHistory` is false: no member of a task has its earlier states, and 1.0 "
        "removed the capability. A stream from the beginning repeats each change of the state.",
        _in("server/protocol/cards", "test_the_card_promises_no_history_of_states"),
    ),
    Requirement(
        "card-extended-none",
        "1.0",
        "§3.3.4, §3.1.11",
        "MUST",
        "An undeclared extended card is an unsupported operation.",
        (
            *_in(
                "server/protocol/cards",
                "test_there_is_no_extended_card_without_a_token",
                "test_without_a_token_the_card_has_no_security_scheme",
            ),
            *_in(
                "server/protocol/rest",
                "test_the_extended_card_is_unsupported_where_there_is_no_token",
            ),
            *_in(
                "server/protocol/equivalence",
                "test_the_extended_card_is_unsupported_without_a_token",
            ),
        ),
    ),
    Requirement(
        "card-extended-none-old",
        "0.3",
        "0.3 §8.2",
        "SHOULD",
        "A missing extended card has its own error, -32007.",
        _in("server/protocol/cards", "test_there_is_no_extended_card_without_a_token"),
    ),
    Requirement(
        "card-extended",
        "both",
        "§3.1.11, §13.3; 0.3 §7.10",
        "MUST",
        "Only authenticated clients get the extended card.",
        (
            *_in("server/protocol/rest", "test_the_extended_card_is_for_bearers_of_the_token"),
            *_in(
                "server/protocol/cards",
                "test_the_extended_card_adds_the_details_of_the_cli",
            ),
            *_in("server/protocol/server", "test_without_the_token_nothing_is_answered"),
            *_in("server/protocol/equivalence", "test_the_extended_card_is_the_same"),
        ),
    ),
    Requirement(
        "card-scheme",
        "both",
        "§4.5, §7.3; 0.3 §5.5.3",
        "MUST",
        "The card names the authentication scheme, if one is required.",
        _in(
            "server/protocol/cards",
            "test_a_token_is_declared_in_both_versions_words",
            "test_without_a_token_the_card_has_no_security_scheme",
        ),
    ),
    Requirement(
        "card-cache",
        "1.0",
        "§8.6.1",
        "SHOULD",
        "The card has a lifetime and a tag; a valid copy is not sent again.",
        _in(
            "server/protocol/cards",
            "test_a_card_has_caching_headers_and_a_media_type",
            "test_the_tag_changes_with_the_card",
            "test_a_copy_that_is_still_good_is_not_sent_again",
        ),
    ),
    Requirement(
        "card-secrets",
        "both",
        "§13.3; 0.3 §5.4",
        "SHOULD",
        "No card contains secrets or facts about the host.",
        _in("server/protocol/cards", "test_no_card_says_anything_of_the_host"),
    ),
    Requirement(
        "card-signed",
        "1.0",
        "§8.4",
        "MAY",
        "A card of 1.0 may be signed: a detached JWS over its canonical form without "
        "signatures. A key verifies its own signature, also after a typed client has "
        "written the card again; any other card fails.",
        (
            *_in("server/protocol/conformance", "test_the_card_that_is_served_can_be_verified"),
            *_in(
                "server/protocol/signature",
                "test_the_example_of_the_specification",
                "test_required_members_are_there_even_if_the_card_leaves_them_out",
                "test_optional_members_stay_if_they_were_set",
                "test_a_card_verifies_as_a_typed_client_writes_it_again",
                "test_a_card_does_not_verify_with_any_one_value_changed",
                "test_only_the_pure_card_of_1_0_is_signed",
            ),
        ),
    ),
)

SHAPES = (
    Requirement(
        "json-names",
        "both",
        "§5.5; 0.3 §6",
        "MUST",
        "Members are in camel case, and none is null.",
        (
            *_in("unit/a2a/codec", "test_no_member_is_in_snake_case_and_none_is_null"),
            *_in(
                "server/protocol/cards",
                "test_each_shape_has_exactly_the_members_of_its_version",
            ),
        ),
    ),
    Requirement(
        "json-kinds",
        "both",
        "§4.1, A.2.1; 0.3 §6",
        "MUST",
        "0.3 distinguishes objects by `kind`, 1.0 by the names of members.",
        _in(
            "unit/a2a/codec",
            "test_the_new_version_has_no_discriminators_and_the_old_one_has",
            "test_the_answers_equal_the_golden_files",
        ),
    ),
    Requirement(
        "json-enums",
        "1.0",
        "§5.6, §4.1.3, §4.1.5",
        "MUST",
        "States and roles are written by their names in the proto; their numbers are "
        "accepted, too.",
        _in(
            "unit/a2a/codec",
            "test_every_state_has_its_name_in_both_versions",
            "test_a_role_of_the_new_version_may_be_a_name_or_a_number",
            "test_a_state_may_be_named_by_its_number",
        ),
    ),
    Requirement(
        "json-enums-old",
        "0.3",
        "0.3 §6.3, §6.4",
        "MUST",
        "States and roles are written in lower case with hyphens.",
        _in(
            "unit/a2a/codec",
            "test_every_state_has_its_name_in_both_versions",
            "test_the_answers_equal_the_golden_files",
        ),
    ),
    Requirement(
        "json-times",
        "both",
        "§5.6.1; 0.3 §6.2",
        "MUST",
        "Times are in UTC, end in Z, and have milliseconds; any fraction is accepted.",
        (
            *_in("server/protocol/conformance", "test_times_are_of_utc_with_milliseconds"),
            *_in("unit/a2a/codec", "test_timestamps_are_utc_with_milliseconds"),
            *_in("server/protocol/list", "test_a_time_may_have_any_fraction"),
        ),
    ),
    Requirement(
        "json-parts",
        "1.0",
        "§4.1.6",
        "MUST",
        "A part has exactly one of text, raw, url and data; data is any JSON.",
        _in(
            "unit/a2a/codec",
            "test_parts_of_the_new_version",
            "test_parts_of_the_new_version_that_are_refused",
        ),
    ),
    Requirement(
        "json-parts-old",
        "0.3",
        "0.3 §6.5, §6.6",
        "MUST",
        "A part has a kind and its content; a file has either bytes or a URI, data is an object.",
        _in(
            "unit/a2a/codec",
            "test_parts_of_the_old_version",
            "test_parts_of_the_old_version_that_are_refused",
        ),
    ),
    Requirement(
        "json-required",
        "both",
        "§5.7; 0.3 §6.4",
        "MUST",
        "Messages and artifacts have an id and at least one part, in both directions; "
        "an object without a required member is invalid.",
        (
            *_in(
                "unit/a2a/codec",
                "test_every_message_and_artifact_has_a_part",
                "test_an_empty_artifact_has_a_part_all_the_same",
                "test_a_message_without_a_required_member_is_refused",
            ),
            *_in(
                "server/protocol/server",
                "test_a_message_that_is_wrong_is_refused_with_the_field_that_is",
            ),
            *_in("server/protocol/equivalence", "test_a_wrong_send_is_refused_for_the_same_reason"),
            *_in(
                "server/protocol/bad_params",
                "test_the_error_names_the_field_with_an_invalid_value",
            ),
        ),
    ),
    Requirement(
        "json-unknown",
        "both",
        "§5.7; 0.3 §6",
        "SHOULD",
        "Unknown members are ignored.",
        (
            *_in("unit/a2a/codec", "test_unknown_members_are_ignored"),
            *_in("server/protocol/equivalence", "test_unknown_members_are_ignored"),
        ),
    ),
    Requirement(
        "json-lenient",
        "both",
        "§5.5, §5.6; 0.3 §6",
        "MAY",
        "1.0 accepts the variants of ProtoJSON (snake case, null for a default, both "
        "alphabets of base64), and 0.3 accepts the variants of clients from older "
        "pages.",
        (
            *_in(
                "unit/a2a/codec",
                "test_snake_case_is_understood",
                "test_null_is_a_default_in_the_new_version",
                "test_base64_may_be_of_either_alphabet_and_unpadded",
                "test_a_message_of_before_the_old_version_is_understood",
            ),
            *_in("server/protocol/server", "test_sloppy_requests_of_the_wild_are_understood"),
        ),
    ),
)

JSON_RPC = (
    Requirement(
        "rpc-envelope",
        "both",
        "§9.1, §9.3; 0.3 §6.11",
        "MUST",
        "Requests and answers are JSON-RPC 2.0: an answer has the id of its request, or"
        " null if the request has no valid one, and either a result or an error.",
        (
            *_in(
                "server/protocol/server",
                "test_the_id_of_the_request_is_returned_unchanged",
                "test_a_value_that_is_not_a_request_is_refused",
            ),
            *_in(
                "server/protocol/json_rpc",
                "test_an_invalid_request_is_answered_with_its_id",
                "test_an_invalid_request_without_an_id_is_answered_with_null",
                "test_every_answer_has_the_id_of_its_request",
            ),
        ),
    ),
    Requirement(
        "rpc-notifications",
        "both",
        "§9.1; 0.3 §6.11",
        "MUST",
        "A request without an id is a notification: it is executed and has no answer, which is "
        "status 204 without a body.",
        _in(
            "server/protocol/json_rpc",
            "test_a_notification_is_executed_and_has_no_answer",
            "test_a_send_without_an_id_does_not_wait",
            "test_a_notification_that_fails_has_no_answer_either",
        ),
    ),
    Requirement(
        "rpc-errors",
        "both",
        "§9.5; 0.3 §8.1",
        "MUST",
        "Invalid JSON, invalid requests, unknown methods and invalid params get the "
        "JSON-RPC code for their error, with status 200.",
        (
            *_in(
                "server/protocol/server",
                "test_a_value_that_is_not_a_request_is_refused",
                "test_params_that_are_wrong_are_refused",
            ),
            *_in("server/protocol/bad_input", "test_a_body_that_makes_no_sense_is_answered"),
            *_in(
                "server/protocol/json_rpc",
                "test_json_beyond_our_limits_is_an_invalid_request",
                "test_a_value_that_is_not_json_is_a_parse_error",
                "test_an_invalid_notification_is_an_invalid_request",
            ),
        ),
    ),
    Requirement(
        "rpc-media",
        "both",
        "§9.1; 0.3 §3.2.1",
        "MUST",
        "Bodies must be declared as JSON; others are refused unread.",
        _in(
            "server/protocol/server",
            "test_another_content_type_is_refused_unread",
            "test_json_by_its_other_names_is_accepted",
        ),
    ),
    Requirement(
        "rpc-no-params",
        "both",
        "§9.3; 0.3 §6.11.1",
        "MUST",
        "Params may be absent if all of them are optional.",
        (
            *_in("server/protocol/list", "test_a_list_needs_no_params"),
            *_in(
                "server/protocol/cards",
                "test_the_extended_card_adds_the_details_of_the_cli",
            ),
        ),
    ),
    Requirement(
        "rpc-results",
        "1.0",
        "§9.4",
        "MUST",
        "Results of sends are wrapped by the name of their type; tasks of a get or a "
        "cancel are not.",
        _in("unit/a2a/codec", "test_the_answers_equal_the_golden_files"),
    ),
)

HTTP = (
    Requirement(
        "http-routes",
        "1.0",
        "§5.3, §11.3",
        "MUST",
        "Every operation has its verb and path; a subscription has two verbs.",
        _in(
            "server/protocol/rest",
            "test_a_message_is_sent_and_its_task_got_and_found_in_the_list",
            "test_a_stream_is_of_bare_items_with_the_task_first",
            "test_a_task_is_subscribed_to_with_either_verb",
            "test_a_task_is_canceled_with_or_without_a_body",
            "test_push_configs_are_made_got_listed_and_deleted",
            "test_the_extended_card_is_for_bearers_of_the_token",
        ),
    ),
    Requirement(
        "http-tenant",
        "1.0",
        "§8.3.2, §11.3",
        "MAY",
        "Paths may begin with a tenant. As no interface declares one, any tenant is ignored.",
        (
            *_in(
                "server/protocol/rest",
                "test_a_message_is_sent_and_its_task_got_and_found_in_the_list",
            ),
            *_in("server/protocol/equivalence", "test_unknown_members_are_ignored"),
        ),
    ),
    Requirement(
        "http-query",
        "1.0",
        "§11.5",
        "MUST",
        "Parameters outside of bodies are in the query, in camel case; snake case is "
        "accepted, too.",
        _in(
            "server/protocol/rest",
            "test_query_names_are_camel_case_or_snake_case",
            "test_a_query_that_makes_no_sense_names_its_parameter",
        ),
    ),
    Requirement(
        "http-media",
        "1.0",
        "§11.1, §11.4, §14.1",
        "MUST",
        "Bodies are A2A's own media type or plain JSON: the answer, also an error, has "
        "the type that the client accepts or else sends.",
        _in(
            "server/protocol/rest",
            "test_the_answer_has_the_media_type_that_the_client_knows",
            "test_a_result_is_of_a2as_own_type_and_an_error_plain_json_unless_the_client_says",
            "test_a_refusal_before_any_binding_has_the_media_type_too",
            "test_a_body_that_is_not_declared_as_json_is_refused_unread",
        ),
    ),
    Requirement(
        "http-errors",
        "1.0",
        "§5.4, §11.6",
        "MUST",
        "Errors have the HTTP status and the name of the specification, as a "
        "google.rpc.Status with an ErrorInfo.",
        _in(
            "server/protocol/rest",
            "test_the_table_of_errors_is_the_one_of_the_specification",
            "test_operations_on_an_unknown_task_are_not_found",
            "test_a_body_that_is_not_json_is_a_parse_error",
            "test_a_message_that_lacks_members_is_refused_by_their_names",
        ),
    ),
    Requirement(
        "http-same",
        "1.0",
        "§5.1",
        "MUST",
        "Both bindings have the same effects, answers and errors.",
        _in(
            "server/protocol/equivalence",
            "test_a_send_has_the_same_task",
            "test_a_direct_reply_is_the_same_message",
            "test_a_stream_has_the_same_items",
            "test_a_send_that_does_not_wait_has_the_same_task",
            "test_a_wrong_send_is_refused_for_the_same_reason",
            "test_a_wrong_list_is_refused_for_the_same_reason",
            "test_a_wrong_push_config_is_refused_for_the_same_reason",
        ),
    ),
    Requirement(
        "http-old",
        "0.3",
        "0.3 §3.1, §3.2.3",
        "MAY",
        "0.3 has its own HTTP binding. The server answers it in the JSON of the specification, and "
        "no card offers it: the official SDKs of 0.3 send the JSON of protobuf messages instead.",
        _in(
            "server/protocol/rest",
            "test_without_a_version_the_binding_speaks_0_3",
            "test_push_configs_of_0_3_have_the_paths_of_1_0",
        ),
    ),
)

GRPC = (
    Requirement(
        "grpc-service",
        "1.0",
        "§10.1",
        "MAY",
        "A server with BRIDGE_GRPC_PORT has the gRPC binding, and its card declares it.",
        (
            *_in("real/grpc_sdk", "test_all_scenarios"),
            *_in("unit/transports/messages", "test_each_operation_has_a_method"),
            *_in("unit/server/grpc_port", "test_a_card_has_an_address_that_its_reader_can_reach"),
        ),
    ),
    Requirement(
        "grpc-same",
        "1.0",
        "§5.1",
        "MUST",
        "The binding has the effects, answers and errors of the other ones.",
        _in(
            "server/protocol/equivalence",
            "test_a_send_has_the_same_task",
            "test_a_stream_has_the_same_items",
            "test_a_subscription_has_the_same_items",
            "test_push_configs_are_the_same",
            "test_an_unknown_task_is_not_found",
        ),
    ),
    Requirement(
        "grpc-parameters",
        "1.0",
        "§10.2, §3.6",
        "MUST",
        "Service parameters are metadata. A call without a version is one of 0.3 and is refused.",
        _in(
            "server/protocol/grpc",
            "test_the_version_is_checked",
            "test_an_activated_extension_is_confirmed",
            "test_calls_need_a_token",
        ),
    ),
    Requirement(
        "grpc-tenant",
        "1.0",
        "§4.4.6, §8.3.2",
        "MUST",
        "The tenant of an interface on the card leads to its agent.",
        _in("server/protocol/grpc", "test_a_tenant_names_the_agent"),
    ),
    Requirement(
        "grpc-errors",
        "1.0",
        "§5.4, §10.6",
        "MUST",
        "Errors have the code of the specification, and details with an ErrorInfo.",
        (
            *_in(
                "unit/transports/status",
                "test_each_error_has_its_code_and_reason",
                "test_an_unexpected_exception_reveals_nothing",
            ),
            *_in("server/protocol/grpc", "test_corrupted_messages_reveal_nothing"),
        ),
    ),
    Requirement(
        "grpc-streams",
        "1.0",
        "§10.5, §3.5.2",
        "MUST",
        "A stream has its items in order, and the end of a call does not end its task.",
        (
            *_in("server/protocol/grpc", "test_a_stream_resumes_over_another_binding"),
            *_in(
                "system/grpc",
                "test_a_stream_survives_a_crash_and_resumes_over_both_bindings",
            ),
        ),
    ),
    Requirement(
        "grpc-tls",
        "1.0",
        "§10.1",
        "MUST",
        "A port that other machines can reach has TLS.",
        (
            *_in(
                "server/protocol/grpc",
                "test_a_certificate_is_read_again_after_a_change",
                "test_a_port_that_is_not_safe_is_refused",
            ),
        ),
    ),
)

ERRORS = (
    Requirement(
        "error-codes",
        "both",
        "§5.4; 0.3 §8.2",
        "MUST",
        "Every error of the server has the code of the specification.",
        (
            *_in(
                "unit/a2a/codec",
                "test_every_error_has_the_code_of_the_specification",
                "test_every_error_of_a_client_has_a_code",
            ),
            *_in(
                "server/protocol/rest", "test_the_table_of_errors_is_the_one_of_the_specification"
            ),
        ),
    ),
    Requirement(
        "error-info",
        "1.0",
        "§9.5, §11.6",
        "MUST",
        "An error carries an ErrorInfo: its reason, the domain of A2A, and facts that are strings.",
        _in(
            "unit/a2a/codec",
            "test_every_error_has_the_code_of_the_specification",
            "test_facts_about_an_error_are_strings_in_its_info",
        ),
    ),
    Requirement(
        "error-fields",
        "1.0",
        "§9.5, §6.5",
        "SHOULD",
        "The error names all invalid fields.",
        (
            *_in("unit/a2a/codec", "test_all_wrong_fields_are_violations_in_the_answer"),
            *_in(
                "server/protocol/server",
                "test_a_message_that_is_wrong_is_refused_with_the_field_that_is",
            ),
        ),
    ),
    Requirement(
        "error-silent",
        "both",
        "§3.3.2, §13.4; 0.3 §8.1",
        "SHOULD",
        "No error shows internals of the server.",
        (
            *_in("unit/a2a/codec", "test_an_unexpected_error_says_nothing_about_itself"),
            *_in("server/protocol/bad_input", "test_a_body_that_makes_no_sense_is_answered"),
            *_in("server/protocol/rest", "test_nonsense_is_never_the_servers_fault"),
        ),
    ),
    Requirement(
        "error-agent",
        "both",
        "§3.3.2, §4.1.3; 0.3 §6.3",
        "SHOULD",
        "An agent that breaks off or writes invalid output fails its own task only.",
        _in(
            "server/protocol/bad_input",
            "test_a_cli_that_misbehaves_fails_only_its_task",
            "test_a_line_that_an_agent_got_wrong_does_not_end_its_turn",
        ),
    ),
)

SAFETY = (
    Requirement(
        "safe-authentication",
        "both",
        "§7.4; 0.3 §4.4",
        "MUST",
        "If the card names a scheme, every request is authenticated, over every "
        "binding; other requests get 401 with the scheme. The card itself is public.",
        (
            *_in(
                "server/protocol/server",
                "test_without_the_token_nothing_is_answered",
                "test_with_the_token_all_is_as_without",
                "test_card_and_health_need_no_token_and_the_card_says_that_the_rest_does",
            ),
            *_in(
                "server/protocol/rest",
                "test_without_the_token_nothing_is_answered_but_card_and_health",
            ),
        ),
    ),
    Requirement(
        "safe-scope",
        "1.0",
        "§7.5, §13.1",
        "MUST",
        "Only bearers of the token, all of them one caller, can reach tasks, and only "
        "through the agent of the task.",
        (
            *_in("server/protocol/server", "test_without_the_token_nothing_is_answered"),
            *_in("server/protocol/agents", "test_the_tasks_of_one_agent_are_unknown_to_the_other"),
        ),
    ),
    Requirement(
        "safe-existence",
        "1.0",
        "§3.3.2, §13.1",
        "MUST",
        "A caller cannot find out whether a task of another owner exists.",
        (
            *_in(
                "server/protocol/conformance",
                "test_without_the_token_a_task_that_exists_is_like_one_that_does_not",
            ),
            *_in("server/protocol/agents", "test_the_tasks_of_one_agent_are_unknown_to_the_other"),
        ),
    ),
    Requirement(
        "safe-tls",
        "both",
        "§7.1; 0.3 §4.1",
        "MUST",
        "Network traffic is encrypted. The server speaks plain HTTP, to its own machine"
        " only unless there is a token; a proxy in front has the certificate, and the "
        "card has its address.",
        (
            *_in("system/command_line", "test_without_a_token_only_this_machine_may_be_served"),
            *_in("server/protocol/server", "test_the_card_has_the_address_that_the_operator_gave"),
        ),
    ),
    Requirement(
        "safe-limits",
        "1.0",
        "§13.4",
        "SHOULD",
        "Input is checked before any work begins; bodies, nesting, queues and memory are bounded.",
        (
            *_in("server/protocol/server", "test_a_body_over_the_limit_is_413"),
            *_in("server/protocol/rest", "test_a_body_that_is_too_large_is_refused"),
            *_in(
                "server/protocol/bad_input",
                "test_a_compressed_body_is_refused_and_never_unpacked",
                "test_nesting_is_refused_or_served_but_never_half",
            ),
            *_in(
                "component/session/contexts",
                "test_the_newest_finished_tasks_are_remembered_and_no_others",
            ),
        ),
    ),
    Requirement(
        "safe-rates",
        "1.0",
        "§13.4",
        "SHOULD",
        "Requests above a rate are refused.",
        deferred="The proxy that has the certificate knows the clients. Behind it, the number of"
        " working agents is limited, and further tasks wait.",
    ),
)

REQUIREMENTS: tuple[Requirement, ...] = (
    *SENDING,
    *IDENTITY,
    *WAITING,
    *GETTING,
    *LISTING,
    *STREAMS,
    *PUSH,
    *VERSIONS,
    *CARDS,
    *SHAPES,
    *JSON_RPC,
    *HTTP,
    *GRPC,
    *ERRORS,
    *SAFETY,
)

INTRO = """\
# Conformance

This page lists the requirements of A2A for a server, in the words of this project, and the tests
that fail if one is violated: {counts}.
Sections refer to the specification of 1.0.1 unless they say 0.3. A row has the strongest level that
it touches.

The tests drive the real server over real sockets with a scripted agent. The tests of `codec`,
`task`, `question`, `list` and `signature` also call pure modules directly. In addition,
`tests/real/test_official_sdks.py` plays complete conversations between the official SDKs and Claude
Code.

`python -m tests.support.requirements` writes this page from `tests/support/requirements.py`.
`tests/system/test_requirements.py` checks that each test exists, and that every MUST has one.
"""

DIFFERENCES = """\
## Intended differences

* A JSON-RPC request without an id is a notification and has no answer (status 204), even if its
  execution fails. The official servers answer it with the id null. A notification that cannot be
  executed (an unknown method, invalid params, an unsupported version) counts as an invalid request:
  its answer is an error with the id null, which the official suite for 0.3 requires.
* Correct JSON beyond a limit of the server (64 levels, 250,000 members, integers of 64 bits, an id
  of 256 characters, no duplicate member in an object) is an invalid request (-32600). The id of the
  answer is null if the limit prevents the decoding of the body.
* An error over HTTP+JSON is plain JSON for a client that neither accepts nor sends A2A's own type.
* Answers omit the credentials and tokens of a push notification config.
* `HMAC-SHA256`, as the scheme of a push notification config, is not an HTTP scheme: its credentials
  sign notifications and are not sent ([protocol.md](../protocol.md#signatures-of-notifications)).
* The default card fits both versions: it has the shape of 1.0, with the members that clients of 0.3
  need. `BRIDGE_CARD=1.0` and `0.3` restrict it to one version.
* A body that is not declared as JSON gets 415 over HTTP+JSON, as in HTTP, with the error
  ContentTypeNotSupported. A part that the agent cannot read gets 400. Data parts are an exception:
  the bridge omits them as long as a part of the message remains.
* A message that names only a context answers the task there, if that waits for an answer; Google
  ADK sends no task id.
* A message of 0.3 that names an ended task and its context begins the next task of that context,
  because Gemini CLI keeps the id of an interrupted task. In 1.0 it is refused.
* An agent that breaks off fails its task; InvalidAgentResponse is not used.

gRPC differs from the other bindings where protobuf forces it ([bindings.md](../bindings.md#grpc)):

* Members with default values are absent, so that an empty text or number is a missing one, and an
  error names it as missing.
* A request that protobuf cannot represent (an unknown name of an enum, a wrong type, a part with
  two contents) does not reach the server.
* Numbers inside metadata and data parts are doubles, and messages nest less deeply than JSON.
* `tenant` selects the agent. The other bindings select it by path and ignore a tenant.
* Texts and details of errors are shortened to the metadata that clients accept.

Redis Streams differ where a request may wait for a server, and may be delivered twice
([bindings.md](../bindings.md#redis-streams)):

* A message needs a `messageId` of at least 16 characters, and one with the id and the content of an
  earlier message always joins the task of that one, also after its end.
* A message that exceeds a quota waits. The other bindings refuse it.
* A client has no connection: nothing ends or counts as a disconnect when it does not read. Streams
  have no heartbeats.
* The answer to a request without an id is an end without content; the other bindings send nothing.
* Requests reach the agent at the root. Only `metadata.bridge.agent` selects another one.
"""


SUITES = (CHECKOUT / "tests/suites.md").read_text("utf-8")
"""The findings in the official suites."""


def document() -> str:
    """The whole of docs/evidence/conformance.md."""
    blocks = [INTRO.format(counts=_counts()), _deferred(), DIFFERENCES, SUITES]
    for area, title in AREAS.items():
        rows = [one for one in REQUIREMENTS if one.id.split("-")[0] == area]
        blocks.append("\n".join([f"## {title}\n", *_table(rows)]) + "\n")
    return "\n".join(blocks)


def _counts() -> str:
    levels = Counter(one.level for one in REQUIREMENTS)
    return f"{len(REQUIREMENTS)} rows, " + ", ".join(f"{levels[one]} {one}" for one in LEVELS)


def _deferred() -> str:
    rows = [
        textwrap.fill(f"* `{one.id}` ({one.level}): {one.deferred}", 100, subsequent_indent="  ")
        for one in REQUIREMENTS
        if one.deferred
    ]
    return "\n".join(["## Deferred requirements\n", *rows]) + "\n"


def _table(rows: list[Requirement]) -> Iterator[str]:
    yield "| requirement | section | level | text | tests |"
    yield "|---|---|---|---|---|"
    for one in rows:
        proof = "<br>".join(map(_link, one.tests)) or "deferred"
        yield f"| `{one.id}` | {one.section} | {one.level} | {one.text} | {proof} |"


def _link(test: str) -> str:
    path, _, name = test.partition("::")
    module = Path(path).stem.removeprefix("test_")
    return f"[{module}](../../{path}): `{name}`"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), "utf-8")
