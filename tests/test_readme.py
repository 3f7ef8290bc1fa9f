"""The README's example is run as printed, and prints what it says."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_example_prints_what_the_readme_says(capsys):
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.S).groups()
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_make_targets_named_in_the_readme_exist():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
