"""The units of x that `solve` chooses before its first stage."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.solving.judging import Point
from fedrzo.solving.setup import in_units
from fedrzo.solving.solve import _far_outside

S = fz.sets
STEEP = np.array([1e3, 1e-3, 1.0])


def problem(constraint, x0=(0.0, 0.0, 0.0), clients=2, **more):
    loss = lambda x, b: jnp.sum(STEEP * jnp.abs(x - 0.3)) + jnp.mean(b)  # noqa: E731
    return fz.Nonsmooth(loss, fz.ClientData([np.ones(2)] * clients), np.array(x0), constraint, **more)


def box(low, high):
    return S.Box(np.array(low, float), np.array(high, float))


BOXES = {
    "one box": problem(box([0, -1, -5], [2, 1, 5])),
    "a domain": problem(None, domain=box([0, -1, -5], [2, 1, 5])),
    "what clients' boxes share": problem([box([-9, -1, -5], [2, 8, 5]), box([0, -7, -5], [3, 1, 9])]),
    "a box and another set": problem(S.Intersection(box([0, -1, -5], [2, 1, 5]), S.Halfspace(np.ones(3), 4.0))),
}


@pytest.mark.parametrize("what", BOXES)
def test_units_are_a_fifth_of_each_box_and_take_no_loss(what):
    stated = BOXES[what]
    with stated.precision():
        scaled, losses, caveat = in_units(stated)
    np.testing.assert_allclose(scaled.layout.scale, [0.4, 0.4, 2.0])
    assert (losses, caveat) == (0, "")
    # `x` of one entry has a unit, too
    single = fz.Nonsmooth(lambda x, b: jnp.sum(x**2), fz.ClientData([np.ones(2)]), np.zeros(1), S.Box(0.0, 1e-3))
    np.testing.assert_allclose(in_units(single)[0].layout.scale, [2e-4])


def test_entries_without_a_box_keep_the_units_in_which_the_loss_changes_alike():
    stated = problem(box([-np.inf, 0, -1e9], [np.inf, 1, 1e9]))
    with stated.precision():
        scaled, losses, _ = in_units(stated)
    first, boxed, third = scaled.layout.scale
    assert boxed == pytest.approx(0.2)
    assert first < 0.1 * third  # the loss is a thousand times as steep there; a box of safety says nothing of the third
    assert losses == 7 + 5 * 5  # all entries at first, then those without a box


def test_without_boxes_units_of_a_loss_that_changes_alike_stay():
    stated = fz.Nonsmooth(lambda x, b: jnp.sum(x**2), fz.ClientData([np.ones(2)]), np.ones(3), S.Ball(0.0, 3.0))
    with stated.precision():
        assert in_units(stated)[0] is stated


@pytest.mark.parametrize("away", [0.0, 5.0])
def test_an_x_far_outside_its_sets_is_noted(away):
    scaled = problem(S.Box(0.0, 1.0), scale=np.full(3, 0.5))
    feasible = np.ones(3)
    best = Point(feasible + away, feasible, 0.0)
    search = types.SimpleNamespace(
        best=best, setup=types.SimpleNamespace(problem=scaled, scales=types.SimpleNamespace(smoothing=0.2))
    )
    notes = _far_outside(search)
    assert bool(notes) == (away > 0)
    assert all("result.x is 4.33" in note for note in notes)
