"""A broker for the workers of a module."""

from typing import Any

import pytest


@pytest.fixture(scope="module")
def broker(valkey_server: Any) -> str:
    valkey_server.flush()
    return str(valkey_server.url)
