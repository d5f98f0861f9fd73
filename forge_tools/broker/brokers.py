"""Which broker a URL means."""

from forge_tools.broker.base import Broker


def open_broker(url: str) -> Broker:
    """The quickest way into that broker; it is met at the first use.

    Raises:
        ConfigurationError: that is no URL of a broker.
    """
    if speaks_redis(url):
        from forge_tools.broker.redis import RedisBroker  # here, for who imports a client and calls nothing

        return RedisBroker(url)
    from forge_tools.broker.amqp import KombuBroker

    return KombuBroker(url)


def speaks_redis(url: str) -> bool:
    """Whether that broker is a Redis or Valkey that is reached directly."""
    return url.startswith(("redis", "valkey", "unix"))
