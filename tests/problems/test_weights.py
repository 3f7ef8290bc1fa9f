"""What each client counts: by its samples of the level that a mean is taken over."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz

# The lower level's answer is the mean of its samples: 1 from nine of client 0, 0 from one of client 1.
UPPER = fz.ClientData([np.zeros((1, 1)), np.ones((9, 1))])
LOWER = fz.ClientData([np.full((9, 1), 10.0), np.zeros((1, 1))])
POOLED = 9.0


def bilevel(weights="samples", **options):
    def loss(x, y, batch):
        return jnp.mean((x - y - batch[:, 0]) ** 2)

    def lower(x, y, batch):
        return 0.5 * jnp.mean((y - batch[:, 0]) ** 2) + 0.05 * jnp.sum(y * (1 - x))

    return fz.Bilevel(loss, lower, UPPER, np.ones(()), np.zeros(()), lower_data=LOWER, weights=weights, **options)


@pytest.mark.parametrize("engine", ["simulation", "loop"])
@pytest.mark.parametrize("oracle", ["values", "gradients"])
def test_a_lower_level_counts_its_own_samples(engine, oracle):
    problem = bilevel(modulus=1.0, smoothness=1.0)
    method = fz.FedRZObl(1e-9, 0.01, oracle=oracle, batch_size="full")
    result = fz.run(method, problem, 1, engine=engine, progress=False)
    assert float(result.y) == pytest.approx(POOLED, abs=1e-6)
    # Client 1 has nine of the ten upper samples, all one.
    assert result.history["loss"][0] == pytest.approx(0.1 * (1 - POOLED) ** 2 + 0.9 * (1 - POOLED - 1) ** 2, rel=1e-6)


@pytest.mark.parametrize("engine", ["simulation", "loop"])
def test_a_hypergradient_counts_both_levels_right(engine):
    """f = mean (x - y(x) - a)^2 with y(x) = 9 - 0.05 (1 - x): each step is known in closed form."""
    problem = bilevel(modulus=1.0, smoothness=1.0)
    result = fz.run(fz.FedRZObl(0.01, 1e-6, oracle="gradients", batch_size="full"), problem, 1, engine=engine, progress=False)
    slope = 2 * (1 - POOLED - 0.9) * (1 - 0.05)
    assert float(result.x) == pytest.approx(1 - 0.01 * slope, abs=1e-5)


def test_uniform_weights_count_clients():
    problem = bilevel("uniform", modulus=1.0, smoothness=1.0)
    assert float(problem.lower_solutions(np.ones((1, 1)))[0]) == pytest.approx(5.0, abs=1e-6)


@pytest.mark.parametrize("method", [fz.SimFBO(0.01, 0.1, 1), fz.FedNest(0.01, 0.1, 1, 1)], ids=["SimFBO", "FedNest"])
def test_methods_that_average_both_levels_together_refuse_two_weights(method):
    with pytest.raises(fz.InputError, match=r'weights: found "samples" with lower_data of its own; .*use "uniform"'):
        fz.run(method, bilevel(), 1, progress=False)


def test_drawn_lower_samples_cannot_be_counted():
    drawn = fz.Sampler(lambda key, client: jnp.ones(1), clients=2)
    with pytest.raises(fz.InputError, match=r"weights: .*lower_data is a Sampler"):
        fz.Bilevel(
            lambda x, y, b: jnp.sum(x), lambda x, y, b: jnp.sum(y**2), UPPER, np.ones(()), np.zeros(()), lower_data=drawn,
            weights="samples",
        )  # fmt: skip


def test_a_lower_level_whose_samples_are_drawn_is_solved_by_some():
    """Its default used to ask for all samples, of which there is no end."""
    data = fz.Sampler(lambda key, client: 2.0 * client + 1e-9 * jax.random.normal(key, (1,)), clients=2)
    problem = fz.Bilevel(
        lambda x, y, b: jnp.mean((x - y) ** 2), lambda x, y, b: 0.5 * jnp.mean((y - x - b[:, 0]) ** 2), data, np.zeros(()),
        np.zeros(()),
    )  # fmt: skip
    result = fz.run(fz.FedRZObl(1e-9, 0.01), problem, 1, progress=False)
    assert float(result.y) == pytest.approx(1.0, abs=1e-6)
