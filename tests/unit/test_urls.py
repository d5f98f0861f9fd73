"""URLs of brokers and databases: as people see them, which can be read, and with a password from elsewhere."""

import re
from pathlib import Path

import pytest

from forge_tools.urls import UNREADABLE, database_id, require_readable, with_password, without_passwords


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p%40ss@host:5432/db", "postgresql://u:***@host:5432/db"),
        ("postgresql://u:p@ss:w@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:p1@h1,u:p2@h2/db", "postgresql://u:***@h2/db"),
        ("postgresql://u:p@h1:1,h2:2/db?sslmode=require", "postgresql://u:***@h1:1,h2:2/db"),
        ("postgresql://h/db?user=u&password=p", "postgresql://h/db"),
        ("postgresql://u:p/w?x#y@host/db", "postgresql://u:***@host/db"),
        ("redis://:p@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
        ("redis://[broken", "redis://[broken"),
        ("redis://u:p@[broken", "redis://u:***@[broken"),
        ("sentinel://:p1@h1:1;sentinel://u:p@2@h2:2", "sentinel://:***@h1:1;sentinel://u:***@h2:2"),
        ("amqp://u:p;w@h1//", "amqp://u:***@h1//"),
        ("amqp://guest@h1//", "amqp://guest@h1//"),
        ("redis+socket:///run/a:b@c.sock?password=p", "redis+socket:///run/a:b@c.sock"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("u:p@host", "***"),
    ],
)
def test_urls_are_shown_without_whatever_may_be_a_password(url: str, shown: str) -> None:
    assert without_passwords(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p/w@host/db",
        "postgresql://u:12/34@host/db",
        "redis://u:p#w@host",
        "redis://u:p?w@host",
        "redis://u:pw@[::1",
        "postgresql://u:p1@h1,u:p2@h2/db",
        "amqp://u:p@h1;amqp://u:p/w@h2",
        "u:p@host/db",
    ],
)
def test_a_url_whose_parts_cannot_be_told_apart_is_refused_and_nothing_of_it_is_said(url: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(UNREADABLE)}$"):
        require_readable(url)


@pytest.mark.parametrize(
    "url", ["postgresql://u:p@h1:1,h2:2/db", "redis+socket:///run/x@y.sock", "amqp://u:p%2Fw@h//", "sqlite:////a@b.db"]
)
def test_a_url_that_can_be_read_is_taken(url: str) -> None:
    require_readable(url)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("postgresql://forge@db:5432/forge", "postgresql://forge:a%2Fb%40%20c@db:5432/forge"),
        ("redis://cache/0", "redis://:a%2Fb%40%20c@cache/0"),
        ("amqp://u@h1//;amqp://v@h2//", "amqp://u:a%2Fb%40%20c@h1//;amqp://v:a%2Fb%40%20c@h2//"),
    ],
)
def test_a_password_is_written_into_each_url_so_that_it_stays_one(url: str, whole: str) -> None:
    assert with_password(url, "a/b@ c") == whole


@pytest.mark.parametrize(("url", "password"), [("", "p"), ("redis://cache", "")])
def test_a_url_and_a_password_belong_together(url: str, password: str) -> None:
    with pytest.raises(ValueError, match="a URL without a password, and a file with one"):
        with_password(url, password)


def test_a_second_password_is_refused() -> None:
    with pytest.raises(ValueError, match="has a password already") as refused:
        with_password("redis://:first@cache", "second")
    assert "first" not in str(refused.value)


def test_one_database_is_one_place_whoever_reaches_it_and_two_are_two() -> None:
    same = ("postgresql://ann@db:5432/forge", "postgresql+asyncpg://bob:x@db:5432/forge?sslmode=require")
    others = ("postgresql://ann@db:5432/other", "postgresql://ann@elsewhere/forge", "postgresql:///forge?host=/run/pg")
    assert len({database_id(url) for url in same}) == 1
    assert len({database_id(url) for url in (*same, *others)}) == 1 + len(others)
    here = database_id("sqlite:///a.db")
    assert here == database_id(f"sqlite:///{Path.cwd() / 'a.db'}") != database_id("sqlite:////a.db")
