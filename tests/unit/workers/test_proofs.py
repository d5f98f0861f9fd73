"""What a call in a child has sent of artifacts: in files without a name, and gone with the call, however that ends."""

import asyncio
import errno
import os
import random
import re
import tempfile
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from forge_tools.artifacts.parts import PART_BYTES, count_parts, pack
from forge_tools.config import Settings
from forge_tools.errors import SandboxError
from forge_tools.model import Artifact
from forge_tools.model.artifacts import TEXT
from forge_tools.storage import Store
from tests.unit.workers.child_bench import CLAIM, ID, Bench, Speaker
from tests.waiting import reached
from workers.artifacts import MOST_UNPROVEN, ArtifactDesk, Proofs, Sent, packed
from workers.lanes import children
from workers.lanes.base import Body

BYTES = random.Random(4).randbytes(2 * PART_BYTES + 5)
NEW = Artifact(id=blake2b(BYTES, digest_size=16).hexdigest(), size=len(BYTES), session_id="s")
PARTS = [BYTES[start : start + PART_BYTES] for start in range(0, len(BYTES), PART_BYTES)]


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's files without a name are, and no other's."""
    (place := tmp_path / "spools").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def open_in(tmp: Path) -> int:
    """How many files without a name this process has open there."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself is closed by now
            found += re.match(rf"{tmp}/.* \(deleted\)$", str(entry.readlink())) is not None
    return found


async def all_closed(tmp: Path) -> None:
    """The last thread that was at one lets go of it a moment after it is done."""
    await reached(lambda: not open_in(tmp), 30)


async def sent_to(proofs: Proofs, parts: list[bytes], new: Artifact = NEW) -> Sent | None:
    await proofs.begin(new)
    for number, data in enumerate(parts):
        assert await proofs.add(new, number, data)
    return proofs.take(new)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, len(BYTES)])
async def test_what_is_proven_is_handed_over_as_it_was_sent(tmp: Path, size: int) -> None:
    data = BYTES[:size]
    new = replace(NEW, id=blake2b(data, digest_size=16).hexdigest(), size=size)
    cut = [data[start : start + PART_BYTES] for start in range(0, size, PART_BYTES)]
    sent = await sent_to(Proofs(), cut, new)
    assert sent is not None
    parts = [await packed(sent, TEXT, number) for number in range(count_parts(size))]
    assert [part.data for part in parts] == [pack(one) for one in cut]
    assert sum(part.breaks or 0 for part in parts) == data.count(b"\n")
    assert (open_in(tmp), list(tmp.iterdir())) == (1, []), "it has no name"
    del sent
    await all_closed(tmp)


async def test_other_bytes_are_refused_by_name_and_let_go_of(tmp: Path) -> None:
    proofs = Proofs()
    with pytest.raises(SandboxError, match=f"{NEW.handle} is not kept: the bytes sent do not match its id"):
        await sent_to(proofs, [PARTS[0], bytes(PART_BYTES), PARTS[2]])
    await all_closed(tmp)
    assert await sent_to(proofs, PARTS) is not None


@pytest.mark.parametrize("parts", [[], PARTS[:2], PARTS])
async def test_less_or_more_than_was_announced_is_never_proven(parts: list[bytes]) -> None:
    proofs = Proofs()
    longer = replace(NEW, size=NEW.size + PART_BYTES)
    assert await sent_to(proofs, [], NEW) is None
    if parts == PARTS:
        with pytest.raises(ValueError, match="5 bytes for part 2, after 2 parts"):
            await sent_to(proofs, parts, longer)
    else:
        assert await sent_to(proofs, parts, longer) is None


@pytest.mark.parametrize(("data", "number"), [(PARTS[1], 1), (PARTS[2], 0), (PARTS[0] + b"x", 0), (b"", 0)])
async def test_a_part_that_cannot_be_the_next_is_refused_and_the_right_one_taken(data: bytes, number: int) -> None:
    proofs = Proofs()
    await proofs.begin(NEW)
    with pytest.raises(ValueError, match="part"):
        await proofs.add(NEW, number, data)
    assert await sent_to(proofs, PARTS) is not None


async def test_two_puts_of_the_same_bytes_in_one_call_do_not_disturb_each_other() -> None:
    proofs = Proofs()
    await asyncio.gather(*(proofs.begin(NEW) for _ in range(3)))
    for number, data in enumerate(PARTS):
        assert await asyncio.gather(*(proofs.add(NEW, number, data) for _ in range(5))) == [True] * 5
    assert proofs.take(NEW) is not None
    assert not await proofs.add(NEW, 0, PARTS[0]), "the other one begins again, and finds that it is kept"
    assert proofs.take(NEW) is None


async def test_the_same_part_in_other_words_at_the_same_time_is_taken_once() -> None:
    proofs = Proofs()
    await proofs.begin(NEW)
    for number, data in enumerate(PARTS):
        forged = bytes(len(data))
        await asyncio.gather(*(proofs.add(NEW, number, one) for one in (data, forged, data, forged)))
    with suppress(SandboxError):  # the forged one was first
        sent = proofs.take(NEW)
        assert sent is not None
        assert [sent.read(number * PART_BYTES, PART_BYTES) for number in range(3)] == PARTS


