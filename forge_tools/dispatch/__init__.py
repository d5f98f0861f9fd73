"""Rings out to workers by Celery task name. What knows Celery lives here or in `workers`."""

from forge_tools.dispatch.allowance import Allowance
from forge_tools.dispatch.app import BULK, TASK, backlog, celery_app
from forge_tools.dispatch.bells import RINGS_PER_MESSAGE, Bells, Limits, merge, queue_name, queue_of
from forge_tools.dispatch.dispatcher import Dispatcher

__all__ = [
    "BULK",
    "RINGS_PER_MESSAGE",
    "TASK",
    "Allowance",
    "Bells",
    "Dispatcher",
    "Limits",
    "backlog",
    "celery_app",
    "merge",
    "queue_name",
    "queue_of",
]
