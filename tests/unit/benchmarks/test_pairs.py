"""Things that are compared take turns, and the warm-up turn does not count."""

import asyncio

from benchmarks.pairs import by_turns, on_loop


def test_works_take_turns_and_each_begins_as_often() -> None:
    order: list[str] = []

    took = asyncio.run(by_turns({"a": on_loop(lambda: order.append("a")), "b": on_loop(lambda: order.append("b"))}, 4))

    assert "".join(order) == "baabbaabba"
    assert took.keys() == {"a", "b"}
    assert all(0 <= time < 1000 for time in took.values())


def test_the_median_is_told_in_the_unit_that_is_asked_for() -> None:
    pauses = iter([0.2, 0.001, 0.001, 0.001])

    async def wait() -> None:
        await asyncio.sleep(next(pauses))

    took = asyncio.run(by_turns({"wait": wait}, 3, unit=1e6))

    assert 1000 <= took["wait"] < 100_000
