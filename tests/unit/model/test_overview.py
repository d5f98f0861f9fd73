"""What a caller of an unknown tool learns about the server that may have it."""

from datetime import UTC, datetime

from forge_tools.mcp.hosted.servers import tool_name, tool_prefix
from forge_tools.model.overview import ServerState, told_of

SINCE = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


def state(server: str, **fields: object) -> ServerState:
    known = {"server": server, "prefix": tool_prefix(server), "status": "starting", "since": SINCE, "hostname": "h"}
    return ServerState.model_validate({**known, **fields})


def test_the_server_with_the_longest_fitting_name_answers() -> None:
    states = [state("git"), state("git__hub"), state("x" * 60)]

    assert "'git__hub' on h is starting since" in told_of("mcp__git__hub__push", states)
    assert "'git' on h is starting since" in told_of(tool_name("git", "push"), states)
    assert f"'{'x' * 60}'" in told_of(tool_name("x" * 60, "push"), states)
    assert told_of("Grep", states) == told_of("mcp__other__push", states) == ""


def test_a_tool_that_is_left_out_is_told_the_reason() -> None:
    serving = state("git", status="serving", tools=3, left_out={"mcp__git__push": "its schema is too deep"})

    said = told_of("mcp__git__push", [serving])

    assert said == (
        ". The MCP server 'git' on h serves 3 tools since 2026-03-01 12:00:05 UTC, "
        "without this one: its schema is too deep"
    )


def test_each_host_tells_its_own_state_once() -> None:
    states = [state("git", hostname=host) for host in ("h", "h", "i")]

    assert told_of("mcp__git__push", states).count("is starting") == 2
