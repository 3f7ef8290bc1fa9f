"""Things that are nearly right: the line says what to pass instead."""

import subprocess
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import fedrzo as fz
from fedrzo.running.spec import Spec


def test_a_sparse_matrix_is_to_be_made_dense():
    with pytest.raises(fz.InputError, match=r"data: found a sparse csr_matrix; pass a dense array: its \.toarray\(\)"):
        fz.ClientData([sparse.csr_matrix(np.eye(3))])


def test_a_result_is_no_point():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b @ x - 1)), fz.ClientData([np.ones((5, 2))]), np.zeros(2))
    result = fz.run(fz.FedRZOnn(0.01, 0.1), problem, 1, progress=False)
    with pytest.raises(fz.InputError, match=r"x: found a Result; pass its point: result\.x"):
        fz.certify(problem, result, 0.1)


def test_a_spec_is_a_toml_file():
    with pytest.raises(fz.InputError, match=r"spec: found 'x\.json'; write a TOML file"):
        Spec.read("x.json")


def flipped(lower_constraint):
    loss = lambda x, y, xi: jnp.sum((y - 1) ** 2) + jnp.sum(x**2)  # noqa: E731
    data = fz.ClientData([np.full((2, 1), 3.0)])
    return fz.TwoStage(loss, lambda x, y, xi: -(y - x - xi), data, np.zeros(1), np.zeros(1), lower_constraint=lower_constraint)


@pytest.mark.parametrize(("lower_constraint", "solver"), [(None, fz.vi.Accelerated()), (fz.sets.Box(-5, 5), fz.vi.Projection())])
def test_a_map_with_the_wrong_sign_is_told_to_check_it_first(lower_constraint, solver):
    with pytest.raises(fz.InputError, match=r"map: not strongly monotone in y .* check the sign of the map first"):
        fz.run(fz.FedRZO2s(0.01, 0.1, solver=solver), flipped(lower_constraint), 1, progress=False)


def penalised(**options):
    """Ridge regression with fewer samples than unknowns: strongly convex by its penalty x alone."""
    rng = np.random.default_rng(0)
    train, valid = ((rng.normal(size=(count, 3)), rng.normal(size=count)) for count in (2, 8))
    residual = lambda y, batch: jnp.mean((batch[0] @ y - batch[1]) ** 2)  # noqa: E731
    return fz.Bilevel(
        lambda x, y, batch: residual(y, batch) + 2 * x[0], lambda x, y, batch: residual(y, batch) + x[0] * jnp.sum(y**2),
        fz.ClientData([valid]), np.array([0.3]), np.zeros(3), lower_data=fz.ClientData([train]), **options,
    )  # fmt: skip


@pytest.mark.slow("runs that go wrong")
def test_a_penalty_that_goes_negative_needs_a_domain():
    with pytest.raises(fz.DivergedError, match=r"lower: not strongly convex in y at x = .*; give a lower_domain of x"):
        fz.run(fz.FedRZObl(0.05, 0.1, 5), penalised(), 50, progress=False)
    safe = penalised(lower_domain=fz.sets.Box(0.05, np.inf))
    assert np.isfinite(fz.run(fz.FedRZObl(0.05, 0.1, 5), safe, 50, progress=False).history["loss"]).all()


@pytest.mark.slow("several problems")
def test_losses_that_are_swapped_are_asked_about():
    data = fz.ClientData([np.ones((4, 2))])
    upper = lambda x, y, batch: jnp.sum((y - 1) ** 2) + jnp.sum(jnp.abs(x)) + 0 * jnp.sum(batch)  # noqa: E731
    lower = lambda x, y, batch: jnp.sum(y**2) / 2 - jnp.dot(x, y) * jnp.mean(batch)  # noqa: E731
    with pytest.warns(UserWarning, match=r"lower: its slope in y is the same for every x.* swapped\?"):
        fz.run(fz.FedRZObl(0.05, 0.1), fz.Bilevel(lower, upper, data, np.ones(2), np.zeros(2)), 1, progress=False)
    fz.run(fz.FedRZObl(0.05, 0.1), fz.Bilevel(upper, lower, data, np.ones(2), np.zeros(2)), 1, progress=False)


def test_a_loss_that_does_not_use_x_is_warned_of():
    problem = fz.Nonsmooth(lambda x, batch: jnp.mean(batch), fz.ClientData([np.arange(5.0)]), np.zeros(2))
    with pytest.warns(UserWarning, match="loss: it has the same value at x0 and some way off; check that it uses x"):
        fz.run(fz.FedRZOnn(0.01, 0.1), problem, 1, progress=False)


