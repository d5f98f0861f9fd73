"""What a worker of this host left behind is ended by the next one there, whoever found it dead."""

import subprocess
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from forge_tools.errors import ForgeError
from forge_tools.model import new_id
from tests.waiting import is_alive
from workers.services import upkeep as module
from workers.services.service import Leadership
from workers.services.upkeep import KEYS_AT_ONCE, Expired, Leftovers


class FakeStore:
    """The workers of a store, as far as tidying asks them."""

    def __init__(self, *stopped: str) -> None:
        self.known = set(stopped)

    @property
    def workers(self) -> "FakeStore":
        return self

    async def stopped(self, among: Collection[str]) -> set[str]:
        return self.known & set(among)


def leftovers(store: Any, *living: str) -> Leftovers:
    """Of a worker that knows of these others."""
    leadership = Leadership("this one")
    leadership.living = frozenset(living)
    return Leftovers(store, "this one", leadership, 15.0)


@pytest.fixture
def left() -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """A process that carries the mark of an instance, for each of three instances."""
    instances = [new_id() for _ in range(3)]
    processes = {
        instance: subprocess.Popen(["/bin/sleep", "60"], env={"FORGE_INSTANCE": instance}) for instance in instances
    }
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


async def test_only_what_belongs_to_stopped_workers_is_ended(left: dict[str, "subprocess.Popen[bytes]"]) -> None:
    dead, living, unknown = left
    store: Any = FakeStore(dead)

    await leftovers(store, living).step()

    assert [is_alive(left[instance].pid) for instance in (dead, living, unknown)] == [False, True, True]


async def test_a_worker_does_not_end_what_it_runs_itself(left: dict[str, "subprocess.Popen[bytes]"]) -> None:
    condemned, *_ = left
    store: Any = FakeStore(condemned)

    await Leftovers(store, condemned, Leadership(condemned), 15.0).step()

    assert is_alive(left[condemned].pid)


async def test_where_only_living_workers_left_marks_the_database_is_not_asked(
    left: dict[str, "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "marked_instances", lambda: set(left))
    store: Any = None

    await leftovers(store, *left).step()

    assert all(is_alive(process.pid) for process in left.values())


async def test_what_cannot_be_looked_for_is_an_error_that_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> set[str]:
        raise OSError("Too many open files")

    monkeypatch.setattr(module, "marked_instances", fail)

    with pytest.raises(ForgeError, match="Too many open files"):
        await leftovers(None).step()


async def test_spent_keys_are_dropped_in_small_batches_until_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    left, asked = [KEYS_AT_ONCE, KEYS_AT_ONCE, 7, 0], list[int]()
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)

    class Store:
        """As many spent keys as it takes more than one batch for, and no artifact."""

        @property
        def transitions(self) -> "Store":
            return self

        artifacts = transitions

        async def purge(self) -> int:
            return 0

        async def purge_keys(self, most: int) -> int:
            asked.append(most)
            return left.pop(0)

    store: Any = Store()

    await Expired(store).step()

    assert asked == [KEYS_AT_ONCE] * 3
