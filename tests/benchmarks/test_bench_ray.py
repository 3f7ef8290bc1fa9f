"""`benchmarks/ray_load.py` and `benchmarks/soak_ray.py`: short runs of both, and what they say of known numbers."""

import pytest

import ray_load
import soak_ray
from helpers.watching import Reading, grown


def test_a_process_that_grows_is_told_from_noise():
    def seen(growth):
        return grown("driver", [Reading(100 * k, int((50 + growth * k + 0.2 * (k % 3)) * 2**20), 9) for k in range(40)])

    assert seen(0.0).flat
    assert seen(0.02).flat
    leaking = seen(0.3)
    assert not leaking.flat
    assert leaking.grown == pytest.approx(0.3 * 19, abs=0.3)
    assert grown("actor", [Reading(1, 1, 1)] * 5) is None


def test_what_is_wrong_with_a_long_run_is_said():
    found = {
        "rounds": 10, "seconds": 1.0, "killed": 1, "events": 0, "difference": 1.0, "same_costs": False, "growth": [],
        "checkpoint": (100, 200),
    }  # fmt: skip
    assert len(soak_ray.failures(found)) == 5


def test_three_hundred_rounds_with_every_actor_killed_once():
    found = soak_ray.soak(300)
    assert soak_ray.failures(found) == []
    assert {"driver", "raylet", "gcs_server"} <= {each.name for each in found["growth"]}
    assert "| an actor killed (SIGKILL) | 2 | nothing" in "\n".join(soak_ray.table(found))


@pytest.mark.slow("starts Ray in a process of its own")
def test_a_setting_of_the_load():
    found = ray_load.apart({"kind": "load", "clients": 6, "actors": 2})
    assert found["fastest"] <= found["seconds"]
    assert found["peak_bytes"] > 50 * 2**20
