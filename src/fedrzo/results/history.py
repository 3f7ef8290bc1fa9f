"""`History`: what was monitored and what it cost, row by row; stored as CSV."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from fedrzo.errors import InputError, nearest
from fedrzo.results import text


class History:
    """Columns of equal length: `round`, the cumulative costs, `seconds`, then the problem's own metrics. Row 0 is the start."""

    def __init__(self, columns: dict[str, list] | None = None) -> None:
        self._columns: dict[str, list] = {name: list(values) for name, values in (columns or {}).items()}

    def append(self, row: dict[str, int | float]) -> None:
        """Add a row."""
        for name, value in row.items():
            self._columns.setdefault(name, []).append(value)

    def drop_last(self) -> None:
        """Remove the newest row."""
        for values in self._columns.values():
            values.pop()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise InputError(f"history: no column {name!r}{nearest(name, self._columns)}")
        return np.array(self._columns[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._columns == other._columns

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self._columns)})"

    def _repr_html_(self) -> str:
        rows = [[text.short(value) for value in row] for row in zip(*self._columns.values(), strict=True)]
        return text.table(list(self), text.elided(rows))

    @property
    def searched(self) -> bool:
        """Whether the run began with a search for its stepsize, whose end is a second row of round 0."""
        return "round" in self and len(self) > 1 and bool(self["round"][1] == 0)

    @property
    def last(self) -> dict[str, int | float]:
        """The newest row."""
        return {name: values[-1] for name, values in self._columns.items()}

    def to_dict(self) -> dict[str, list]:
        """Return plain lists of Python numbers."""
        return {name: list(values) for name, values in self._columns.items()}

    def write(self, path: Path) -> None:
        """Write a CSV file; floats keep all their digits."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows(zip(*self._columns.values(), strict=True))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote."""
        with path.open(newline="") as file:
            names, *rows = list(csv.reader(file))
        return cls({name: [_number(row[j]) for row in rows] for j, name in enumerate(names)})


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
