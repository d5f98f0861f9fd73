"""Every measure, in the order of running and printing; one measure, or a small family, per file."""

from benchmarks.measures import (
    backlog,
    burst,
    capturing,
    clients,
    code_and_web,
    development,
    export,
    file_tools,
    filesystem_server,
    growth,
    history,
    history_traffic,
    idle,
    in_process,
    mcp,
    memory,
    parts,
    payload,
    process_lane,
    recording,
    round_trip,
    search_tools,
    shell_tool,
    sleeps,
    start_up,
    submit,
    validation,
    walls,
)

MEASURES = (
    burst.MEASURE,
    submit.MEASURE,
    clients.MEASURE,
    payload.MEASURE,
    parts.MEASURE,
    round_trip.MEASURE,
    sleeps.MEASURE,
    process_lane.MEASURE,
    backlog.MEASURE,
    idle.MEASURE,
    in_process.MEASURE,
    validation.MEASURE,
    mcp.MEASURE,
    start_up.MEASURE,
)

GROWTH = (growth.BURSTS, growth.TABLES, growth.PROCESS_COUNTS, memory.MEASURE, parts.MEMORY)

DEVELOPMENT = (development.MEASURE, capturing.MEASURE)

TOOLS = (
    search_tools.MEASURE,
    file_tools.MEASURE,
    shell_tool.MEASURE,
    walls.MEASURE,
    filesystem_server.MEASURE,
    code_and_web.CODE,
    code_and_web.TRUTH,
    code_and_web.WEB,
    code_and_web.MEMORY,
)

HISTORY = (
    history.PAGES,
    history.FIGURES,
    history_traffic.FULL,
    recording.MEASURE,
    history_traffic.PRUNE,
    export.EXPORT,
    export.VERIFY,
)

SETS = {"default": MEASURES, "development": DEVELOPMENT, "growth": GROWTH, "history": HISTORY, "tools": TOOLS}
"""What is run by one name, and shown as one table."""
