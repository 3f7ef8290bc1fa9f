"""What the documentation quotes is there: lines of the paper's listings, public names, commands. `make docs` checks its links."""

import dataclasses
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import griffe
import pathspec
import pytest
import typer
import yaml

import fedrzo as fz
from fedrzo.cli.main import app
from fedrzo.running.spec import Spec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import build_hooks  # noqa: E402

PAGES = [DOCS / f"fedrzo-{name}.md" for name in ("nn", "bl", "2s")]
SECTIONS = {
    number: text
    for page in PAGES
    for number, text in re.findall(r"^## Algorithm (\d)\n(.*?)(?=^## |\Z)", page.read_text(), re.M | re.S)
}


def test_all_five_listings_have_a_section():
    assert sorted(SECTIONS) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("number", sorted(SECTIONS))
def test_lines_of_a_listing_are_those_that_comments_of_its_file_name(number):
    quoted = {int(line) for line in re.findall(r"^\| (\d+) \|", SECTIONS[number], re.M)}
    source = build_hooks.CODE.search(SECTIONS[number])[2]
    assert quoted == set(build_hooks.named_statements((ROOT / source).read_text()))
    assert quoted == {int(line) for line in build_hooks.LINE.findall(SECTIONS[number])}
    assert len(quoted) >= 4


def test_code_is_taken_from_the_source():
    text = "x = 1\n\n\nclass A:\n    @staticmethod\n    def f():\n        return 2\n\n    y = 3\n"
    assert build_hooks.piece(text, "A.f", "file.py") == ("@staticmethod\ndef f():\n    return 2", 5)
    with pytest.raises(ValueError, match=r"file\.py: it has no A\.g"):
        build_hooks.piece(text, "A.g", "file.py")


def test_comments_that_name_lines_lead_to_their_statements():
    text = (
        "def f(x):  # says nothing\n    a = g(\n        x,\n    )  # lines 3 and 12: both\n"
        "    # Line 4: why.\n    return a  # Algorithm 2, line 3\n"
    )
    assert build_hooks.named_statements(text) == {3: ["a = g(x,)", "return a"], 12: ["a = g(x,)"], 4: ["return a"]}


def test_a_page_that_would_fetch_something_is_warned_of(caplog):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    build_hooks.on_post_page('<a href="https://example.org">said</a><link rel=icon href=images/a.png>', page)
    assert not caplog.records
    build_hooks.on_post_page('<script async src="https://example.org/x.js"></script>', page)
    assert caplog.messages == ["page.md fetches https://example.org/x.js"]


def test_all_that_pages_take_from_the_source_is_there():
    wanted = [found for page in DOCS.glob("*.md") for found in build_hooks.CODE.findall(page.read_text())]
    assert len(wanted) > 20
    for name, path in wanted:
        assert build_hooks.piece((ROOT / path).read_text(), name, path)[0]


def test_pages_have_no_marks_that_only_the_site_can_read():
    """Whoever reads them on a code host is shown a link to the code, or the command to ask, and not a template's braces."""
    pages = [page.read_text() for page in DOCS.glob("*.md")]
    assert sum(page.count("Code: [") for page in pages) == sum(len(build_hooks.CODE.findall(page)) for page in pages)
    assert sum(page.count(build_hooks.COMMANDS) for page in pages) == 1
    assert not [page for page in pages if "{{" in page]


def test_a_page_that_shows_a_method_shows_its_imports():
    shown = re.search(r"```python\n(from .*?)```", (DOCS / "own-method.md").read_text(), re.S)[1].strip()
    assert shown in (ROOT / "examples" / "own_method.py").read_text()


@pytest.mark.parametrize("name", build_hooks.FROM_ROOT.values())
def test_links_of_pages_from_the_root_work_there_and_on_the_site(name):
    text = (ROOT / name).read_text()
    for folder, page in ((ROOT, text), (DOCS, build_hooks.for_site(text))):
        targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", page)]
        assert targets
        for target in targets:
            assert (folder / target).exists(), target


def test_every_public_name_is_in_the_reference():
    """Modules are there by what is in them."""
    named = set(re.findall(r"^::: fedrzo\.\S*?(\w+)$", (DOCS / "reference.md").read_text(), re.M))
    public = {name for name in fz.__all__ if not isinstance(getattr(fz, name), ModuleType)}
    assert len(public) > 40
    assert public <= named


