"""What the documentation takes from the repository while it is built, so that it cannot drift from it.

* `index.md` is the README, `changelog.md` the changelog, `contributing.md` what contributors read.
* A line ``Code: [`NAME`](../PATH)`` becomes the source of a function, method or class (`Class.method`), with its line numbers.
* In a section with such a listing, `*that with the comment "line 7"*` becomes the line of that file with this comment, which is
  line 7 of the paper's algorithm.
* The line `COMMANDS` becomes the reference of all commands, from their own help.
* The line `NAMES` becomes a table of all that the page documents, each `::: PATH` gets the name that users write as its heading.

All of them say something to those who read the pages as they are, on a code host, too.
"""

import ast
import inspect
import io
import logging
import pkgutil
import re
import textwrap
import tokenize
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
CODE = re.compile(r"^Code: \[`(\S+)`\]\(\.\./(\S+)\)$", re.M)
LINE = re.compile(r'\*that with the comment "line (\d+)"\*')
COMMANDS = "*`fedrzo --help` and `fedrzo COMMAND --help` say what stands here in the site that `make docs` builds.*"
NAMES = "*On the site that `make docs` builds, a table of all names stands here, and docstrings in place of the lines `:::`.*"
DOCUMENTED = re.compile(r"^::: (\S+)\n(?:    options: \{(.*)\}\n)?", re.M)
NAMED = re.compile(r"[Ll]ines? (\d+(?:(?:, |;? and )\d+)*)")  # "line 4", "lines 3, 6 and 8", "line 4; and 5"
FETCHED = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
logger = logging.getLogger("mkdocs.hooks")  # its warnings are errors in a strict build


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill a page in, before it is turned into HTML."""
    if page.file.src_uri in FROM_ROOT:
        markdown = for_site((ROOT / FROM_ROOT[page.file.src_uri]).read_text())
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, command_line())
    if NAMES in markdown:
        markdown = DOCUMENTED.sub(with_heading, markdown.replace(NAMES, names_of(markdown)))
    markdown = "".join(map(lines_beside, re.split(r"^(?=## )", markdown, flags=re.M)))
    return CODE.sub(lambda found: listing(*found.groups()), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn of a page that would fetch something from elsewhere when it is read."""
    for address in FETCHED.findall(output):
        logger.warning("%s fetches %s", page.file.src_uri, address)
    return output


def for_site(text: str) -> str:
    """Return a page of the repository's root with its links made relative to docs/."""
    for page, file in FROM_ROOT.items():
        text = text.replace(f"]({file})", f"]({page})")
    return text.replace("](docs/", "](")


def listing(name: str, path: str) -> str:
    """Return a fenced block with a piece of source as it stands in the repository."""
    source, first = piece((ROOT / path).read_text(), name, path)
    return f'```python title="{path}" linenums="{first}"\n{source}\n```'


def piece(text: str, name: str, path: str) -> tuple[str, int]:
    """Return a named piece of a module's text without its indentation, and the number of its first line."""
    body: Any = ast.parse(text).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        if not found:
            raise ValueError(f"{path}: it has no {name}")
        node, body = found[0], getattr(found[0], "body", [])
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)), first


def lines_beside(section: str) -> str:
    """Put our statements beside the lines of a listing, in a section of a page."""
    if not LINE.search(section):
        return section
    source = CODE.search(section)
    if source is None:
        raise ValueError("a section that says *that with the comment ...* must have a line Code: [`NAME`](../PATH)")
    found = named_statements((ROOT / source[2]).read_text())
    return LINE.sub(lambda line: "<br>".join(f"`{code}`" for code in found[int(line[1])]), section)


def named_statements(text: str) -> dict[int, list[str]]:
    """Return, for each line of a listing that comments of a module name, the statements with those comments.

    A comment on a line of its own belongs to the statement after it.
    """
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    found: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        at, alone = token.start[0], token.line.strip().startswith("#")
        if alone:
            statement = min((node for node in nodes if node.lineno > at), key=lambda node: node.lineno)
        else:
            around = [node for node in nodes if node.lineno <= at <= (node.end_lineno or at)]
            statement = max(around, key=lambda node: node.lineno)
        for number in re.findall(r"\d+", " ".join(NAMED.findall(token.string))):
            found.setdefault(int(number), []).append(flat(ast.get_source_segment(text, statement) or ""))
    return found


def flat(statement: str) -> str:
    """Return a statement as it stands, without its line breaks."""
    return " ".join(statement.split()).replace("( ", "(").replace(" )", ")")


def command_line() -> str:
    """Return the reference that Typer writes of our commands."""
    import typer
    from typer.cli import get_docs_for_click

    from fedrzo.cli.main import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="fedrzo")
    return text.split("\n", 1)[1]  # the page has its own title


def names_of(markdown: str) -> str:
    """Return a table of what a page documents, section by section: each name with a link, and the first line of its docstring."""
    rows = ["| name | what it is |", "| --- | --- |"]
    for section in re.split(r"^## ", markdown, flags=re.M)[1:]:
        rows.append(f"| **{section.splitlines()[0]}** | |")
        for path, _ in DOCUMENTED.findall(section):
            line = (inspect.getdoc(pkgutil.resolve_name(path)) or "").partition("\n")[0]
            parts = line.split("`")  # within code an entity would be shown as it is, and bars do no harm
            line = "`".join(part if i % 2 else part.replace("|", "&#124;") for i, part in enumerate(parts))
            name = public_name(path)
            shown = name if name.startswith("fz.") else name.rpartition(".")[2]  # what few import: else the column is too wide
            rows.append(f"| [`{shown}`](#{path}) | {line} |")
    return "\n".join(rows)


def with_heading(found: re.Match[str]) -> str:
    """Return a line `::: PATH` with the options that make its heading the name that users write."""
    path, options = found.groups()
    more = f", {options}" if options else ""
    return f"::: {path}\n    options: {{heading: '{public_name(path)}', toc_label: '{path.rpartition('.')[2]}'{more}}}\n"


def public_name(path: str) -> str:
    """Return how users write what stands at a path: by the shortest way that leads there, from `fz` if it can."""
    found, (first, *rest) = pkgutil.resolve_name(path), path.split(".")
    for depth in range(len(rest)):
        name = ".".join([first, *rest[:depth], rest[-1]])
        try:
            if pkgutil.resolve_name(name) is found:
                return name.replace("fedrzo.", "fz.", 1) if name.split(".")[1] in pkgutil.resolve_name(first).__all__ else name
        except (AttributeError, ModuleNotFoundError):
            continue
    return path
