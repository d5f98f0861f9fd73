"""What a number of calls cost between two moments: wall time, and processor time by who spent it."""

import time
from collections.abc import Sequence
from typing import Self

from benchmarks.counters import broker_commands, database_counts
from benchmarks.figures import Readings, Row
from benchmarks.fleets import CREWS, Fleet
from benchmarks.processes import cpu_seconds
from benchmarks.scene import Scene

PARTIES = ("client", "workers", "database", "broker")


def split(what: str, ours: str, raw: str | None = None) -> list[Row]:
    """Rows for what a call of a metered side costs whom."""
    return [Row(title=f"CPU a call, {what}: {party}", unit="us", key=party, ours=ours, raw=raw) for party in PARTIES]


class Meter:
    """Starts when made; reads the client's share from the process `client`, or from this one, which then is the client.

    `cpu` is client, workers and database together, the broker apart; `statements`, `commits` and `commands` are those of
    the whole server, so that whatever idles beside the calls is in them.
    """

    def __init__(self, scene: Scene, workers: Sequence[int], database_url: str, *, client: int | None = None) -> None:
        self._scene = scene
        self._workers = workers
        self._client = client
        self._database_url = database_url if "postgresql" in database_url.partition(":")[0] else ""
        self._counted = self._counts()
        self._used = self._seconds()
        self._started = time.perf_counter()

    @classmethod
    def of(cls, scene: Scene, fleet: Fleet, *, client: int | None = None) -> Self:
        """For calls that this fleet runs."""
        if fleet == "raw" or fleet == "raw-sql":
            return cls(scene, scene.pids(fleet), scene.results[fleet], client=client)
        return cls(scene, scene.pids(fleet), scene.settings[CREWS[fleet].database].database_url, client=client)

    def read(self, calls: int) -> Readings:
        """All by call: rate in calls a second, the times in microseconds."""
        wall = time.perf_counter() - self._started
        used = {name: (now - self._used[name]) / calls * 1e6 for name, now in self._seconds().items()}
        counted = {name: (now - self._counted[name]) / calls for name, now in self._counts().items()}
        cpu = used["client"] + used["workers"] + used["database"]
        return {"rate": calls / wall, "each": wall / calls * 1e6, "cpu": cpu, **used, **counted}

    def _seconds(self) -> dict[str, float]:
        return {
            "workers": cpu_seconds(self._workers),
            "database": cpu_seconds([self._scene.database_pid]) if self._database_url else 0.0,
            "broker": cpu_seconds([self._scene.broker_pid]),
            "client": time.process_time() if self._client is None else cpu_seconds([self._client]),
        }

    def _counts(self) -> dict[str, float]:
        counts = database_counts(self._scene, self._database_url) if self._database_url else {}
        return {"commands": broker_commands(self._scene.broker), **counts}
