"""What the ray engine costs: a round in which nobody computes, over four local actors.

    python benchmarks/ray_latency.py

Prints fastest and median round in milliseconds, without and with one vector of memory, and the ratio to a bare Ray call that
carries the same bytes to the same number of actors and back, measured in the same run.
"""

import time

import jax
import numpy as np

import fedrzo as fz

ACTORS = 4


@fz.method
class Idle(fz.Method):
    def round(self, federation, state, r):
        return fz.State(federation.average(self.client_steps, state.x))

    def client_steps(self, client, key, memory, x):
        return fz.Reply(x)


@fz.method
class Remembering(Idle):
    def init_memory(self, problem):
        return problem.x0

    def client_steps(self, client, key, memory, x):
        return fz.Reply(x, memory=memory)


def nothing(x, batch):
    return 0 * x[0] + 0 * batch[0, 0]


def measure(step, repetitions):
    for _ in range(3):
        step()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return 1e3 * min(seconds), 1e3 * float(np.median(seconds))


def engine_round(engine, method, dim, repetitions):
    problem = fz.Nonsmooth(nothing, fz.ClientData([np.zeros((1, 1))] * ACTORS), np.zeros(dim))
    with problem.precision():
        session = engine.start([method], problem, [jax.random.key(0)], None)
        try:
            return measure(lambda: session.advance(1), repetitions)
        finally:
            session.close()


def bare_round(dim, repetitions):
    import ray

    @ray.remote(num_cpus=0)
    class Echo:
        def back(self, x):
            return x

    actors = [Echo.remote() for _ in range(ACTORS)]
    payload = np.zeros(8 * dim, np.uint8).tobytes()

    def step():
        shared = ray.put(payload)
        ray.get([actor.back.remote(shared) for actor in actors])

    try:
        return measure(step, repetitions)
    finally:
        for actor in actors:
            ray.kill(actor)


def main():
    print("| dimension | bare Ray | engine | engine / bare | with memory |\n|---|---|---|---|---|")
    with fz.engines.Ray(actors=ACTORS) as engine:
        engine_round(engine, Idle(), 10, 3)  # starts Ray
        for dim, repetitions in ((10, 100), (100_000, 20), (1_000_000, 10)):
            bare = bare_round(dim, repetitions)
            plain, keeping = (engine_round(engine, method, dim, repetitions) for method in (Idle(), Remembering()))
            show = [f"{fastest:.1f} / {median:.1f} ms" for fastest, median in (bare, plain, keeping)]
            print(f"| {dim:,} | {show[0]} | {show[1]} | {plain[1] / bare[1]:.1f} | {show[2]} |", flush=True)


if __name__ == "__main__":
    main()
