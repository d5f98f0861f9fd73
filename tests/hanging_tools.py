"""The sample tools, in a worker whose engine SIGRTMIN hangs."""

import asyncio
import gc
import signal
import time

from tests.sample_tools import TOOLS

__all__ = ["TOOLS"]


def _hang(*_: object) -> None:
    gc.unfreeze()  # what a worker has frozen at its start is not listed
    loops = [one for one in gc.get_objects() if isinstance(one, asyncio.AbstractEventLoop) and one.is_running()]
    [of_engine] = loops  # bodies of the process lane have theirs in children
    of_engine.call_soon_threadsafe(time.sleep, 600)


signal.signal(signal.SIGRTMIN, _hang)