async def test_a_call_holds_so_many_at_most_and_gives_up_the_one_that_waits_longest(tmp: Path) -> None:
    proofs, first = Proofs(), replace(NEW, id="f" * 32)
    await proofs.begin(first)
    await proofs.begin(NEW)
    assert await proofs.add(first, 0, PARTS[0])
    for number in range(MOST_UNPROVEN - 1):
        await proofs.begin(replace(NEW, id=f"{number:032}"))
    assert open_in(tmp) == MOST_UNPROVEN
    assert not await proofs.add(NEW, 0, PARTS[0])
    assert await proofs.add(first, 1, PARTS[1])


async def test_with_the_call_all_of_it_goes_what_was_on_its_way_as_well(tmp: Path) -> None:
    proofs = Proofs()
    await proofs.begin(NEW)
    late = asyncio.create_task(proofs.begin(replace(NEW, id="f" * 32)))
    await asyncio.sleep(0)
    proofs.end()
    await late
    await all_closed(tmp)
    await proofs.begin(NEW)
    assert not await proofs.add(NEW, 0, PARTS[0])
    await all_closed(tmp)


async def test_a_call_that_ends_while_a_part_is_written_hurts_nobody(tmp: Path) -> None:
    for _ in range(20):
        proofs = Proofs()
        await proofs.begin(NEW)
        writing = asyncio.create_task(proofs.add(NEW, 0, PARTS[0]))
        await asyncio.sleep(0)
        proofs.end()
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    await all_closed(tmp)


async def test_no_room_is_an_error_with_a_reason_and_the_part_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "")

    proofs = Proofs()
    await proofs.begin(NEW)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SandboxError, match="on this host: No space left on device"):
        await proofs.add(NEW, 0, PARTS[0])
    monkeypatch.undo()
    assert await sent_to(proofs, PARTS) is not None


@pytest.fixture
async def body(store: Store, bench: Bench, child: Speaker, monkeypatch: pytest.MonkeyPatch) -> Body:
    """One that runs in the child. Who has it here is not what keeps it from letting go of files."""
    bodies = list[Body]()
    monkeypatch.setattr(children, "Body", lambda claim: bodies.append(Body(claim)) or bodies[-1])
    bench.artifacts = ArtifactDesk(Settings()), store
    bench.lane.run([replace(CLAIM, context='{"working_dir": "."}')])
    await child.hear()
    [body] = bodies
    return body


@pytest.mark.parametrize("end", ["returns", "is cancelled", "dies"])
async def test_what_a_call_has_not_proven_goes_when_it(
    bench: Bench, child: Speaker, body: Body, tmp: Path, end: str
) -> None:
    for want in ({"want": "begin"}, {"want": "add", "number": 0, "data": PARTS[0]}):
        child.say("asked", number=1, id=ID, attempt=1, artifact={**want, "id": NEW.id, "size": NEW.size})
        assert "error" not in (await child.hear())["artifact"]
    assert open_in(tmp) == 1
    if end == "returns":
        child.finish(CLAIM)
    elif end == "dies":
        child.die()
    else:
        bench.lane.cancel(ID, CLAIM.attempt)
    await bench.until(lambda: bench.outcomes)
    await all_closed(tmp)
    assert body.is_over


async def test_what_a_call_asks_with_its_last_breath_leaves_nothing(
    bench: Bench, child: Speaker, body: Body, tmp: Path
) -> None:
    before = asyncio.all_tasks()
    child.say("asked", number=1, id=ID, attempt=1, artifact={"want": "begin", "id": NEW.id, "size": NEW.size})
    child.finish(CLAIM)
    await bench.until(lambda: bench.outcomes and asyncio.all_tasks() <= before)
    await all_closed(tmp)
    assert body.is_over


async def test_an_attempt_begins_again_where_the_one_before_was_killed(
    store: Store, bench: Bench, child: Speaker, other: Speaker
) -> None:
    bench.artifacts = ArtifactDesk(Settings()), store
    asked = {"id": NEW.id, "size": NEW.size}
    for attempt, speaker in enumerate((child, other), start=1):
        bench.lane.run([replace(CLAIM, context='{"working_dir": ".", "session_id": "s"}', attempt=attempt)])
        await speaker.hear()
        for number, data in enumerate(PARTS[: attempt + 1]):
            for want in ({"want": "begin"}, {"want": "add", "number": number, "data": data}):
                speaker.say("asked", number=1, id=ID, attempt=attempt, artifact={**want, **asked})
                assert "error" not in (await speaker.hear())["artifact"]
        finish = {"number": 1, "id": ID, "attempt": 2, "artifact": {"want": "finish", **asked}}
        speaker.say("asked", **finish) if attempt == 2 else speaker.die()
        await bench.until(lambda: bench.outcomes)
    assert (await other.hear())["artifact"]["size"] == NEW.size
    found = await store.artifacts.find(NEW.id, "s")
    assert found is not None
    assert b"".join([chunk async for chunk in store.artifacts.read(found)]) == BYTES
