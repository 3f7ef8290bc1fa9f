"""What a run must report, computed in plain NumPy from the description."""

import dataclasses
from typing import Any

import numpy as np

from . import formulas, regions, trees
from .build import Built, lower_set


@dataclasses.dataclass
class Answers:
    """NumPy's losses and lower solutions of one built problem."""

    built: Built

    def __post_init__(self) -> None:
        case, built = self.built.case, self.built
        sizes = np.array([len(trees.leaves(each)[0]) for each in built.clients], float)
        lower_sizes = np.array([len(trees.leaves(each)[0]) for each in built.lower_clients], float)
        self.weights = weigh(case.weights, sizes)
        self.lower_weights = weigh(case.weights, lower_sizes)
        if case.data == "sampler":
            built.clients = [trees.fill(case.samples, [leaf[:1] for leaf in trees.leaves(each)]) for each in built.clients]
            built.lower_clients = built.lower_clients if case.lower_sizes else built.clients
        self.samples = [trees.rows(each) for each in built.clients]
        self.lower_samples = [trees.rows(each) for each in built.lower_clients]
        self.fixed = [None if built.fixed is None else trees.flat(built.fixed[i]) for i in range(case.clients)]

    def region(self, x: np.ndarray, s: np.ndarray | None) -> Any:
        """Return Y(x), or Y(x, s), in NumPy; None without constraints."""
        case = self.built.case
        if not case.lower_set:
            return None
        return lower_set(case, self.built.y0, float(formulas.moved(self.below(x), s, case.moves, np)))[1]

    def inside(self, x: np.ndarray) -> np.ndarray:
        """Return where the losses are evaluated: the projection of x onto its domain."""
        return x if self.built.domain is None else self.built.domain.project(x)

    def below(self, x: np.ndarray) -> np.ndarray:
        """Return where the lower level is solved: the projection of x onto what its domain and that of the losses share."""
        given = [each for each in (self.built.lower_domain, self.built.domain) if each is not None]
        return regions.meet(given).project(x) if given else x

    def solution(self, x: np.ndarray, s: np.ndarray | None = None) -> np.ndarray:
        """Return y(x), or y(x, s) for a scenario."""
        k, kind, z = self.built.k, self.built.case.kind, self.below(x)
        if s is None:
            means = [rows.mean(axis=0) for rows in self.lower_samples]
            s_mean = sum(w * mean for w, mean in zip(self.lower_weights, means, strict=True))
        pull = k.B @ z + k.N @ (s_mean if s is None else s)
        scale = np.ones_like(k.d) if kind == "bilevel" else k.d
        region = self.region(x, s)
        if region is None:
            return np.linalg.solve(np.diag(scale) + k.S, pull)
        y = pull / scale
        if not k.S.any():
            return region.project(y)
        step = float(k.d.min()) / np.linalg.norm(np.diag(k.d) + k.S, 2) ** 2
        y = region.project(y)
        for _ in range(2000):
            y, last = region.project(y - step * (k.d * y + k.S @ y - pull)), y
            if abs(y - last).max() < 1e-14:
                break
        return y

    def losses(self, x: np.ndarray, loss: str | None = None) -> np.ndarray:
        """Return each client's mean loss at x."""
        case, k = self.built.case, self.built.k
        case = case if loss is None else dataclasses.replace(case, loss=loss)
        z, found = self.inside(x), []
        y = self.solution(x) if case.kind in ("bilevel", "minimax") else None
        for s, p in zip(self.samples, self.fixed, strict=True):
            if case.kind == "nonsmooth" or loss is not None:
                found.append(formulas.single(case, k, np, z, s, p))
            elif case.kind == "bilevel":
                found.append(formulas.upper(case, k, np, z, y, s, p))
            elif case.kind == "minimax":
                found.append(formulas.saddle(case, k, np, z, y, s, p))
            else:
                each = [formulas.upper(case, k, np, z, self.solution(x, one), one[None], p) for one in s]
                found.append(np.mean(each))
        return np.array(found)

    def loss(self, x: np.ndarray, loss: str | None = None) -> float:
        return float(self.weights @ self.losses(x, loss))

    def violation(self, x: np.ndarray) -> float:
        """Return the sum of what the coupling constraints are broken by."""

        def broken(y: np.ndarray) -> float:
            return float(np.maximum(formulas.couple(np, self.inside(x), y), 0).sum())

        if self.built.case.kind != "twostage":
            return broken(self.solution(x))
        return float(self.weights @ [np.mean([broken(self.solution(x, one)) for one in s]) for s in self.samples])

    def test_loss(self, x: np.ndarray) -> float:
        case, k, z = self.built.case, self.built.k, self.inside(x)
        s = trees.rows(self.built.test)
        if case.kind == "nonsmooth":
            return float(formulas.single(case, k, np, z, s, self.fixed[0]))
        form = formulas.upper if case.kind == "bilevel" else formulas.saddle
        return float(form(case, k, np, z, self.solution(x), s, self.fixed[0]))


def weigh(weights: str, sizes: np.ndarray) -> np.ndarray:
    return sizes / sizes.sum() if weights == "samples" else np.full(len(sizes), 1 / len(sizes))
