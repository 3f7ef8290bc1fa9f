"""The README's example is run as printed, and prints and draws what is shown there."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedrzo as fz

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_example_prints_what_the_readme_says(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.S).groups()
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed
    drawn, shown = (curves(path.read_text()) for path in (tmp_path / "example.svg", ROOT / "docs" / "figures" / "example.svg"))
    assert len(drawn) == 6  # three costs, two numbers of local steps
    np.testing.assert_allclose(drawn, shown, atol=0.01)


@pytest.mark.slow("solves for up to half a minute")
def test_one_function_is_minimised_as_the_readme_says(capsys):
    code, printed = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.S)[1]
    patient = code.replace("seconds=30", "seconds=300")  # it ends by itself, but not in time where many others are at work
    assert patient != code
    exec(compile(patient, "README.md", "exec"), {"fz": fz})
    assert capsys.readouterr().out == printed


def curves(svg):
    """The curves of a figure as points in the unit square, so that fonts and margins do not matter."""
    paths = re.findall(r'<path d="(M[^"]+)" clip-path[^>]*stroke-width: 1\.6', svg)
    points = [np.array(re.findall(r"-?\d+\.?\d*", path), float).reshape(-1, 2) for path in paths]
    return [(p - p.min(axis=0)) / np.ptp(p, axis=0) for p in points]


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.M), target
