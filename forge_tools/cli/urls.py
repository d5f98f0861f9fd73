"""URLs as people may see them."""

from urllib.parse import urlsplit, urlunsplit


def without_password(url: str) -> str:
    """Hide the password of a URL, and nothing else."""
    try:
        parts = urlsplit(url)
        if parts.password is None:
            return url
    except ValueError:
        return "a URL that cannot be read"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))
