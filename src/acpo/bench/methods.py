"""Updates per second of every method: its share of the matrix-product limit, and the peer's.

As in `acpo.bench.speed`: one process for each measurement, all taking turns, the best round
counts. All on the same sizes, Hopper's, with batches of 256 and hidden layers of 256-256.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from math import prod
from typing import Any

from acpo.bench import speed

# Of d3rlpy's methods, those that are ours too; its cloning is by squares, ours by likelihood.
PEERS = ("td3_bc", "iql", "cql", "bcq", "awac")
PRODUCT = "dot_general"
# Phases at the start of a run in which a method does less than afterwards.
PHASES = {"critic_share": 0.0, "pretraining": 0.0, "cloning": 0.0}


def configured(name: str) -> Any:
    """The method at the benchmark's sizes, past what it does first, with nothing left to settle."""
    from acpo.algorithms import ALGORITHMS
    from acpo.algorithms.base import Size

    algorithm = ALGORITHMS[name]
    sizes = {"batch_size": speed.BATCH, "hidden": speed.HIDDEN}
    changes = {**sizes, **PHASES, "value_start": 0.0, "entropy_price": 1.0}
    known = {field.name for field in fields(algorithm)}
    algorithm = replace(algorithm, **{k: v for k, v in changes.items() if k in known})
    size = Size(speed.ROWS, speed.OBSERVATION_DIM, speed.ACTION_DIM)
    return algorithm.settled("squashed", [0.0], size)


def make_layout(algorithm: Any) -> Any:
    """The packed row that the method's batches come from."""
    import jax

    from acpo.behavior.density import Exact
    from acpo.training.prepare import Layout

    s, a = speed.OBSERVATION_DIM, speed.ACTION_DIM
    if not algorithm.needs_density:
        return Layout(s, a, 0)
    density = algorithm.density
    if isinstance(density, Exact):
        return Layout(s, a, density.width(a))
    return Layout(s, a, 0, density.init(jax.random.key(0), s, a))


def products(algorithm: Any) -> list[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """(how often per update, shape, shape) of the matrix products of one update, as traced.

    Of two branches the one with more products counts, at every n-th step (`policy_freq`) 1/n.
    """
    import jax
    import jax.numpy as jnp

    from acpo.algorithms.base import Spec

    layout = make_layout(algorithm)
    spec = Spec(speed.OBSERVATION_DIM, speed.ACTION_DIM, 1_000)
    state = algorithm.init(jax.random.key(0), spec)
    batch = layout.unpack(jnp.zeros((algorithm.batch_size, layout.width)))
    traced = jax.make_jaxpr(algorithm.update)(state, batch, jax.random.key(0))
    return list(_dots(traced.jaxpr, 1.0, 1.0 / getattr(algorithm, "policy_freq", 1)))


def _dots(jaxpr: Any, times: float, taken: float) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == PRODUCT:
            left, right = (variable.aval.shape for variable in equation.invars)
            (k, _), (both, _) = equation.params["dimension_numbers"]
            rows = prod(d for i, d in enumerate(left) if i not in (*k, *both))
            inner, many = prod(left[i] for i in k), prod(left[i] for i in both)
            columns = prod(right) // (inner * many)
            yield times, (many, rows, inner), (many, inner, columns)
            continue
        if name == "cond":
            branches = [
                list(_dots(branch.jaxpr, times * taken, taken))
                for branch in equation.params["branches"]
            ]
            yield from max(branches, key=flops)
            continue
        often = times * equation.params.get("length", 1)
        for value in equation.params.values():
            for inside in value if isinstance(value, list | tuple) else (value,):
                inner_jaxpr = getattr(inside, "jaxpr", inside)
                if hasattr(inner_jaxpr, "eqns"):
                    yield from _dots(inner_jaxpr, often, taken)


def flops(found: list[Any]) -> float:
    """2·m·k·n of each product, by how often it is done."""
    return sum(2 * times * prod(left) * right[-1] for times, left, right in found)


def _seconds_numpy(found: list[Any], seconds: float) -> float:
    """Seconds of one update's products by numpy's BLAS, the best of a few looks at each shape."""
    import numpy as np

    return _sum_of_shapes(found, seconds, lambda shape: np.ones(shape, np.float32), np.matmul)


def _seconds_xla(found: list[Any], seconds: float) -> float:
    """The same by XLA, many of a shape in one program."""
    import jax
    import jax.numpy as jnp

    @jax.jit
    def many(left: Any, right: Any) -> Any:
        def body(carry: Any, _: None) -> tuple[Any, None]:
            # The barriers keep it from hoisting the product or computing one number of it.
            x, y, carry = jax.lax.optimization_barrier((left, right, carry))
            product = jax.lax.optimization_barrier(x @ y)
            return carry + product.ravel()[0], None

        return jax.lax.scan(body, jnp.float32(0), None, length=50)[0]

    def matmul(left: Any, right: Any) -> None:
        many(left, right).block_until_ready()

    return _sum_of_shapes(found, seconds, jnp.ones, matmul) / 50


def _sum_of_shapes(
    found: list[Any], seconds: float, make: Callable[[Any], Any], call: Callable[[Any, Any], Any]
) -> float:
    counts: dict[tuple[Any, Any], float] = {}
    for times, left, right in found:
        counts[left, right] = counts.get((left, right), 0.0) + times
    total = 0.0
    for (left, right), times in counts.items():
        # A plain product where there is no ensemble: batched ones are slower.
        x, y = (make(shape[1:] if shape[0] == 1 else shape) for shape in (left, right))

        def once(x: Any = x, y: Any = y) -> int:
            call(x, y)
            return 1

        total += times / speed.repeat(once, seconds / len(counts))
    return total


def limit(name: str, seconds: float) -> float:
    """Updates per second if an update were its matrix products alone."""
    found = products(configured(name))
    return 1.0 / min(_seconds_numpy(found, seconds), _seconds_xla(found, seconds))


def ours(name: str, seconds: float) -> float:
    """Updates per second of the training loop's own compiled chunk."""
    algorithm = configured(name)
    return speed.updates_per_second(algorithm, make_layout(algorithm), 1, seconds)


WORKERS: dict[str, Callable[[str, float], float]] = {"ours": ours, "limit": limit}


def measure(
    names: list[str], rounds: int, seconds: float, peer: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """A row per method, on two threads."""
    best: dict[tuple[str, str], float] = {}
    for number in range(rounds):
        for name in names:
            for what in ("ours", "limit", "peer"):
                if what == "peer" and not (peer and name in PEERS):
                    continue
                module = "acpo.bench.peer_d3rlpy" if what == "peer" else "acpo.bench.methods"
                rate = speed.in_a_process(module, [what, name], 2, seconds)
                if rate is not None:
                    best[name, what] = max(rate, best.get((name, what), 0.0))
                    say(f"round {number + 1}: {name}, {what}: {rate:.1f} updates/s")
    return {name: _row(name, best) for name in names}


def _row(name: str, best: dict[tuple[str, str], float]) -> dict[str, float | None]:
    rate, bound, peer = (best.get((name, what)) for what in ("ours", "limit", "peer"))
    return {
        "updates_per_s": rate,
        "limit_updates_per_s": bound,
        "share_of_limit": rate / bound if rate and bound else None,
        "flops_per_update": flops(products(configured(name))),
        "peer_updates_per_s": peer,
        "ratio_to_peer": rate / peer if rate and peer else None,
    }


if __name__ == "__main__":
    what, name, threads, seconds = sys.argv[1:]
    speed.confine(int(threads))
    print(WORKERS[what](name, float(seconds)))
