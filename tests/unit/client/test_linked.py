"""Idempotency keys as a client without any worker knows them."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forge_tools.client import Call, ExecutorClient, Handle
from forge_tools.config import Settings
from forge_tools.errors import ConfigurationError, ErrorCode, SubmitOutcomeUnknownError
from forge_tools.model import ExecutionContext, ExecutionStatus, IdempotencyKey, ToolResult
from forge_tools.model.execution import NewExecution
from forge_tools.storage.queue.queue import ExecutionQueue

CONTEXT = ExecutionContext(working_dir=".", agent_id="ann")


@pytest.fixture
async def client(encrypting_client: ExecutorClient) -> ExecutorClient:
    return encrypting_client


async def say(
    client: ExecutorClient, message: str = "x", context: ExecutionContext = CONTEXT, **options: Any
) -> Handle:
    return await client.submit("Echo", {"message": message}, context, **{"idempotency_key": "k", **options})


async def refusal(handle: Handle) -> ToolResult:
    """The result of a call that was refused."""
    result = await handle.result(30)
    assert not result.success
    assert await handle.status() == ExecutionStatus.REJECTED
    return result


async def test_the_same_call_under_the_same_key_is_the_same_execution(client: ExecutorClient) -> None:
    first, second = await say(client), await say(client)

    assert (first.id == second.id, first.is_repeat, second.is_repeat) == (True, False, True)
    assert len(await client.history.list()) == 1


async def test_another_client_finds_the_execution_under_its_key(client: ExecutorClient, settings: Settings) -> None:
    first = await say(client)
    async with ExecutorClient(settings) as other:
        assert (await say(other)).id == first.id


async def test_other_arguments_under_the_same_key_are_refused_by_name(client: ExecutorClient) -> None:
    first = await say(client, "x")

    result = await refusal(await say(client, "sesame"))

    assert result.error_code == ErrorCode.IDEMPOTENCY_CONFLICT
    assert result.error == (
        f"Idempotency key 'k' (agent:ann) was used for another call, which differs in: message. It belongs to execution "
        f"{first.id}: repeat that call unchanged, or use another key."
    )
    assert (result.metadata["holder"], result.metadata["differing"]) == (first.id, ["message"])


async def test_another_tool_or_folder_under_the_same_key_is_refused(client: ExecutorClient) -> None:
    await say(client)

    elsewhere = await refusal(await say(client, context=CONTEXT.model_copy(update={"working_dir": "/srv"})))
    rehearsed = await refusal(await say(client, context=CONTEXT.model_copy(update={"dry_run": True})))
    other = await refusal(await client.submit("Login", {"user": "a", "pin": "1"}, CONTEXT, idempotency_key="k"))

    assert elsewhere.metadata["differing"] == ["context.working_dir"]
    assert rehearsed.metadata["differing"] == ["context.dry_run"]
    assert other.metadata["differing"] == ["tool", "message", "pin", "user"]


async def test_what_does_not_make_it_another_call_is_not_compared(client: ExecutorClient) -> None:
    given: list[dict[str, Any]] = [
        {"user": "ann"},
        {"who": "ann"},
        {"user": "ann", "times": 1},
        {"user": "ann", "times": None},
    ]
    contexts = [CONTEXT.model_copy(update={"timeout": float(n), "session_id": f"s{n}"}) for n in range(1, 5)]

    handles = [
        await client.submit("Login", {**one, "pin": "1234"}, context, idempotency_key="k", queue="background")
        for one, context in zip(given, contexts, strict=True)
    ]

    assert len({handle.id for handle in handles}) == 1


async def test_no_value_is_found_in_the_database_by_trying_all_of_them(
    client: ExecutorClient, settings: Settings
) -> None:
    handle = await client.submit("Login", {"user": "ann", "pin": "1234"}, CONTEXT, idempotency_key="k")
    result = await refusal(await client.submit("Login", {"user": "ann", "pin": "4321"}, CONTEXT, idempotency_key="k"))

    [other] = [await client.submit("Login", {"user": "ann", "pin": "1234"}, CONTEXT, idempotency_key="k2")]
    fingerprints = [await _fingerprint(settings, handle.id), await _fingerprint(settings, other.id)]

    assert result.metadata["differing"] == ["pin"]
    assert not {"1234", "ann"} & set(" ".join(fingerprints).replace('"', " ").split())
    assert fingerprints[0] != fingerprints[1]  # nor can it be seen that two keys have the same value


async def test_scopes_keep_the_keys_of_agents_apart(client: ExecutorClient, settings: Settings) -> None:
    bob, nobody = (CONTEXT.model_copy(update={"agent_id": agent}) for agent in ("bob", None))
    own = [await say(client, context=context) for context in (CONTEXT, bob, nobody)]
    ours = [await say(client, context=one, idempotency_key=IdempotencyKey("k", scope="team")) for one in (CONTEXT, bob)]

    assert len({handle.id for handle in own}) == 3
    assert ours[0].id == ours[1].id
    assert ours[0].id not in {handle.id for handle in own}
    shared = settings.model_copy(update={"idempotency_scope": "shared"})
    async with ExecutorClient(shared) as other:
        assert (await say(other, context=bob)).id == own[2].id


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "printable"),
        ("   ", "printable"),
        ("a\0b", "printable"),
        ("a\nb", "printable"),
        ("\ud800", "printable"),
        ("k" * 10_000_000, "10,000,000 characters; the limit is 255"),
        (7, "must be a string or an IdempotencyKey"),
        (IdempotencyKey("k", scope=""), "scope of the idempotency key"),
        (IdempotencyKey("k", scope="s" * 256), "256 characters"),
        (IdempotencyKey("k", ttl=0), "seconds above 0"),
        (IdempotencyKey("k", ttl=float("nan")), "seconds above 0"),
        (IdempotencyKey("k", ttl=True), "seconds above 0"),
        (IdempotencyKey(None), "must be a string"),
    ],
)
async def test_what_is_not_a_key_is_refused_and_recorded(client: ExecutorClient, key: Any, says: str) -> None:
    result = await refusal(await say(client, idempotency_key=key))

    assert result.error_code == ErrorCode.VALIDATION_ERROR
    assert says in (result.error or "")
    assert len(result.error or "") < 300


async def test_an_agent_id_that_is_too_long_for_a_scope_is_refused_with_the_way_out(client: ExecutorClient) -> None:
    result = await refusal(await say(client, context=CONTEXT.model_copy(update={"agent_id": "a" * 300})))

    assert "IdempotencyKey(key, scope=...)" in (result.error or "")


async def test_a_call_that_is_refused_does_not_take_its_key(client: ExecutorClient) -> None:
    await refusal(await client.submit("Echo", {}, CONTEXT, idempotency_key="k"))
    await refusal(await client.submit("Nothing", {}, CONTEXT, idempotency_key="k"))

    assert not (await say(client)).is_repeat


async def test_many_calls_at_once_have_each_their_key(client: ExecutorClient) -> None:
    calls = [Call("Echo", {"message": str(n % 100)}, CONTEXT, idempotency_key=f"k{n % 100}") for n in range(1000)]

    handles = await client.calls.submit_many(
        [*calls, Call("Echo", {"message": "plain"}, CONTEXT), Call("Echo", {}, CONTEXT)]
    )

    ids = [handle.id for handle in handles if isinstance(handle, Handle)]
    assert len(ids) == 1002
    assert len(set(ids[:1000])) == 100
    assert [call.parameters["message"] for call in calls[:3]] == [
        (await client.history.get(id_)).parameters["message"] for id_ in ids[:3]
    ]


async def test_the_end_of_the_caller_does_not_cancel_the_call(client: ExecutorClient) -> None:
    waiting = asyncio.ensure_future(client.call("Echo", {"message": "x"}, CONTEXT, idempotency_key="k"))
    handle = await say(client)

    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting

    await asyncio.sleep(0.1)
    assert await handle.status() == ExecutionStatus.QUEUED
    assert await client.history.events_of(handle.id) == []


async def test_a_caller_that_ends_while_its_call_is_stored_leaves_it_to_the_next(client: ExecutorClient) -> None:
    submitting = asyncio.ensure_future(say(client))
    await asyncio.sleep(0)
    submitting.cancel()
    with suppress(asyncio.CancelledError):
        await submitting

    handle = await say(client)

    assert await handle.status() == ExecutionStatus.QUEUED
    assert len(await client.history.list()) == 1


async def test_a_call_whose_submit_had_no_answer_is_found_under_its_key(
    client: ExecutorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ExecutionQueue.submit_many

    async def cut_off(self: ExecutionQueue, rows: Sequence[NewExecution]) -> Any:
        await store(self, rows)
        return [SubmitOutcomeUnknownError("It may have been stored.", row.id) for row in rows]

    with monkeypatch.context() as patched:
        patched.setattr(ExecutionQueue, "submit_many", cut_off)
        lost = await client.call("Echo", {"message": "x"}, CONTEXT, idempotency_key="k")

    assert lost.error_code == ErrorCode.OUTCOME_UNKNOWN
    handle = await say(client)
    assert (handle.id, handle.is_repeat) == (lost.metadata["execution_id"], True)


async def test_the_result_of_a_repeat_says_that_it_is_one(client: ExecutorClient) -> None:
    first = await say(client)
    await client.calls.cancel(first.id)

    result = await client.call("Echo", {"message": "x"}, CONTEXT, idempotency_key="k")

    assert (result.error_code, result.metadata["is_repeat"]) == (ErrorCode.CANCELLED, True)
    assert result.metadata["execution_id"] == first.id


async def test_the_secret_is_a_file_beside_the_database_that_only_its_user_can_read(
    client: ExecutorClient, settings: Settings
) -> None:
    path = _secret_of(settings)
    assert not path.exists()
    await say(client)

    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in path.parent.glob("*digest-key*")] == [path.name]
    path.chmod(0o640)
    async with ExecutorClient(settings) as other:
        with pytest.raises(ConfigurationError, match="chmod 600"):
            await say(other)
        result = await other.call("Echo", {"message": "x"}, CONTEXT, idempotency_key="k")
        assert result.error_code == ConfigurationError.code


async def test_clients_with_another_secret_cannot_tell_and_say_so(client: ExecutorClient, settings: Settings) -> None:
    await say(client)
    _secret_of(settings).unlink()
    async with ExecutorClient(settings) as other:
        result = await refusal(await say(other))

    assert result.error_code == ErrorCode.IDEMPOTENCY_CONFLICT
    assert "another digest key" in (result.error or "")


async def _fingerprint(settings: Settings, execution_id: str) -> str:
    connection = sqlite3.connect(settings.database.removeprefix("sqlite:///"))
    try:
        query = "SELECT fingerprint FROM idempotency_keys WHERE execution_id = ?"
        return str(connection.execute(query, (execution_id,)).fetchone()[0])
    finally:
        connection.close()


def _secret_of(settings: Settings) -> Path:
    return Path(settings.database.removeprefix("sqlite:///") + ".digest-key")
