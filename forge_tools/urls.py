"""URLs of brokers and databases, several separated by `;`: what people may see of them, and which are refused."""

import hashlib
import re
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

HIDDEN = "***"

UNREADABLE = (
    "the URL cannot be parsed; write scheme://user:password@host:port/name, with the user only once before several hosts, "
    "and write in a password / as %2F, ? as %3F, # as %23 and @ as %40"
)

_SOCKET_OPTIONS = frozenset({"virtual_host", "username", "password"})

_BETWEEN = re.compile(r";(?=[A-Za-z][\w+.-]*://)")


def without_passwords(url: str) -> str:
    """Return what people see: whatever may be part of a password is hidden; the query, which may hold one, is cut."""
    return ";".join(_shown(one) for one in _BETWEEN.split(url))


def require_readable(url: str) -> None:
    """Refuse a URL that libraries would split inside a password, and then quote in their errors.

    Raises:
        ValueError: without quoting the URL.
    """
    if not all(map(_is_readable, _BETWEEN.split(url))):
        raise ValueError(UNREADABLE)


def require_known_options(url: str) -> None:
    """Refuse an option of a Redis URL that Celery and the Redis client do not both take: one would fail, or use another database.

    Raises:
        ValueError: naming the option alone.
    """
    scheme, _, place = url.partition("://")
    if scheme.startswith("amqp"):
        return
    is_socket = scheme.endswith("+socket")
    for option in parse_qs(place.partition("?")[2], keep_blank_values=True):
        is_known = option in _SOCKET_OPTIONS if is_socket else option.startswith("ssl_")
        if not is_known:
            form = "redis+socket:///path?virtual_host=3" if is_socket else "redis://host:6379/3"
            raise ValueError(f"'{option[:40]}' is no option of a broker here; to name a database, write {form}")


def with_password(url: str, password: str) -> str:
    """Add this password to each of the URLs.

    Raises:
        ValueError: there is no URL or no password, or a URL already has one; without quoting it.
    """
    if not url or not password:
        raise ValueError("it takes a URL without a password, and a file with one")
    return ";".join(_with_password(one, password) for one in _BETWEEN.split(url))


def database_id(url: str) -> str:
    """Identify the database that a URL means, by its hosts or file and its name, whichever user and driver reach it."""
    scheme, _, rest = url.partition("://")
    place = str(Path(rest.partition("?")[0].removeprefix("/")).resolve())
    if not scheme.startswith("sqlite"):
        parts = urlsplit(url)
        sockets = parse_qs(parts.query).get("host", [])
        place = f"{parts.netloc.rpartition('@')[2]}{','.join(sockets)}{parts.path}"
    return hashlib.blake2b(place.encode(), digest_size=8).hexdigest()


def for_redis(url: str) -> str:
    """Return the same URL for the Redis client: kombu, and so our settings, name a socket and its database differently."""
    return re.sub(r"(?<=[?&])virtual_host=", "db=", url.replace("redis+socket://", "unix://", 1))


def _shown(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return HIDDEN
    user, at, place = rest.rpartition("@")
    if rest.startswith("/") or ":" not in user:
        return f"{scheme}://{rest.partition('?')[0]}"
    return f"{scheme}://{user.partition(':')[0]}:{HIDDEN}{at}{place.partition('?')[0]}"


def _is_readable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        user, _, hosts = parts.netloc.rpartition("@")
        for host in hosts.split(","):
            _ = urlsplit(f"//{host}").port  # raises, and quotes what it takes for a port
    except ValueError:
        return False
    if "," in user.partition("@")[2]:  # `u:p@first,u:p@second`, which every library reads as one long password
        return False
    return "://" in url and (not parts.netloc or "@" not in url.partition(parts.netloc)[2])


def _with_password(url: str, password: str) -> str:
    scheme, _, rest = url.partition("://")
    user, _, place = rest.rpartition("@")
    if ":" in user:
        raise ValueError("the URL has a password already; give one or the other")
    return f"{scheme}://{user}:{quote(password, safe='')}@{place}"
