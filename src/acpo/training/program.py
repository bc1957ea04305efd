"""The compiled heart of the loop: a chunk of updates in one scan, seeds on a vmapped axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.algorithms.base import Metrics, Spec
from acpo.training.prepare import Layout

DIAGNOSIS_BATCHES = 4


def init(algorithm: Any, spec: Spec, seeds: Array) -> tuple[Any, Array]:
    """States and random keys for each seed, stacked on the first axis."""
    keys = jax.vmap(jax.random.key)(seeds)
    # One seed at a time and not compiled: drawing a few matrices takes less time than compiling
    # that. Stacking gives every leaf a buffer of its own, as donation needs.
    states = [algorithm.init(key, spec) for key in keys]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), keys


def make_chunk(algorithm: Any, layout: Layout, length: int) -> Callable[..., tuple[Any, Metrics]]:
    """Compile `length` updates: (states, keys, step, rows) → (states, metrics [seeds, length]).

    All randomness is a function of (seed, step), so that a run resumed at a chunk's border goes
    on exactly as if it had never stopped.
    """

    def one_seed(state: Any, key: Array, step: Array, rows: Array) -> tuple[Any, Metrics]:
        key_rows, key_updates, key_diagnosis = jax.random.split(jax.random.fold_in(key, step), 3)
        shape = (length, algorithm.batch_size)
        index = jax.random.randint(key_rows, shape, 0, len(rows))

        def update(state: Any, xs: tuple[Array, Array]) -> tuple[Any, Metrics]:
            index, key = xs
            return algorithm.update(state, layout.unpack(rows[index]), key)

        state, metrics = jax.lax.scan(update, state, (index, jax.random.split(key_updates, length)))
        sample = jax.random.randint(
            key_diagnosis, (DIAGNOSIS_BATCHES * algorithm.batch_size,), 0, len(rows)
        )
        diagnosis = algorithm.diagnose(state, layout.unpack(rows[sample]), key_diagnosis)
        return state, {**metrics, **diagnosis}

    @partial(jax.jit, donate_argnums=0)
    def chunk(states: Any, keys: Array, step: Array, rows: Array) -> tuple[Any, Metrics]:
        if len(keys) > 1:
            return jax.vmap(one_seed, in_axes=(0, 0, None, None))(states, keys, step, rows)
        # One seed needs no batched products.
        state, metrics = one_seed(jax.tree.map(lambda x: x[0], states), keys[0], step, rows)
        return jax.tree.map(lambda x: x[None], (state, metrics))

    return chunk


def first_not_finite(metrics: dict[str, Any], step: int) -> tuple[int, str] | None:
    """The first step, and the quantity, at which something was NaN or infinite."""
    found: list[tuple[int, str]] = []
    for name, values in metrics.items():
        if values.ndim == 2:
            bad = ~np.isfinite(values).all(axis=0)
            if bad.any():
                found.append((step + 1 + int(bad.argmax()), name))
    return min(found) if found else None
