"""Checks of the broker: it answers, and it keeps what it is given."""

import math
from collections.abc import Iterator

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from forge_tools.broker import celery_app, speaks_redis
from forge_tools.cli.doctor.finding import Finding, note, ok, problem
from forge_tools.config import Settings
from forge_tools.urls import without_passwords

LEAST_SERVER = (6, 2)


def check_broker(settings: Settings) -> Iterator[Finding]:
    """Connect to the broker, as clients and workers would."""
    url = settings.broker
    yield from _redis(settings) if speaks_redis(url) else _other(settings)


def _redis(settings: Settings) -> Iterator[Finding]:
    url = settings.broker.replace("redis+socket://", "unix://", 1)
    wait = settings.connect_timeout
    try:
        with Redis.from_url(
            url, socket_connect_timeout=wait, socket_timeout=wait, retry=Retry(NoBackoff(), 0)
        ) as server:
            facts = server.info()
    except (RedisError, OSError, ValueError) as error:
        yield _away(settings, error)
        return
    name = "Valkey" if "valkey_version" in facts else "Redis"
    number = str(facts.get("valkey_version") or facts.get("redis_version"))
    yield ok("broker", f"{name} {number} at {without_passwords(settings.broker)}")
    if tuple(map(int, number.split(".")[:2])) < LEAST_SERVER:
        yield problem("broker", f"{name} {number} is older than 6.2", "Run Valkey 7.2 or later, or Redis 6.2 or later.")
    if facts.get("maxmemory_policy", "noeviction") != "noeviction":
        said = f"maxmemory-policy is {facts['maxmemory_policy']}: it may drop messages, and calls then wait for a poll"
        yield note("broker", said, "Set maxmemory-policy noeviction on the server.")


def _other(settings: Settings) -> Iterator[Finding]:
    app = celery_app(settings.broker)
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=math.ceil(settings.connect_timeout))
    except Exception as error:  # noqa: BLE001 every transport has its own errors
        yield _away(settings, error)
    else:
        yield ok("broker", without_passwords(settings.broker))
    finally:
        app.close()


def _away(settings: Settings, error: Exception) -> Finding:
    way_out = (
        "Start the stack: forge-tools up."
        if not settings.broker_url
        else "Check that it runs and that FORGE_BROKER_URL is right. Calls are kept meanwhile, and run more slowly."
    )
    return problem("broker", f"{without_passwords(settings.broker)} does not answer: {error}", way_out)
