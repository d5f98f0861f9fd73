"""What a worker of this host left behind is ended by the next one there, whoever found it dead."""

import asyncio
import subprocess
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from forge_tools.records import new_id
from forge_tools.storage.looks import Look
from tests.waiting import is_alive
from workers import tidying as module
from workers.tidying import KEYS_AT_ONCE, Tidying, drop_spent_keys, tidy


class FakeStore:
    """The workers of a store, as far as tidying asks them."""

    def __init__(self, *stopped: str) -> None:
        self.known = set(stopped)

    @property
    def workers(self) -> "FakeStore":
        return self

    async def stopped(self, among: Collection[str]) -> set[str]:
        return self.known & set(among)


@pytest.fixture
def left() -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """A process that carries the mark of a boot, for each of three boots."""
    boots = [new_id() for _ in range(3)]
    processes = {boot: subprocess.Popen(["/bin/sleep", "60"], env={"FORGE_BOOT": boot}) for boot in boots}
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


async def test_only_what_belongs_to_stopped_workers_is_ended(left: dict[str, "subprocess.Popen[bytes]"]) -> None:
    dead, living, unknown = left
    store: Any = FakeStore(dead)

    await tidy(store, {living})

    assert [is_alive(left[boot].pid) for boot in (dead, living, unknown)] == [False, True, True]


async def test_a_worker_does_not_end_what_it_runs_itself(left: dict[str, "subprocess.Popen[bytes]"]) -> None:
    condemned, *_ = left
    store: Any = FakeStore(condemned)

    await tidy(store, {condemned})

    assert is_alive(left[condemned].pid)


async def test_where_only_living_workers_left_marks_the_database_is_not_asked(
    left: dict[str, "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "marked_boots", lambda: set(left))
    store: Any = None

    await tidy(store, set(left))

    assert all(is_alive(process.pid) for process in left.values())


async def test_spent_keys_are_dropped_in_small_batches_until_there_are_no_more() -> None:
    left, asked = [KEYS_AT_ONCE, KEYS_AT_ONCE, 7, 0], list[int]()

    class Store:
        """As many spent keys as it takes more than one batch for."""

        @property
        def keys(self) -> "Store":
            return self

        async def purge(self, most: int) -> int:
            asked.append(most)
            return left.pop(0)

    store: Any = Store()

    await drop_spent_keys(store)

    assert asked == [KEYS_AT_ONCE] * 3


@pytest.mark.parametrize(
    ("has_overdue_keys", "boot", "is_asked"), [(True, "1", True), (True, "2", False), (False, "1", False)]
)
async def test_only_the_oldest_drops_keys_and_only_if_a_look_showed_some(
    monkeypatch: pytest.MonkeyPatch, has_overdue_keys: bool, boot: str, is_asked: bool
) -> None:
    asked: list[Any] = []

    async def drop(store: Any) -> None:
        asked.append(store)

    rounds: list[float] = []

    async def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(module, "drop_spent_keys", drop)
    monkeypatch.setattr("workers.tidying.asyncio.sleep", sleep)
    tidying = Tidying(FakeStore(), boot, lambda: {"1", "2"}, 15.0)  # type: ignore[arg-type]  # as far as it is asked
    tidying.hear(Look(0.0, (), {}, False, False, frozenset(), frozenset(), False, has_overdue_keys=has_overdue_keys))
    with pytest.raises(asyncio.CancelledError):
        await tidying.keep()
    assert len(asked) == 2 * is_asked
