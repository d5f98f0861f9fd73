"""Parts what a call hides from what people may see, and seals it before anything is stored."""

from collections.abc import Mapping
from typing import Any

from forge_tools.client.snapshot import Snapshot
from forge_tools.errors import SealingError
from forge_tools.records import REDACTED
from forge_tools.secrecy import Concealment
from forge_tools.validation import encode_json

NO_KEY = (
    "{tool} takes a secret ({names}), and the database has no key to seal it with. Make one where the workers read it: "
    "forge-tools keys new. Or give the secret by reference: secret://NAME"
)


def sealed(
    concealment: Concealment,
    parameters: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    execution_id: str,
    snapshot: Snapshot,
    limit: int,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What `NewExecution` has of parameters, and the metadata that people see; None where nothing is to be hidden.

    Raises:
        SealingError: there is something to hide, and no key.
        InvalidCallError: the values cannot be carried.
    """
    parts = concealment.part(parameters, metadata)
    if parts is None:
        return None
    tool = concealment.tool
    sealer = snapshot.sealer
    if sealer is None:
        raise SealingError(NO_KEY.format(tool=tool, names=", ".join(parts.names)))
    shown = encode_json(parts.shown, "parameters", limit)
    asked = {
        "parameters": shown,
        "sealed": sealer.seal(parts.sealed, execution_id=execution_id, tool=tool, shown=shown),
        "sealed_names": parts.names,
    }
    return asked, parts.shown_metadata


def without_texts(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for a tool that nobody knows: any text among them may be the secret of one whose name is misspelt."""
    return {
        name: REDACTED if isinstance(value, str | list | tuple | dict) else value for name, value in arguments.items()
    }
