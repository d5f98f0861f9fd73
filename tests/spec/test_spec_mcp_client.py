"""Requirements of the MCP client: it reports what it could not read, and continues (S2-26 to S2-28)."""

import logging

import pytest

from tests.hosting import Host, call, raw

LOGGER = "forge_tools.mcp.hosted.process"


async def outputs(*texts: str) -> list[object]:
    """What a server answers that prints garbage before each message."""
    host = Host()
    executor = await host.start(raw("noisy", name="noisy"))
    try:
        return [(await call(executor, "mcp__noisy__echo", text=text)).output for text in texts]
    finally:
        await host.stop()


@pytest.mark.spec("S2-26", "S2-28")
async def test_what_cannot_be_parsed_is_logged_with_its_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOGGER):
        await outputs("one")

    told = [vars(record) for record in caplog.records if record.name == LOGGER]
    assert {(entry["levelname"], entry["server"]) for entry in told} == {("WARNING", "noisy")}
    assert {"DEBUG: about to answer", "{not json}"} <= {entry.get("line") for entry in told}


@pytest.mark.spec("S2-27")
async def test_the_messages_behind_it_are_read() -> None:
    assert await outputs("one", "two", "three") == ["one", "two", "three"]
