"""Denoising: two ways to noise what was recorded, the regressions that undo it, the way back.

Continuous noise (Karras et al., 2022), x_σ = x + σε with σ drawn at random. The denoiser is
preconditioned, so that its network sees and predicts numbers of unit size at every σ:

    D(x_σ; s, σ) = c_skip x_σ + c_out F(c_in x_σ, s, ¼ ln σ) ≈ E[x | x_σ, s]

Steps t = 0 … T−1 (Ho et al., 2020), x_t = √ᾱ_t x + √(1 − ᾱ_t) ε. The network predicts the noise,
ε(x_t; s, t) ≈ E[ε | x_t, s], and `reverse` walks from noise back to data by these predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from acpo.networks import MLP, mish, normalize

# --- continuous noise ---------------------------------------------------------------------------

SIGMA_DATA = 0.5
"""σ_data, the deviation that data in [−1, 1] is taken to have."""
SIGMA_MIN, SIGMA_MAX = 0.002, 80.0
SIGMA_SPREAD = 0.5
"""Scale of ln σ's logistic distribution around ln σ_data."""
EMBEDDING = 16
"""Numbers that ¼ ln σ is embedded in."""


def draw_sigma(key: Array, shape: tuple[int, ...]) -> Array:
    """σ, log-logistic around σ_data, within [σ_min, σ_max]."""
    ends = (np.log([SIGMA_MIN, SIGMA_MAX]) - np.log(SIGMA_DATA)) / SIGMA_SPREAD
    low, high = 1.0 / (1.0 + np.exp(-ends))
    u = jax.random.uniform(key, shape, minval=low, maxval=high)
    return SIGMA_DATA * jnp.exp(SIGMA_SPREAD * (jnp.log(u) - jnp.log1p(-u)))


class SigmaNet(eqx.Module):
    """F: an MLP of the scaled input, the state, and an embedding of ¼ ln σ."""

    time: MLP
    trunk: MLP

    @classmethod
    def create(
        cls,
        key: Array,
        observation_dim: int,
        dim: int,
        hidden: tuple[int, ...],
    ) -> SigmaNet:
        key_time, key_trunk = jax.random.split(key)
        sizes = (dim + observation_dim + EMBEDDING, *hidden, dim)
        return cls(
            MLP.create(key_time, (EMBEDDING, 2 * EMBEDDING, EMBEDDING), activation=mish),
            MLP.create(key_trunk, sizes, activation=mish),
        )

    def __call__(self, x: Array, observations: Array, time: Array) -> Array:
        half = EMBEDDING // 2
        waves = time[:, None] * np.exp(-np.log(1e4) * np.arange(half) / (half - 1))
        embedded = self.time(jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], axis=-1))
        return self.trunk(jnp.concatenate([x, observations, embedded], axis=-1))


def denoise(net: SigmaNet, noisy: Array, observations: Array, sigma: Array) -> Array:
    """D(x_σ; s, σ), within the box [−1, 1] that data is in."""
    variance = sigma**2 + SIGMA_DATA**2
    c_skip, c_in = SIGMA_DATA**2 / variance, jax.lax.rsqrt(variance)
    output = net(c_in[:, None] * noisy, observations, 0.25 * jnp.log(sigma))
    denoised = c_skip[:, None] * noisy + _c_out(sigma)[:, None] * output
    return jnp.clip(denoised, -1.0, 1.0)


def _c_out(sigma: Array) -> Array:
    return sigma * SIGMA_DATA * jax.lax.rsqrt(sigma**2 + SIGMA_DATA**2)


def denoising_loss(
    net: SigmaNet, x: Array, observations: Array, sigma: Array, noise: Array
) -> Array:
    """E[‖(D(x + σε; s, σ) − x) / c_out‖²] per number of x.

    As a function of the network it is the regression; as one of x, the network at rest, it is
    DTQL's trust region: small where the network has seen data, least at the data's modes.
    """
    denoised = denoise(net, x + sigma[:, None] * noise, observations, sigma)
    return jnp.mean(((denoised - x) / _c_out(sigma)[:, None]) ** 2)


# --- steps --------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """α_t, the share of variance that step t keeps, and ᾱ_t = Π_{i ≤ t} α_i, for t = 0 … T−1."""

    alpha: np.ndarray
    alpha_bar: np.ndarray

    @property
    def sigma(self) -> np.ndarray:
        """√(1 − ᾱ_t), the noise after step t."""
        return np.sqrt(1.0 - self.alpha_bar)


