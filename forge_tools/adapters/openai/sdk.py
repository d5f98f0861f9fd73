"""The OpenAI SDK, at the one place that imports it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from forge_tools.adapters.sdk import SdkModel, extra
from forge_tools.adapters.strict import strict_parameters
from forge_tools.errors import InvalidToolError
from forge_tools.records import Schema, ToolSpec
from forge_tools.schemas import render


class Requests(SdkModel):
    """What requests of both APIs share: the model, its instructions, and how strict it is with tools."""

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
        super().__init__(client, request)
        self._model = model
        self._instructions = instructions
        self._strict = strict

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

    @staticmethod
    def _clients() -> tuple[Any, Callable[[], Any]]:
        with extra("openai", "The OpenAI SDK"):
            import openai
        return openai.OpenAI, openai.AsyncOpenAI
