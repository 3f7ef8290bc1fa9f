"""Experiments as data: a spec is a TOML file that names a problem, a method and how to run them.

```toml
title = "How many local steps?"

[problem]
name = "relu-digits"        # a name of the zoo, then the options of its maker
clients = 5

[method]
name = "FedRZOnn"           # a method, then its fields; a field that is itself a method, or a solver, is such a table
stepsize = 1e-4
smoothing = 0.01

[run]
rounds = 300                # also: seed, clients_per_round, eval_every, engine

[[variant]]                 # optional; each is the spec with some values changed
label = "H = 20"
method.local_steps = 20     # a table with another name, such as {name = "FedAvg", ...}, replaces the whole table
```
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tomli_w

from fedrzo import engines, vi, zoo
from fedrzo.errors import InputError, first_line, nearest
from fedrzo.methods import METHODS, Method
from fedrzo.privacy.privacy import Privacy
from fedrzo.problems.base import Problem
from fedrzo.running.built_in import built_in
from fedrzo.running.problem_file import is_python, meant_file
from fedrzo.support.files import write_file
from fedrzo.support.settings import Table, fields, flat, merge, nest, read_setting

TABLES = ("problem", "method", "run")
SOLVERS = {solver.__name__: solver for solver in (vi.Accelerated, vi.Extragradient, vi.Projection)}
RUN_KEYS = ("rounds", "seed", "clients_per_round", "eval_every", "engine")


@dataclasses.dataclass(frozen=True)
class Spec:
    """An experiment in plain values. All names in it are checked as it is made, so that work never starts on a typo."""

    table: Table  # the content of the TOML file
    label: str = ""  # what a variant is called in tables and figures; empty if the spec is not a variant

    def __post_init__(self) -> None:
        _check_keys(self.table, ("title", *TABLES, "variant"), "", "no such table")
        for name in TABLES:
            if not isinstance(self.table.get(name), dict):
                found = f"found {self.table[name]!r}" if name in self.table else "missing"
                raise InputError(f"{name}: {found}; write a table [{name}]")
        _check_name(self.table["problem"], "problem", zoo.PROBLEMS, zoo.LISTED_BY)
        _check_method(self.table["method"], "method")
        _check_run(self.table["run"])
        self.variants()

    @classmethod
    def read(cls, source: str | Path) -> Spec:
        """Read a built-in spec by its name, or a file that ends in .toml."""
        try:
            return cls(tomllib.loads(_text(str(source))))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"spec: {source} is not valid TOML: {error}") from None

    @property
    def title(self) -> str:
        """One line on the experiment."""
        return str(self.table.get("title", ""))

    def override(self, *settings: str) -> Spec:
        """Return the spec with values changed by texts such as `method.stepsize=0.01`.

        Values are TOML; a bare word is a string. Giving a table another `name` drops its other values.
        """
        changes = nest(read_setting(text) for text in settings)
        variants = []
        for variant in self.table.get("variant", []):
            own = nest(variant.items())
            for key in flat(own).keys() & flat(changes):
                raise InputError(f"{key}: variant {variant['label']!r} sets it too; change it in a copy of the spec")
            # A variant that replaces a whole table would otherwise not see the change.
            replaced = [name for name in TABLES if name in changes and "name" in own.get(name, {})]
            variants.append(merge(own, {name: changes[name] for name in replaced}))
        table = merge(self.table, changes)
        return dataclasses.replace(self, table=table | {"variant": variants} if variants else table)

    def variants(self) -> list[Spec]:
        """Return one spec per variant, or just this one if it has none."""
        base = {name: value for name, value in self.table.items() if name != "variant"}
        entries = self.table.get("variant", [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"variant: found {entries!r}; write each as a table [[variant]]")
        _check_labels(entries)
        made = []
        for entry in entries:
            changes = nest((key, value) for key, value in entry.items() if key != "label")
            made.append(Spec(merge(base, changes), entry["label"]))
        return made or [self]

    def problem(self) -> Problem:
        """Build the problem."""
        options = dict(self.table["problem"])
        name = options.pop("name")
        try:
            return zoo.make(name, **options)
        except InputError:
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            shown = ", ".join(f"{key} = {value!r}" for key, value in options.items())
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise InputError(f"problem: {name} cannot be made with {shown} ({reason})") from error

    def method(self) -> Method:
        """Build the method."""
        return changed(None, self.table["method"])

    @property
    def run(self) -> Table:
        """The values of [run]."""
        if "rounds" not in self.table["run"]:
            raise InputError("run.rounds: missing; say how many rounds to run")
        return dict(self.table["run"])

    def write(self, path: str | Path) -> None:
        """Write the spec as TOML, whole or not at all."""
        write_file(Path(path), self.content)

    @property
    def content(self) -> bytes:
        """The spec as TOML, as `write` writes it."""
        return tomli_w.dumps(self.table).encode()


def slug(label: str) -> str:
    """Return a label as the name of a folder: `H = 20` becomes `h-20`."""
    return re.sub(r"[^\w.]+", "-", label.lower()).strip("-.")


def _text(source: str) -> str:
    if not source.endswith(".toml"):
        if is_python(source):
            raise InputError(f"spec: {source} is a Python file; use `fedrzo solve {source}`")
        if source not in built_in() and (meant := meant_file(source)):
            raise InputError(f"spec: {meant} is a Python file; use `fedrzo solve {meant}`")
        if source not in built_in() and Path(source).suffix:
            raise InputError(f"spec: found {source!r}; write a TOML file, FILE.toml, or use {', '.join(sorted(built_in()))}")
        if source not in built_in():
            raise InputError(f"spec: found {source!r}{nearest(source, built_in())}")
        return built_in()[source].read_text(encoding="utf-8")
    try:
        return Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"spec: cannot read {source} ({error.strerror}); check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"spec: {source} is not UTF-8 text; save it as such") from None


def _check_keys(found: Iterable[str], known: Iterable[str], prefix: str, complaint: str) -> None:
    for key in found:
        if key not in known:
            raise InputError(f"{prefix}{key}: {complaint}{nearest(key, known)}")


def _check_name(table: Table, path: str, known: Iterable[str], listed_by: str = "") -> None:
    name = table.get("name", "")
    if not isinstance(name, str) or name not in known:
        found = f"found {name!r}" if "name" in table else "missing"
        raise InputError(f"{path}.name: {found}{nearest(str(name), known, listed_by)}")


def _classes(path: str) -> dict[str, Any]:
    """Return what a table may name: a method, or, below a method, also a solver; of a promise of privacy there is one kind."""
    if path.endswith(".privacy"):
        return {"Privacy": Privacy}
    return {**METHODS} if path == "method" else {**METHODS, **SOLVERS}


def _named(table: Table, path: str) -> Table:
    """Return a table with its name, which need not be said where there is one kind only."""
    known = _classes(path)
    return {"name": next(iter(known))} | table if len(known) == 1 else table


def _check_method(table: Table, path: str) -> None:
    known, table = _classes(path), _named(table, path)
    _check_name(table, path, known)
    cls = known[table["name"]]
    _check_keys(table, ("name", *fields(cls)), f"{path}.", f"{cls.__name__} has no such field")
    for key, value in table.items():
        if isinstance(value, dict):
            _check_method(value, f"{path}.{key}")


def changed(method: Any, table: Table, path: str = "method") -> Any:
    """Return a method with some fields changed, as a spec's [method] says it; another `name` makes another method."""
    cls, table = type(method), _named(table, path)
    make: Callable[..., Any] = functools.partial(dataclasses.replace, method)
    if not dataclasses.is_dataclass(method) or table.get("name", cls.__name__) != cls.__name__:
        _check_method(table, path)
        method, make = None, (cls := _classes(path)[table["name"]])
        for field in fields(cls).values():
            needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if needed and field.name not in table:
                raise InputError(f"{path}.{field.name}: missing; {cls.__name__} needs a value")
    _check_keys(table, ("name", *fields(cls)), f"{path}.", f"{cls.__name__} has no such field")
    values = {
        key: changed(getattr(method, key, None), value, f"{path}.{key}") if isinstance(value, dict) else value
        for key, value in table.items()
        if key != "name"
    }
    try:
        return make(**values)
    except InputError as error:  # what is wrong with a value is told under its dotted name
        parent, _, last = path.rpartition(".")
        named = str(error).startswith(f"{last}: ")  # solvers begin their messages with "solver"
        raise InputError(f"{parent if named else path}.{error}") from None


def _check_run(table: Table) -> None:
    _check_keys(table, RUN_KEYS, "run.", "no such key")
    seed = table.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"run.seed: found {seed!r}; pass a whole number of at least 0")
    engine = table.get("engine", "simulation")
    if not isinstance(engine, str) or engine not in engines.ENGINES:
        raise InputError(f"run.engine: found {engine!r}{nearest(str(engine), engines.ENGINES)}")


def _check_labels(entries: list[Table]) -> None:
    labels: dict[str, str] = {}
    for i, entry in enumerate(entries):
        label = entry.get("label")
        if not isinstance(label, str) or not slug(label):
            raise InputError(f"variant {i + 1}: found label {label!r}; give it a label of letters or digits")
        if slug(label) in labels:
            raise InputError(f"variant {i + 1}: label {label!r} is too like {labels[slug(label)]!r}; choose another")
        labels[slug(label)] = label
