"""One page to open: everything that the records in a folder say, with figures to hover over, offline.

`find` reads the folder, `content` puts records into words and rows, `embed` makes data of figures, `page.html`, `page.css` and
`page.js` are the page itself.
"""

import base64
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedrzo.errors import InputError
from fedrzo.paper.record import Record
from fedrzo.paper.report.content import VERDICTS, all_verdicts, page
from fedrzo.paper.report.embed import count
from fedrzo.paper.report.find import Found, find
from fedrzo.support.extras import require
from fedrzo.support.files import check_writable, write_file

FILE = "report.html"


@dataclasses.dataclass(frozen=True)
class Report:
    """What was written."""

    file: Path  # the page
    bytes: int  # its size
    records: list[str]  # the names of what it shows
    figures: int  # how many
    tables: int  # how many
    claims: dict[str, int]  # how many of the paper's claims `hold`, `fail`, or are `open` because the runs cannot tell
    checks: dict[str, int]  # the same of our own questions
    left_out: list[str] = dataclasses.field(default_factory=list)  # what it does not show, and why

    def __str__(self) -> str:
        counts = f"{count(len(self.records), 'record')}, {count(self.figures, 'figure')}"
        verdicts = all_verdicts(self.claims, self.checks)
        written = f"{self.file} ({self.bytes / 1e6:.1f} MB): {counts}, {count(self.tables, 'table')}. {verdicts}"
        return "\n".join([written.rstrip(), *(f"left out: {line}" for line in self.left_out)])


def write(folder: str | Path, out: str | Path | None = None) -> Report:
    """Write the report, `report.html` in the folder unless `out` is given.

    The folder holds `record.json`, or folders that do, as `fedrzo reproduce --out` writes them. Comparisons of `fedrzo compare
    --out`, and runs of `fedrzo run --out` and checkpoints that have no record, are shown as curves.
    """
    found = find(Path(folder))
    path = Path(folder) / FILE if out is None else Path(out)
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; name a file such as {path / FILE}")
    require("plotly", "report")
    check_writable(path.parent, "--out")
    text = render(found).encode()
    write_file(path, text)
    records = found.records.values()
    figures, tables = (sum(len(getattr(record, part)) for record in records) for part in ("figures", "tables"))
    names = [record.name for record in records]
    claims, checks = _verdicts(records)
    return Report(path, len(text), names, figures, tables, claims, checks, found.left_out)


def render(found: Found) -> str:
    """Return the page. Equal records give equal pages."""
    home = Path(__file__).parent
    engine = require("jinja2", "report")
    # Everything that a record says is escaped; only what this package wrote itself is marked safe in the template.
    templates = engine.Environment(
        loader=engine.FileSystemLoader(home), autoescape=True, undefined=engine.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    scripts = {"library": _library(), "code": (home / "page.js").read_text(encoding="utf-8")}
    view: dict[str, Any] = page(found, *_verdicts(found.records.values()))
    style = (home / "page.css").read_text(encoding="utf-8")
    hashes = " ".join(_hash(script) for script in scripts.values())
    return templates.get_template("page.html").render(**view, **scripts, style=style, hashes=hashes)


def _verdicts(records: Iterable[Record]) -> list[dict[str, int]]:
    """Return how many of the paper's claims, and of our own questions, got each verdict."""
    counts = Counter((claim.own, VERDICTS[claim.holds]) for record in records for claim in record.claims)
    return [{kind: counts[own, kind] for kind in VERDICTS.values()} for own in (False, True)]


def _library() -> str:
    """Return plotly.js, as plotly's Python package ships it, fit to stand inside a page."""
    text = str(require("plotly.offline", "report").get_plotlyjs())
    return text.replace("\r\n", "\n").replace("</script", "<\\/script")


def _hash(script: str) -> str:
    """Return the name under which the page's security policy lets a script run; it lets no other run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
