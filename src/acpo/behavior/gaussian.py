"""The paper's behaviour density: a diagonal Gaussian with a head like πθ's."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from acpo.behavior.density import Exact
from acpo.networks import MLP, Gaussian, Head


@dataclass(frozen=True)
class GaussianDensity(Exact):
    """πβ(a|s) = N(a; m(s), σ(s)²), plain or squashed by tanh, as its head says."""

    head: Head
    hidden: tuple[int, ...] = (512, 512)

    @property
    def family(self) -> str:
        return self.head.kind

    def init(self, key: Array, observation_dim: int, action_dim: int) -> MLP:
        return MLP.create(key, (observation_dim, *self.hidden, self.width(action_dim)))

    def width(self, action_dim: int) -> int:
        return 2 * action_dim

    def parameters(self, net: MLP, observations: Array) -> Array:
        """Mean and log σ, side by side."""
        return jnp.concatenate(self.head.parameters(net(observations)), axis=-1)

    def log_prob_given(self, parameters: Array, actions: Array) -> Array:
        return self.head.log_prob(_gaussian(parameters), actions)

    def typical_log_prob(self, net: MLP, observations: Array, actions: Array, key: Array) -> Array:
        return self.head.typical_log_prob(self.head.parameters(net(observations)), actions)

    def sample_given(self, parameters: Array, key: Array) -> Array:
        gaussian = _gaussian(parameters)
        return self.head.sample(gaussian, jax.random.normal(key, gaussian.mean.shape))


def _gaussian(parameters: Array) -> Gaussian:
    return Gaussian(*jnp.split(parameters, 2, axis=-1))
