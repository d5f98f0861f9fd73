"""Celery's consumer where it does not fit: a worker that finds no descriptor for a connection to the broker waits for one."""

import errno
import logging
import time
from typing import Any

from celery.worker.consumer import Consumer
from kombu.exceptions import OperationalError

AGAIN_SECONDS = 1.0
"""Between two tries; Celery warns of more than five restarts a second."""

logger = logging.getLogger(__name__)


class PatientConsumer(Consumer):
    """Celery's own ends its worker there, and so cuts what runs; whether this one is fit to go on its engine decides."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc, valid-type]  # celery-types takes it for a variable
        def start(self, parent: Any) -> None:
            try:
                super().start(parent)
            except (OSError, OperationalError) as error:
                if not _is_for_want_of_descriptors(error):
                    raise
                time.sleep(AGAIN_SECONDS)
                raise ConnectionError(str(error)) from error  # with no number: Celery knows what EMFILE is

    def on_connection_error_before_connected(self, exc: BaseException) -> None:
        """Say so without the URL, which takes a descriptor to be written."""
        logger.error("The broker is not reached; another try follows", extra={"error": str(exc)})


def _is_for_want_of_descriptors(error: BaseException | None) -> bool:
    while error is not None:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False
