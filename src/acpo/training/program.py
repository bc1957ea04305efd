"""The compiled heart of the loop: a chunk of updates in one scan, seeds in turn or as a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.algorithms.base import Batch, Metrics, Spec
from acpo.training.prepare import Layout

DIAGNOSIS_BATCHES = 4


def init(algorithm: Any, spec: Spec, seeds: Array) -> tuple[Any, Array]:
    """States and random keys for each seed, stacked on the first axis."""
    keys = jax.vmap(jax.random.key)(seeds)
    # One seed at a time and not compiled: drawing a few matrices takes less time than compiling
    # that. Stacking gives every leaf a buffer of its own, as donation needs.
    states = [algorithm.init(key, spec) for key in keys]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), keys


class Draw(NamedTuple):
    """Which rows a chunk of updates takes, of one seed or, stacked, of several."""

    batches: Array
    """[length, batch]"""
    diagnosis: Array


def draw(algorithm: Any, key: Array, step: Array, length: int, count: int) -> Draw:
    """A chunk's rows out of `count`: a function of (seed, step), as all randomness is."""
    key_rows, _, key_diagnosis = _keys(key, step)
    batch = algorithm.batch_size
    return Draw(
        jax.random.randint(key_rows, (length, batch), 0, count),
        jax.random.randint(key_diagnosis, (DIAGNOSIS_BATCHES * batch,), 0, count),
    )


def _keys(key: Array, step: Array) -> Array:
    return jax.random.split(jax.random.fold_in(key, step), 3)


def make_chunk(
    algorithm: Any, layout: Layout, length: int, gathered: bool = False
) -> Callable[..., tuple[Any, Metrics]]:
    """Compile `length` updates: (states, keys, step, rows) → (states, metrics [seeds, length]).

    All randomness is a function of (seed, step), so that a run resumed at a chunk's border goes
    on exactly as if it had never stopped. With `gathered`, `rows` is not the whole data but a
    `Draw` of rows in place of their numbers, for data that is not in memory. A πβ that runs in
    the loop is one for all seeds, and an argument, for constants would be compiled in.
    """
    program = _Program(algorithm, layout._replace(network=None), length, gathered)
    run = partial(_chunk, program, layout.network)
    return partial(_in_turns, run, gathered) if jax.default_backend() == "cpu" else run


class _Program(NamedTuple):
    """All that a chunk's compiled code depends on but for shapes: equal ones compile once."""

    algorithm: Any
    layout: Layout
    length: int
    gathered: bool

    def one_seed(
        self, network: Any, state: Any, key: Array, step: Array, rows: Any
    ) -> tuple[Any, Metrics]:
        algorithm, layout, length, gathered = self
        _, key_updates, key_diagnosis = _keys(key, step)
        chosen = rows if gathered else draw(algorithm, key, step, length, len(rows))

        def fetch(chosen: Array) -> Batch:
            packed = chosen if gathered else rows[chosen]
            return layout._replace(network=network).unpack(packed)

        def update(state: Any, xs: tuple[Array, Array]) -> tuple[Any, Metrics]:
            chosen, key = xs
            return algorithm.update(state, fetch(chosen), key)

        keys = jax.random.split(key_updates, length)
        state, metrics = jax.lax.scan(update, state, (chosen.batches, keys))
        diagnosis = algorithm.diagnose(state, fetch(chosen.diagnosis), key_diagnosis)
        return state, {**metrics, **diagnosis}


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _chunk(
    program: _Program, network: Any, states: Any, keys: Array, step: Array, rows: Any
) -> tuple[Any, Metrics]:
    def of_seed(xs: tuple[Any, Array, Any]) -> tuple[Any, Metrics]:
        state, key, own = xs
        return program.one_seed(network, state, key, step, own if program.gathered else rows)

    xs = (states, keys, rows if program.gathered else None)
    return jax.lax.map(of_seed, xs, batch_size=len(keys) if len(keys) > 1 else None)


def _in_turns(
    run: Callable[..., tuple[Any, Metrics]],
    gathered: bool,
    states: Any,
    keys: Array,
    step: Array,
    rows: Any,
) -> tuple[Any, Metrics]:
    """One seed after another, by the program of one.

    One seed fills a CPU, and plain products run faster there than batched ones. So nothing is
    compiled for several seeds, and each is what it would be alone, bit for bit.
    """
    if len(keys) == 1:
        return run(states, keys, step, rows)
    # By numpy, for taking apart and stacking would be two programs to compile.
    states, found = jax.device_get(states), []
    for k in range(len(keys)):
        state = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1].copy(), states)
        own = jax.tree.map(lambda leaf, k=k: leaf[k : k + 1], rows) if gathered else rows
        found.append(jax.device_get(run(state, keys[k : k + 1], step, own)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)


def first_not_finite(metrics: dict[str, Any], step: int) -> tuple[int, str] | None:
    """The first step, and the quantity, at which something was NaN or infinite."""
    found: list[tuple[int, str]] = []
    for name, values in metrics.items():
        if values.ndim == 2:
            bad = ~np.isfinite(values).all(axis=0)
            if bad.any():
                found.append((step + 1 + int(bad.argmax()), name))
    return min(found) if found else None
