"""A conditional variational auto-encoder as behaviour density, with SPOT's settings.

    p(a|s) = ∫ N(a; d(s,z), σ²) N(z; 0, I) dz,   q(z|s,a) = N(z; m(s,a), diag v(s,a))

The integral has no closed form. Two estimators of its logarithm, with z_1 … z_L ~ q(·|s,a):

    ELBO   mean_l log p(a|s,z_l) − KL(q ‖ N(0, I))
    IS     log mean_l [p(a|s,z_l) p(z_l) / q(z_l|s,a)]

The ELBO lies below log p(a|s) by KL(q ‖ p(z|s,a)); the other one rises to log p(a|s) as L grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.behavior.density import Density
from acpo.networks import LOG_2PI, MLP, Gaussian

LOG_STD_MIN, LOG_STD_MAX = -4.0, 15.0
# Latents of the prior are cut here wherever actions are proposed: likely ones only.
LATENT_CLIP = 0.5


class CVAENet(NamedTuple):
    encoder: MLP
    decoder: MLP


@dataclass(frozen=True)
class CVAEDensity(Density):
    """p(a|s) above; latents of 2·a_dim numbers, a decoder that ends in tanh."""

    estimator: Literal["elbo", "is"] = "is"
    hidden: tuple[int, ...] = (750, 750)
    beta: float = 0.5
    """β, the price of the KL term in the loss."""
    latents: int = 8
    """L, latents per estimate."""

    @property
    def family(self) -> str:
        return "cvae"

    @property
    def std(self) -> float:
        """σ = √(β/4): the decoder's deviation for which SPOT's loss is affine to the ELBO."""
        return float(np.sqrt(self.beta / 4.0))

    def init(self, key: Array, observation_dim: int, action_dim: int) -> CVAENet:
        key_encoder, key_decoder = jax.random.split(key)
        s, a, z = observation_dim, action_dim, 2 * action_dim
        return CVAENet(
            encoder=MLP.create(key_encoder, (s + a, *self.hidden, 2 * z)),
            decoder=MLP.create(key_decoder, (s + z, *self.hidden, a)),
        )

    # --- the model ------------------------------------------------------------------------------

    def encode(self, net: CVAENet, observations: Array, actions: Array) -> Gaussian:
        """q(z|s,a)."""
        output = net.encoder(jnp.concatenate([observations, actions], axis=-1))
        mean, log_std = jnp.split(output, 2, axis=-1)
        return Gaussian(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))

    def decode(self, net: CVAENet, observations: Array, z: Array) -> Array:
        """d(s,z) for z [rows, L, z_dim]: the state's share of the first layer serves all L."""
        first, *_ = net.decoder.weights
        from_state, from_latent = jnp.split(first, [observations.shape[-1]])
        x = (observations @ from_state)[:, None] + z @ from_latent + net.decoder.biases[0]
        rest = MLP(net.decoder.weights[1:], net.decoder.biases[1:])
        return jnp.tanh(rest(jax.nn.relu(x)))

    def propose(self, net: CVAENet, observations: Array, noise: Array) -> Array:
        """[rows, L, a] d(s,z), actions like the data's, of z = clip(noise, ±½), [rows, L, z]."""
        return self.decode(net, observations, jnp.clip(noise, -LATENT_CLIP, LATENT_CLIP))

    def loss(self, net: CVAENet, observations: Array, actions: Array, key: Array) -> Array:
        """MSE + β·KL, both averaged over dimensions: −ELBO up to scale and a constant.

        No log-density, and never to be used as one.
        """
        q = self.encode(net, observations, actions)
        z = _draw(q, key, 1)
        error = actions[:, None] - self.decode(net, observations, z)
        return jnp.mean(error**2) + self.beta * jnp.mean(_divergence(q))

    # --- estimators of log πβ(a|s) --------------------------------------------------------------

    def score(self, net: CVAENet, observations: Array, actions: Array, key: Array) -> Array:
        """The ELBO with one latent."""
        q = self.encode(net, observations, actions)
        return self.elbo(net, q, observations, actions, _draw(q, key, 1))

    def log_prob(self, net: CVAENet, observations: Array, actions: Array, key: Array) -> Array:
        q = self.encode(net, observations, actions)
        z = _draw(q, key, self.latents)
        estimate = self.elbo if self.estimator == "elbo" else self.importance_sampled
        return estimate(net, q, observations, actions, z)

    def elbo(
        self, net: CVAENet, q: Gaussian, observations: Array, actions: Array, z: Array
    ) -> Array:
        """E_q[log p(a|s,z)] − KL(q(z|s,a) ‖ N(0, I)), the mean over z [rows, L, z_dim]."""
        likelihood = self.log_likelihood(net, observations, actions, z)
        return likelihood.mean(axis=-1) - _divergence(q).sum(axis=-1)

    def importance_sampled(
        self, net: CVAENet, q: Gaussian, observations: Array, actions: Array, z: Array
    ) -> Array:
        """log Σ_l exp[log p(a|s,z_l) + log p(z_l) − log q(z_l|s,a)] − log L."""
        likelihood = self.log_likelihood(net, observations, actions, z)
        prior = _normal(z, 0.0, 0.0)
        proposal = _normal(z, q.mean[:, None], q.log_std[:, None])
        return jax.nn.logsumexp(likelihood + prior - proposal, axis=-1) - np.log(z.shape[1])

    def log_likelihood(self, net: CVAENet, observations: Array, actions: Array, z: Array) -> Array:
        """[rows, L] log p(a|s,z) = log N(a; d(s,z), σ²)."""
        return _normal(actions[:, None], self.decode(net, observations, z), np.log(self.std))

    def sample(self, net: CVAENet, observations: Array, key: Array) -> Array:
        """a ~ N(d(s,z), σ²) with z ~ N(0, I), clipped to the box."""
        key_latent, key_action = jax.random.split(key)
        z_dim = len(net.decoder.weights[0]) - observations.shape[-1]
        z = jax.random.normal(key_latent, (len(observations), 1, z_dim))
        mean = self.decode(net, observations, z)[:, 0]
        return jnp.clip(mean + self.std * jax.random.normal(key_action, mean.shape), -1.0, 1.0)


def _draw(q: Gaussian, key: Array, count: int) -> Array:
    """z [rows, count, z_dim] ~ q."""
    rows, z_dim = q.mean.shape
    noise = jax.random.normal(key, (rows, count, z_dim))
    return q.mean[:, None] + jnp.exp(q.log_std)[:, None] * noise


def _divergence(q: Gaussian) -> Array:
    """KL(N(m, v) ‖ N(0, 1)) = ½ (m² + v − 1 − log v), per dimension."""
    return 0.5 * (q.mean**2 + jnp.exp(2.0 * q.log_std) - 1.0 - 2.0 * q.log_std)


def _normal(x: Array, mean: Array | float, log_std: Array | float) -> Array:
    """log N(x; mean, σ²), summed over the last axis."""
    z = (x - mean) * jnp.exp(-log_std)
    return jnp.sum(-0.5 * z**2 - log_std - 0.5 * LOG_2PI, axis=-1)
