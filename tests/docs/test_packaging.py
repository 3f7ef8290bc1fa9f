"""What is shipped: the wheel and the sdist, what they hold and ask for, and that nothing heavy is needed to import them."""

import ast
import email
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedrzo as fz

ROOT = Path(__file__).parents[2]
EXTRAS = ("casadi", "cvxpy", "flwr", "ipywidgets", "jinja2", "matplotlib", "mlflow", "pandas", "plotly", "psutil", "ray",
          "sklearn", "tensorboard", "tensorboardX", "wandb")  # fmt: skip


def python(code, *args):
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    pytest.importorskip("hatchling", reason="the build backend is not installed; pip install 'fedrzo[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "-o", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    [path] = dist.glob("*.whl")
    return path


def test_the_wheel_holds_all_that_the_library_reads_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    sources = [path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in sources}
    assert {"fedrzo/py.typed", "fedrzo/__init__.pyi", "fedrzo/deploy/templates/app.toml"} <= expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size < 2e6


def test_the_metadata_say_what_is_needed(wheel):
    with zipfile.ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith("METADATA")]
        found = email.message_from_string(file.read(name).decode())
    assert (found["Name"], found["Version"], found["Requires-Python"]) == ("fedrzo", fz.__version__, ">=3.11")
    always = [line for line in found.get_all("Requires-Dist") if "extra ==" not in line]
    assert {line.split(">=")[0] for line in always} == {
        "jax", "lazy-loader", "numpy", "optax", "rich", "scipy", "tomli-w", "typer"
    }  # fmt: skip
    assert {"data", "flower", "mlflow", "notebook", "plots", "ray", "report", "tensorboard", "wandb"} <= set(
        found.get_all("Provides-Extra")
    )
    classifiers = found.get_all("Classifier")
    assert all(f"Programming Language :: Python :: 3.{minor}" in classifiers for minor in (11, 12, 13))
    assert "Typing :: Typed" in classifiers


def test_the_sdist_holds_what_is_needed_to_test_it(dist):
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as file:
        tops = {name.split("/")[1] for name in file.getnames()}
    assert {"src", "tests", "pyproject.toml", "README.md", "LICENSE", "Makefile"} <= tops
    assert not {name for name in tops if name.startswith(".")} - {".gitignore"}
    assert path.stat().st_size < 5e6


def test_what_a_release_lacks_or_should_not_hold_is_found(dist, tmp_path):
    """Files that only this checkout has, as while somebody works, are for `make release-check` to find."""
    wrong = runpy.run_path(str(ROOT / "benchmarks" / "release.py"))["wrong"]
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert not [line for path in (wheel, sdist) for line in wrong(path) if "which the repository does not" not in line]
    spoilt = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as good, zipfile.ZipFile(spoilt, "w") as file:
        for name in good.namelist():
            if name != "fedrzo/py.typed":
                file.writestr(name, good.read(name).replace(b"\nVersion: 0", b"\nVersion: nought 0"))
        file.writestr("fedrzo/.env", "TOKEN=1")
        file.writestr("tests/test_a.py", "")
    said = "\n".join(wrong(spoilt))
    for part in ("lacks fedrzo/py.typed", "fedrzo/.env, which looks like a secret", "test_a.py, which is no part", "nought"):
        assert part in said


def test_all_places_name_the_same_version():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert {stated, cited, fz.__version__} == {headings[1]}
    assert headings[0] == "Unreleased"


def test_everything_imports_and_solves_without_the_extras():
    code = f"""
import importlib, pkgutil, sys
for name in {EXTRAS!r}:
    sys.modules[name] = None  # as if it were not installed
import fedrzo as fz
for found in pkgutil.walk_packages(fz.__path__, "fedrzo."):
    if "templates" not in found.name and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
assert all(callable(each) for each in (fz.run, fz.certify, fz.blackbox))  # not the modules of these names
from fedrzo.zoo import toys
fz.run(fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4), 2)
try:
    fz.run(fz.FedRZOnn(0.02, 0.1, 3), toys.quadratic(3, 4), 2, engine="ray")
except ImportError as error:
    print(error)
"""
    done = python(code)
    assert (done.returncode, done.stdout) == (0, "ray is not installed; run: pip install 'fedrzo[ray]'\n"), done.stderr


def test_importing_is_quick_and_waits_for_jax_until_it_is_needed():
    code = """
import sys, time
began = time.process_time()
import fedrzo
import fedrzo.cli.main
assert "jax" not in sys.modules, "fedrzo.cli.main imports JAX"
print(time.process_time() - began)
from fedrzo.running.run import sweep
assert "jax" in sys.modules
assert fedrzo.run.__name__ == "run" and callable(fedrzo.run)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.5


def test_the_stub_names_what_is_there_as_editors_want_it():
    stub = ast.parse((ROOT / "src" / "fedrzo" / "__init__.pyi").read_text())
    names = [name for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names]
    assert [name.asname for name in names] == [name.name for name in names]  # else some editors complete nothing
    assert sorted(name.name for name in names) == sorted(fz.__all__) == sorted(dir(fz))
    assert all(getattr(fz, name) is not None for name in fz.__all__)


SCRIPT = """
import numpy as np
import fedrzo as fz

problem = fz.Nonsmooth(lambda x, b: x.sum(), fz.ClientData([np.zeros((3, 2))]), np.zeros(2))
result = fz.run(fz.FedRZOnn(0.1, 0.1, 2), problem, 3, log=[fz.loggers.TensorBoard("a"), print])
reveal_type(result)
reveal_type(fz.sweep(fz.FedRZOnn(0.1, 0.1), problem, 3, stepsize=[0.1]))
reveal_type(result.history["loss"])
fz.FedRZOnn(0.1, 0.1, step=3)
fz.run(fz.FedRZOnn(0.1, 0.1), problem, "many")
fz.nothing
"""


@pytest.mark.slow("installs the wheel, or runs a type checker")
def test_a_type_checker_knows_the_public_names(tmp_path):
    (tmp_path / "user.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        "--strict",
        "--no-error-summary",
        str(tmp_path / "user.py"),
    ]
    lines = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout.splitlines()
    notes = [line.split("note: ")[1] for line in lines if "note: Revealed" in line]
    assert notes[:2] == [
        'Revealed type is "fedrzo.results.result.Result"',
        'Revealed type is "fedrzo.results.sweep.Sweep"',
    ]
    assert "numpy.ndarray" in notes[2]
    errors = {int(line.split(":")[1]): line for line in lines if ": error: " in line}
    assert sorted(errors) == [10, 11, 12], lines
    assert 'Unexpected keyword argument "step"' in errors[10]


@pytest.mark.slow("installs the wheel, or runs a type checker")
def test_wheel_and_sdist_work_in_a_clean_environment_without_a_compiler(dist):
    """Needs an index to install the dependencies from."""
    command = [sys.executable, str(ROOT / "benchmarks" / "release.py"), str(dist), "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=os.environ)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1:3] for line in lines if line[0].startswith("3.")] == [["passed", "passed"]], done.stdout + done.stderr
    assert [float(line[4]) < 1.5 for line in lines if line[0].startswith("3.")] == [True]  # seconds for `import fedrzo`
    assert any(line[0] == "untried," for line in lines)
