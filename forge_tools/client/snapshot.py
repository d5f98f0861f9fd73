"""The catalogue as the client holds it: validation and schemas without a tool, a worker or I/O."""

from collections.abc import Sequence

from forge_tools.records import Schema, ToolCategory, ToolSpec
from forge_tools.schemas import render
from forge_tools.validation import Validator


class Snapshot:
    """Every enabled tool, by name and alias, as SQL had it when this was read."""

    def __init__(self, specs: Sequence[ToolSpec] = ()) -> None:
        self.specs = tuple(sorted(specs, key=lambda spec: spec.name))
        self._by_name = {alias: spec for spec in self.specs for alias in spec.aliases}
        self._by_name.update({spec.name: spec for spec in self.specs})
        self._validators: dict[str, Validator] = {}

    def find(self, name: str) -> ToolSpec | None:
        return self._by_name.get(name)

    def validator(self, spec: ToolSpec) -> Validator:
        """The prepared validator of that tool; built at its first call."""
        validator = self._validators.get(spec.name)
        if validator is None:
            validator = self._validators[spec.name] = Validator.for_spec(spec)
        return validator

    def schemas(self, format: str, category: ToolCategory | None = None) -> list[Schema]:
        """Schemas in a provider's format, of all tools or one category.

        Raises:
            ValueError: for a format that is not known.
        """
        return [render(spec, format) for spec in self.specs if category is None or spec.category == category]
