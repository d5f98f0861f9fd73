"""Every measure, in the order it is run and printed; one measure, or a small family, a file."""

from benchmarks.measures import (
    backlog,
    burst,
    clients,
    growth,
    idle,
    in_process,
    memory,
    payload,
    process_lane,
    round_trip,
    sleeps,
    start_up,
    submit,
    validation,
)

MEASURES = (
    burst.MEASURE,
    submit.MEASURE,
    clients.MEASURE,
    payload.MEASURE,
    round_trip.MEASURE,
    sleeps.MEASURE,
    process_lane.MEASURE,
    backlog.MEASURE,
    idle.MEASURE,
    in_process.MEASURE,
    validation.MEASURE,
    start_up.MEASURE,
)

GROWTH = (growth.BURSTS, growth.TABLES, growth.PROCESS_COUNTS, memory.MEASURE)

SETS = {"default": MEASURES, "growth": GROWTH}
"""What is run by one name, and shown as one table."""
