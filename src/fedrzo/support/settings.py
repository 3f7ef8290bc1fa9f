"""Settings with dotted keys, such as `method.stepsize=0.01`, and how they change nested tables."""

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from typing import Any

from fedrzo.errors import InputError

Table = dict[str, Any]

# What may stand for a string without quotes on the command line: a word or a path, nothing that looks like a number.
BARE_WORD = re.compile(r"(\.{0,2}/|~|[^\W\d])[\w./~+:-]*")


def fields(method: Any) -> dict[str, Any]:
    """Return the fields of a method, or of its class, that may be set."""
    return {field.name: field for field in dataclasses.fields(method) if field.init}


def read_setting(text: str) -> tuple[str, Any]:
    """Read `key=value`: the value is TOML, or a bare word, which is a string."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise InputError(f"--set: found {text!r}; write KEY=VALUE, such as method.stepsize=0.01")
    if BARE_WORD.fullmatch(value) and value not in ("true", "false", "inf", "nan"):
        return key, value
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if list(parsed) != ["value"]:
        raise InputError(f'--set {key}: found {value!r}; write a TOML value, such as 0.5, true, [1, 2] or "text"')
    return key, parsed["value"]


def nest(items: Iterable[tuple[str, Any]]) -> Table:
    """Return nested tables for dotted keys: `{"method.stepsize": 1}` means `{"method": {"stepsize": 1}}`."""
    nested: Table = {}
    for key, value in items:
        for part in reversed(key.split(".")):
            value = {part: value}
        nested = merge(nested, value)
    return nested


def merge(base: Table, changes: Table) -> Table:
    """Lay changes over a table. A table that gets another name starts afresh: the old options would not fit it."""
    merged = dict(base)
    for key, new in changes.items():
        old = merged.get(key)
        if isinstance(new, dict) and isinstance(old, dict) and _same_name(old, new):
            merged[key] = merge(old, new)
        else:
            merged[key] = new
    return merged


def _same_name(old: Table, new: Table) -> bool:
    names = (old.get("name"), new.get("name"))
    return None in names or names[0] == names[1]


def flat(table: Table, prefix: str = "") -> Table:
    """Return a nested table as one with dotted keys: the opposite of `nest`."""
    found: Table = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
