"""An artifact: an output that was too long for its result, kept whole under the hash of its bytes."""

import re
from dataclasses import dataclass
from datetime import datetime

SCHEME = "artifact://"
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What is kept. `id` is the 128-bit BLAKE2b of the bytes, in hex; `size` counts them."""

    id: str
    size: int
    media_type: str = "text/plain; charset=utf-8"
    execution_id: str | None = None
    session_id: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def handle(self) -> str:
        """What Read and Grep take in place of a path."""
        return f"{SCHEME}{self.id}"


def artifact_id(handle: str) -> str | None:
    """The id in a handle such as `artifact://6b1f...`; None for anything else."""
    if not handle.startswith(SCHEME):
        return None
    found = handle.removeprefix(SCHEME)
    return found if _ID.fullmatch(found) else None
