"""The promises, what checks each of them, and the page about both: `python -m tests.chaos.guarantees` writes it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.checker import RULES, WHOLE_RUN_RULES
from tests.chaos.controls import CONTROLS
from tests.fleet import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
LONG_RUN = ROOT / "docs" / "chaos-run.json"
CHAOS = "tests/chaos/test_chaos.py::test_every_promise_holds_whatever_dies"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One promise. `rules` are the checker's, `controls` the protections without which they report violations."""

    title: str
    text: str
    tests: Sequence[str]
    rules: Sequence[str] = ()
    controls: Sequence[str] = ()


GUARANTEES = (
    Guarantee(
        "One call, one end",
        "Every accepted call has exactly one execution and reaches exactly one terminal status, whatever dies; "
        "without any worker it expires. A submit that fails does so within its deadline; either nothing was stored, or its error "
        "says that this is unknown.",
        (
            CHAOS,
            "tests/contract/test_state_machine.py::test_whatever_happens_in_whatever_order_an_execution_lives_as_the_model_says",
            "tests/contract/test_queue.py::test_submitting_again_changes_nothing_even_after_it_ended",
            "tests/contract/test_queue.py::test_a_fenced_off_finish_changes_nothing_and_is_kept_as_late",
            "tests/contract/test_postgres_faults.py::test_a_submit_whose_outcome_stays_unknown_says_so_with_its_id",
            "tests/contract/test_black_hole.py::test_submitting_into_a_black_hole_fails_by_the_deadline",
            "tests/contract/test_postgres_faults.py::"
            "test_a_connection_that_fell_silent_in_its_pool_is_an_outage_and_its_store_goes_on",
            "tests/contract/test_postgres_faults.py::test_a_finish_whose_commit_reply_is_lost_took_effect",
            "tests/integration/test_calls_on_workers.py::test_a_queue_that_nobody_serves_is_warned_about_and_the_call_expires",
            "tests/integration/test_recovery.py::test_rows_that_nobody_rang_for_are_found_by_an_idle_worker",
            "tests/integration/test_worker_engine.py::test_a_broker_that_dies_and_returns_delays_calls_and_loses_none",
            "tests/integration/test_rolling_restart.py::"
            "test_a_rolling_restart_under_load_loses_no_call_and_fails_no_idempotent_one",
            "tests/integration/test_outages.py::"
            "test_callers_are_answered_every_accepted_call_runs_once_and_nobody_is_condemned",
            "tests/integration/test_cancel.py::test_cancels_that_race_with_ends_leave_one_truth",
            "tests/integration/test_replaced_workers.py::"
            "test_a_worker_whose_descriptors_a_tool_closed_ends_so_that_its_supervisor_starts_another",
        ),
        (
            "accepted_is_stored_once_and_refused_never",
            "a_submit_is_answered_in_time",
            "every_call_ends",
            "it_ends_once",
            "the_end_never_changes",
            "handles_tell_what_is_stored",
            "success_has_its_effect",
            "it_ends_as_such_a_call_may",
            "whoever_lives_beats",
        ),
        ("fencing", "recovery", "ending_with_the_engine"),
    ),
    Guarantee(
        "Never twice",
        "The body of a tool that is not idempotent starts at most once per execution; that of an idempotent one at most "
        "`max_attempts` times, and again after a crash while attempts are left. A call is `lost` only if a process that ran "
        "it died or was stopped, and never because of a polite stop (SIGTERM) that gives its body the time it needs. A body that "
        "returned in time is never `timed_out`.",
        (
            CHAOS,
            "tests/contract/test_concurrency.py::test_four_processes_lose_no_update_and_run_nothing_twice",
            "tests/contract/test_postgres_faults.py::test_a_claim_whose_commit_reply_is_lost_is_found_again",
            "tests/integration/test_messages.py::test_a_repeated_message_starts_no_second_body",
            "tests/integration/test_recovery.py::test_what_a_killed_worker_ran_is_run_again_if_harmless_and_lost_if_not",
            "tests/integration/test_rolling_restart.py::test_a_worker_hands_over_to_its_successor_and_cuts_no_call",
            "tests/integration/test_calls_on_workers.py::"
            "test_an_idempotent_tool_that_kills_its_process_runs_max_attempts_times_and_no_more",
            "tests/integration/test_retries.py::test_a_call_that_ends_its_worker_is_retried_alone_and_ends_as_lost",
            "tests/integration/test_outages.py::test_everything_may_sleep_for_longer_than_a_lease",
            "tests/integration/test_clocks.py::test_a_step_forward_condemns_nobody_and_what_waits_does_not_expire",
            "tests/integration/test_clocks.py::"
            "test_a_step_back_condemns_the_dead_alone_and_what_waits_does_not_wait_an_hour",
        ),
        (
            "a_body_starts_only_as_often_as_allowed",
            "lost_only_where_something_died",
            "a_polite_stop_cuts_nothing_that_ends_in_time",
            "who_returned_in_time_is_not_timed_out",
            "a_duration_is_that_of_the_body",
        ),
        ("compare_and_set", "lone_claim", "heartbeat_rule", "own_beats", "steady_clock", "drain"),
    ),
    Guarantee(
        "Stopped means stopped",
        "A timeout or cancel stops the work, leaves no process behind, and harms no neighbour. No call begins in a process where another one "
        "left no descriptors.",
        (
            CHAOS,
            "tests/integration/test_calls_on_workers.py::test_a_tool_that_blocks_its_process_is_ended_and_its_neighbours_live",
            "tests/integration/test_time_limits.py::test_whatever_a_body_does_its_time_ends_it_and_all_that_it_started",
            "tests/integration/test_time_limits.py::test_a_cancel_ends_a_body_and_all_that_it_started",
            "tests/integration/test_time_limits.py::"
            "test_recovery_ends_what_a_dead_or_frozen_worker_left_before_it_runs_again",
            "tests/integration/test_blocked_loop.py::"
            "test_a_blocker_is_named_and_moved_to_processes_and_its_neighbours_finish",
            "tests/integration/test_blocked_loop.py::"
            "test_what_swallows_cancellation_is_ended_in_time_and_does_not_run_on",
            "tests/integration/test_memory.py::test_a_tool_that_eats_memory_is_ended_and_its_result_names_the_limit",
            "tests/integration/test_async_processes.py::test_a_cancel_or_timeout_leaves_nothing_and_a_neighbour_goes_on",
            "tests/integration/test_cancel.py::test_a_running_call_is_stopped_from_another_process_in_either_lane",
            "tests/unit/sandbox/processes/test_commands.py::test_after_its_time_nothing_of_the_tree_is_left",
            "tests/integration/test_fitness.py::"
            "test_a_worker_out_of_descriptors_fails_no_call_says_why_and_ends_for_another",
            "tests/integration/test_fitness.py::test_a_child_that_a_body_changed_runs_nothing_more",
        ),
        (
            "nothing_is_left_running",
            "workers_live_until_something_ends_them",
            "no_body_begins_where_descriptors_are_short",
        ),
        ("sweep", "reception", "fitness"),
    ),
    Guarantee(
        "SQL decides what runs",
        "Nothing runs that SQL does not hold as queued; nothing sensitive reaches broker, log, trace or history. A worker hands "
        "calls only to its own children, and each child speaks only for its own call.",
        (
            CHAOS,
            "tests/integration/test_messages.py::test_forged_messages_harm_nobody",
            "tests/contract/test_broker_bytes.py::test_no_bytes_end_a_busy_worker_or_what_it_runs",
            "tests/integration/test_impostors.py::test_an_impostor_finds_nothing_to_join_and_the_worker_serves_on",
            "tests/integration/test_impostors.py::test_a_body_that_speaks_for_another_call_ends_itself_alone",
            "tests/integration/test_messages.py::test_nothing_but_ids_reaches_the_broker",
            "tests/integration/test_canaries.py::test_no_secret_is_in_any_byte_that_was_written",
            "tests/integration/test_encrypted_calls.py::test_a_secret_does_not_open_in_a_row_that_somebody_altered",
            "tests/integration/test_calls_on_workers.py::test_sensitive_parameters_are_redacted_wherever_people_look",
            "tests/integration/test_calls_on_workers.py::test_tools_in_a_process_do_not_see_the_database_url",
            "tests/unit/tool/test_executor.py::test_secrets_stay_out_of_logs_records_and_errors",
        ),
        ("nothing_runs_unasked", "nobody_gets_what_is_anothers", "garbage_is_dropped_and_counted"),
        ("reception", "pairs"),
    ),
    Guarantee(
        "Failures are results",
        "A bad call never raises out of the executor: it returns a failed result that names the thing, the limit and the way "
        "out. One bad row never fails its batch, and a row that forge-tools did not write ends no worker.",
        (
            "tests/integration/test_calls_on_workers.py::test_bad_parameters_are_rejected_with_a_sentence_and_recorded",
            "tests/integration/test_calls_on_workers.py::test_whatever_a_tool_returns_comes_back_as_it_was",
            "tests/unit/tool/test_executor.py::test_any_unknown_name_is_a_failed_result",
            "tests/unit/tool/test_executor.py::test_a_tool_that_replaces_execute_cannot_raise_either",
            "tests/contract/test_queue.py::test_a_row_that_the_database_refuses_fails_alone",
            "tests/contract/test_queue.py::test_a_result_that_the_database_refuses_becomes_a_failed_result_alone",
            "tests/contract/test_foreign_rows.py::test_sqlite_refuses_it",
            "tests/contract/test_foreign_rows.py::test_postgres_refuses_it",
            "tests/contract/test_foreign_rows.py::test_a_text_that_is_no_utf8_is_shown_and_counted_and_stops_nobody",
            "tests/unit/workers/test_foreign_calls.py::test_a_worker_ends_calls_that_cannot_be_read_and_runs_the_others",
        ),
    ),
    Guarantee(
        "The sandbox holds",
        "No path, URL or process escapes the sandbox that its tool was given.",
        (
            "tests/unit/sandbox/paths/test_workspace.py::test_no_path_leads_out_of_the_workspace",
            "tests/unit/sandbox/paths/test_workspace.py::test_a_link_that_is_swapped_under_way_never_leads_out",
            "tests/integration/test_tools_on_a_machine.py::test_links_that_flip_under_the_tools_never_lead_out",
            "tests/integration/test_tools_on_a_machine.py::test_a_worker_that_dies_in_the_middle_of_commands_leaves_nothing",
            "tests/architecture/test_tools_stay_in_the_sandbox.py::test_a_tool_touches_nothing_but_through_the_sandbox",
        ),
    ),
)

