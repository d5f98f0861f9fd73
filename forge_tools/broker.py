"""The connection to a broker that speaks Redis' protocol; every other one is reached through Celery alone."""

from typing import TYPE_CHECKING, Any

from forge_tools.errors import ConfigurationError

if TYPE_CHECKING:
    from redis.asyncio import Redis

CONNECT_SECONDS = 3.0


def speaks_redis(broker_url: str) -> bool:
    """Whether that broker is a Redis or Valkey that is reached directly."""
    return broker_url.startswith(("redis", "valkey", "unix"))


def redis_client(broker_url: str, **options: Any) -> "Redis":
    """A client that connects at its first use and tries nothing twice.

    Raises:
        ConfigurationError: that is no URL of a broker.
    """
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    url = broker_url.replace("redis+socket://", "unix://", 1)
    try:
        return Redis.from_url(url, socket_connect_timeout=CONNECT_SECONDS, retry=Retry(NoBackoff(), 0), **options)
    except ValueError as error:
        raise ConfigurationError(f"FORGE_BROKER_URL is no URL of a broker: {error}") from error
