"""Decrypts what claimed calls hide, and replaces references by secrets: in the engine, which alone has the keys."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from forge_tools.config import Settings
from forge_tools.errors import EncryptionError, ForgeError
from forge_tools.model.execution import Claim, Outcome
from forge_tools.model.tools import ToolSpec
from forge_tools.secrets.detection import SCHEME, SecretDetector, SecretSource
from forge_tools.secrets.encryption import KeyFolder, Opener
from forge_tools.storage import Store
from workers.middleware.base import Ends, Middleware
from workers.outcomes import not_run

NO_PARAMETERS = (
    "The decrypted value is not an object of parameters: no client of this version encrypted it. Submit the call again."
)
"""Anybody can encrypt for workers, so the content may be anything."""

logger = logging.getLogger(__name__)


class Decryption(Middleware):
    """What a worker needs to run calls that hide something; all others pass untouched."""

    def __init__(self, settings: Settings, hosted: Mapping[str, ToolSpec], secrets: Mapping[str, str]) -> None:
        self._folder = KeyFolder(settings.keys_folder)
        self._opener = Opener(self._folder)
        self._source = SecretSource(secrets, settings.secrets_dir)
        self._may_refer_inside = frozenset(settings.references_in)
        self._hosted = hosted

    async def check(self, store: Store) -> None:
        """Warn if calls would fail because the key that clients encrypt with now is missing."""
        current = (await store.directories.read()).encryption_key
        if current is not None and current.id not in self._folder.ids():
            logger.warning(
                "This worker does not hold the key that clients encrypt with; calls with secrets will fail here",
                extra={"key": current.id, "folder": str(self._folder.folder)},
            )

    def claimed(self, claims: list[Claim], ends: Ends) -> list[Claim]:
        """Return the claims as their tools get them; any that cannot be decrypted ends here and starts no body."""
        if not any(claim.encrypted is not None or SCHEME in claim.parameters for claim in claims):
            return claims
        decrypted = []
        for claim in claims:
            try:
                decrypted.append(self._decrypted(claim))
            except ForgeError as error:
                ends.add(_refused(claim, error))
            except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
                ends.add(_refused(claim, EncryptionError(NO_PARAMETERS)))
        return decrypted

    def _decrypted(self, claim: Claim) -> Claim:
        if claim.encrypted is None and SCHEME not in claim.parameters:
            return claim
        shown, secrets = json.loads(claim.parameters), list[str]()
        parameters, context = shown, claim.context
        if claim.encrypted is not None:
            encrypted = self._opener.open(
                claim.encrypted, execution_id=claim.id, tool=claim.tool, shown=claim.parameters
            )
            parameters, found, metadata = SecretDetector.join(shown, encrypted)
            secrets += found
            context = json.dumps({**json.loads(context), "metadata": metadata}) if metadata else context
        if (spec := self._hosted.get(claim.tool)) is not None and spec.may_hide:
            for name in spec.hidden(parameters):
                parameters[name] = self._source.resolve(parameters[name], secrets)
            for name in spec.holding(parameters) if claim.tool in self._may_refer_inside else ():
                parameters[name] = self._source.resolve(parameters[name], secrets, is_named=False)
        if claim.encrypted is None and not secrets:
            return claim
        told = tuple(dict.fromkeys(secrets))
        return replace(claim, parameters=json.dumps(parameters), context=context, encrypted=None, secrets=told)


def _refused(claim: Claim, error: ForgeError) -> Outcome:
    logger.error("A call cannot be decrypted", extra={"error": error.message, **claim.facts()})
    return not_run(claim, error.message, error.code, retryable=error.retryable)
