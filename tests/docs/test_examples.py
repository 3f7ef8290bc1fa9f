"""Every example is run for real, as a script in a process of its own, with fewer rounds; one is also executed as a notebook.

What each example claims is checked from the numbers that it writes beside its figure. Without PyTorch its example is skipped;
FEDRZO_REQUIRE_TORCH=1 makes that a failure instead, which is what CI asks for.
"""

import base64
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import fedrzo as fz

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Compilation is what takes time here.
HASTY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
sys.path.insert(0, str(EXAMPLES))
from build import NAMES  # noqa: E402
from common import told  # noqa: E402


def run(*command):
    """Run a program of the examples in its own process; warnings are errors there, too."""
    strict = f"error,{os.environ['PYTHONWARNINGS']}"
    environment = {"FEDRZO_QUICK": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": HASTY, "PYTHONWARNINGS": strict}
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check_picture(content):
    """A figure in colours, neither empty nor too coarse nor too heavy for the documentation."""
    assert len(content) < 100_000
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    assert min(picture.size) > 600  # two pixels of a file for one of the page, and sharp
    assert len(picture.getcolors(picture.width * picture.height)) > 20


@pytest.fixture
def numbers(request, tmp_path):
    """Run the script named by the parameter and return what it says, its figure having been looked at."""
    name = request.param
    out = run(EXAMPLES / f"{name}.py", tmp_path)
    check_picture((tmp_path / f"{name}.png").read_bytes())
    numbers = json.loads((tmp_path / f"{name}.json").read_text())
    assert all(key in out for key in numbers)
    return numbers


def example(name):
    return pytest.mark.parametrize("numbers", [name], indirect=True)


@pytest.mark.slow("runs an example")
@example("quantile_silos")
def test_private_boxes_lead_to_the_exact_answer(numbers):
    best = numbers["loss of the exact answer"]
    assert best - 1e-9 <= numbers["loss of FedRZO"] < best + 0.01  # 1.08 at the start
    assert numbers["loss without boxes, then clipped"] > best + 0.1
    assert numbers["distance to the farthest box"] < 0.05


@pytest.mark.slow("runs a whole example")
@example("trusted_silos")
def test_wrong_silos_lose_their_weight(numbers):
    assert numbers["largest weight of a wrong silo"] < 0.1
    assert numbers["mean weight of the other silos"] > 0.5
    assert numbers["test loss, tuned"] < 0.5 * numbers["test loss, all silos alike"]
    assert abs(numbers["test loss, tuned"] - numbers["test loss, wrong silos left out"]) < 0.02


@pytest.mark.slow("runs a whole example")
@example("fair_digits")
def test_the_worst_digit_gains_at_a_price(numbers):
    assert numbers["worst digit, fair"] < 0.85 * numbers["worst digit, average"]
    assert numbers["mean, average"] < numbers["mean, fair"] < numbers["mean, average"] + 0.12
    weights = np.array(numbers["the adversary's weights"])
    assert weights.min() > -1e-9
    assert abs(weights.sum() - 1) < 1e-9


@pytest.mark.slow("runs a whole example")
@example("stackelberg_market")
def test_the_leader_finds_the_top_of_the_curve(numbers):
    top = numbers["profit, best on the curve"]
    assert numbers["profit, FedRZO (mean of 5 seeds)"] > top - 0.01
    assert numbers["profit, others' output taken as given"] < 0.9 * top
    assert np.abs(np.array(numbers["output, FedRZO"]) - numbers["output, best on the curve"]).max() < 0.2
    assert numbers["certificate: gradient norm at most"] < 0.1


@pytest.mark.slow("runs a whole example")
@example("call_centres")
def test_a_simulator_is_minimised_in_several_processes(numbers):
    assert numbers["callers lost, FedRZO [%]"] < numbers["callers lost, the same all day [%]"] - 5
    assert numbers["callers lost, FedRZO [%]"] < numbers["callers lost, in proportion to all calls [%]"] + 1
    assert numbers["processes"] == min(4, os.cpu_count())
    assert numbers["same numbers"] is True


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None and os.environ.get("FEDRZO_REQUIRE_TORCH") != "1", reason="needs PyTorch"
)
@pytest.mark.slow("trains a network")
@example("torch_training")
def test_a_network_is_tuned_from_its_validation_loss(numbers):
    assert numbers["loss found"] < 0.6 * numbers["loss at the start"]
    assert 0.05 < numbers["learning rate found"] < 1


@pytest.mark.slow("runs a whole example")
@example("quantile_on_ray")
def test_ray_gives_the_numbers_of_the_simulation(numbers):
    assert numbers["largest difference of a coefficient"] < 1e-9
    assert numbers["largest difference of a loss"] < 1e-9
    assert numbers["loss, ray"] < numbers["loss at the start"] - 0.2
    assert numbers["bytes up and down, ray"] == numbers["bytes up and down, simulation"] > 0


@pytest.mark.slow("runs a whole example")
def test_a_notebook_shows_its_figure(tmp_path):
    """One of them; `make notebooks` executes all."""
    run("-W", "default", EXAMPLES / "build.py", "notebooks", tmp_path, "quantile_silos")
    cells = json.loads((tmp_path / "quantile_silos.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    [figure] = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    check_picture(base64.b64decode(figure))
    assert sum(cell["cell_type"] == "markdown" for cell in cells) >= 2


def test_the_gallery_shows_every_example_and_its_numbers():
    page = (ROOT / "docs" / "examples.md").read_text()
    assert set(re.findall(r"examples/(\w+)\.py", page)) - {"build"} == set(NAMES)
    for name in NAMES:
        assert f"figures/{name}.png" in page
        check_picture((ROOT / "docs" / "figures" / f"{name}.png").read_bytes())
        numbers = json.loads((ROOT / "docs" / "figures" / f"{name}.json").read_text())
        assert "\n".join(told(numbers)) in page, name


def test_a_clients_number_reaches_a_black_box_as_a_number():
    """As the silo's number does in the PyTorch example: NumPy is quick to make vectors of 32-bit scalars."""
    loss = fz.blackbox(lambda x, batch: float(x) + [10, 20][int(batch[1])])
    data = fz.ClientData([np.ones(2)] * 2, fixed=[np.int32(0), np.int32(1)])
    assert float(fz.Nonsmooth(loss, data, np.float32(0.5)).evaluate(jnp.array([0.5]))["loss"]) == 15.5
