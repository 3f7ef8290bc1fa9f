"""One client's private view of a problem: all that a client step may use besides its arguments."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.data.client_data import Whole
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Roots, private_key
from fedrzo.support.keys import written_out
from fedrzo.support.pytrees import index, real

PyTree = Any
FULL = "full"
AHEAD = 5  # local steps whose random numbers are drawn at once; drawn in vain where there are fewer


@dataclasses.dataclass(frozen=True)
class Client:
    """A client's view of one level.

    Attributes:
        level: the loss, the data and the sets: the problem itself, or its lower level at given points.
        index: the client's place in this level's data.
        id: the client's name in the whole federation; its noise depends on it.
        private: the key of the client's own sampling stream.
        round: the round of the method at the top.
        iteration: the index within the innermost `federation.repeat`, else 0.
        points: what `federation.lower` last sent in this round (x, or the pair x+v, x-v), kept by the client.
        common: a key of this call that is the same for all clients, for coins and directions that they share.
        coded: how many local steps' slopes are asked for, the last of them holding all that follow; None where x travels itself.
    """

    level: Any
    index: Any
    id: Any
    private: Any
    round: Any = 0
    iteration: Any = 0
    points: Any = None
    common: Any = None
    coded: int | None = None

    @classmethod
    def of(cls, level: Any, i: Any, roots: Roots | None = None, **clock: Any) -> Self:
        """Return client i of a level whose clients are all here (a simulation, or a check)."""
        roots = Roots.of(jax.random.key(0)) if roots is None else roots
        return cls(level, i, i, private_key(roots, i), **clock)

    @property
    def own_round(self) -> Any:
        """The round of the method at hand: the iteration of its repeat where it solves a lower level, else the round."""
        return self.iteration if self.level.nested else self.round

    @property
    def dim(self) -> int:
        """The length of the flat vector this level is solved for."""
        return self.level.dim

    def sample(self, key: jax.Array, batch_size: int | str) -> PyTree:
        """Draw a batch; `"full"` stands for all of the client's samples.

        The key is mixed with the client's private one, so who knows the key does not know the batch.
        """
        return self.batch(self.draw(key, batch_size), batch_size)

    def draw(self, key: jax.Array, batch_size: int | str | None) -> Any:
        """Draw which samples a batch has; None where it has all, or there is none."""
        if batch_size == FULL or batch_size is None:
            return None
        return self.level.data.draw(self.mixed(key), self.index, int(batch_size))

    def mixed(self, key: jax.Array, private: jax.Array | None = None) -> jax.Array:
        """Return a key that nobody else knows, for what one step draws in private."""
        own, (first, last) = self.private if private is None else private, jax.random.key_data(key)
        return jax.random.fold_in(jax.random.fold_in(written_out(own), first), last)

    def batch(self, drawn: Any, batch_size: int | str | None) -> PyTree:
        """Return the batch of samples that were drawn; none where a step is to draw its own."""
        data = self.level.data
        if batch_size is None:
            return None
        if batch_size == FULL:
            return FULL if data.equal_size is None else data.everything_of(self.index)
        return data.batch(drawn, self.index, self.id)

    def loss(self, *arguments: Any) -> jax.Array:
        """Return the mean loss over a batch: `loss(x, batch)`, or `loss(x, y, batch)` at an upper level."""
        return self.mean(self.level.value, *arguments)

    def gradient(self, *arguments: Any) -> jax.Array:
        """Return the gradient of the mean loss over a batch with respect to the first argument."""
        return self.mean(jax.grad(self.level.value), *arguments)

    def difference(self, x: jax.Array, v: jax.Array, batch: PyTree) -> jax.Array:
        """Return loss(x+v) - loss(x-v) on one batch."""
        return self.mean(lambda x, batch: self.level.pair(x, v, batch), x, batch)

    def implicit(self, points: jax.Array, batch: PyTree, solver: Any, k: Any) -> jax.Array:
        """Solve the lower level of a two-stage problem at several points, for a batch of scenarios, all at once.

        Returns:
            The mean loss at each point, then the lower-level steps per scenario, all points together.
        """

        def mean(batch: PyTree) -> jax.Array:
            values, solutions = self.level.implicit(points, batch, solver, k, self.index)
            return jnp.append(jnp.mean(values, axis=1), jnp.sum(solutions.steps) / values.shape[1])

        return self.mean(mean, batch)

    def implicit_gradient(self, x: jax.Array, batch: PyTree, solver: Any, k: Any) -> tuple[jax.Array, jax.Array]:
        """Return the gradient of the mean loss of a two-stage problem at x, and the lower-level steps per scenario."""

        def mean(batch: PyTree) -> tuple[jax.Array, jax.Array]:
            gradients, solutions = self.level.implicit_gradients(x, batch, solver, k, self.index)
            return jnp.mean(gradients, axis=0), jnp.mean(solutions.steps.astype(x.dtype))

        return self.mean(mean, batch)

    def project(self, x: jax.Array) -> jax.Array:
        """Project onto the client's own set."""
        return self.level.sets.project(self.index, x)

    def cost(self, batch_size: int | str) -> Any:
        """Return how many sample losses one loss value on such a batch takes."""
        data = self.level.data
        if batch_size != FULL:
            return batch_size * self.level.copies
        return (jnp.asarray(data.sizes)[self.index] if data.equal_size is None else data.equal_size) * self.level.copies

    def mean(self, function: Any, *arguments: Any) -> Any:
        """Return `function(*points, batch)`, itself a mean over the batch, of any pytree.

        Where clients differ in size, a full batch is walked through in chunks, sample by sample, unless the level's loss is a
        black box: that gets it whole.
        """
        *points, batch = arguments
        if not isinstance(batch, str):
            return function(*points, batch)
        if self.level.whole:
            return function(*points, Whole(self.level.data, self.index))

        def add(k: Any, total: Any) -> Any:
            singles, weights = self.level.data.chunk(self.index, k)
            values = real(jax.vmap(lambda sample: function(*points, sample))(singles))
            return jax.tree.map(lambda sum_, v: sum_ + jnp.tensordot(weights.astype(v.dtype), v, 1), total, values)

        data = self.level.data
        shape = jax.eval_shape(lambda: real(function(*points, index(data.chunk(self.index, 0)[0], 0))))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        return jax.lax.fori_loop(0, data.chunks(self.index), add, zeros)

    def mean_and_worst(self, function: Any, batch: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return the mean and the largest over a batch's samples of `function(batch)`, which has them on its last axis."""
        if not isinstance(batch, str):
            values = function(batch)
            return jnp.mean(values, axis=-1), jnp.max(values, axis=-1)

        def add(k: Any, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            singles, weights = self.level.data.chunk(self.index, k)
            values = jax.vmap(function)(singles)[..., 0]  # a place past the last sample holds the last one again
            return found[0] + jnp.tensordot(weights, values, 1), jnp.maximum(found[1], jnp.max(values, axis=0))

        shape = jax.eval_shape(lambda: function(index(self.level.data.chunk(self.index, 0)[0], 0))).shape[:-1]
        start = jnp.zeros(shape), jnp.full(shape, -jnp.inf)
        return jax.lax.fori_loop(0, self.level.data.chunks(self.index), add, start)


def take_steps(
    client: Client,
    key: jax.Array,
    count: Any,
    batch_size: int | str | None,
    step: Callable[..., PyTree],
    carry: PyTree,
    also: Callable[[jax.Array], Any] | None = None,
) -> PyTree:
    """Take a client's local steps: `carry = step(k, batch, carry)` for k below a count that may be traced.

    Random numbers of several steps are drawn at once: where steps are small, drawing them one by one takes longer.
    All of a client's samples are fetched once for all steps. Step k draws from the client's key of this call, folded with k;
    `also` says what else to draw from a step's key: then it is `step(k, batch, also(key), carry)`.
    """
    whole = client.batch(None, batch_size) if batch_size == FULL else None
    key = written_out(key)

    def draw(k: Any) -> tuple:
        step_key = jax.random.fold_in(key, k)
        more = () if also is None else (also(step_key),)
        return client.draw(step_key, batch_size), *more

    def several(first: Any, ahead: int, steps: Any, carry: PyTree) -> PyTree:
        drawn = jax.vmap(draw)(first + jnp.arange(ahead))

        def one(j: Any, carry: PyTree) -> PyTree:
            samples, *more = index(drawn, j)
            return step(first + j, client.batch(samples, batch_size) if whole is None else whole, *more, carry)

        if isinstance(steps, int) and steps == 1:  # without a loop, what all clients begin with is computed once for all
            return one(0, carry)
        return jax.lax.fori_loop(0, steps, one, carry)

    if isinstance(count, int | np.integer):  # known when compiled: so are all loops, and none are drawn in vain
        blocks, rest = divmod(int(count), AHEAD)
        carry = jax.lax.fori_loop(0, blocks, lambda block, carry: several(block * AHEAD, AHEAD, AHEAD, carry), carry)
        return several(blocks * AHEAD, rest, rest, carry) if rest else carry

    def block(b: Any, carry: PyTree) -> PyTree:
        return several(b * AHEAD, AHEAD, jnp.minimum(AHEAD, count - b * AHEAD), carry)

    return jax.lax.fori_loop(0, (count + AHEAD - 1) // AHEAD, block, carry)


def take_coded_steps(
    client: Client,
    key: jax.Array,
    count: Any,
    batch_size: int | str | None,
    step: Callable[..., tuple[PyTree, jax.Array]],
    carry: PyTree,
    also: Callable[[jax.Array], Any] | None = None,
    slopes: int = 1,
) -> tuple[PyTree, jax.Array | None]:
    """Take a client's local steps by `take_steps`, where each also returns the slopes that it was made of.

    A step is `carry, found = step(k, batch[, also(key)], carry)`; the first array of the carry is x. Returned are where the
    steps led, and their slopes, steps by slopes, where the client is asked for them; else None.
    """
    if client.coded is None:
        return take_steps(client, key, count, batch_size, lambda *given: step(*given)[0], carry, also), None
    rows = client.coded

    def kept(k: Any, *given: Any) -> tuple[PyTree, jax.Array]:
        *drawn, (carry, code) = given
        carry, found = step(k, *drawn, carry)
        return carry, code.at[jnp.minimum(k, rows - 1)].add(found)

    nothing = jnp.zeros((rows, slopes), jax.tree.leaves(carry)[0].dtype)
    return take_steps(client, key, count, batch_size, kept, (carry, nothing), also)


def check_batch_size(batch_size: Any, data: Any, argument: str = "batch_size") -> None:
    """Refuse a batch size that these data cannot serve."""
    if batch_size == FULL:
        if not data.stored:
            raise InputError(f'{argument}: found "full", but a Sampler has no full batch; pass a whole number')
    elif isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f'{argument}: found {batch_size!r}; pass a whole number of at least 1, or "full"')
