"""A client is used where it was connected, or says what to do instead."""

import asyncio
import os

import pytest

from forge_tools.client.owner import Owner
from forge_tools.errors import ConfigurationError


def test_one_that_is_not_connected_says_so() -> None:
    with pytest.raises(ConfigurationError, match="not connected"):
        Owner().require()


async def test_where_it_was_connected_it_may_be_used() -> None:
    owner = Owner()
    owner.begin()

    owner.require()


def test_another_event_loop_is_refused() -> None:
    owner = Owner()

    async def begin() -> None:
        owner.begin()

    async def use() -> None:
        owner.require()

    asyncio.run(begin())
    with pytest.raises(ConfigurationError, match="another event loop"):
        asyncio.run(use())


async def test_a_forked_child_is_refused_with_the_process_that_connected_it(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    owner.begin()
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)

    with pytest.raises(ConfigurationError, match=f"process {parent}; connect another one after fork"):
        owner.require()
