"""A stand-in for a worker of the embedded stack; it imports nothing of ours, so that it starts at once.

`python stand_in_worker.py MODE NAME`: `steady` ends on SIGTERM, `stubborn` and its child ignore it, `crashing` fails at once.
"""

import signal
import subprocess
import sys
import time


def main(mode: str) -> None:
    if mode == "crashing":
        sys.exit(3)
    if mode == "steady":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, lambda *_: print("heard, and ignored", flush=True))
        with subprocess.Popen([sys.executable, __file__, "stubborn-child", "-"]) as child:
            child.wait()
    if mode == "stubborn-child":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:  # no deadline: it stands in for a worker until it is killed
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1])
