"""Notifies the submitters of ended calls, once each per flush; a small result is included, encrypted for its client."""

from collections.abc import Iterable, Sequence

from forge_tools.broker.message import REPLY_MARK, Broker
from forge_tools.model.execution import Claim, Kept, Outcome
from forge_tools.secrets.encryption import encrypted_reply, load_cipher
from forge_tools.storage import result_text
from workers.middleware.base import Middleware, Stored

MOST_WITH_RESULTS = 8
"""How many ends of one flush are sent with results; beyond that only ids are sent, which the client reads together."""
LONGEST_REPLY = 32_768
"""Bytes of a result that is included in a notification."""


class Notifications(Middleware):
    """Sends nothing about a call that goes back to its queue."""

    def __init__(self, broker: Broker, *, with_results: bool = True) -> None:
        self._broker = broker
        self._with_results = with_results
        if with_results:  # now: a worker that has run out of descriptors could load nothing
            load_cipher()

    def stored(self, stored: Sequence[Stored]) -> None:
        over = [one for one in stored if not one.outcome.is_requeue]
        ids: list[tuple[str, str]] = []
        for outcome, claim, kept in over:
            if claim is None or not claim.reply_to:
                continue
            reply = self._reply(claim, outcome) if kept is Kept.WHOLE and len(over) <= MOST_WITH_RESULTS else None
            if reply is None:
                ids.append((claim.reply_to, outcome.id))
            else:
                self._broker.notify(claim.reply_to, outcome.id.encode() + REPLY_MARK + reply)
        if ids:
            self.tell(ids)

    def tell(self, ended: Iterable[tuple[str, str]]) -> None:
        """Notify the submitters, as (submitter, id), of executions that ended for any reason."""
        ids: dict[str, list[str]] = {}
        for submitter, execution_id in ended:
            ids.setdefault(submitter, []).append(execution_id)
        for submitter, its in ids.items():
            self._broker.notify(submitter, " ".join(its).encode())

    def _reply(self, claim: Claim, outcome: Outcome) -> bytes | None:
        if not self._with_results or claim.reply_key is None or outcome.size > LONGEST_REPLY:
            return None
        return encrypted_reply(claim.reply_key, outcome.id, result_text(outcome))
