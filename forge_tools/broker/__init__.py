"""The way to workers and back. Only this package and `workers` know which broker there is and that Celery reads it."""

from forge_tools.broker.celery_app import backlog, celery_app, open_broker, speaks_redis
from forge_tools.broker.message import (
    BULK,
    CHANNEL_PREFIX,
    REPLY_MARK,
    TASK,
    WAKEUPS_PER_MESSAGE,
    Allowance,
    Broker,
    Message,
    queue_name,
    queue_of,
)

__all__ = [
    "BULK",
    "CHANNEL_PREFIX",
    "REPLY_MARK",
    "TASK",
    "WAKEUPS_PER_MESSAGE",
    "Allowance",
    "Broker",
    "Message",
    "backlog",
    "celery_app",
    "open_broker",
    "queue_name",
    "queue_of",
    "speaks_redis",
]
