"""Run all examples, or some: `python examples/build.py figures|notebooks FOLDER [NAME ...]`.

`figures` runs them as scripts; `notebooks` makes notebooks of them by jupytext, and executes these.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = (
    "quantile_silos",
    "trusted_silos",
    "fair_digits",
    "stackelberg_market",
    "call_centres",
    "torch_training",
    "quantile_on_ray",
)


def figures(name, folder):
    """Run an example as a script that writes its figure into a folder."""
    subprocess.run([sys.executable, HERE / f"{name}.py", folder], check=True)


def notebooks(name, folder):
    """Write an executed notebook; a cell that fails is an error."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(HERE / f"{name}.py")
    # Executed beside the scripts, whose helpers they import.
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": HERE}}).execute()
    jupytext.write(notebook, Path(folder) / f"{name}.ipynb")
    print(f"wrote {Path(folder) / name}.ipynb")


def main(kind, folder, *names):
    """Make what was asked for, of all examples or of some."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or NAMES:
        {"figures": figures, "notebooks": notebooks}[kind](name, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
