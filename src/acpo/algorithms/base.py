"""What every algorithm shares: the shapes it is told, the batch it is given."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
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

    `terminals` is 1.0 only where the environment truly ended; a time limit is 0.0. `log_beta` is
    log πβ(a|s), and `behavior` what πβ is known by: per row the parameters of πβ(·|s), or for all
    rows its weights where no parameters can stand for them. None for algorithms without πβ.
    """

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array
    behavior: Any = None
    log_beta: Any = None


def soft_update(target: T, online: T, tau: float | Array) -> T:
    """φ' ← (1 − τ) φ' + τ φ."""
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)


class Schedule(NamedTuple):
    """Where a run stands; part of an algorithm's state, so that it resumes with it."""

    step: Array
    total: Array

    @classmethod
    def start(cls, total_steps: int) -> Schedule:
        return cls(jnp.int32(0), jnp.int32(max(total_steps, 1)))

    def cosine(self, first: float, last: float) -> Array:
        """last + (first − last)·½(1 + cos(π t/T)), constant after T."""
        share = jnp.minimum(self.step / self.total, 1.0)
        return last + (first - last) * 0.5 * (1.0 + jnp.cos(jnp.pi * share))

    def average(self, average: T, online: T, rate: float) -> T:
        """Running average of `online`: the plain mean of what it has been, until 1/rate steps are
        gone, then an exponential one. What stood there before the first step leaves no trace."""
        return soft_update(average, online, jnp.maximum(rate, 1.0 / (self.step + 1)))

    def next(self) -> Schedule:
        return Schedule(self.step + 1, self.total)


def adam_step(
    parameters: T, gradient: T, state: optax.OptState, rate: Array
) -> tuple[T, optax.OptState]:
    """One Adam step at a rate given from outside."""
    direction, state = optax.scale_by_adam().update(gradient, state)
    return jax.tree.map(lambda p, d: p - rate * d, parameters, direction), state
