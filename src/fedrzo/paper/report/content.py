"""Records in words and rows: what the page's template fills in. Nothing here is markup."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrzo.errors import InputError
from fedrzo.paper.record import FILE, Claim, Record, Setting, Table
from fedrzo.paper.report import embed
from fedrzo.paper.report.embed import count, number
from fedrzo.paper.report.find import Found
from fedrzo.running.spec import slug

VERDICTS = {True: "hold", False: "fail", None: "open"}
WORDS = {"hold": "holds", "fail": "does not hold", "open": "cannot tell"}


def page(found: Found, claims: dict[str, int], checks: dict[str, int]) -> dict[str, Any]:
    """Return all that the page says."""
    records = list(found.records.values())
    figures, tables = (sum(len(getattr(record, part)) for record in records) for part in ("figures", "tables"))
    return {
        "title": f"fedrzo report: {', '.join(record.name for record in records)}",
        "lead": f"{count(figures, 'figure')} and {count(tables, 'table')} from {count(len(records), 'experiment')}.",
        "claims_line": all_verdicts(claims, checks),
        "lists": [
            {"title": title, "own": own, "verdicts": [(kind, WORDS[kind], n) for kind, n in verdicts.items()]}
            for title, own, verdicts in (("The paper's claims", False, claims), ("Our own checks", True, checks))
            if sum(verdicts.values())
        ],
        "quick": [record.name for record in records if record.quick],
        "left_out": found.left_out,
        "records": [_record(*item) for item in zip(records, found.records, _anchors(records), strict=True)],
        "environments": _environments(records),
    }


def all_verdicts(claims: dict[str, int], checks: dict[str, int]) -> str:
    """Return how the paper's claims and our own questions fared; nothing if there are none."""
    sentences = (verdict_counts(claims, "claim"), verdict_counts(checks, "further check"))
    return " ".join(filter(None, sentences))


def verdict_counts(verdicts: dict[str, int], noun: str) -> str:
    """Return how some claims fared, in one sentence; nothing where there are none."""
    total = sum(verdicts.values())
    if not total:
        return ""
    hold, fail, unclear = (verdicts[kind] for kind in ("hold", "fail", "open"))
    counts = f"{hold} {'holds' if hold == 1 else 'hold'}, {fail} {'does' if fail == 1 else 'do'} not hold"
    rest = f", {unclear} cannot be told from these runs" if unclear else ""
    return f"Of {count(total, noun)}, {counts}{rest}."


def _anchors(records: list[Record]) -> list[str]:
    """Return a name for each record's place in the page, no two alike."""
    anchors: list[str] = []
    for record in records:
        base = name = f"r-{slug(record.name)}"
        while name in anchors:
            name = f"{base}-{sum(anchor.startswith(base) for anchor in anchors) + 1}"
        anchors.append(name)
    return anchors


def _record(record: Record, home: Path, anchor: str) -> dict[str, Any]:
    try:
        figures = [embed.shown(figure, f"{anchor}-figure-{i + 1}") for i, figure in enumerate(record.figures)]
        tables = [_table(table, f"{anchor}-table-{i + 1}") for i, table in enumerate(record.tables)]
        claims = [_claim(claim) for claim in record.claims]
    except (IndexError, TypeError, ValueError) as error:  # InputError is a ValueError
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise InputError(f"report: {home / FILE} cannot be shown ({reason})") from None
    settings = [_setting(setting) for setting in record.settings]
    made = {"figures": figures, "tables": tables, "claims": claims, "settings": settings}
    return {**vars(record), **made, "anchor": anchor, "facts": _facts(record)}


def _facts(record: Record) -> list[tuple[str, str]]:
    """Return how it was run, as names and values."""
    seeds = ", ".join(map(str, record.seeds))
    facts = [
        ("seeds", f"{seeds} ({len(record.seeds)})" if len(record.seeds) > 3 else seeds),
        ("took", duration(record.seconds)),
        ("version", "quick: fewer rounds or seeds than the full one" if record.quick else "full"),
    ]
    return [(name, value) for name, value in facts if value]


def duration(seconds: float) -> str:
    """Return a time to read: `42 s`, `3 min 5 s`, `2 h 10 min`."""
    if not math.isfinite(seconds) or seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _table(table: Table, anchor: str) -> dict[str, Any]:
    rows = [[str(cell) for cell in row] for row in table.rows]
    if not rows or len({len(row) for row in rows}) > 1:
        lengths = [len(row) for row in rows]
        raise InputError(f"table {table.title!r} has rows of {lengths} cells; make it anew")
    return {**vars(table), "anchor": anchor, "rows": rows}


def _claim(claim: Claim) -> dict[str, Any]:
    kind = VERDICTS[claim.holds]
    interval = ""
    if claim.low is not None and claim.high is not None:
        interval = f"{number(claim.low, 3)} to {number(claim.high, 3)}"
    value = number(claim.value) if math.isfinite(claim.value) else "none"
    return {**vars(claim), "value": value, "interval": interval, "kind": kind, "words": WORDS[kind]}


def _setting(setting: Setting) -> dict[str, str]:
    value = setting.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ", ".join(map(str, value))
    return {"name": setting.name, "value": str(value), "reason": setting.reason}


def _environments(records: list[Record]) -> dict[str, Any]:
    """Return versions and machine, one column for each environment that differs from the others."""
    columns: list[tuple[list[str], dict[str, str]]] = []
    for record in records:
        alike = [names for names, known in columns if known == record.environment]
        if alike:
            alike[0].append(record.name)
        else:
            columns.append(([record.name], record.environment))
    keys = list(dict.fromkeys(key for _, known in columns for key in known))
    heads = [", ".join(names) for names, _ in columns] if len(columns) > 1 else ["all experiments"]
    cells = [[key, *(str(known.get(key, "not recorded")) for _, known in columns)] for key in keys]
    return {"rows": [["", *heads], *cells] if keys else []}
