"""Is it ready for release? `make release-check` builds wheel and sdist, and calls `python benchmarks/release.py dist`.

Both are looked into, and installed without extras into a clean environment of every Python that is there and that the project
allows, away from the sources and without a compiler. There fedrzo is imported, minimises a function whose answer is known, and
says its version. The status is 1 if anything failed. Pythons that are allowed but not there are named as untried.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOMES = {"PYENV_ROOT": ("~/.pyenv", "versions/*/bin"), "UV_PYTHON_INSTALL_DIR": ("~/.local/share/uv/python", "*/bin")}
SECRET = re.compile(r"(^|/)(\.env|\.netrc|\.pypirc|id_[a-z0-9]+|[^/]*\.(pem|key|p12|ledger\.json))$")
KINDS = {"wheel": "*.whl", "sdist": "*.tar.gz"}
FACTS = ("jax", "import", "installed")
PIP = ("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "--only-binary=:all:")
LARGEST = 1_000_000  # bytes of a file: data sets are larger
WANTED = {
    "wheel": ("fedrzo/__init__.pyi", "fedrzo/py.typed", ".dist-info/licenses/LICENSE"),
    "sdist": ("src/fedrzo/__init__.pyi", "src/fedrzo/py.typed", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff"),
}
TRIED = """
import importlib.metadata as metadata, json, sys, time
begun = time.process_time()
import fedrzo as fz
seconds = time.process_time() - begun
import jax
kinked = lambda x: abs(x[0] - 1) + (x[1] - x[0]) ** 2
found = fz.minimize(kinked, [0.0, 0.0], bounds=[(None, 0.5), (None, None)], seconds=300, progress=False)
assert max(abs(found.x[0] - 0.5), abs(found.x[1] - 0.5), abs(found.fun - 0.5)) < 0.02, f"minimize found {found.x}, {found.fun}"
extras = {"cvxpy", "flwr", "matplotlib", "pandas", "plotly", "ray", "sklearn", "torch"} & set(sys.modules)
assert not extras, extras
files = [file.locate() for each in metadata.distributions() if each.metadata["Name"] != "pip" for file in each.files or []]
size = sum(file.stat().st_size for file in files if file.is_file())
print(json.dumps({"jax": jax.__version__, "import": f"{seconds:.2f} s", "installed": f"{size / 1e6:.0f} MB"}))
"""


def places() -> list[str]:
    """Return what looks like a Python, on PATH and where pyenv and uv put theirs."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    for variable, (usual, pattern) in HOMES.items():
        folders += glob.glob(str(Path(os.environ.get(variable) or usual).expanduser() / pattern))
    return [path for folder in folders for path in glob.glob(f"{folder}/python3.*") if re.fullmatch(r".*/python3\.\d+", path)]


def working(paths: list[str]) -> dict[Version, str]:
    """Return the newest Python of each minor version that works and that the project allows."""
    found: dict[int, tuple[Version, str]] = {}
    asking = "import platform, sys, venv, ensurepip; print(platform.python_version(), sys.executable)"
    for path in paths:
        asked = subprocess.run([path, "-c", asking], capture_output=True, text=True)
        named, _, own = asked.stdout.strip().partition(" ")
        version = Version(named if asked.returncode == 0 else "0")  # a shim may stand for nothing
        known = found.get(version.minor, (Version("0"), ""))[0]
        if version in SpecifierSet(PROJECT["requires-python"]) and version > known:
            found[version.minor] = version, own
    return dict(sorted(found.values()))


def untried(found: dict[Version, str]) -> list[str]:
    """Return what the classifiers name, or requires-python leaves open, and is not there."""
    named = [int(line.rpartition(".")[2]) for line in PROJECT["classifiers"] if " :: Python :: 3." in line]
    tried = {version.minor for version in found}
    return [*(f"3.{minor}" for minor in named if minor not in tried), f"3.{max({*named, *tried}) + 1} and newer"]


