"""Every measure, in the order it is run and printed; one measure, or a small family, a file."""

from benchmarks.measures import burst, in_process, memory, round_trip, sleeps, start_up

MEASURES = (
    round_trip.MEASURE,
    burst.BURST,
    burst.SUBMIT,
    burst.PROCESS,
    sleeps.MEASURE,
    in_process.MEASURE,
    start_up.MEASURE,
    memory.MEASURE,
    memory.GROWTH,
)
