"""Gemini's API, of Google AI and of Vertex AI; the SDK is imported when a request is sent."""

from forge_tools.adapters.gemini.generate import GenerateContent

__all__ = ["GenerateContent"]