def read(path: Path) -> tuple[dict[str, int], bytes]:
    """Return the files of a wheel or an sdist with their sizes, and its metadata."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as file:
            sizes = {info.filename: info.file_size for info in file.infolist()}
            return sizes, file.read(next(name for name in sizes if name.endswith(".dist-info/METADATA")))
    with tarfile.open(path) as file:
        sizes = {info.name.partition("/")[2]: info.size for info in file if info.isfile()}
        return sizes, file.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO").read()


def wrong(path: Path) -> list[str]:
    """Return what a wheel or an sdist lacks, what it should not hold, and what is not right in its metadata."""
    kind = "wheel" if path.suffix == ".whl" else "sdist"
    sizes, metadata = read(path)
    found = [f"lacks {wanted}" for wanted in WANTED[kind] if not any(name.endswith(wanted) for name in sizes)]
    found += [f"holds {name}, which looks like a secret" for name in sizes if SECRET.search(name)]
    found += [f"holds {name}, of {size:,} bytes" for name, size in sizes.items() if size > LARGEST]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    known = {name.removeprefix("src/") if kind == "wheel" else name for name in listed.stdout.split("\0")} | {"PKG-INFO"}
    held = [name for name in sizes if ".dist-info/" not in name]
    if listed.returncode == 0:  # in a checkout
        found += [f"holds {name}, which the repository does not" for name in held if name not in known]
    if kind == "wheel":
        found += [f"holds {name}, which is no part of the library" for name in held if not name.startswith("fedrzo/")]
    try:
        stated = Metadata.from_email(metadata, validate=True)
    except ExceptionGroup as group:
        return [*found, *(f"metadata: {error}" for error in group.exceptions)]
    if (str(stated.version), stated.description_content_type) != (PROJECT["version"], "text/markdown") or not stated.description:
        found.append("metadata: another version, or no description in Markdown")
    return found


def attempt(python: str, path: Path) -> dict[str, str]:
    """Install into a clean environment, ask for the version, minimise; return what was seen, or how it `failed`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CC", "CXX", "XLA"))}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve() / "clean"
        env |= {"PATH": str(home / "bin"), "JAX_PLATFORMS": "cpu"}
        own, script = str(home / "bin/python"), str(home / "bin/fedrzo")
        for command in (
            [python, "-m", "venv", str(home)],
            [own, *PIP, str(path)],
            [script, "--version"],
            [own, "-c", TRIED],
        ):
            done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
            said = done.stdout.strip()
            if done.returncode or (command[-1] == "--version" and said != PROJECT["version"]):
                reason = (done.stderr.strip() or said or "no message").splitlines()[-1]
                return {"failed": f"{Path(command[0]).name} {' '.join(command[1:3]).strip().splitlines()[0]}: {reason}"}
    return json.loads(said)


def main() -> int:
    """Check, print a table, and return the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, help="the folder with a wheel and an sdist")
    parser.add_argument("--python", help="try this one alone, instead of all that are found")
    options = parser.parse_args()
    paths = {kind: path.resolve() for kind in KINDS for path in options.dist.glob(KINDS[kind])}
    if len(paths) < len(KINDS):
        parser.error(f"{options.dist}: found no wheel and sdist there; run: make dist")
    failures = [f"{path.name} {what}" for path in paths.values() for what in wrong(path)]
    found = working(places() if options.python is None else [options.python])
    print("".join(f"{head:<9}" for head in ("Python", *KINDS, *FACTS)).rstrip(), flush=True)
    for version, python in found.items():
        seen = {kind: attempt(python, path) for kind, path in paths.items()}
        failures += [f"Python {version}, {kind}: {one['failed']}" for kind, one in seen.items() if "failed" in one]
        cells = [str(version), *("failed" if "failed" in one else "passed" for one in seen.values())]
        cells += [seen["wheel"].get(name, "") for name in FACTS]
        print("".join(f"{cell:<9}" for cell in cells).rstrip(), flush=True)
    print(f"untried, since not there: {', '.join(untried(found))}")
    print("\n".join(f"FAILED: {line}" for line in failures) or "ready: contents, metadata and all of the above")
    return 1 if failures or not found else 0


if __name__ == "__main__":
    sys.exit(main())
