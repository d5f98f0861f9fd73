"""What adapters share of their SDKs: none is loaded before it is used, and the client has one home."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tools.adapters.conversation import Usage, both_ends, extra
from forge_tools.adapters.ollama import Chat

ROOT = Path(__file__).resolve().parents[3]
ADAPTERS = ("anthropic", "compat", "gemini", "langchain", "ollama", "openai", "pydantic_ai")
SDKS = {"anthropic", "google.genai", "langchain_core", "ollama", "openai", "pydantic_ai"}


def test_importing_the_adapters_loads_no_sdk() -> None:
    modules = ["forge_tools.adapters", *(f"forge_tools.adapters.{name}" for name in ADAPTERS)]
    code = f"import json, sys, {', '.join(modules)}; print(json.dumps(list(sys.modules)))"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert SDKS.isdisjoint(json.loads(done.stdout))


def test_every_adapter_is_among_those_that_are_looked_at() -> None:
    folder = ROOT / "forge_tools" / "adapters"
    shared = {"conversation", "toolset"}

    assert {path.stem for path in folder.iterdir() if not path.stem.startswith("__")} - shared == set(ADAPTERS)


def test_an_import_that_fails_names_the_extra() -> None:
    told = r'^The SDK is not installed\. Run pip install "forge-tools\[gemini\]"\.$'

    with pytest.raises(ImportError, match=told), extra("gemini", "The SDK"):
        raise ImportError("no module")


def test_the_client_is_made_once() -> None:
    model = Chat("m")

    assert model.client is model.client


def test_of_a_long_text_both_ends_are_shown() -> None:
    assert both_ends("short") == "short"
    assert both_ends("a" * 600 + "b" * 600) == "a" * 500 + " ... " + "b" * 500


def test_a_model_is_told_of_a_call_that_could_not_be_read_as_a_user_would_tell_it() -> None:
    reply = Chat("m").asked_again("it is malformed", Usage(requests=1), None)

    told = "Your tool call did not run, because it is malformed. Send it again, with its arguments as one JSON object."
    assert (reply.stop, reply.problem, reply.messages) == ("paused", told, [{"role": "user", "content": told}])
