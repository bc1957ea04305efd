"""What a behaviour density πβ(a|s) is: a small protocol, and what the exact ones share.

A density is a frozen dataclass without weights, so that compiled programs can be told apart by
it; its weights are the pytree `net`. It is fitted by `acpo.behavior.fitting`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

# Actions per state over which the mean of log πβ(·|s) is taken.
MEAN_SAMPLES = 8


class Density(Protocol):
    """A family of conditional densities over actions in [−1, 1]."""

    @property
    def family(self) -> str:
        """What is fitted; two estimators of one model share it, and so its file."""

    def init(self, key: Array, observation_dim: int, action_dim: int) -> Any:
        """Untrained weights."""

    def loss(self, net: Any, observations: Array, actions: Array, key: Array) -> Array:
        """What the fit minimises over a batch."""

    def score(self, net: Any, observations: Array, actions: Array, key: Array) -> Array:
        """[rows] Cheap and no greater in the mean than log πβ(a|s); early stopping looks at it."""

    def log_prob(self, net: Any, observations: Array, actions: Array, key: Array) -> Array:
        """[rows] log πβ(a|s), or an estimate that draws on `key`."""

    def sample(self, net: Any, observations: Array, key: Array) -> Array:
        """One action per state."""

    def typical_log_prob(self, net: Any, observations: Array, actions: Array, key: Array) -> Array:
        """[rows] What log πβ(a|s) is compared with to say how likely a is at s: here its mean over
        a few samples of πβ(·|s)."""

        def once(key: Array) -> Array:
            key_action, key_estimate = jax.random.split(key)
            actions = self.sample(net, observations, key_action)
            return self.log_prob(net, observations, actions, key_estimate)

        return jnp.mean(jax.lax.map(once, jax.random.split(key, MEAN_SAMPLES)), axis=0)


class Exact(Density):
    """A density that a few numbers per state describe, its log-density in closed form.

    These numbers are written beside each row before training, so that no network of πβ runs in
    the loop. A member defines `parameters`, `log_prob_given` and `sample_given`.
    """

    @abstractmethod
    def width(self, action_dim: int) -> int:
        """How many numbers describe πβ(·|s)."""

    @abstractmethod
    def parameters(self, net: Any, observations: Array) -> Array:
        """[rows, width] The numbers that describe πβ(·|s)."""

    @abstractmethod
    def log_prob_given(self, parameters: Array, actions: Array) -> Array:
        """[rows] log πβ(a|s), read from the parameters at s."""

    @abstractmethod
    def sample_given(self, parameters: Array, key: Array) -> Array:
        """One action per row of parameters."""

    def loss(self, net: Any, observations: Array, actions: Array, key: Array) -> Array:
        """L(πβ) = E_{(s,a)~D}[−log πβ(a|s)]   (Eq-Behavior-Loss)."""
        return -jnp.mean(self.log_prob(net, observations, actions, key))

    def score(self, net: Any, observations: Array, actions: Array, key: Array) -> Array:
        return self.log_prob(net, observations, actions, key)

    def log_prob(self, net: Any, observations: Array, actions: Array, key: Array) -> Array:
        return self.log_prob_given(self.parameters(net, observations), actions)

    def sample(self, net: Any, observations: Array, key: Array) -> Array:
        return self.sample_given(self.parameters(net, observations), key)
