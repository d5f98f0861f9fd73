"""What a worker tells of the MCP servers that it hosts, and what that means for a caller of their tools."""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_SAID = 3


class ServerState(BaseModel):
    """One server as its worker last saw it, by that worker's clock.

    `prefix` is what the names of its tools begin with, `tools` how many it has that are offered, `left_out` why others are not.
    `why` is the reason of a failing one with the last words of its program, `failures` how often it failed in a row.
    """

    model_config = ConfigDict(frozen=True)

    server: str
    prefix: str
    status: Literal["starting", "serving", "failing"]
    since: datetime
    tools: int = 0
    why: str = ""
    failures: int = 0
    left_out: dict[str, str] = Field(default_factory=dict)
    hostname: str = ""

    @property
    def sentence(self) -> str:
        """The state, for people."""
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        if self.status == "serving":
            tools = "1 tool" if self.tools == 1 else f"{self.tools} tools"
            said = f"serves {tools} {since}"
        elif self.status == "starting":
            said = f"is starting {since}; try again soon"
        else:
            times = f" ({self.failures} times)" if self.failures > 1 else ""
            said = f"has been failing {since}{times}, and is tried again: {self.why}"
        return f"The MCP server '{self.server}' on {self.hostname} {said}"


def told_of(tool: str, states: Iterable[ServerState]) -> str:
    """Say what the servers that an unknown tool may be of are doing, behind a sentence about it; empty if there is none."""
    fitting = [one for one in states if tool.startswith(one.prefix)]
    longest = max((len(one.prefix) for one in fitting), default=0)
    said = (_of_tool(tool, one) for one in fitting if len(one.prefix) == longest)
    return "".join(f". {sentence}" for sentence in list(dict.fromkeys(said))[:MOST_SAID])


def _of_tool(tool: str, state: ServerState) -> str:
    reason = state.left_out.get(tool)
    return state.sentence if reason is None else f"{state.sentence}, without this one: {reason}"
