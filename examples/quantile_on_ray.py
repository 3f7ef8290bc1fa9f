# %% [markdown]
# # The same problem on a Ray cluster
#
# The quantile regression of `quantile_silos.py`, unchanged: its silos now live in the actors of a Ray cluster, each
# with its own data and its own box. Only `engine=` differs. Here the cluster is this machine;
# `fz.engines.Ray(address="auto")` joins a larger one.
#
# Randomness depends on a client's name and the round, not on where it runs, so the numbers are those of the
# simulation, up to rounding.
#
# Needs Ray: `pip install 'fedrzo[ray]'`.

# %%
import numpy as np
from common import BLUE, GREY, ORANGE, QUICK, finish, panels
from quantile_silos import method, problem

import fedrzo as fz

ROUNDS = 10 if QUICK else 60
simulated = fz.run(method, problem, ROUNDS, eval_every=5, progress=False)
with fz.engines.Ray(actors=2) as cluster:
    distributed = fz.run(method, problem, ROUNDS, engine=cluster, eval_every=5, progress=False)

# %% [markdown]
# The costs are counted in the same way: what a simulation says a run will send is what is sent.

# %%
one, other = simulated.history, distributed.history
gap = np.abs(one["loss"] - other["loss"])
figure, (left, right) = panels(2)
left.plot(one["round"], one["loss"], color=GREY, linewidth=4, alpha=0.5, label="simulation")
left.plot(other["round"], other["loss"], color=BLUE, linestyle="--", label="ray")
left.set(xlabel="communication rounds", ylabel="mean quantile loss")
left.legend(frameon=False)
right.axhline(1e-9, color=ORANGE, linestyle=":", label="what engines agree to")
right.semilogy(one["round"], np.maximum(gap, 1e-17), "o", color=BLUE, markersize=3, label="seen (0 drawn as 1e-17)")
right.set(xlabel="communication rounds", ylabel="difference of the losses", ylim=(3e-18, 1e-4))
right.legend(frameon=False)
finish(figure, "quantile_on_ray", {
    "largest difference of a coefficient": np.abs(simulated.x - distributed.x).max(), "largest difference of a loss": gap.max(),
    "loss at the start": one["loss"][0], "loss, ray": other["loss"][-1],
    "bytes up and down, simulation": one["upload_bytes"][-1] + one["download_bytes"][-1],
    "bytes up and down, ray": other["upload_bytes"][-1] + other["download_bytes"][-1],
})  # fmt: skip
