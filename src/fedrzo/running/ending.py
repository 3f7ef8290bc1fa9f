"""The end of a run: what it returns, and what speaks against it."""

import jax.numpy as jnp
import numpy as np

from fedrzo.problems.courtesy import ask
from fedrzo.results.result import Result
from fedrzo.running.health import broken, end_losses, far_outside, inaccurate_end, not_convex, worse_end
from fedrzo.running.job import Job


def ending(job: Job, engine: str) -> tuple[list[Result], list[str]]:
    """Return a result for each run, and what speaks against the end of a single one: of a sweep's runs, their results say so."""
    problem, unravel = job.case.problem, job.case.problem.layout.unravel
    states, records, found = job.session.states(), job.session.progress(), []
    points = np.stack([state.x for state in states])
    feasible, lower = np.asarray(problem.project(jnp.asarray(points))), job.session.lower_solutions(points)
    losses, doubts = end_losses(job.session, job.histories, points, feasible), []
    for i, (state, record) in enumerate(zip(states, records, strict=True)):
        worse = None if problem.coupled else worse_end(job.histories[i], losses[i], points.dtype, not problem.sets.free)
        doubts = _doubts(job, i, state.x)
        found.append(
            Result(unravel(state.x), unravel(feasible[i]), unravel(record.x_random), int(record.random_round),
                   job.histories[i], _spec(job, i, engine), job.compile_seconds, lower[i], losses[i], problem,
                   tuple(filter(None, (worse, *doubts, problem.remark))))
        )  # fmt: skip
    return found, doubts if job.single else []


def _spec(job: Job, i: int, engine: str) -> dict:
    """Return one run's settings and how it went, in plain values."""
    events = [list(event) for event in job.session.events]
    spec = job.case.spec(i, engine, job.session.round) | ({"events": events} if events else {})
    spec |= {"stopped": job.stopped} | ({} if job.watch is None else job.watch.spec)
    if "privacy" in spec and job.session.tells_epsilon:
        spec["privacy"]["epsilon"] = job.histories[i].last["epsilon"]
    return spec


def _doubts(job: Job, i: int, x: np.ndarray) -> list[str]:
    """Return what speaks against the end of one run; what the method itself doubts, only of single runs: it takes time."""
    method, history, session = job.case.methods[i], job.histories[i], job.session
    inaccurate = inaccurate_end(method, history)
    if inaccurate is not None and job.single:
        inaccurate = ask(lambda: not_convex(method, session)) or inaccurate
    found = [far_outside(method, history, job.case.problem.layout.scale), inaccurate, broken(history)]
    if job.single and session.data_at_hand and session.round > 0:
        found.append(ask(lambda: method.doubt(session.problem, x, session.round)))
    return [text for text in found if text is not None]
