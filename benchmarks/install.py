"""Install a wheel into a clean environment without a compiler, solve a problem there, and measure its size and its import time.

make check-dist
python benchmarks/install.py dist/*.whl --python python3.13
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

SOLVE = """
import numpy as np, jax.numpy as jnp, fedrzo as fz
data = fz.ClientData([np.arange(3.0), np.arange(5.0)])
problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(x - b)), data, np.zeros(()), fz.sets.Box(-1, 2))
result = fz.run(fz.FedRZOnn(0.02, 0.05, 5), problem, 50)
assert result.history["loss"][-1] < result.history["loss"][0], result
print(result)
"""
SIZES = """
import importlib.metadata as metadata, json
sizes = {}
for each in metadata.distributions():
    files = [file.locate() for file in each.files or []]
    sizes[each.metadata["Name"]] = sum(file.stat().st_size for file in files if file.is_file())
print(json.dumps(sizes))
"""
TIMED = {
    "import fedrzo": "import fedrzo",
    "import jax": "import jax",
    "all that a run needs": "import fedrzo as fz; fz.run",
    "fedrzo --help": "import sys; from fedrzo.cli.main import main; sys.stdout = open('/dev/null', 'w'); main(['--help'])",
}
RUNS = 5


def make(python: str, wheel: Path, folder: Path) -> dict[str, str]:
    """Make an environment with the wheel in it, and return the variables to run it with: no compiler can be found."""
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CC", "CXX"))}
    env |= {"PATH": str(folder / "bin"), "JAX_PLATFORMS": "cpu"}
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", str(wheel)]
    run(folder, env, *install)
    return env


def run(folder: Path, env: dict[str, str], *args: str) -> str:
    """Run Python there, away from the sources, and return what it prints."""
    command = [str(folder / "bin" / "python"), *args]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(args[:3])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def best(folder: Path, env: dict[str, str], code: str) -> tuple[float, float]:
    """Return the shortest of some runs in seconds, the start of Python included: by the clock, and of the processor."""
    times = []
    for _ in range(RUNS):
        clock, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        run(folder, env, "-c", code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        times.append((time.perf_counter() - clock, busy))
    return min(clock for clock, _ in times), min(busy for _, busy in times)


def measure(python: str, wheel: Path) -> dict:
    """Install, solve and measure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "clean"
        env = make(python, wheel.resolve(), folder)
        version = run(folder, env, "-c", "import platform; print(platform.python_version())").strip()
        solved = run(folder, env, "-c", SOLVE)
        listed = json.loads(run(folder, env, "-m", "fedrzo", "list", "--json"))
        sizes = json.loads(run(folder, env, "-c", SIZES))
        seconds = {what: best(folder, env, code) for what, code in TIMED.items()}
    megabytes = {name: size / 1e6 for name, size in sizes.items() if name not in ("pip", "setuptools")}
    return {"python": version, "solved": solved, "problems": len(listed["problems"]), "megabytes": megabytes,
            "seconds": seconds}  # fmt: skip


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.python, options.wheel)
    if options.json:
        print(json.dumps(found))
        return
    print(f"Python {found['python']}, {options.wheel.name}\n{found['solved']}")
    sizes = sorted(found["megabytes"].items(), key=lambda item: -item[1])
    for name, size in sizes[:8]:
        print(f"{size:8.1f} MB  {name}")
    print(f"{sum(size for _, size in sizes[8:]):8.1f} MB  {len(sizes) - 8} others")
    print(f"{sum(found['megabytes'].values()):8.1f} MB  in all")
    for what, (clock, busy) in found["seconds"].items():
        print(f"{clock:8.2f} s   {what} ({busy:.2f} s of processor time)")


if __name__ == "__main__":
    main()
