"""Waits end with a notification, with a read, with a poll or with the client: soon, once, and leaving nothing behind."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from forge_tools.broker.message import REPLY_MARK
from forge_tools.client import results
from forge_tools.client.connection import Connection
from forge_tools.client.results import SILENCE, Results
from forge_tools.errors import ConfigurationError, DatabaseUnavailableError
from forge_tools.model import ToolResult
from forge_tools.secrets.encryption import encrypted_reply, new_reply_key
from forge_tools.storage.rows import RESULT
from tests.waiting import reached


class Sql:
    """What SQL would answer: results by id, and how often it was asked."""

    def __init__(self) -> None:
        self.over: set[str] = set()
        self.reads: list[list[str]] = []
        self.failures = 0

    async def results(self, ids: Sequence[str]) -> list[ToolResult]:
        self.reads.append(list(ids))
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailableError("The database is away")
        return [stored(i) for i in ids if i in self.over]


def stored(execution_id: str) -> ToolResult:
    return ToolResult.ok(execution_id, execution_id=execution_id)


KEY = new_reply_key()


def connection_to(sql: Sql) -> Connection:
    return cast(
        "Connection", SimpleNamespace(store=SimpleNamespace(queue=sql), reply_key=KEY, begin=asyncio.ensure_future)
    )


def reply(execution_id: str, key: str = KEY, **changes: object) -> bytes:
    """What a worker notifies of an end with its result."""
    told: dict[str, object] = {
        "attempt": 1,
        "status": "succeeded",
        "duration_ms": 2.5,
        "output": '"carried"',
        "error": None,
    }
    told |= {"error_code": None, "error_details": None, "metadata": "{}", "diagnosis": None} | changes
    text = json.dumps([told[name] for name in RESULT]).encode()
    return execution_id.encode() + REPLY_MARK + (encrypted_reply(key, execution_id, text) or b"")


@pytest.fixture
def sql() -> Sql:
    return Sql()


@pytest.fixture
async def waiter(sql: Sql) -> AsyncIterator[Results]:
    waiter = Results(connection_to(sql))
    yield waiter
    await waiter.close()


async def soon(waiter: Results, execution_id: str) -> ToolResult:
    """Wait, but for less than the silence after which an expected id is polled."""
    async with asyncio.timeout(SILENCE * 0.6):
        return await waiter.wait(execution_id)


async def test_a_notification_ends_the_wait_with_one_read(sql: Sql, waiter: Results) -> None:
    waiter.expect(["a"])
    waiting = asyncio.ensure_future(soon(waiter, "a"))
    await asyncio.sleep(0.01)
    assert sql.reads == []

    sql.over.add("a")
    waiter.ended(["a"])

    assert (await waiting).output == "a"
    assert sql.reads == [["a"]]


async def test_what_ended_before_anybody_waited_is_read_at_once(sql: Sql, waiter: Results) -> None:
    waiter.expect(["a"])
    sql.over.add("a")
    waiter.ended(["a"])

    assert (await soon(waiter, "a")).output == "a"


async def test_what_brings_no_notification_is_read_at_once(sql: Sql, waiter: Results) -> None:
    sql.over.add("a")

    assert (await soon(waiter, "a")).output == "a"


async def test_an_expected_id_whose_notification_is_lost_is_polled(sql: Sql, waiter: Results) -> None:
    waiter.expect(["a"])
    sql.over.add("a")
    started = time.monotonic()

    async with asyncio.timeout(30):
        await waiter.wait("a")

    assert time.monotonic() - started >= SILENCE * 0.9


async def test_a_new_wait_is_not_held_up_by_the_slow_poll_of_another(sql: Sql, waiter: Results) -> None:
    waiter.expect(["slow"])
    slow = asyncio.ensure_future(waiter.wait("slow"))
    await asyncio.sleep(0.01)
    quick = asyncio.ensure_future(soon(waiter, "quick"))
    await reached(lambda: sql.reads)

    sql.over.add("quick")

    assert (await quick).output == "quick"
    slow.cancel()


async def test_one_of_two_waiters_may_be_cancelled(sql: Sql, waiter: Results) -> None:
    waiter.expect(["a"])
    first, second = (asyncio.ensure_future(soon(waiter, "a")) for _ in range(2))
    await asyncio.sleep(0.01)

    first.cancel()
    sql.over.add("a")
    await asyncio.sleep(0)
    waiter.ended(["a"])

    assert (await second).output == "a"
    assert first.cancelled()


async def test_lost_notifications_are_made_up_for_by_reading(sql: Sql, waiter: Results) -> None:
    waiter.expect(["a", "b"])
    waiting = asyncio.ensure_future(soon(waiter, "a"))
    await asyncio.sleep(0.01)
    sql.over |= {"a", "b"}

    waiter.missed()

    assert [(await waiting).output, (await soon(waiter, "b")).output] == ["a", "b"]


async def test_what_was_not_submitted_after_all_is_not_expected(waiter: Results) -> None:
    waiter.expect(["a", "b"])

    waiter.forget(["a"])

    assert [waiter.expects("a"), waiter.expects("b")] == [False, True]


async def test_a_database_that_is_away_is_asked_again(
    sql: Sql, waiter: Results, caplog: pytest.LogCaptureFixture
) -> None:
    sql.failures = 2
    sql.over.add("a")

    assert (await soon(waiter, "a")).output == "a"
    assert "polling continues" in caplog.text


async def test_a_closed_client_ends_its_waits_and_takes_no_more(waiter: Results) -> None:
    waiter.expect(["a"])
    waiting = asyncio.ensure_future(soon(waiter, "a"))
    await asyncio.sleep(0.01)

    await waiter.close()

    with pytest.raises(ConfigurationError, match="It keeps running"):
        await waiting
    with pytest.raises(ConfigurationError, match="It keeps running"):
        await waiter.wait("b")


async def test_who_gives_up_closing_leaves_nobody_waiting(sql: Sql, waiter: Results) -> None:
    waiting = asyncio.ensure_future(waiter.wait("a"))
    await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(waiter.close())
    await asyncio.sleep(0)
    closing.cancel()

    with pytest.raises(ConfigurationError, match="It keeps running"):
        async with asyncio.timeout(10):
            await waiting


async def test_ten_thousand_calls_leave_nothing_behind(sql: Sql, waiter: Results) -> None:
    ids = [str(n) for n in range(10_000)]
    waiter.expect(ids)
    awaited = asyncio.gather(*(waiter.wait(i) for i in ids[:5_000]))
    await asyncio.sleep(0)
    sql.over.update(ids)

    waiter.ended(ids)

    assert len(await awaited) == 5_000
    assert len(sql.reads) < 20, "reads are shared; on a slow machine polls add some"
    assert not any(waiter.expects(i) for i in ids)
    other = asyncio.ensure_future(waiter.wait("other"))
    await asyncio.sleep(0)
    sql.reads.clear()
    waiter.missed()  # asks for all that somebody waits for
    await reached(lambda: sql.reads)
    assert {i for read in sql.reads for i in read} == {"other"}
    other.cancel()


async def test_a_result_that_rides_in_its_notification_ends_the_wait_without_a_read(sql: Sql, waiter: Results) -> None:
    waiter.expect(["a"])
    waiting = asyncio.ensure_future(soon(waiter, "a"))
    await asyncio.sleep(0.01)

    waiter.hear(reply("a"))

    found = await waiting
    assert (found.output, found.metadata["attempt"], sql.reads) == ("carried", 1, [])


@pytest.mark.parametrize(
    "heard",
    [
        reply("a", new_reply_key()),
        reply("b").replace(b"b", b"a", 1),
        reply("a")[:-1],
        b"a" + REPLY_MARK,
        b"a" + REPLY_MARK * 50,
        b"a b",
    ],
    ids=["another key", "of another", "cut", "empty", "noise", "ids"],
)
async def test_what_cannot_be_read_of_a_notification_has_sql_read(sql: Sql, waiter: Results, heard: bytes) -> None:
    sql.over.add("a")
    waiter.expect(["a"])
    waiting = asyncio.ensure_future(soon(waiter, "a"))
    await asyncio.sleep(0.01)

    waiter.hear(heard)

    assert ((await waiting).output, sql.reads) == ("a", [["a"]])


async def test_a_result_that_comes_before_anybody_waits_or_once_more_is_read_from_sql(
    sql: Sql, waiter: Results
) -> None:
    sql.over.add("a")
    waiter.expect(["a"])
    waiter.hear(reply("a"))
    assert (await soon(waiter, "a")).output == "a"

    waiter.hear(reply("a"))
    assert sql.reads == [["a"]]


async def test_the_first_result_is_read_from_sql_while_what_decrypts_is_loaded(
    sql: Sql, waiter: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(results, "is_cipher_loaded", lambda: bool(loaded))
    monkeypatch.setattr(results, "load_cipher", lambda: loaded.append(True))
    sql.over.add("a")
    waiter.expect(["a"])
    waiting = asyncio.ensure_future(soon(waiter, "a"))
    await asyncio.sleep(0.01)
    waiter.hear(reply("a"))

    assert (await waiting).output == "a"
    await reached(lambda: loaded, 30)