def variance_preserving(count: int, low: float = 0.1, high: float = 10.0) -> Steps:
    """α_t = exp(−β_min/T − ½(β_max − β_min)(2t + 1)/T²): that process, cut into T steps."""
    t = np.arange(count)
    alpha = np.exp(-low / count - 0.5 * (high - low) * (2 * t + 1) / count**2)
    return Steps(alpha.astype(np.float32), np.cumprod(alpha).astype(np.float32))


class StepNet(eqx.Module):
    """Residual blocks over x_t, the state and Fourier features of t.

    Its last output, in SWG the weight's noise, has a head of its own after the second block.
    Blocks are x + up-and-down(dropout, then normalised x); the scale and shift that a layer
    normalisation may learn are the next layer's.
    """

    frequencies: Array
    time: MLP
    first: MLP
    blocks: tuple[MLP, ...]
    head: MLP
    last_head: MLP

    @classmethod
    def create(
        cls, key: Array, observation_dim: int, dim: int, width: int, blocks: int, features: int
    ) -> StepNet:
        keys = iter(jax.random.split(key, 5 + blocks))
        swish = jax.nn.swish
        return cls(
            0.2 * jax.random.normal(next(keys), (features // 2,)),
            MLP.create(next(keys), (features, 2 * features, 2 * features), activation=swish),
            MLP.create(next(keys), (dim + observation_dim + 2 * features, width)),
            tuple(
                MLP.create(next(keys), (width, 4 * width, width), activation=swish)
                for _ in range(blocks)
            ),
            MLP.create(next(keys), (width, dim - 1)),
            MLP.create(next(keys), (width, width, 1), activation=swish),
        )

    def times(self, count: int) -> Array:
        """[T, width] what each step adds to the first layer: one row serves all rows of a batch."""
        waves = 2.0 * jnp.pi * jnp.arange(count)[:, None] * self.frequencies
        embedded = self.time(jnp.concatenate([jnp.cos(waves), jnp.sin(waves)], axis=-1))
        return embedded @ self.first.weights[0][-embedded.shape[-1] :] + self.first.biases[0]

    def __call__(
        self,
        x: Array,
        observations: Array,
        time: Array,
        dropout: float = 0.0,
        key: Array | None = None,
    ) -> Array:
        """ε(x_t; s, t), `time` being rows of `times`; dropout only by a key."""
        inputs = jnp.concatenate([x, observations], axis=-1)
        h = inputs @ self.first.weights[0][: inputs.shape[-1]] + time
        if key is not None:
            shape = (len(self.blocks), *h.shape)
            kept = jax.random.bernoulli(key, 1.0 - dropout, shape) / (1.0 - dropout)
        for i, block in enumerate(self.blocks):
            h = h + block(normalize(h if key is None else h * kept[i]))
            if i == 1:
                last = self.last_head(h)
        return jnp.concatenate([self.head(jax.nn.swish(h)), last], axis=-1)


def noise_loss(
    net: StepNet,
    x: Array,
    observations: Array,
    steps: Steps,
    t: Array,
    noise: Array,
    dropout: float = 0.0,
    key: Array | None = None,
) -> Array:
    """[numbers of x] E[(ε(√ᾱ_t x + √(1 − ᾱ_t) ε; s, t) − ε)²]."""
    noisy = (
        jnp.sqrt(jnp.asarray(steps.alpha_bar))[t][:, None] * x
        + jnp.asarray(steps.sigma)[t][:, None] * noise
    )
    # A product with one-hot rows: its gradient is a product too, and not a scatter.
    count = len(steps.alpha)
    time = jax.nn.one_hot(t, count) @ net.times(count)
    predicted = net(noisy, observations, time, dropout, key)
    return jnp.mean((predicted - noise) ** 2, axis=0)


def reverse(
    predict: Callable[[Array, Array], Array],
    start: Array,
    noise: Array,
    steps: Steps,
    box: tuple[Array, Array],
) -> Array:
    """From x_T = `start` to data: x ← (x − (1 − α_t)/√(1 − ᾱ_t) ε(x, t)) / √α_t + √(1 − α_t) z_t.

    Each step ends within `box`. `noise` [T, …] holds z_t, of which t = 0 is not used; zeros walk
    to where the predictions lead.
    """
    alpha, sigma = jnp.asarray(steps.alpha), jnp.asarray(steps.sigma)

    def step(x: Array, t: Array) -> tuple[Array, None]:
        x = (x - (1.0 - alpha[t]) / sigma[t] * predict(x, t)) * jax.lax.rsqrt(alpha[t])
        x = x + jnp.where(t > 0, jnp.sqrt(1.0 - alpha[t]), 0.0) * noise[t]
        return jnp.clip(x, *box), None

    return jax.lax.scan(step, start, jnp.arange(len(alpha) - 1, -1, -1))[0]
