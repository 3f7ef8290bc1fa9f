"""What the examples share: quick runs for tests, one look for the figures, and where they go."""

import builtins
import importlib
import io
import json
import os
import sys
from pathlib import Path

import numpy as np

from fedrzo.results.figure import COLOURS

try:
    from matplotlib.figure import Figure
    from PIL import Image
except ModuleNotFoundError as missing:
    sys.exit(f"{missing.name} is not installed, which all examples need; run: pip install 'fedrzo[examples]'")

BLUE, ORANGE, GREEN, *_ = COLOURS
GREY = "0.45"
QUICK = os.environ.get("FEDRZO_QUICK") == "1"  # tests look at the same claims after fewer rounds


def needed(module, extra):
    """Import what an example needs besides, or end with one line that says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        sys.exit(f"{module} is not installed, which this example needs; run: pip install 'fedrzo[{extra}]'")


def panels(count, widths=None, height=3.0):
    """Return a figure and its panels, side by side."""
    figure = Figure(figsize=(3.5 * count, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1)
    axes = figure.subplots(1, count, squeeze=False, width_ratios=widths)[0]
    for panel in axes:
        panel.grid(visible=True, color="0.9", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def band(panel, sweep, setting, column, **style):
    """Draw the mean over seeds of one setting of a `fz.sweep` against rounds, with its 95 % band."""
    rounds = sweep.results[setting][0].history["round"]
    mean, low, high = sweep.band(setting, column)
    [line] = panel.plot(rounds, mean, **style)
    panel.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def legend_above(panel, columns):
    """Put the legend above a panel, where it covers neither curves nor axes."""
    spacing = {"columnspacing": 0.9, "handletextpad": 0.4, "borderaxespad": 0.2}
    panel.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=columns, fontsize="small", **spacing)


def as_png(figure):
    """Return a figure as the content of a PNG file of 256 colours, a third of the size of one of millions."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=220)
    Image.open(full).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(small, format="png", optimize=True)
    return small.getvalue()


def told(numbers):
    """Return numbers as lines of text."""
    return [f"{key}: {np.array2string(np.asarray(value), precision=4)}" for key, value in numbers.items()]


def finish(figure, name, numbers):
    """Print the numbers and show the figure; as a script, write both into the folder named on the command line.

    Args:
        figure: what the example ends in.
        name: of the files, `NAME.png` and `NAME.json`.
        numbers: what the example claims, by name.
    """
    numbers = {key: np.asarray(value).tolist() for key, value in numbers.items()}
    print("\n".join(told(numbers)))
    picture = as_png(figure)
    if hasattr(builtins, "__IPYTHON__"):
        from IPython.display import Image as Shown
        from IPython.display import display

        display(Shown(picture))
        return
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(picture)
    (folder / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"wrote {folder / name}.png")