@pytest.mark.slow("several checks")
def test_a_median_in_a_black_box_is_no_mistake_of_shapes():
    loss = fz.blackbox(lambda x, batch: float(np.sum((np.median(batch, axis=0) - x) ** 2)))
    problem = fz.Nonsmooth(loss, fz.ClientData([np.random.default_rng(0).normal(size=(9, 2))]), np.zeros(2))
    with pytest.warns(UserWarning, match=r'if it is meant to be no mean, such as a median, pass batch_size="full"'):
        fz.run(fz.FedRZOnn(0.01, 0.1, batch_size=3), problem, 1, progress=False)
    fz.run(fz.FedRZOnn(0.01, 0.1, batch_size="full"), problem, 1, progress=False)
    assert fz.check(problem, fz.FedRZOnn(0.01, 0.1, batch_size="full"), 2).ok


def test_a_whole_number_has_no_slope():
    count = fz.Nonsmooth(lambda x, b: jnp.sum(b @ x > 1), fz.ClientData([np.ones((5, 2))]), np.zeros(2))
    found = fz.check(count)
    assert "a whole number (int64), which has no slope to estimate; return a float" in str(found)
    assert "jax" not in str(found).lower()


@pytest.mark.slow("a whole check")
def test_noise_of_numpy_is_noticed_by_a_check():
    draw = np.random.default_rng(0)
    noisy = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b @ x - 1)) + draw.normal(), fz.ClientData([np.ones((5, 2))]), np.zeros(2))
    assert "loss: it changes when it is traced again, as where NumPy draws random numbers" in str(fz.check(noisy, rounds=1))


def other_library(x, batch):
    return x.detach()  # as in PyTorch


def no_tensor(x):
    """Fail as PyTorch's functions do."""
    raise TypeError(f"abs(): argument 'input' (position 1) must be Tensor, not {type(x).__name__}")


torch = types.ModuleType("torch")  # need not be installed
torch.abs, torch.as_tensor = no_tensor, np.asarray


@pytest.mark.parametrize("loss", [lambda x, b: torch.abs(x - b).mean(), lambda x, b: torch.as_tensor(x).sum()])
def test_a_loss_by_torch_is_told_so(loss):
    problem = fz.Nonsmooth(loss, fz.ClientData([np.ones((5, 2))]), np.zeros(2))
    with pytest.raises(
        fz.InputError, match=r"^loss: it uses torch, which JAX cannot trace .*; wrap it: fz\.blackbox\(\.\.\.\), or"
    ):
        fz.run(fz.FedRZOnn(0.01, 0.1), problem, 1, progress=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: fz.Nonsmooth(other_library, data, np.zeros(2)), r"loss: it uses NumPy .* or wrap it: fz\.blackbox"),
        (lambda data: fz.Nonsmooth(abs, data, np.zeros(2), (-1, 1, 2)), r"constraint of client 0: found int; pass a set such as"),
        (lambda data: fz.Nonsmooth(abs, data, np.zeros(2), fz.sets.Box), "constraint: found the class Box; pass a set"),
        (lambda data: fz.Sampler(abs), "clients: Sampler needs it, and it was not passed"),
        (
            lambda data: fz.Bilevel(abs, abs, data, np.zeros(2), np.zeros(3), lower_constraint=fz.sets.Ball(np.zeros(2), 1.0)),
            "lower_constraint: Ball has center of shape .2,., but y has 3 entries",
        ),
        (lambda data: fz.minimize(lambda x: x**2, np.zeros(2)), r"fun: found shape \(2,\); it must return one number$"),
    ],
)
def test_a_line_names_what_the_user_wrote(make, message):
    with pytest.raises(fz.InputError, match=message):
        fz.run(fz.FedRZOnn(0.01, 0.1), make(fz.ClientData([np.ones((5, 2))])), 1, progress=False)


def test_an_example_says_what_to_install(tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    code = f"import sys; sys.path.insert(0, {str(examples)!r}); sys.modules['torch'] = None; import torch_training"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr == "torch is not installed, which this example needs; run: pip install 'fedrzo[torch]'\n"


def test_a_loss_that_draws_numbers_when_it_is_traced_is_noticed():
    rng = np.random.default_rng(0)

    def loss(x, batch):
        return jnp.mean(jnp.abs(batch - x)) * rng.uniform(1, 2)

    data = fz.ClientData([np.ones((4, 2)), np.zeros((3, 2))])
    with pytest.warns(UserWarning, match=r"loss: it is another function each time that JAX traces it"):
        fz.run(fz.FedRZOnn(0.01, 0.1), fz.Nonsmooth(loss, data, np.zeros(2)), 1, progress=False)
