"""Wakeups wait in the order in which they came, and whose were all taken may rest."""

from forge_tools.model import Wakeup
from workers.lanes.process import MOST_WAITING, Messages


def wakeups(*ids: str) -> list[Wakeup]:
    return [Wakeup(id_, 0) for id_ in ids]


class Tasks:
    """Messages, and the processes whose tasks returned."""

    def __init__(self) -> None:
        self.messages = Messages()
        self.rested: list[int] = []

    def bring(self, process: int, *ids: str) -> None:
        self.messages.add(process, wakeups(*ids), lambda: self.rested.append(process))


def test_wakeups_are_taken_in_the_order_in_which_they_came() -> None:
    tasks = Tasks()
    tasks.bring(1, "a", "b")
    tasks.bring(2, "c")

    assert tasks.messages.take(2) == wakeups("a", "b")
    assert tasks.messages.waiting == 1
    assert tasks.messages.take(9) == wakeups("c")
    assert tasks.messages.take(9) == []


def test_a_task_stays_until_its_last_wakeup_is_taken() -> None:
    tasks = Tasks()
    tasks.bring(1, "a", "b")
    tasks.messages.take(1)
    tasks.messages.let_rest(1)
    assert tasks.messages.holds(1)

    tasks.messages.take(1)
    tasks.messages.let_rest(1)

    assert (tasks.rested, tasks.messages.holds(1)) == ([1], False)


def test_no_more_tasks_return_than_may() -> None:
    tasks = Tasks()
    for process in (1, 2, 3):
        tasks.bring(process, "a")
    tasks.messages.take(3)

    tasks.messages.let_rest(-1)
    tasks.messages.let_rest(0)
    assert tasks.rested == []
    tasks.messages.let_rest(2)
    assert tasks.rested == [1, 2]


def test_the_task_of_an_empty_message_may_return() -> None:
    tasks = Tasks()
    tasks.bring(1)

    tasks.messages.let_rest(1)

    assert tasks.rested == [1]


def test_what_a_process_brought_outlives_it() -> None:
    tasks = Tasks()
    tasks.bring(1, "a")

    tasks.messages.forget(1)
    tasks.messages.forget(2)

    assert (tasks.messages.holds(1), tasks.messages.take(1)) == (False, wakeups("a"))


def test_what_does_not_fit_is_left_to_sql_and_holds_nobody() -> None:
    tasks = Tasks()
    tasks.bring(1, *(str(number) for number in range(MOST_WAITING + 5)))
    tasks.bring(2, "late")

    assert len(tasks.messages.take(MOST_WAITING + 9)) == MOST_WAITING
    tasks.messages.let_rest(2)

    assert tasks.rested == [1, 2]
