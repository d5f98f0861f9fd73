"""Calls become rows, or rejections that say what to mend; nothing a caller passes raises."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client.call import Call
from forge_tools.client.catalogue import Snapshot
from forge_tools.client.intake import Intake, Rejected
from forge_tools.config import Settings
from forge_tools.errors import ErrorCode
from forge_tools.model import Capabilities, ExecutionContext, RetryPolicy, ToolCategory, ToolParameter, ToolSpec
from forge_tools.model.calls import MAX_ATTEMPTS
from forge_tools.model.execution import NewExecution
from forge_tools.model.overview import WorkerWalls
from forge_tools.secrets.encryption import KeyFolder, Opener
from forge_tools.storage.directory import Directory, PublicKey, Walls, Withheld

GREET = ToolSpec(
    name="Greet",
    description="Greet somebody.",
    category=ToolCategory.OTHER,
    parameters=(
        ToolParameter(name="who", type="string", description="Whom.", aliases=("name",)),
        ToolParameter(name="times", type="integer", description="How often.", required=False, default=1),
        ToolParameter(name="key", type="string", description="A secret.", required=False, sensitive=True),
    ),
    version="2.3.4",
    capabilities=Capabilities(idempotent=True),
    aliases=("hello",),
    lane="async",
    timeout=7.0,
)
SNAPSHOT = Snapshot(Directory([GREET]))
CONTEXT = ExecutionContext(working_dir=".", agent_id="agent", session_id="session")
CALL = Call("Greet", {"who": "Ada"}, CONTEXT)


def prepare(call: Call, **settings: Any) -> NewExecution | Rejected:
    return Intake(Settings.load(**settings), "submitter").prepare(call, SNAPSHOT)


def accepted(call: Call, **settings: Any) -> NewExecution:
    prepared = prepare(call, **settings)
    assert isinstance(prepared, NewExecution), prepared
    return prepared


def rejected(call: Call, **settings: Any) -> Rejected:
    prepared = prepare(call, **settings)
    assert isinstance(prepared, Rejected), prepared
    return prepared


def test_an_accepted_call_carries_all_a_worker_needs() -> None:
    new = accepted(CALL)

    assert (new.tool, new.tool_key, new.tool_version, new.lane) == ("Greet", "Greet@2", "2.3.4", "async")
    assert (new.agent_id, new.session_id, new.reply_to) == ("agent", "session", "submitter")
    assert (new.max_attempts, new.idempotent, new.queue) == (3, True, "default")
    assert (new.timeout, new.timeout_source, new.soft_time_limit, new.time_limit) == (7.0, "tool", 11, 26)


def test_a_call_goes_to_the_queue_that_its_tool_or_category_is_routed_to() -> None:
    assert accepted(CALL, routes={"other": "side", "Greet": "greetings"}).queue == "greetings"
    assert accepted(CALL, routes={"other": "side"}).queue == "side"


def test_aliases_are_resolved_and_defaults_left_to_the_worker() -> None:
    new = accepted(Call("hello", {"name": "Ada"}, CONTEXT))

    assert json.loads(new.parameters) == {"who": "Ada"}


def test_a_call_without_a_context_gets_the_plain_one() -> None:
    assert json.loads(accepted(Call("Greet", {"who": "Ada"})).context)["working_dir"] == "."


def test_sensitive_values_are_encrypted_for_workers_before_anything_is_stored(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path)
    public = keys.new()
    snapshot = Snapshot(Directory([GREET], encryption_key=PublicKey("k", public)))

    one = Intake(Settings.load(), "submitter").prepare(
        Call("Greet", {"who": "Ada", "key": "hunter22"}, CONTEXT), snapshot
    )

    assert isinstance(one, NewExecution)
    assert "hunter22" not in repr(one)
    assert json.loads(one.parameters) == {"who": "Ada", "key": "[redacted]"}
    assert one.encrypted_names == ("key",)
    bound = {"execution_id": one.id, "tool": "Greet", "shown": one.parameters}
    assert Opener(keys).open(one.encrypted or "", **bound) == {"hidden": {"key": "hunter22"}}


def test_a_secret_is_refused_where_there_is_no_key_to_encrypt_it_with() -> None:
    one = rejected(Call("Greet", {"who": "Ada", "key": "hunter22"}, CONTEXT))

    assert one.result.error_code == ErrorCode.ENCRYPTION_FAILED
    assert "forge-tools keys new" in (one.result.error or "")
    assert "hunter22" not in repr(one)


def test_patterns_are_hidden_in_rejected_calls_too() -> None:
    one = rejected(Call("Greet", {"who": "ghp_" + "a1" * 18, "times": "x"}, CONTEXT), encrypt_patterns=("well-known",))

    assert json.loads(one.new.parameters) == {"who": "[redacted]", "times": "x"}


def test_a_reference_to_a_secret_is_no_secret_and_needs_no_key() -> None:
    one = accepted(Call("Greet", {"who": "Ada", "key": "secret://GREETING_KEY"}, CONTEXT))

    assert json.loads(one.parameters)["key"] == "secret://GREETING_KEY"
    assert one.encrypted is None


@pytest.mark.parametrize(
    "call",
    [
        Call("Greet", {"who": "Ada", "kye": "hunter22"}, CONTEXT),
        Call("Greet", {"who": 3, "key": "hunter22"}, CONTEXT),
        Call("Gret", {"who": "Ada", "key": "hunter22", "more": ["hunter22"]}, CONTEXT),
        Call("Greet", {"who": "Ada", "key": "hunter22"}, CONTEXT, delay=-1.0),
        Call("Greet", {"who": "Ada", "key": {"deep": "hunter22"}}, CONTEXT),
    ],
)
def test_whatever_is_wrong_with_a_call_its_secret_is_not_recorded(call: Call) -> None:
    one = rejected(call)

    assert "hunter22" not in one.new.parameters
    assert "hunter22" not in repr(one.result)


def test_a_rejected_call_shows_no_sensitive_value_either() -> None:
    one = rejected(Call("Greet", {"key": "hunter22"}, CONTEXT))

    assert "hunter22" not in one.new.parameters


@pytest.mark.parametrize(
    ("asked", "queue"), [(None, "default"), ("background", "background"), ("host.box-1", "host.box-1")]
)
def test_the_queue_is_the_callers_choice_or_the_default(asked: str | None, queue: str) -> None:
    assert accepted(replace(CALL, queue=asked)).queue == queue


def test_a_background_call_may_wait_longer() -> None:
    assert accepted(CALL).expires_in == 600.0
    assert accepted(replace(CALL, queue="background")).expires_in == 86_400.0


def test_a_delayed_call_expires_after_it_is_due_and_not_before() -> None:
    new = accepted(replace(CALL, delay=1000.0, expires_in=5.0))

    assert (new.delay, new.expires_in) == (1000.0, 1005.0)


def test_the_operators_maximum_caps_a_timeout_and_says_so() -> None:
    call = replace(CALL, context=CONTEXT.model_copy(update={"timeout": 1e9}))

    new = accepted(call, max_timeout=60.0)

    assert new.timeout == 60.0
    assert "operator maximum" in new.timeout_source


def test_attempts_are_the_callers_choice_within_reason() -> None:
    assert accepted(replace(CALL, max_attempts=5)).max_attempts == 5


def test_a_policy_travels_with_the_row_and_counts_its_attempts() -> None:
    new = accepted(replace(CALL, retry=RetryPolicy(4, 1.5, backoff=2)))

    assert new.max_attempts == 4
    assert json.loads(new.options) == {
        "retry": {"max_attempts": 4, "delay_seconds": 1.5, "backoff": 2, "max_delay_seconds": 300.0, "jitter": False}
    }


def test_without_a_policy_the_row_asks_for_no_retry() -> None:
    assert accepted(replace(CALL, max_attempts=5)).options == "{}"


def test_the_policy_of_a_tool_counts_unless_the_call_has_its_own() -> None:
    tool = GREET.model_copy(
        update={"retry": RetryPolicy(5, 9.0), "capabilities": Capabilities(retryable=True), "max_attempts": None}
    )
    mine = RetryPolicy(2, 1.0)
    rows = [
        Intake(Settings.load(), "me").prepare(call, Snapshot(Directory([tool])))
        for call in (CALL, replace(CALL, retry=mine))
    ]

    assert [(row.max_attempts, json.loads(row.options)["retry"]["delay_seconds"]) for row in rows] == [
        (5, 9.0),
        (2, 1.0),
    ]
    assert all(json.loads(row.options)["retryable"] for row in rows)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parameters": {}}, "Missing required parameter: who"),
        ({"parameters": {"who": 1}}, "Invalid type for who"),
        ({"parameters": {"who": "Ada", "x": float("inf")}}, "parameters.x"),
        ({"parameters": {"who": "Ada", 1: 2}}, "names as keys, not one with other keys"),
        ({"parameters": ["who"]}, "Invalid parameters: expected an object with names as keys, not list"),
        ({"parameters": None}, "Invalid parameters: expected an object with names as keys, not NoneType"),
        ({"parameters": "who"}, "not str"),
        ({"context": {"working_dir": "."}}, "Invalid context: expected an ExecutionContext, not dict"),
        ({"context": ExecutionContext(working_dir=".", metadata={"x": object()})}, "context.metadata.x"),
        ({"context": ExecutionContext(working_dir=".", timeout=0)}, "timeout is 0"),
        ({"context": ExecutionContext(working_dir=".", timeout=float("nan"))}, "timeout is nan"),
        ({"context": ExecutionContext(working_dir=".", timeout=float("inf"))}, "timeout is inf; it must be a number"),
        ({"when": datetime.max.replace(tzinfo=UTC)}, "when is 9999-12-31T23:59:59.999999+00:00; it must be within"),
        ({"name": 3}, "Invalid tool name: expected a string, not int"),
        ({"name": ["Greet"]}, "Invalid tool name: expected a string, not list"),
        ({"queue": "a b"}, "Queue 'a b' is not a valid name"),
        ({"queue": "..."}, "is not a valid name"),
        ({"queue": ""}, "is not a valid name"),
        ({"queue": "x" * 300}, "is not a valid name"),
        ({"queue": "line\n"}, "is not a valid name"),
        ({"queue": 5}, "is not a valid name"),
        ({"delay": -1.0}, "delay is -1.0; it must be a number of seconds 0 or more, and at most ten years"),
        ({"delay": float("inf")}, "delay is inf"),
        ({"delay": "5"}, "delay is '5'"),
        ({"delay": True}, "delay is True"),
        ({"expires_in": 0}, "expires_in is 0"),
        ({"expires_in": float("nan")}, "expires_in is nan"),
        ({"expires_in": 1e12}, "ten years"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_attempts": -1}, "from 1 to 100"),
        ({"max_attempts": MAX_ATTEMPTS + 1}, "from 1 to 100"),
        ({"max_attempts": 2.5}, "whole number"),
        ({"retry": 3}, "retry is 3; it must be a RetryPolicy"),
        ({"retry": RetryPolicy(0)}, "retry.max_attempts is 0; it must be a whole number from 1 to 100"),
        ({"retry": RetryPolicy(2), "max_attempts": 3}, "give one of them"),
        ({"retry": RetryPolicy(2, delay_seconds=-1)}, "retry.delay_seconds is -1"),
        ({"retry": RetryPolicy(2, max_delay_seconds=float("inf"))}, "retry.max_delay_seconds is inf"),
        ({"retry": RetryPolicy(2, backoff=float("nan"))}, "retry.backoff is nan"),
        ({"retry": RetryPolicy(2, jitter=object())}, "it must be True or False"),
    ],
)
def test_what_a_caller_gets_wrong_is_rejected_with_a_sentence(change: dict[str, Any], said: str) -> None:
    call = replace(CALL, **change)
    one = rejected(call)

    assert said in (one.result.error or "")
    assert one.result.error_code == (ErrorCode.INVALID_CALL if call.flaw else ErrorCode.VALIDATION_ERROR)
    json.loads(one.new.parameters)


def test_a_rejection_names_every_problem_and_what_is_required() -> None:
    result = rejected(Call("Greet", {"who": 1, "times": "x"}, CONTEXT)).result

    assert len(result.metadata["errors"]) == 2
    assert result.metadata["required"] == ["who"]


def test_an_unknown_tool_is_rejected_with_the_names_that_are_known() -> None:
    one = rejected(Call("Nope\x00\ud800" + "x" * 500, {"a": 1}, CONTEXT))

    assert one.result.error_code == ErrorCode.TOOL_NOT_FOUND
    assert one.result.metadata["available"] == "Greet"
    assert len(one.new.tool) == 200
    assert "\x00" not in one.new.tool


def test_without_a_catalogue_an_unknown_tool_asks_for_a_worker() -> None:
    prepared = Intake(Settings.load(), "me").prepare(CALL, Snapshot())

    assert isinstance(prepared, Rejected)
    assert "none (no worker has published any yet)" in prepared.result.metadata["available"]


def test_parameters_over_the_limit_are_rejected_and_not_kept() -> None:
    one = rejected(Call("Greet", {"who": "x" * 3000}, CONTEXT), max_parameter_bytes=2000)

    assert "2,000" in (one.result.error or "")
    assert len(one.new.parameters) < 500


def test_nesting_without_end_is_rejected() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]

    assert "levels" in (rejected(Call("Greet", {"who": "Ada", "x": deep}, CONTEXT)).result.error or "")


def test_a_context_is_stored_as_it_is_at_each_call() -> None:
    intake, context = Intake(Settings.load(), "me"), ExecutionContext(working_dir=".", metadata={"of": "the caller"})

    def stored() -> dict[str, Any]:
        prepared = intake.prepare(Call("Greet", {"who": "Ada"}, context), SNAPSHOT)
        assert isinstance(prepared, NewExecution)
        text = prepared.context
        assert text == json.dumps(context.model_dump(), separators=(",", ":"))
        return json.loads(text)

    assert stored()["metadata"] == {"of": "the caller"}
    context.metadata = {}
    for name, value in [("session_id", "s"), ("timeout", 5), ("timeout", 5.0)]:
        setattr(context, name, value)
        assert stored()[name] == value


def test_a_context_field_that_cannot_be_compared_harms_nobody() -> None:
    context = ExecutionContext(working_dir=".")
    context.working_dir = ["no", "text"]

    with pytest.warns(UserWarning, match="serializ"):
        assert json.loads(accepted(Call("Greet", {"who": "Ada"}, context)).context)["working_dir"] == ["no", "text"]


def test_a_new_definition_counts_from_its_snapshot_on() -> None:
    intake = Intake(Settings.load(), "me")
    newer = ToolSpec(**GREET.model_dump() | {"version": "3.0.0", "parameters": GREET.parameters[1:]})

    first, second = (intake.prepare(CALL, snapshot) for snapshot in (SNAPSHOT, Snapshot(Directory([newer]))))

    assert isinstance(first, NewExecution)
    assert isinstance(second, Rejected)
    assert second.result.error == "Unknown parameter 'who'"
    assert second.new.tool_key == "Greet@3"


def test_a_tool_that_was_moved_is_called_in_its_new_lane() -> None:
    intake = Intake(Settings.load(), "me")
    moved = GREET.model_copy(update={"lane": "process"})
    vars(moved)["digest"] = GREET.digest  # that of its definition, which is as before

    lanes = [intake.prepare(CALL, Snapshot(Directory([spec]))).lane for spec in (GREET, moved)]

    assert lanes == ["async", "process"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"name": float("nan"), "times": "often"}, "parameters.name: NaN cannot be represented in JSON"),
        ({"who": b"Ada", "nobody": 1}, "parameters.who: bytes cannot be represented in JSON"),
        ({"name": "Ada", "key": None, "times": "often"}, "Invalid type for times: expected integer"),
    ],
)
def test_a_refusal_speaks_of_what_was_given_and_first_of_what_cannot_be_carried(
    parameters: dict[str, Any], message: str
) -> None:
    assert (rejected(Call("Greet", parameters, CONTEXT)).result.error or "").startswith(message)


def test_what_was_given_counts_even_where_it_is_left_out() -> None:
    given = {"name": "x" * 200, "times": None, "key": None}
    size = len(json.dumps(given, separators=(",", ":")))

    assert accepted(Call("Greet", given, CONTEXT), max_parameter_bytes=size)
    assert f"the limit is {size - 1}" in (
        rejected(Call("Greet", given, CONTEXT), max_parameter_bytes=size - 1).result.error or ""
    )


def test_a_rejected_call_shows_no_parameter_that_quotes_a_secret() -> None:
    one = rejected(Call("Greet", {"who": "at https://h/?k=hunter22", "key": "hunter22", "times": "x"}, CONTEXT))

    assert json.loads(one.new.parameters) == {"who": "at https://h/?k=[redacted]", "key": "[redacted]", "times": "x"}


def test_a_rejected_call_of_a_tool_without_secrets_does_not_show_what_says_that_it_is_one() -> None:
    plain = GREET.model_copy(update={"parameters": GREET.parameters[:1]})
    call = Call("Greet", {"who": "Ada", "password": "hunter22"}, CONTEXT)

    one = Intake(Settings.load(), "submitter").prepare(call, Snapshot(Directory([plain])))

    assert isinstance(one, Rejected)
    assert json.loads(one.new.parameters) == {"who": "Ada", "password": "[redacted]"}


def test_a_call_says_nothing_of_its_values_where_it_is_printed() -> None:
    assert "hunter22" not in repr(Call("Greet", {"key": "hunter22"}, CONTEXT))


RAISED, LESS = WorkerWalls(tier="plain", why="landlock: ENOSYS"), WorkerWalls(why="bodies run in the worker")


def walled(name: str = "Greet", queue: str = "default", lane: str = "async", whose: str = "the tool") -> Walls:
    """Calls of one tool are to have walls that no live worker gives."""
    given = RAISED if lane == "process" else LESS
    return Walls(withheld={(name, queue, lane): Withheld("landlock", whose, "host-1", given)})


def refused(walls: Walls, *, spec: ToolSpec = GREET, call: Call = CALL) -> str:
    prepared = Intake(Settings.load(), "me").prepare(call, Snapshot(Directory([spec], walls=walls)))
    assert isinstance(prepared, Rejected), prepared
    assert prepared.result.error_code == ErrorCode.WALLS_NOT_AVAILABLE
    return prepared.result.error or ""


def test_walls_that_no_live_worker_gives_are_said_with_the_setting_that_would_allow_less() -> None:
    process = GREET.model_copy(update={"lane": "process"})

    said = refused(walled(lane="process"), spec=process)

    assert said.startswith(
        "Greet is to have walls=landlock, as the tool says, and no live worker of queue default, process"
    )
    assert "host-1 gives plain (landlock: ENOSYS)" in said
    assert """To allow less, set FORGE_WALLS_OF='{"Greet": "plain"}' there""" in said
    shell = GREET.model_copy(update={"walls": "namespace", "category": ToolCategory.EXECUTION})
    assert """set FORGE_WALLS_OF='{"Bash": "plain"}' there""" in refused(walled(), spec=shell)
    assert "change FORGE_WALLS there" in refused(walled(lane="process", whose="FORGE_WALLS"), spec=process)


def test_a_tool_that_cannot_move_says_why() -> None:
    bash = GREET.model_copy(update={"capabilities": Capabilities(executes_commands=True)})

    said = refused(walled(whose="FORGE_WALLS_MINIMUM"), spec=bash)

    assert "gives none (bodies run in the worker), and its commands run in processes of their own" in said
    assert "change FORGE_WALLS_MINIMUM" in said


def test_calls_in_a_queue_that_asks_for_walls_run_in_the_process_lane_or_are_refused(tmp_path: Path) -> None:
    key = PublicKey("k", KeyFolder(tmp_path).new())
    raised, low = Walls(queues=frozenset({"low"})), replace(CALL, queue="low")
    asks = GREET.model_copy(update={"capabilities": Capabilities(requires_engine=True)})

    def lane(call: Call) -> str:
        snapshot = Snapshot(Directory([GREET], walls=raised, encryption_key=key))
        prepared = Intake(Settings.load(), "me").prepare(call, snapshot)
        assert isinstance(prepared, NewExecution), prepared
        return prepared.lane

    assert (lane(low), lane(CALL)) == ("process", "async")
    assert lane(replace(low, parameters={"who": "Ada", "key": "hunter2!"})) == "process", "with secrets, too"
    assert "Greet cannot have the walls that queue low asks for: it has" in refused(raised, spec=asks, call=low)
    unserved = raised._replace(withheld=walled("", "low", "process", "FORGE_WALLS_OF").withheld)
    assert "Queue low asks for walls=landlock, and no live worker that serves it gives" in refused(unserved, call=low)
