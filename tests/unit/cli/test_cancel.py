"""Cancelling one execution, several, or all that filters match."""

import asyncio
import io
import json
import os
import sys
from typing import Any

import pytest

from forge_tools.storage import open_store
from tests.contract.calls import submitted
from tests.unit.cli.conftest import Command

UNKNOWN = "01890a5d-ac96-774b-bcce-b302099a8057"


def waiting(**facts: Any) -> str:
    async def submit() -> str:
        async with await open_store(os.environ["FORGE_DATABASE_URL"]) as store:
            return await submitted(store, **facts)

    return asyncio.run(submit())


def outcomes(printed: str) -> dict[str, str]:
    told: dict[str, str] = json.loads(printed)["outcomes"]
    return told


def test_several_are_cancelled_by_id(command: Command) -> None:
    ids = [waiting() for _ in range(3)]

    code, out, _ = command("--output", "json", "cancel", *ids[:2])
    assert (code, outcomes(out)) == (0, dict.fromkeys(ids[:2], "cancelled"))

    code, out, _ = command("cancel", *ids)
    assert out.splitlines() == [
        "Cancelled before they ran: 1 call.",
        "Workers were asked to stop: 0 calls.",
        "Had already ended: 2 calls.",
    ]


def test_one_that_does_not_exist_keeps_no_other_from_being_cancelled(command: Command) -> None:
    id_ = waiting()

    code, _, err = command("cancel", UNKNOWN, id_)

    assert (code, f"No execution has the id {UNKNOWN}" in err) == (1, True)
    assert "already ended" in command("cancel", id_)[1]


@pytest.mark.parametrize("stdin", [None, io.StringIO()])
def test_where_nobody_can_be_asked_it_takes_yes(
    command: Command, stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(session_id="s")
    monkeypatch.setattr(sys, "stdin", stdin)
    for words in (["cancel", "--session", "s"], ["db", "downgrade", "base"]):
        code, _, err = command(*words)
        assert (code, "confirm with --yes" in " ".join(err.split())) == (2, True)


def test_all_that_match_the_filters_are_cancelled_once_confirmed(command: Command) -> None:
    ids = [waiting(session_id="s", queue="a") for _ in range(3)]
    others = [waiting(session_id="s", queue="b"), waiting(session_id="t", queue="a")]

    code, _, err = command("cancel", "--session", "s", "--queue", "a")
    assert (code, "it would cancel 3 calls; confirm with --yes" in " ".join(err.split())) == (2, True)

    code, out, _ = command("--output", "json", "cancel", "--session", "s", "--queue", "a", "--yes")
    assert (code, outcomes(out)) == (0, dict.fromkeys(ids, "cancelled"))
    assert outcomes(command("--output", "json", "cancel", *others)[1]) == dict.fromkeys(others, "cancelled")


def test_filters_that_match_nothing_are_answered_in_a_sentence(command: Command) -> None:
    command("cancel", waiting(session_id="s"))

    assert command("cancel", "--session", "s", "--yes") == (0, "No execution that is not over matches.\n", "")
    assert outcomes(command("-o", "json", "cancel", "--session", "s", "--yes")[1]) == {}


@pytest.mark.parametrize("words", [[], [UNKNOWN, "--session", "s"]])
def test_it_takes_either_ids_or_filters(command: Command, words: list[str]) -> None:
    code, _, err = command("cancel", *words)

    assert (code, "Give ids, or filters such as --session" in " ".join(err.split())) == (2, True)
