"""The write journal: what an execution did, known to the attempt that runs it again."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tools.errors import SandboxError
from forge_tools.model import ExecutionContext, ToolResult
from forge_tools.model.scope import CallScope
from forge_tools.sandbox.paths.journal import KEPT_SECONDS, Journal
from forge_tools.sandbox.paths.places import Place
from forge_tools.sandbox.paths.workspace import Workspace

DONE = ToolResult.ok("done", etag="after")


@pytest.fixture
def place(ws: Path) -> Iterator[Place]:
    with Workspace(ws).place("f") as place:
        yield place


def journal(place: Place, execution_id: str | None = "one", **parameters: object) -> Journal:
    context = ExecutionContext(working_dir=".").within(CallScope(execution_id=execution_id))
    return Journal(context, place.root, "Edit", {"file_path": "f", **parameters})


def state(place: Place) -> str | None:
    status = place.status()
    return None if status is None else (Path("/proc/self/fd") / str(place.fd) / "f").read_text()


def recall(place: Place, **parameters: object) -> ToolResult | None:
    return journal(place, **parameters).recall(place, lambda: state(place))


def test_what_was_done_is_recalled_whatever_became_of_the_file(place: Place, ws: Path) -> None:
    journal(place).plan("before", "after", None, DONE)
    journal(place).done()
    (ws / "f").write_text("something else")
    found = recall(place)
    assert found
    assert (found.output, found.metadata) == ("done", {"etag": "after", "replayed": True})


@pytest.mark.parametrize(("now", "is_done"), [("before", False), ("after", True)])
def test_what_was_interrupted_is_known_by_what_the_file_is(place: Place, ws: Path, now: str, is_done: bool) -> None:
    journal(place).plan("before", "after", None, DONE)
    (ws / "f").write_text(now)
    assert bool(recall(place)) == is_done


def test_what_was_interrupted_before_its_file_was_put_in_place_is_done_again(place: Place, ws: Path) -> None:
    journal(place).plan("before", "after", ".f.tmp", DONE)
    (ws / ".f.tmp").write_text("half")
    (ws / "f").write_text("somebody else's")
    assert recall(place) is None
    assert not (ws / ".f.tmp").exists()


def test_what_cannot_be_known_is_said_so(place: Place, ws: Path) -> None:
    journal(place).plan("before", "after", None, DONE)
    (ws / "f").write_text("somebody else's")
    with pytest.raises(SandboxError, match=r"whether it took effect is unknown\. Read the file") as refused:
        recall(place)
    assert refused.value.code == "OUTCOME_UNKNOWN"


def test_another_call_under_the_same_id_is_not_the_same(place: Place) -> None:
    journal(place).plan("before", "after", None, DONE)
    journal(place).done()
    assert recall(place, old_string="other") is None
    assert recall(place, execution_id="two") is None


def test_without_an_execution_nothing_is_kept(place: Place, ws: Path) -> None:
    context = ExecutionContext(working_dir=".", metadata={"execution_id": "a caller's"})
    mine = Journal(context, place.root, "Edit", {})
    mine.plan("before", "after", None, DONE)
    mine.done()
    assert mine.recall(place, lambda: None) is None
    assert not (ws / ".forge-journal").exists()


def test_the_execution_is_named_by_the_context(place: Place) -> None:
    context = ExecutionContext(working_dir=".").within(CallScope(execution_id="0197-x"))
    for _ in range(2):
        mine = Journal(context, place.root, "Edit", {})
        mine.plan("before", "after", None, DONE)
        mine.done()
    assert mine.recall(place, lambda: None)


def test_it_is_private_and_wanted_by_no_commit(place: Place, ws: Path) -> None:
    journal(place).plan("before", "after", None, DONE)
    assert (ws / ".forge-journal").stat().st_mode & 0o777 == 0o700
    assert (ws / ".forge-journal/.gitignore").read_text() == "*\n"
    assert [path.stat().st_mode & 0o777 for path in (ws / ".forge-journal").glob("[!.]*")] == [0o600]


def test_an_entry_that_was_cut_off_is_no_entry(place: Place, ws: Path) -> None:
    journal(place).plan("before", "after", None, DONE)
    (entry,) = (ws / ".forge-journal").glob("[!.]*")
    entry.write_bytes(entry.read_bytes()[:-10])
    assert recall(place) is None
    entry.write_text(json.dumps({"unknown": 1}))
    assert recall(place) is None


def test_a_link_in_its_place_is_not_followed(place: Place, ws: Path) -> None:
    (ws / ".forge-journal").symlink_to("../ws-evil")
    with pytest.raises(SandboxError, match="write journal of the workspace cannot be used"):
        journal(place).plan("before", "after", None, DONE)
    assert recall(place) is None
    assert os.listdir(ws.parent / "ws-evil") == ["secret"]


def test_old_entries_go_when_some_others_are_written(place: Place, ws: Path) -> None:
    journal(place).plan("before", "after", None, DONE)
    (entry,) = (ws / ".forge-journal").glob("[!.]*")
    long_ago = time.time() - KEPT_SECONDS - 60
    os.utime(entry, (long_ago, long_ago))
    for written in range(1, 5_000):
        journal(place, str(written)).plan("before", "after", None, DONE)
        if not entry.exists():
            break
    assert len(list((ws / ".forge-journal").glob("[!.]*"))) == written
