"""Fields of frozen dataclasses: how a class says which values are checked, and which belong to the compiled program."""

import dataclasses
from collections.abc import Callable
from typing import Any


def checked(check: Callable[[Any, str], Any], *, default: Any = dataclasses.MISSING, static: bool = False) -> Any:
    """Declare a field whose value is stored as `check(value, name)` returns it; one whose default is None may be None.

    Args:
        check: returns the value, or raises an `InputError` that begins with the name.
        default: of the field.
        static: whether it is part of the compiled program.
    """
    return dataclasses.field(default=default, metadata={"check": check, "static": static})


def static(default: Any) -> Any:
    """Declare a field that is part of the compiled program."""
    return dataclasses.field(default=default, metadata={"static": True})


def check_fields(self: Any, prefix: str = "") -> None:
    """Check the fields that were declared by `checked`; the prefix comes before their names in messages."""
    for field in dataclasses.fields(self):
        check, value = field.metadata.get("check"), getattr(self, field.name)
        if check is not None and not (value is None and field.default is None):
            set_fields(self, **{field.name: check(value, prefix + field.name)})


def set_fields(self: Any, **values: Any) -> None:
    """Store checked values in a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(self, name, value)
