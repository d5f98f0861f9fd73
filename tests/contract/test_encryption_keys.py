"""Keys that clients encrypt with: the newest that is not retired, kept as long as an unfinished call needs it."""

import secrets

import pytest

from forge_tools.errors import ConfigurationError
from forge_tools.model import ExecutionStatus
from forge_tools.model.execution import Outcome
from forge_tools.storage import Store
from tests.contract.calls import call, claimed, finish_one, submit_one


async def published(store: Store) -> str:
    public = secrets.token_bytes(32)
    await store.encryption_keys.publish(public.hex()[:16], public)
    return public.hex()[:16]


async def test_without_a_key_there_is_none(store: Store) -> None:
    assert (await store.directories.read()).encryption_key is None
    assert await store.encryption_keys.list() == []


async def test_clients_use_the_newest_that_is_not_retired(store: Store) -> None:
    first, second = await published(store), await published(store)
    current = (await store.directories.read()).encryption_key
    assert current is not None
    assert current.id == second
    await store.encryption_keys.retire([second])
    current = (await store.directories.read()).encryption_key
    assert current is not None
    assert (current.id, current.public.hex()[:16]) == (first, first)
    await store.encryption_keys.retire([first])
    assert (await store.directories.read()).encryption_key is None


async def test_publishing_again_changes_nothing(store: Store) -> None:
    id_ = await published(store)
    await store.encryption_keys.retire([id_])
    [key] = await store.encryption_keys.list()
    await store.encryption_keys.publish(id_, key.public)
    assert await store.encryption_keys.list() == [key]


async def test_a_key_is_needed_until_the_last_call_encrypted_with_it_is_over(store: Store) -> None:
    id_ = await published(store)
    new = call(parameters='{"token":"[redacted]"}', encrypted=f"1.{id_}.AAAA", encrypted_names=("token",))
    await submit_one(store, new)
    await submit_one(store, call())
    assert [key.live for key in await store.encryption_keys.list()] == [1]
    with pytest.raises(ConfigurationError, match="is in use"):
        await store.encryption_keys.forget(id_)
    await store.encryption_keys.retire([id_])
    with pytest.raises(ConfigurationError, match=r"that are encrypted with key .*: 1\."):
        await store.encryption_keys.forget(id_)
    claim = await claimed(store, new.id)
    done = Outcome(id=claim.id, attempt=claim.attempt, token=claim.token, status=ExecutionStatus.SUCCEEDED)
    assert await finish_one(store, done)
    assert [key.live for key in await store.encryption_keys.list()] == [0]
    await store.encryption_keys.forget(id_)
    assert await store.encryption_keys.list() == []


async def test_each_of_many_calls_in_a_batch_keeps_its_own(store: Store) -> None:
    news = [
        call(encrypted=f"1.k.{n}" if n % 3 else None, encrypted_names=("token",) if n % 3 else ()) for n in range(60)
    ]
    await store.queue.submit_many(news)
    await store.queue.submit_many(news)  # as an outbox does that heard no answer
    for new in news:
        assert (await claimed(store, new.id)).encrypted == new.encrypted


async def test_a_retry_gets_what_was_encrypted_again_and_an_end_drops_it(store: Store) -> None:
    new = call(encrypted="1.k.AAAA", encrypted_names=("token",), max_attempts=3, idempotent=True)
    await submit_one(store, new)
    first = await claimed(store, new.id)
    failed = Outcome(id=new.id, attempt=1, token=first.token, status=ExecutionStatus.FAILED, retry_in=0.0)
    assert await finish_one(store, failed)
    assert (await claimed(store, new.id, attempt=1)).encrypted == "1.k.AAAA"


async def test_a_late_resubmission_of_a_call_that_is_over_brings_nothing_back(store: Store) -> None:
    id_ = await published(store)
    new = call(encrypted=f"1.{id_}.AAAA", encrypted_names=("token",))
    await submit_one(store, new)
    assert await store.transitions.cancel(new.id, actor="test") == "cancelled"
    await submit_one(store, new)
    assert [key.live for key in await store.encryption_keys.list()] == [0]
