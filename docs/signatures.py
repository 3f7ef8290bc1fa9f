"""Signatures for the reference: `@method` and checked fields make dataclasses that a reader of the source alone cannot know."""

import dataclasses
import importlib
from typing import Any

import griffe


class MethodSignatures(griffe.Extension):
    """Gives every class under `@method`, or with checked fields, the arguments and defaults that it has when it is imported."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add `__init__` to a method's class."""
        is_method = "fedrzo.methods.base.method" in [decorator.callable_path for decorator in cls.decorators]
        if not is_method and not any(str(field.value).startswith("checked(") for field in cls.attributes.values()):
            return
        found = getattr(importlib.import_module(cls.module.path), cls.name)
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for field in dataclasses.fields(found):
            default = None if field.default is dataclasses.MISSING else repr(field.default)
            parameters.append(griffe.Parameter(field.name, kind=griffe.ParameterKind.positional_or_keyword, default=default))
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))
