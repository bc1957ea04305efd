"""A mixture as behaviour density: several modes, mass at the action bounds, exact likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr

from acpo.behavior.density import Exact
from acpo.networks import LOG_2PI, MLP

# Actions this close to a bound count as lying on it: their mass is one number, spread evenly.
EDGE = 1e-3


class Components(NamedTuple):
    """K Gaussians of u = atanh(a) per row, independent over the action's dimensions."""

    log_weight: Array
    """[rows, K]"""
    mean: Array
    """[rows, K, a_dim]"""
    log_std: Array


@dataclass(frozen=True)
class MixtureDensity(Exact):
    """πβ(a|s) = Σ_k w_k Π_i f(a_i; m_ki, σ_ki), f a squashed Gaussian with mass at its edges.

    With Φ the normal distribution function, u = atanh(a), δ = EDGE and e = atanh(1 − δ),

        f(a; m, σ) = N(u; m, σ²)/(1 − a²)          where |a| < 1 − δ
                     (1 − Φ((e − m)/σ))/δ          at the upper bound, a ≥ 1 − δ
                     Φ((−e − m)/σ)/δ               at the lower one

    so that mass on a bound, as in data whose actions were clipped, is a number like any other: f
    integrates to 1 over [−1, 1] and stays finite, where a squashed Gaussian is infinite.
    """

    hidden: tuple[int, ...] = (512, 512)
    components: int = 8
    log_std_min: float = -5.0
    log_std_max: float = 2.0

    @property
    def family(self) -> str:
        return "mixture"

    def init(self, key: Array, observation_dim: int, action_dim: int) -> MLP:
        return MLP.create(key, (observation_dim, *self.hidden, self.width(action_dim)))

    def width(self, action_dim: int) -> int:
        return self.components * (1 + 2 * action_dim)

    def parameters(self, net: MLP, observations: Array) -> Array:
        """log w_k, m_ki and log σ_ki, side by side."""
        output = net(observations)
        each = (output.shape[-1] // self.components - 1) // 2 * self.components
        logits, mean, log_std = jnp.split(
            output, [self.components, self.components + each], axis=-1
        )
        log_std = jnp.clip(log_std, self.log_std_min, self.log_std_max)
        return jnp.concatenate([jax.nn.log_softmax(logits), mean, log_std], axis=-1)

    def _components(self, parameters: Array) -> Components:
        log_weight, rest = jnp.split(parameters, [self.components], axis=-1)
        mean, log_std = jnp.split(rest, 2, axis=-1)
        shape = (*rest.shape[:-1], self.components, -1)
        return Components(log_weight, mean.reshape(shape), log_std.reshape(shape))

    def log_prob_given(self, parameters: Array, actions: Array) -> Array:
        log_weight, mean, log_std = self._components(parameters)
        a = actions[..., None, :]
        inside = jnp.clip(a, -1.0 + EDGE, 1.0 - EDGE)
        z = (jnp.arctanh(inside) - mean) * jnp.exp(-log_std)
        density = -0.5 * z**2 - log_std - 0.5 * LOG_2PI - jnp.log1p(-(inside**2))
        beyond = log_ndtr(-jnp.sign(a) * z) - np.log(EDGE)
        log_f = jnp.where(jnp.abs(a) < 1.0 - EDGE, density, beyond)
        return jax.nn.logsumexp(log_weight + log_f.sum(axis=-1), axis=-1)

    def sample_given(self, parameters: Array, key: Array) -> Array:
        """A component, then its Gaussian, squashed; what falls beyond an edge lies on the bound."""
        key_component, key_noise = jax.random.split(key)
        log_weight, mean, log_std = self._components(parameters)
        chosen = jax.random.categorical(key_component, log_weight)[..., None, None]
        m, log_s = (jnp.take_along_axis(x, chosen, axis=-2)[..., 0, :] for x in (mean, log_std))
        a = jnp.tanh(m + jnp.exp(log_s) * jax.random.normal(key_noise, m.shape))
        return jnp.where(jnp.abs(a) < 1.0 - EDGE, a, jnp.sign(a))
