"""The other side: the same tasks on Celery alone, with its defaults and a Redis result backend."""

import os
import time

from celery import Celery

URL = "RAW_CELERY_URL"
CONCURRENCY = 2


def raw_app(url: str) -> Celery:
    """Make the app; broker and results are on the server of `url`."""
    raw = Celery("raw_celery", broker=url or None, backend=url or None, set_as_current=False)

    @raw.task(name="raw.no_op", shared=False)
    def no_op() -> str:
        return "done"

    @raw.task(name="raw.sleep", shared=False)
    def sleep(seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    return raw


app = raw_app(os.environ.get(URL, ""))
"""What `celery --app benchmarks.raw_celery worker` serves."""
