"""The sample tools, in a worker whose engine SIGRTMIN hangs."""

import gc
import signal
import time

from tests.sample_tools import TOOLS
from workers.engine import Engine

__all__ = ["TOOLS"]


def _hang(*_: object) -> None:
    gc.unfreeze()  # what a worker has frozen at its start is not listed
    [engine] = [one for one in gc.get_objects() if isinstance(one, Engine)]
    engine._loop.call_soon_threadsafe(time.sleep, 600)


signal.signal(signal.SIGRTMIN, _hang)
