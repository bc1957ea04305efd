"""Rows for the loop: all of them where they fit in memory, else those of the coming chunk."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.data.dataset import release
from acpo.training import program
from acpo.training.program import Draw

# A gather lets go of what it read after each of so many parts.
PARTS = 8


class Feeder:
    """Gathers from a memory map, on a thread, while the chunk before is computed.

    Which rows a chunk takes is a function of (seed, step), so that a run fed from disk is the same
    as one fed from memory.
    """

    def __init__(self, rows: np.ndarray, algorithm: Any, keys: Array, thread: Any) -> None:
        self._rows, self._keys, self._thread = rows, keys, thread
        self._draw = jax.jit(
            lambda step, length: jax.vmap(
                lambda key: program.draw(algorithm, key, step, length, len(rows))
            )(keys),
            static_argnums=1,
        )
        self._ahead: dict[int, Future[Draw]] = {}

    def __call__(self, step: int, border: int, following: int) -> Draw:
        """The rows of the chunk [step, border); those of [border, following) are begun with."""
        wanted = self._ahead.pop(step, None) or self._begin(step, border)
        found = wanted.result()
        if following > border:
            self._ahead[border] = self._begin(border, following)
        return found

    def _begin(self, step: int, border: int) -> Future[Draw]:
        chosen = jax.device_get(self._draw(jnp.int32(step), border - step))
        return self._thread.submit(lambda: jax.tree.map(partial(gather, self._rows), chosen))


def gather(rows: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`rows[index]`, read in the order in which rows lie on disk and a part at a time."""
    order = np.argsort(index, axis=None)
    flat = index.ravel()
    found = np.empty((index.size, rows.shape[1]), rows.dtype)
    for part in np.array_split(order, PARTS):
        found[part] = rows[flat[part]]
        release(rows if isinstance(rows, np.memmap) else None)
    return found.reshape(*index.shape, rows.shape[1])


@contextmanager
def feeding(rows: np.ndarray, algorithm: Any, keys: Array) -> Iterator[Any]:
    """A function (step, border, following) → what a compiled chunk takes for its rows."""
    if not isinstance(rows, np.memmap):
        held = jnp.asarray(rows)
        yield lambda step, border, following: held
        return
    with ThreadPoolExecutor(1, "acpo-gather") as thread:
        yield Feeder(rows, algorithm, keys, thread)
