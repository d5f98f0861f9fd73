"""What `forge-tools top` reports as needing attention, and how it fits its content into a terminal."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from forge_tools.cli.attention import Concern, concerns
from forge_tools.cli.screen import Frame, Screen
from forge_tools.cli.top import place
from forge_tools.model import ExecutionStatus
from forge_tools.model.overview import (
    CallFigures,
    DemotedTool,
    FailedCalls,
    Overview,
    QueueLoad,
    StuckCalls,
    StuckReason,
    Times,
    WorkerLoad,
    WorkerRecord,
)

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
TIMES = Times(mean=5.0, p50=3.0, p95=120.0, p99=900.0, max=1_500.0)


def figures(key: str | None = "Grep", calls: int = 100, failed: int = 0) -> CallFigures:
    return CallFigures(
        key=key,
        calls=calls,
        succeeded=calls - failed,
        failed=failed,
        rejected=0,
        duration_ms=TIMES,
        wait_ms=TIMES,
    )


def worker(name: str = "host-1", silent: float = 0.4, running: int = 3, **fields: Any) -> WorkerLoad:
    facts = {"id": name, "hostname": name, "pid": 4711, "lane": "process", "queues": ("default",), "concurrency": 8}
    moments = {"started_at": NOW - timedelta(hours=3), "last_seen_at": NOW}
    record = WorkerRecord(**{**facts, **moments, "version": "0.1.0", "silent_seconds": silent, **fields})
    return WorkerLoad(worker=record, running=running)


def queue(**fields: Any) -> QueueLoad:
    quiet = QueueLoad(
        queue="default", lane="process", waiting=0, later=0, running=3, oldest_seconds=None, workers=1, slots=8, free=5
    )
    return replace(quiet, **fields)


def overview(**parts: Any) -> Overview:
    calm = Overview(
        at=NOW,
        window=60.0,
        total=figures(None),
        tools=(figures(),),
        failures=(),
        workers=(worker(),),
        queues=(queue(),),
        stuck=(),
        demoted=(),
    )
    return replace(calm, **parts)


def failures(**fields: Any) -> tuple[FailedCalls, ...]:
    broken = FailedCalls(tool="Grep", status=ExecutionStatus.FAILED, error_code="BROKEN", calls=9, example="01a2")
    return (replace(broken, **fields),)


def judged(seen: Overview) -> list[Concern]:
    return concerns(seen, heartbeat=1.0, lease=15.0)


def shown(seen: Overview, width: int = 100, height: int | None = None, **fields: Any) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height or 50, highlight=False)
    frame = Frame(seen, judged(seen), "sqlite:///forge.db", **fields)
    console.print(Screen(frame, height))
    return file.getvalue().splitlines()


def test_a_stack_that_works_needs_no_attention() -> None:
    assert judged(overview()) == []
    assert "● Nothing needs attention." in [line.strip() for line in shown(overview())]


@pytest.mark.parametrize(
    ("parts", "level", "said", "way_out"),
    [
        ({"queues": (queue(queue="gpu", waiting=2, oldest_seconds=75.0, workers=0),)}, "now",
         "2 calls wait in queue gpu, process lane, which no live worker serves, for 1m", "--queues gpu"),
        ({"workers": ()}, "now", "No worker is alive", "forge-tools up"),
        ({"stuck": (StuckCalls(reason=StuckReason.NOT_TAKEN, queue="default", lane="async", tool="Grep", count=1,
                               seconds=75.0, example="01a2"),)}, "now", "workers with free slots do not take it", "logs"),
        ({"failures": failures(status=ExecutionStatus.LOST, calls=1)}, "now", "1 call of Grep lost with a worker", "show 01a2"),
        ({"workers": (worker(silent=6.0),)}, "soon", "1 worker on host-1 silent for 6s", "counts as dead after 15s"),
        ({"workers": (worker(silent=70.0), worker(silent=90.0))}, "now", "2 workers on host-1 silent for 1m", "its log"),
        ({"tools": (figures(failed=60),), "failures": failures()}, "now",
         "Grep fails: 60 of 100 calls in 60s, 9 with BROKEN", "forge-tools show 01a2"),
        ({"tools": (figures(failed=20),), "failures": failures(error_code=None)}, "soon", "9 with failed", "show 01a2"),
        ({"tools": (figures(failed=20),)}, "soon", "20 of 100 calls", "forge-tools history --status failed"),
        ({"queues": (queue(waiting=4, oldest_seconds=11.0, free=0),)}, "soon",
         "4 calls wait in queue default, process lane, for up to 11s: all 8 slots are taken", "Start more workers"),
        ({"demoted": (DemotedTool(tool="Grep", version="1.0.0", reason="held it", at=NOW - timedelta(minutes=5)),)}, "soon",
         "Grep 1.0.0 blocked the async lane 5m ago", "held it"),
    ],
)  # fmt: skip
def test_what_needs_somebody_is_said_with_the_way_out(
    parts: dict[str, Any], level: str, said: str, way_out: str
) -> None:
    [concern] = judged(overview(**parts))

    assert concern.level == level
    assert said in concern.said
    assert way_out in concern.way_out


@pytest.mark.parametrize(
    "parts",
    [
        {"tools": (figures(failed=2, calls=4),)},
        {"tools": (figures(failed=19),)},
        {"workers": (worker(silent=4.9),)},
        {"queues": (queue(waiting=4, oldest_seconds=9.0, free=0),)},
        {"queues": (queue(waiting=4, oldest_seconds=90.0, free=1),)},
        {"queues": (queue(queue="gpu", later=3, workers=0),)},
    ],
)
def test_what_is_usual_needs_nobody(parts: dict[str, Any]) -> None:
    assert judged(overview(**parts)) == []


def test_what_needs_somebody_now_comes_first() -> None:
    seen = overview(workers=(worker(silent=6.0),), queues=(queue(waiting=1, oldest_seconds=1.0, workers=0),))

    assert [one.level for one in judged(seen)] == ["now", "soon"]


def test_a_wide_screen_shows_what_a_narrow_one_leaves_out() -> None:
    wide, narrow = "\n".join(shown(overview(), 100)), "\n".join(shown(overview(), 60))

    for word in ("pid", "4711", "free slots", "wait p95", "━━━━"):
        assert word in wide
    for word in ("pid", "free slots", "━"):
        assert word not in narrow
    for word in ("host-1", "default", "Grep", "1.7 calls/s", "p95 120 ms", "3 of 8 slots run"):
        assert word in wide
        assert word in narrow


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    many = overview(
        workers=tuple(worker(f"a-host-with-a-long-name-{n}.example.org") for n in range(3)),
        tools=(figures("a_tool_" + "x" * 300, failed=50),),
    )

    assert max(map(len, shown(many, width))) <= width


@pytest.mark.parametrize("height", [1, 5, 10, 20, 24, 40, 200])
def test_all_of_it_fits_the_height_or_says_how_much_is_left_out(height: int) -> None:
    many = overview(
        workers=tuple(worker(f"host-{n}", running=n) for n in range(60)),
        queues=tuple(queue(queue=f"q{n}", waiting=n, workers=0, oldest_seconds=1.0) for n in range(60)),
        tools=tuple(figures(f"tool{n}") for n in range(60)),
    )

    lines = shown(many, 100, height)

    assert len(lines) <= max(height, 16), "a terminal cuts what is below"
    if height == 40:
        assert sum("and " in line and " more" in line for line in lines) == 4
        assert any("host-59" in line for line in lines), "who has most to do is not cut"
    if height == 200:
        assert len(lines) == 200


def test_names_that_would_move_the_cursor_or_style_the_screen_are_shown_harmlessly() -> None:
    evil = "[red]x[/red]\x1b[2J\x07\u202e\nnext"
    seen = overview(
        tools=(figures(evil, failed=90),),
        failures=failures(tool=evil, error_code=evil),
        workers=(worker(evil, silent=30.0, queues=(evil,)),),
        queues=(queue(queue=evil, waiting=1, oldest_seconds=1.0, workers=0),),
        stuck=(
            StuckCalls(
                reason=StuckReason.DISABLED, queue=evil, lane="async", tool=evil, count=1, seconds=1.0, example="01a2"
            ),
        ),
        demoted=(DemotedTool(tool=evil, version=evil, reason=evil, at=NOW),),
    )

    text = "\n".join(shown(seen, 200, trouble=evil))

    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "[red]x[/red]\\x1b[2J" in text


def test_trouble_is_said_above_everything_else() -> None:
    lines = shown(overview(), trouble="What follows is 9s old.")

    assert lines[1].strip() == "What follows is 9s old."


def test_only_all_is_all() -> None:
    assert "99.9% ok" in "\n".join(shown(overview(total=figures(None, calls=100_000, failed=1))))
    assert "100% ok" in "\n".join(shown(overview()))


def test_nothing_at_all_can_be_shown() -> None:
    empty = overview(total=None, tools=(), workers=(), queues=())

    text = "\n".join(shown(empty, 60))

    for said in (
        "0.00 calls/s",
        "No worker has a heartbeat.",
        "No queue is served, nothing waits.",
        "No call ended in 60s.",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("url", "shown_as"),
    [
        ("sqlite:///below/forge.db", "SQLite below/forge.db"),
        ("sqlite:////elsewhere/forge.db", "SQLite /elsewhere/forge.db"),
        ("postgresql://ann:secret@db/forge", "postgresql://ann:***@db/forge"),
    ],
)
def test_the_database_is_named_without_its_password(url: str, shown_as: str) -> None:
    assert place(url) == shown_as
