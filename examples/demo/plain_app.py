"""The plain Celery beside the demo: one app, one task, and the settings that lose least."""

import time
from collections.abc import Mapping

from celery import Celery, states
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from examples.demo.effects import note

TASK = "plain.work"
SETTINGS = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
}
"""What its documentation recommends where no task may be lost; all else is as shipped."""
VISIBILITY_TIMEOUT = 3600
"""Seconds after which its Redis transport gives what a dead worker held to another, as shipped."""

app = Celery("plain", set_as_current=False)
app.conf.update(SETTINGS, broker_connection_retry_on_startup=True)

BROKER_ERRORS = (OperationalError, RedisError, OSError)


@app.task(name=TASK, shared=False)
def work(key: str, seconds: float, log: str) -> str:
    """Do what the demo's tools do."""
    note(log, key, "start")
    time.sleep(seconds)
    note(log, key, "end")
    return key


def submit(key: str, seconds: float, log: str) -> str:
    """Publish one call, with the retries that Celery makes as shipped; returns its id."""
    sent: str = app.send_task(TASK, kwargs={"key": key, "seconds": seconds, "log": log}).id
    return sent


def returned(ids: Mapping[str, str]) -> set[str]:
    """Return the keys of those given calls whose results have arrived."""
    return {key for key, id_ in ids.items() if AsyncResult(id_, app=app).state in states.READY_STATES}
