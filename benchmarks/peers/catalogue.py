"""Every measured system: where its packages are, how its workers are started, and what it keeps of a call."""

from dataclasses import dataclass

ADAPTERS = "benchmarks.peers.adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeps:
    """What remains of a call, by its documentation and tables; shown beside the figures, which mean little without it."""

    in_sql: str
    recorded: str
    guard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One system. `environment` is its requirements file and virtual environment; none is the one that runs this.

    `commands` start two worker processes together; `{concurrency}` is what one process runs at a time, which is
    `concurrency`, and `waiting` where calls only wait (none: the calls of one process cannot overlap). `prepare` makes its tables.
    """

    name: str
    title: str
    adapter: str
    environment: str | None
    package: str
    commands: tuple[str, ...]
    concurrency: int
    waiting: int | None
    keeps: Keeps
    settings: str
    prepare: str | None = None
    burst: int = 4_000


OURS = "forge_tools"
"""The name of the system that the others are set beside."""

BROKER_ONLY = "no"

PEERS = (
    Peer(
        name=OURS,
        title="forge_tools",
        adapter="forge",
        environment=None,
        package="forge-tools",
        prepare="-m forge_tools.cli db upgrade",
        commands=(
            f"-P -m workers --lane async --concurrency {{concurrency}} --no-builtins --tools {ADAPTERS}.forge:TOOLS",
        )
        * 2,
        concurrency=1000,
        waiting=1000,
        keeps=Keeps(
            in_sql="yes", recorded="parameters, results, every attempt", guard="yes, unless declared idempotent"
        ),
        settings="async lane; `execute` calls gathered on one `ExecutorClient`",
    ),
    Peer(
        name="celery",
        title="Celery, prefork",
        adapter="celery",
        environment="celery",
        package="celery",
        commands=(f"-m celery --app {ADAPTERS}.celery worker --pool prefork --concurrency 2 --loglevel WARNING",),
        concurrency=1,
        waiting=None,
        keeps=Keeps(in_sql=BROKER_ONLY, recorded="results, for a day", guard="no: what waited an hour is sent again"),
        settings="defaults; results in Redis; `delay` for each call, then `get` for each",
        burst=3_000,
    ),
    Peer(
        name="celery-threads",
        title="Celery, threads",
        adapter="celery",
        environment="celery",
        package="celery",
        commands=tuple(
            f"-m celery --app {ADAPTERS}.celery worker --pool threads --concurrency {{concurrency}} "
            f"--hostname {name}@%h --loglevel WARNING"
            for name in ("first", "second")
        ),
        concurrency=8,
        waiting=250,
        keeps=Keeps(in_sql=BROKER_ONLY, recorded="results, for a day", guard="no: what waited an hour is sent again"),
        settings="as prefork",
        burst=3_000,
    ),
    Peer(
        name="dramatiq",
        title="dramatiq",
        adapter="dramatiq",
        environment="dramatiq",
        package="dramatiq",
        commands=(f"-m dramatiq {ADAPTERS}.dramatiq --processes 2 --threads {{concurrency}}",),
        concurrency=8,
        waiting=250,
        keeps=Keeps(in_sql=BROKER_ONLY, recorded="results, for ten minutes", guard="no: sent again when a worker dies"),
        settings="default middleware and `Results` on Redis, read with `block=True`",
    ),
    Peer(
        name="huey",
        title="huey",
        adapter="huey",
        environment="huey",
        package="huey",
        commands=(f"-m huey.bin.huey_consumer {ADAPTERS}.huey.huey -k thread -w {{concurrency}} -q",) * 2,
        concurrency=8,
        waiting=250,
        keeps=Keeps(
            in_sql=BROKER_ONLY, recorded="results, until read", guard="yes, by forgetting: a crash loses the call"
        ),
        settings="`notify_result=True`, so that readers block; it has no acknowledgement",
    ),
    Peer(
        name="procrastinate",
        title="procrastinate",
        adapter="procrastinate",
        environment="procrastinate",
        package="procrastinate",
        prepare=f"-m procrastinate --app {ADAPTERS}.procrastinate.app schema --apply",
        commands=(
            f"-m procrastinate --log-level warning --app {ADAPTERS}.procrastinate.app worker "
            "--concurrency {concurrency}",
        )
        * 2,
        concurrency=10,
        waiting=250,
        keeps=Keeps(
            in_sql="yes",
            recorded="parameters, status, number of attempts; no results",
            guard="yes, unless you retry stalled jobs",
        ),
        settings="`batch_defer_async`, LISTEN/NOTIFY on; the status is polled, as it keeps no results",
        burst=2_000,
    ),
    Peer(
        name="dbos",
        title="DBOS",
        adapter="dbos",
        environment="dbos",
        package="dbos",
        prepare=f"-m {ADAPTERS}.dbos prepare",
        commands=tuple(f"-m {ADAPTERS}.dbos {name} {{concurrency}}" for name in ("first", "second")),
        concurrency=100,
        waiting=250,
        keeps=Keeps(
            in_sql="yes",
            recorded="parameters, results, recovery attempts",
            guard="no: recovery runs it again from its last step",
        ),
        settings="an async workflow on a queue that is polled every 10 ms (1 s by default), results too",
        burst=1_000,
    ),
    Peer(
        name="docket",
        title="docket",
        adapter="docket",
        environment="docket",
        package="pydocket",
        commands=(
            f"-m docket worker --tasks {ADAPTERS}.docket:TASKS --docket peers --url '{{broker}}?max_connections=1000' --concurrency {{concurrency}} "
            "--logging-level WARNING",
        )
        * 2,
        concurrency=100,
        waiting=250,
        keeps=Keeps(
            in_sql=BROKER_ONLY,
            recorded="parameters, results, state; for 15 minutes",
            guard="no: sent again when a worker dies",
        ),
        settings="`add_many`; results are awaited on its notifications",
        burst=2_000,
    ),
    Peer(
        name="taskiq",
        title="taskiq",
        adapter="taskiq",
        environment="taskiq",
        package="taskiq",
        commands=(
            f"-m taskiq worker {ADAPTERS}.taskiq:queue --workers 2 --max-async-tasks {{concurrency}} "
            "--log-level WARNING",
        ),
        concurrency=100,
        waiting=250,
        keeps=Keeps(in_sql=BROKER_ONLY, recorded="results", guard="no: sent again when a worker dies"),
        settings="`RedisStreamBroker`, which acknowledges; results are polled every 2 ms (0.2 s by default)",
    ),
)


def named(name: str) -> Peer:
    """Find a peer by its name."""
    return next(peer for peer in PEERS if peer.name == name)
