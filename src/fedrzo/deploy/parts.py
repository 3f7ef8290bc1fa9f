"""A problem in parts: what the server knows of it, and what one node does.

A user's file states the problem with stand-in data. A node replaces them by its own, which nobody else sees; the server keeps
them for their shapes alone, and nothing that it computes from them enters a run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedrzo import sets
from fedrzo.data.client_data import ClientData
from fedrzo.data.sampler import Sampler
from fedrzo.errors import InputError
from fedrzo.methods.base import Method
from fedrzo.problems.base import Problem
from fedrzo.running.problem_file import UserFile
from fedrzo.support.pytrees import replaced, traced

Settings = Mapping[str, Any]


@traced("drawn")
class OwnSampler(Sampler):
    """A sampler on the node of one client, which is monitored under its own name."""

    def __init__(self, whole: Sampler, client_id: int) -> None:
        super().__init__(whole.fn, 1, whole.evaluation)
        self.client_id = client_id

    def everything_of(self, client_id: Any) -> Any:
        """Return the batch over which this node's client is monitored: here it is client 0, elsewhere it has its own number."""
        return super().everything_of(self.client_id)


def client_id(settings: Settings, clients: int) -> int:
    """Read a node's number off its settings."""
    found = settings.get("client-id")
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < clients:
        raise InputError(
            f"client-id: found {found!r} in this node's settings; start it with --node-config 'client-id=N', "
            f"N from 0 to {clients - 1}"
        )
    return found


def own_part(file: UserFile, settings: Settings, client: int) -> Problem:
    """Return the problem of one node: its own data and its own set."""
    stand_in, lower = file.problem, file.problem.stated[-1].data
    data = lower_data = _data(file, "client_data", stand_in.data, settings, client)
    if lower is not stand_in.data or hasattr(file.module, "client_lower_data"):
        lower_data = _data(file, "client_lower_data", lower, settings, client)
    problem = stand_in.with_data(data, lower_data)
    problem.sets = _sets(file, settings)
    problem.client_weights = np.ones(1)
    problem.lower_weights = None
    problem.test, problem.metrics = None, ()  # the server has those
    return problem.moved_to(problem.x0)  # what depends on data is measured on this node's own


def outline(file: UserFile, clients: int) -> Problem:
    """Return what the server knows: the problem with stand-in data for so many clients, and without private sets."""
    stand_in = file.problem
    problem = stand_in.part([i % stand_in.clients for i in range(clients)])
    problem.test, problem.metrics = stand_in.test, stand_in.metrics
    problem.client_weights, problem.lower_weights = np.full(clients, 1 / clients), None
    problem.measured_gradients = 0  # what was measured of stand-in data is no part of a run
    problem.sets = _sets(file, None)
    return problem


def prepared(method: Method, problem: Problem, file: UserFile) -> Method:
    """Return the method with what it takes from the problem, which must not be the data: nobody has them all.

    The server and every node call this with the same file, so that all have the same numbers.
    """
    known = problem.hierarchical and None not in problem.given
    found = method.prepare(problem)
    if not known and repr(found) != repr(method):
        wanted = "modulus= and smoothness= of the problem" if problem.hierarchical else "constants= of the method"
        raise InputError(
            f"{file.path.name}: {type(method).__name__} needs constants that would be estimated from all clients' data, which "
            f"nobody has here; give {wanted}"
        )
    return found


def _data(file: UserFile, name: str, stand_in: Any, settings: Settings, client: int) -> Any:
    function = getattr(file.module, name, None)
    if function is None and isinstance(stand_in, Sampler):
        return OwnSampler(stand_in, client)
    if not callable(function):
        raise InputError(f"{file.path.name}: does not define {name}(settings); a node has no other way to its samples")
    with file.blame():
        given = function(settings)
    if isinstance(given, Sampler):
        return OwnSampler(given, client)
    if not isinstance(given, ClientData):
        given = ClientData([given]) if stand_in.fixed is None else ClientData([given[0]], fixed=[given[1]])
    found, wanted = _sample_shape(given), _sample_shape(stand_in)
    if given.clients != 1 or found != wanted:
        raise InputError(
            f"{name}: found samples of {given.clients} client(s) with {found}; return one client's samples, which have "
            f"{wanted} in the problem"
        )
    return given


def _sample_shape(data: Any) -> Any:
    """Describe one sample: its structure, and each array's shape and type."""
    leaves, structure = jax.tree.flatten((data.flat, data.fixed))
    return str(structure), [(leaf.shape[1:], str(leaf.dtype)) for leaf in map(np.asarray, leaves)]


def _sets(file: UserFile, settings: Settings | None) -> sets.SetFamily:
    """Return a node's own set, by its settings; to the server, without settings, what the file gives to all clients alike."""
    own, problem = getattr(file.module, "client_constraint", None), file.problem
    if own is None and not problem.sets.identical:
        raise InputError(
            f"{file.path.name}: the problem has one constraint per client; define client_constraint(settings), so that "
            "each node has its own and nobody else sees it"
        )
    if own is None or settings is None:
        return problem.sets if own is None else problem.family(None, 1)
    with file.blame():
        given = own(settings)
    return problem.family(given, 1)


def weighed(problem: Problem, method: Method, heard: Sequence[Mapping[str, Any]]) -> Problem:
    """Return the problem with the clients' weights, from the numbers of samples that each has said it has."""
    if problem.weights != "samples":
        return problem
    upper, lower = (_shares([said.get(name) for said in heard]) for name in ("samples", "lower_samples"))
    if np.array_equal(upper, lower):
        return replaced(problem, client_weights=upper)
    if getattr(method, "by_gradients", False):
        raise InputError(
            'weights: found "samples", and clients whose upper and lower samples differ in number; a node does not know the '
            'others\' numbers, which gradients through the lower level need: use "uniform", or oracle="values"'
        )
    return replaced(problem, client_weights=upper, lower_weights=lower)


def _shares(samples: list[int | None]) -> np.ndarray:
    if None in samples:
        raise InputError('weights: found "samples", but not every client has said how many samples it has')
    sizes = np.array(samples, float)
    return sizes / sizes.sum()
