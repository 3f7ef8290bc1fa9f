"""Signatures for the reference, of classes whose `__init__` a reader of the source alone cannot know.

These are dataclasses that `@method` or checked fields make, named tuples, and classes without arguments.
"""

import dataclasses
import importlib
from typing import Any

import griffe


class MethodSignatures(griffe.Extension):
    """Gives such a class the arguments and defaults that it has when it is imported."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add `__init__` to a class whose source has none."""
        is_method = "fedrzo.methods.base.method" in [decorator.callable_path for decorator in cls.decorators]
        has_checked = any(str(field.value).startswith("checked(") for field in cls.attributes.values())
        is_tuple = "NamedTuple" in map(str, cls.bases)
        if is_method or has_checked or is_tuple or (not cls.decorators and "__init__" not in cls.members and is_plain(cls)):
            found = getattr(importlib.import_module(cls.module.path), cls.name)
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters_of(found))))


def is_plain(cls: griffe.Class) -> bool:
    """Return True for an engine without arguments; others inherit what they take, or cannot be made by users."""
    return [str(base) for base in cls.bases] == ["Engine"]


def parameters_of(found: type) -> list[griffe.Parameter]:
    """Return the parameters of a class as it is imported, with defaults as text."""
    kind = griffe.ParameterKind.positional_or_keyword
    parameters = [griffe.Parameter("self", kind=kind)]
    if dataclasses.is_dataclass(found):
        fields = {field.name: field.default for field in dataclasses.fields(found)}
    else:
        names, defaults = getattr(found, "_fields", ()), getattr(found, "_field_defaults", {})
        fields = {name: defaults.get(name, dataclasses.MISSING) for name in names}
    for name, default in fields.items():
        text = None if default is dataclasses.MISSING else repr(default)
        parameters.append(griffe.Parameter(name, kind=kind, default=text))
    return parameters
