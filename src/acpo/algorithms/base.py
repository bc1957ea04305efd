"""What every algorithm shares: the shapes it is told, the batch it is given."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
from jax import Array

Metrics = dict[str, Array]
T = TypeVar("T")


class Spec(NamedTuple):
    """All an algorithm needs to know about a dataset before seeing a row of it."""

    observation_dim: int
    action_dim: int
    total_steps: int
    """Length of the run; learning-rate schedules span it."""


class Batch(NamedTuple):
    """Transitions (s, a, r, s', terminal), stacked on the first axis.

    `terminals` is 1.0 only where the environment truly ended; a time limit is 0.0.
    """

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array


def soft_update(target: T, online: T, tau: float) -> T:
    """φ' ← (1 − τ) φ' + τ φ."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)
