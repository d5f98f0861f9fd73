"""The other side: the same tasks on Celery alone, with its defaults; results in Redis, or in SQL.

`python -m benchmarks.raw_celery` is its client for calls one at a time, asked as `benchmarks.client` is.
"""

import gc
import json
import os
import sys
import time

from celery import Celery

BROKER = "RAW_CELERY_BROKER"
RESULTS = "RAW_CELERY_RESULTS"
QUEUE = "RAW_CELERY_QUEUE"
CONCURRENCY = 2


def raw_app(broker: str, results: str, queue: str) -> Celery:
    """Make the app; without a broker it can be imported, and no more."""
    raw = Celery("raw_celery", broker=broker or None, backend=results or None, set_as_current=False)
    raw.conf.task_default_queue = queue

    @raw.task(name="raw.no_op", shared=False)
    def no_op() -> str:
        return "done"

    @raw.task(name="raw.sleep", shared=False)
    def sleep(seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    @raw.task(name="raw.swallow", shared=False)
    def swallow(text: str) -> str:
        return str(len(text))

    @raw.task(name="raw.produce", shared=False)
    def produce(size: int) -> str:
        return "x" * size

    return raw


app = raw_app(os.environ.get(BROKER, ""), os.environ.get(RESULTS, ""), os.environ.get(QUEUE, "raw"))
"""What `celery --app benchmarks.raw_celery worker` serves."""


def serve() -> None:
    """Answer until the input ends: the milliseconds of each call."""
    no_op = app.tasks["raw.no_op"]
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        took = []
        for _ in range(json.loads(line)[1]["calls"]):
            started = time.perf_counter()
            no_op.delay().get(timeout=60)
            took.append((time.perf_counter() - started) * 1000)
        print(json.dumps({"answer": took}), flush=True)


if __name__ == "__main__":
    serve()
