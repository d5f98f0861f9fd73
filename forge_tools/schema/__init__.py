"""Pure checks on values: no I/O, no settings, and no knowledge of tools beyond their specs."""

from forge_tools.schema.parameters import Validator
from forge_tools.schema.schema import KNOWN_TYPES, is_of_type, suggestion
from forge_tools.schema.transport import MAX_DEPTH, Unreadable, clean_text, decode_json, encode_json, shown

__all__ = [
    "KNOWN_TYPES",
    "MAX_DEPTH",
    "Unreadable",
    "Validator",
    "clean_text",
    "decode_json",
    "encode_json",
    "is_of_type",
    "shown",
    "suggestion",
]