def test_the_reference_shows_what_a_method_takes():
    extensions = griffe.load_extensions(DOCS / "signatures.py")
    module = griffe.load("fedrzo.methods.lfd", search_paths=[ROOT / "src"], extensions=extensions)
    shown = {parameter.name: parameter.default for parameter in module["LFD"].parameters}
    fields = {field.name: repr(field.default) for field in dataclasses.fields(fz.LFD)}
    assert shown == {"self": None, **fields}
    costs = griffe.load("fedrzo.federation.protocol", search_paths=[ROOT / "src"], extensions=extensions)["Cost"]
    assert {parameter.name: parameter.default for parameter in costs.parameters} == {"self": None} | dict.fromkeys(
        fz.Cost._fields, "0"
    )


def test_the_reference_begins_with_a_table_of_names_as_users_write_them():
    page = (DOCS / "reference.md").read_text()
    assert build_hooks.NAMES in page
    rows = build_hooks.names_of(page).splitlines()
    assert "| [`fz.run`](#fedrzo.running.run.run) | Solve a problem by a method. |" in rows
    assert any(row.startswith("| [`fz.sets.Box`](#fedrzo.sets.basic.Box) | The box") for row in rows)
    assert not [row for row in rows if row.endswith("|  |")]  # every name has a docstring
    assert build_hooks.public_name("fedrzo.methods.base.at") == "fedrzo.methods.at"  # it is not in fz


def test_the_overview_names_every_command_and_its_spec_is_one():
    page = (DOCS / "commands.md").read_text()
    overview = re.search(r"```sh\n(.*?)```", page, re.S)[1]
    named = set(re.findall(r"^fedrzo (\w+)", overview, re.M))
    assert named == set(typer.main.get_command(app).commands)
    spec = Spec(tomllib.loads(re.search(r"```toml\n(.*?)```", page, re.S)[1]))
    assert [type(one.method()).__name__ for one in spec.variants()] == ["FedRZOnn", "FedAvg"]
    assert [one.run["rounds"] for one in spec.variants()] == [50, 50]


def test_the_site_holds_no_code_of_its_own():
    left_out = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["exclude_docs"]
    spec = pathspec.GitIgnoreSpec.from_lines(left_out.splitlines())
    assert all(map(spec.match_file, ("build_hooks.py", "__pycache__/build_hooks.cpython-311.pyc")))
    assert not any(map(spec.match_file, ("index.md", "extra.css", "figures/example.svg")))


def test_all_pages_count_the_measured_step_sizes_alike():
    """A problem counts if the search is within a factor of two, by means or by medians."""
    table = (DOCS / "measured-stepsizes.md").read_text()
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")][2:]
    ratios = [(float(row[5]), float(row[6])) for row in rows]
    near = sum(min(pair) <= 2 for pair in ratios)
    for name in ("stepsizes", "choose"):
        assert f"on {near} of the {len(ratios)} problems [measured]" in (DOCS / f"{name}.md").read_text()


@pytest.mark.slow("runs all code of a page")
@pytest.mark.parametrize("name", ["black-boxes", "plots", "sets", "tutorial"])
def test_code_of_a_page_prints_what_the_page_says(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / f"{name}.md").read_text(), re.S | re.M)
    names = {}
    for language, text in blocks:
        if language == "python" and not ("import torch" in text and importlib.util.find_spec("torch") is None):
            exec(compile(text, name, "exec"), names)
    printed = capsys.readouterr().out
    assert printed.count("\n") > 1
    assert without_seconds(printed) == without_seconds("".join(text for language, text in blocks if not language))


def without_seconds(text):
    return re.sub(r"here about .* to compile", "", text)


def test_every_extra_is_on_the_page_about_installing():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = re.findall(r"^\| (`.*?) \|", (DOCS / "install.md").read_text(), re.M)
    assert {name for cell in table for name in re.findall(r"`(\w+)`", cell)} == set(extras)


def test_pages_name_only_what_the_library_has():
    """Every `fz.NAME` of the pages, such as a class in a table, exists."""
    for page in [*DOCS.glob("*.md"), ROOT / "README.md"]:
        for path in set(re.findall(r"\bfz((?:\.[A-Za-z]\w*)+)", page.read_text())):
            found = fz
            for name in path.strip(".").split("."):
                assert hasattr(found, name), f"{page.name}: fz{path}"
                found = getattr(found, name)


def test_the_page_on_architecture_names_every_folder():
    page = (ROOT / "docs" / "architecture.md").read_text()
    folders = {path.name for path in (ROOT / "src" / "fedrzo").iterdir() if path.is_dir() and path.name != "__pycache__"}
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    named = {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row.split("|")[2])}
    assert named == folders


@pytest.mark.slow("runs every method once")
def test_the_picture_of_a_round_is_what_the_code_does():
    """In a process of its own: calls are seen only where nothing is compiled yet."""
    command = [sys.executable, str(DOCS / "round_picture.py")]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert drawn == (DOCS / "figures" / "round.svg").read_text(), "make it anew: docs/architecture.md says how"