HEAD = """\
# Guarantees

For people who want to rely on it: what forge_tools promises, and what checks each promise. This page is generated (`python -m tests.chaos.guarantees`); a test fails
if it is out of date or names a test that does not exist.

The *fault suite* submits mixed calls (that succeed, fail, hang, block, exit, kill their process, start children, eat or close the
descriptors of their process, pose as processes of a worker; idempotent and not; in both lanes) while a seeded schedule kills tool
processes, workers, broker and database, freezes workers past their lease and thaws them, takes the database away or swallows everything
that is sent to it for longer than the lease, sets its clock, cuts connections, loses, repeats, reorders and forges messages, writes
garbage in between, and stops workers politely, with or without a successor beside them. Then it compares, call by call, what was submitted,
what SQL holds, what the handles returned, and what
the tools wrote to a log outside SQL. Each rule below is one such comparison (`tests/chaos/checker.py`). Words such as lease and lane: [architecture.md](architecture.md#glossary).

A *negative control* removes one protection from the workers and repeats the faults that it guards against: the rules must then
report violations, and must report none with the protection in place.

The promises assume that commits which the database acknowledged survive: `synchronous_commit=on`, results read from the primary,
SQLite on a disk that syncs.
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *(line for n, one in enumerate(GUARANTEES, 1) for line in _section(n, one)), *_long_run()])


def rules() -> set[str]:
    """Every rule of the checker."""
    return {rule.__name__ for rule in RULES} | set(WHOLE_RUN_RULES)


def _section(number: int, one: Guarantee) -> Iterator[str]:
    yield f"## {number}. {one.title}\n\n{one.text}\n"
    if one.rules:
        yield f"Rules of the fault suite: {', '.join(map(_words, one.rules))}.\n"
    for control in (control for control in CONTROLS if control.protection in one.controls):
        broken = ", ".join(sorted(map(_words, control.broken)))
        yield f"Negative control: without *{_words(control.protection)}*, violations of: {broken}.\n"
    yield from (f"- `{test}`" for test in one.tests)
    yield ""


def _words(name: str) -> str:
    return name.replace("_", " ")


def _long_run() -> Iterator[str]:
    yield "## The last long run\n"
    if not LONG_RUN.exists():
        yield "There is none yet. `make chaos MINUTES=30 RECORD=1` records one.\n"
        return
    run: dict[str, Any] = json.loads(LONG_RUN.read_text())
    rounds = ", ".join(f"{count} on {name}" for name, count in run["rounds"].items())
    yield f"{run['minutes']:g} minutes, seed {run['seed']}, rounds: {rounds}. {run['calls']} calls submitted, {run['started_again']} of"
    yield f"which started more than one body. After the last fault of a round, everything had ended within {run['slowest_to_settle_seconds']} s.\n"
    for title, name in (
        ("Faults", "faults"),
        ("Workers that ended", "worker_deaths"),
        ("Answers to submitters", "answers"),
        ("Calls by status", "statuses"),
        ("Events on record", "events"),
        ("Violations", "violations"),
    ):
        yield f"- {title}: {', '.join(f'{_words(key)} {count}' for key, count in run[name].items()) or 'none'}"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page())
