"""The OpenAI SDK, at the one place that imports it."""

from collections.abc import Sequence
from typing import Any, Literal

from forge_tools.adapters.extras import own_tools
from forge_tools.adapters.strict import strict_parameters
from forge_tools.errors import InvalidToolError
from forge_tools.records import Schema, ToolSpec
from forge_tools.schemas import render


class Requests:
    """What requests of both APIs share: the client, the model, and what else the caller wants sent."""

    def __init__(
        self,
        model: str,
        client: Any = None,
        *,
        instructions: str | None = None,
        strict: bool | Literal["auto"] = False,
        **request: Any,
    ) -> None:
        """Name the model; `client` is an AsyncOpenAI, by default one from the environment.

        With `strict` the provider holds the model to the schemas of the tools; "auto" leaves those as they are that it
        cannot describe. Further keywords go into each request as they are, `tools` beside ours.

        Raises:
            TypeError: for a client that is not asynchronous, or a keyword that is set here.
        """
        self._model = model
        self._client = require_async(client) if client is not None else None
        self._instructions = instructions
        self._strict = strict
        self._own_tools = own_tools(request)
        self._request = request

    @property
    def client(self) -> Any:
        """The SDK's client, made at its first use.

        Raises:
            ImportError: without the SDK.
        """
        if self._client is None:
            self._client = _sdk().AsyncOpenAI()
        return self._client

    def functions(self, specs: Sequence[ToolSpec]) -> list[Schema]:
        """Name, description, parameters and strictness of each tool.

        Raises:
            InvalidToolError: when `strict` is asked of a tool that cannot be.
        """
        return [self._function(spec) for spec in specs]

    def _function(self, spec: ToolSpec) -> Schema:
        function: Schema = render(spec, "openai")["function"]
        if not self._strict:
            return function | {"strict": False}
        try:
            return function | {"parameters": strict_parameters(spec), "strict": True}
        except InvalidToolError:
            if self._strict != "auto":
                raise
            return function | {"strict": False}


def require_async(client: Any) -> Any:
    """Refuse the SDK's synchronous clients, whose requests would block the loop that the tools run on."""
    if isinstance(client, _sdk().OpenAI):
        raise TypeError(
            "This is a synchronous OpenAI client. Give an AsyncOpenAI; a script runs it with asyncio.run()."
        )
    return client


def _sdk() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ImportError("The OpenAI SDK is not installed. Install forge-tools[openai].") from error
    return openai
