"""OpenAI's two APIs, and the many servers that speak them; the SDK is imported when a request is sent."""

from forge_tools.adapters.openai.chat import ChatCompletions
from forge_tools.adapters.openai.responses import Responses

__all__ = ["ChatCompletions", "Responses"]
