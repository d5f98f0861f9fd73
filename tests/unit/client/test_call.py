"""A call as its caller asks for it."""

from forge_tools.client.call import Call
from forge_tools.model import CallOptions, RetryPolicy


def test_retries_of_options_come_before_those_of_the_call() -> None:
    own, of_options = RetryPolicy(max_attempts=5), RetryPolicy(max_attempts=2)

    asked = [CallOptions(retry=of_options), CallOptions(timeout=1.0), None]
    assert [Call.of("Greet", {}, None, one, retry=own).retry for one in asked] == [of_options, own, own]
