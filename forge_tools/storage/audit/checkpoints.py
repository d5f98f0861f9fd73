"""What a checkpoint says of the rows that were pruned: how many of which batch, and the hash over their lines."""

import json
from dataclasses import dataclass
from typing import Any

from forge_tools.storage.audit.chain import Batch


@dataclass(frozen=True, slots=True)
class Portion:
    """The part of one batch that one checkpoint removed."""

    checkpoint: int
    batch: int
    executions: int
    events: int
    root: str

    def stored(self) -> list[Any]:
        return [self.batch, self.executions, self.events, self.root]


def portions_of(checkpoint: Batch) -> list[Portion]:
    """Read them back.

    Raises:
        KeyError, TypeError, ValueError: the detail is not one of a checkpoint.
    """
    detail = json.loads(checkpoint.detail)
    return [
        Portion(checkpoint.sequence, int(batch), int(executions), int(events), str(root))
        for batch, executions, events, root in detail["pruned"]
    ]
