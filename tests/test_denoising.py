"""Denoising against numpy by hand, and against a density that is known."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from acpo import denoising
from acpo.denoising import SigmaNet, StepNet
from acpo.networks import MLP, mish

ROWS, S, A = 16, 3, 2
MODES, STD = np.array([-0.6, 0.5]), 0.1
STATES = np.array([-0.6, 0.0, 0.9])


def mish64(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.logaddexp(0.0, x))


def swish64(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def layers(net: MLP, x: np.ndarray, activation: Any) -> np.ndarray:
    for weight, bias in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = activation(x @ np.asarray(weight, np.float64) + np.asarray(bias, np.float64))
    return x @ np.asarray(net.weights[-1], np.float64) + np.asarray(net.biases[-1], np.float64)


def larger(net: Any) -> Any:
    """Weights under which every input counts, that of time too."""
    return jax.tree.map(lambda x: 2.5 * x, net)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape, scale=scale).astype(np.float32)


def test_mish_and_its_slope_are_those_of_the_definition() -> None:
    x = np.concatenate([np.linspace(-30, 30, 121), [-100.0, 100.0]])
    np.testing.assert_allclose(mish(jnp.float32(x)), mish64(x), rtol=1e-5, atol=1e-7)
    slope = (mish64(x + 1e-5) - mish64(x - 1e-5)) / 2e-5
    found = jax.vmap(jax.grad(mish))(jnp.float32(x))
    np.testing.assert_allclose(found, slope, rtol=1e-4, atol=1e-5)


# --- continuous noise ---------------------------------------------------------------------------


def test_sigma_is_log_logistic_between_its_bounds() -> None:
    sigma = np.sort(np.asarray(denoising.draw_sigma(jax.random.key(0), (20_000,)), np.float64))
    assert sigma[0] >= 0.002 * (1 - 1e-4)
    assert sigma[-1] <= 80.0 * (1 + 1e-2)
    # P(σ ≤ x) = 1 / (1 + (x/0.5)^(−1/0.5)); the bounds cut off 4e-5 at most
    expected = 1.0 / (1.0 + (sigma / 0.5) ** -2.0)
    drawn = (np.arange(len(sigma)) + 0.5) / len(sigma)
    assert np.abs(expected - drawn).max() < 1.6 / np.sqrt(len(sigma))  # Kolmogorov, 1 %


def sigma_case() -> tuple[SigmaNet, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    net = larger(SigmaNet.create(jax.random.key(1), S, A, (8, 8)))
    sigma = np.geomspace(0.002, 80.0, ROWS).astype(np.float32)
    actions = np.tanh(normal(ROWS, A, seed=1))
    return net, actions, normal(ROWS, S, seed=2), sigma, normal(ROWS, A, seed=3)


def denoised64(net: SigmaNet, noisy: np.ndarray, s: np.ndarray, sigma: float) -> np.ndarray:
    """D of one row."""
    waves = 0.25 * np.log(sigma) * 10_000.0 ** (-np.arange(8) / 7)
    embedded = layers(net.time, np.concatenate([np.sin(waves), np.cos(waves)]), mish64)
    total = np.hypot(sigma, 0.5)
    output = layers(net.trunk, np.concatenate([noisy / total, s, embedded]), mish64)
    mixed = 0.25 / total**2 * noisy + sigma * 0.5 / total * output
    return np.minimum(np.maximum(mixed, -1.0), 1.0)


def test_the_denoising_loss_is_that_of_numpy() -> None:
    net, actions, s, sigma, noise = sigma_case()
    errors = []
    for a, state, level, eps in zip(
        actions.astype(float),
        s.astype(float),
        sigma.astype(float),
        noise.astype(float),
        strict=True,
    ):
        c_out = 0.5 * level / np.hypot(level, 0.5)
        errors.append(((denoised64(net, a + level * eps, state, level) - a) / c_out) ** 2)
    found = jax.jit(denoising.denoising_loss)(net, actions, s, sigma, noise)
    assert float(found) == pytest.approx(np.mean(errors), rel=1e-4)


@cache
def two_modes() -> SigmaNet:
    """A denoiser of two modes, shifted by the state; the upper has a share of ½ + ⅓ s."""

    def draw(key: Any) -> tuple[Any, Any]:
        key_s, key_mode, key_noise = jax.random.split(key, 3)
        s = jax.random.uniform(key_s, (256, 1), minval=-1.0, maxval=1.0)
        upper = jax.random.uniform(key_mode, s.shape) < 0.5 + s / 3.0
        mean = jnp.where(upper, MODES[1], MODES[0]) + 0.2 * s
        return s, mean + STD * jax.random.normal(key_noise, s.shape)

    def loss(net: SigmaNet, key: Any) -> Any:
        key_data, key_sigma, key_noise = jax.random.split(key, 3)
        s, x = draw(key_data)
        noise = jax.random.normal(key_noise, x.shape)
        return denoising.denoising_loss(
            net, x, s, denoising.draw_sigma(key_sigma, (len(x),)), noise
        )

    optimiser = optax.adam(optax.cosine_decay_schedule(1e-2, 2000))

    @jax.jit
    def train(net: SigmaNet, keys: Any) -> SigmaNet:
        def step(carry: Any, key: Any) -> Any:
            net, state = carry
            updates, state = optimiser.update(jax.grad(loss)(net, key), state)
            return (optax.apply_updates(net, updates), state), None

        return jax.lax.scan(step, (net, optimiser.init(net)), keys)[0][0]

    net = SigmaNet.create(jax.random.key(0), 1, 1, (48, 48))
    return train(net, jax.random.split(jax.random.key(1), 2000))


def mixture(state: Any) -> tuple[Any, Any]:
    """Shares and means of the two modes at a state."""
    return np.stack([0.5 - state / 3.0, 0.5 + state / 3.0], -1), MODES + 0.2 * state[..., None]


@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.5, 2.0])
def test_a_trained_denoiser_is_the_posterior_mean_of_the_density(sigma: float) -> None:
    """E[x | x_σ] of a Gaussian mixture: responsibilities times each mode's shrunk mean."""
    total = STD**2 + sigma**2
    state, x = (grid.ravel() for grid in np.meshgrid(STATES, np.linspace(-2.0, 2.0, 81)))
    share, means = mixture(state)
    density = share * np.exp(-0.5 * (x[:, None] - means) ** 2 / total)
    posterior = density / density.sum(axis=1, keepdims=True)
    expected = (posterior * (means + STD**2 / total * (x[:, None] - means))).sum(axis=1)
    found = jax.jit(denoising.denoise)(
        two_modes(), jnp.float32(x)[:, None], jnp.float32(state)[:, None], jnp.full(len(x), sigma)
    )
    likely = density.sum(axis=1) > 0.05 * density.sum(axis=1).max()
    error = np.abs(np.asarray(found)[:, 0] - expected)[likely]
    assert error.max() < 0.2  # where one mode gives way to the other
    assert error.mean() < 0.04


def test_samples_of_a_trained_denoiser_have_the_modes_and_shares_of_the_density() -> None:
    steps = denoising.variance_preserving(80)
    alpha_bar = jnp.asarray(steps.alpha_bar)
    s = jnp.repeat(jnp.float32(STATES), 2000)[:, None]

    def predict(x: Any, t: Any) -> Any:
        """ε of x_t, whose noise over signal is σ = √((1 − ᾱ)/ᾱ)."""
        sigma = jnp.full(len(x), jnp.sqrt((1.0 - alpha_bar[t]) / alpha_bar[t]))
        noisy = x * jax.lax.rsqrt(alpha_bar[t])
        return (noisy - denoising.denoise(two_modes(), noisy, s, sigma)) / sigma[:, None]

    start, noise = normal(*s.shape, seed=11), normal(80, *s.shape, seed=12)
    wide = (jnp.float32(-9.0), jnp.float32(9.0))
    drawn = denoising.reverse(predict, jnp.asarray(start), jnp.asarray(noise), steps, wide)
    for x, state in zip(np.asarray(drawn).reshape(3, -1), STATES, strict=True):
        share, means = mixture(state)
        upper = x > means.mean()
        assert upper.mean() == pytest.approx(share[1], abs=0.04)
        for mode, rows in zip(means, (~upper, upper), strict=True):
            assert x[rows].mean() == pytest.approx(mode, abs=0.04)
            # A few strays between the modes would rule the second moment.
            quartiles = np.percentile(x[rows], [25, 75])
            assert np.diff(quartiles)[0] / 1.349 == pytest.approx(STD, abs=0.025)


def test_with_the_denoiser_at_rest_the_loss_is_least_at_the_modes_of_the_data() -> None:
    """DTQL's trust region: two wells, and a wall between them and outside. The wells of an exact
    denoiser are 0.05 inside of the modes, for at large σ it knows no more than the mean."""
    grid, draws = np.linspace(-1.0, 1.0, 81), 512
    sigma = denoising.draw_sigma(jax.random.key(3), (draws,))
    noise = jnp.asarray(normal(draws, 1, seed=13))
    s = jnp.zeros((draws, 1))

    def trust(x: Any) -> Any:
        return denoising.denoising_loss(two_modes(), jnp.full((draws, 1), x), s, sigma, noise)

    loss = np.asarray(jax.jit(jax.vmap(trust))(jnp.float32(grid)))
    lower, upper = grid < MODES.mean(), grid >= MODES.mean()
    for mode, side in zip(MODES, (lower, upper), strict=True):
        assert grid[side][loss[side].argmin()] == pytest.approx(mode, abs=0.1)
    at_modes = np.interp(MODES, grid, loss)
    assert at_modes.max() < 1.1 * loss.min()
    assert np.interp(MODES.mean(), grid, loss) > 1.5 * at_modes.max()
    assert min(loss[0], loss[-1]) > 1.5 * at_modes.max()


# --- steps --------------------------------------------------------------------------------------


def test_the_variance_preserving_steps_keep_what_the_process_keeps() -> None:
    """ᾱ at step t is exp(−∫ β), β rising from 0.1 to 10 over the process."""
    steps = denoising.variance_preserving(15)
    end = np.arange(1, 16) / 15
    np.testing.assert_allclose(steps.alpha_bar, np.exp(-0.1 * end - 4.95 * end**2), rtol=1e-5)
    np.testing.assert_allclose(steps.alpha[1:], steps.alpha_bar[1:] / steps.alpha_bar[:-1], 1e-5)
    np.testing.assert_allclose(steps.sigma, np.sqrt(1.0 - steps.alpha_bar), rtol=1e-6)


def step_case(seed: int = 0) -> tuple[StepNet, np.ndarray, np.ndarray]:
    net = larger(StepNet.create(jax.random.key(seed), S, A + 1, 8, 3, 6))
    return net, normal(ROWS, A + 1, seed=4), normal(ROWS, S, seed=5)


def noise64(net: StepNet, x: np.ndarray, s: np.ndarray, t: int) -> np.ndarray:
    """ε of one row."""
    waves = 2.0 * np.pi * t * np.asarray(net.frequencies, np.float64)
    embedded = layers(net.time, np.concatenate([np.cos(waves), np.sin(waves)]), swish64)
    h = layers(net.first, np.concatenate([x, s, embedded]), None)
    for i, block in enumerate(net.blocks):
        h = h + layers(block, (h - h.mean()) / np.sqrt(h.var() + 1e-5), swish64)
        if i == 1:
            last = layers(net.last_head, h, swish64)
    return np.concatenate([layers(net.head, swish64(h), None), last])


def test_the_noise_loss_is_that_of_numpy() -> None:
    net, z, s = step_case()
    steps, noise = denoising.variance_preserving(15), normal(ROWS, A + 1, seed=6)
    t = np.random.default_rng(0).integers(0, 15, ROWS)
    errors = []
    for i in range(ROWS):
        kept = float(steps.alpha_bar[t[i]])
        noisy = np.sqrt(kept) * z[i].astype(float) + np.sqrt(1 - kept) * noise[i].astype(float)
        errors.append((noise64(net, noisy, s[i].astype(float), t[i]) - noise[i]) ** 2)
    found = jax.jit(lambda *given: denoising.noise_loss(net, z, s, steps, *given))(t, noise)
    np.testing.assert_allclose(found, np.mean(errors, axis=0), rtol=1e-4)


def test_dropout_changes_the_prediction_only_with_a_key_and_not_its_first_layer() -> None:
    net, z, s = step_case()
    time = net.times(15)[jnp.zeros(ROWS, int)]
    plain = net(z, s, time)
    np.testing.assert_array_equal(net(z, s, time, 0.5), plain)
    np.testing.assert_allclose(net(z, s, time, 0.0, jax.random.key(0)), plain, atol=1e-6)
    dropped = net(z, s, time, 0.5, jax.random.key(0))
    assert np.abs(dropped - plain).max() > 0.01
    # The residual path is never dropped: with blocks that give nothing, nothing changes.
    silent = jax.tree.map(jnp.zeros_like, net.blocks)
    quiet = StepNet(net.frequencies, net.time, net.first, silent, net.head, net.last_head)
    np.testing.assert_array_equal(quiet(z, s, time, 0.5, jax.random.key(0)), quiet(z, s, time))


def test_the_way_back_follows_its_equation_and_stays_in_its_box() -> None:
    steps = denoising.variance_preserving(4)
    start, noise = normal(5, 2, seed=7), normal(4, 5, 2, seed=8)
    x = start.astype(np.float64)
    for t in (3, 2, 1, 0):
        alpha, bar = float(steps.alpha[t]), float(steps.alpha_bar[t])
        x = (x - (1 - alpha) / np.sqrt(1 - bar) * (np.sin(x) + t)) / np.sqrt(alpha)
        if t > 0:
            x = x + np.sqrt(1 - alpha) * noise[t]
        x = np.clip(x, [-1.0, 0.1], [1.0, 0.7])
    found = denoising.reverse(
        lambda x, t: jnp.sin(x) + t,
        jnp.asarray(start),
        jnp.asarray(noise),
        steps,
        (jnp.array([-1.0, 0.1]), jnp.array([1.0, 0.7])),
    )
    np.testing.assert_allclose(found, x, atol=1e-5)


def test_the_way_back_from_noise_reaches_a_gaussian_that_is_known() -> None:
    """With the exact ε of N(m, v), many steps give back m and v."""
    steps = denoising.variance_preserving(200)
    bar, sigma = jnp.asarray(steps.alpha_bar), jnp.asarray(steps.sigma)
    m, v = 0.3, 0.04

    def predict(x: Any, t: Any) -> Any:
        return sigma[t] * (x - jnp.sqrt(bar[t]) * m) / (bar[t] * v + 1.0 - bar[t])

    x = denoising.reverse(
        predict,
        jnp.asarray(normal(4000, 1, seed=9)),
        jnp.asarray(normal(200, 4000, 1, seed=10)),
        steps,
        (jnp.float32(-9), jnp.float32(9)),
    )
    assert float(x.mean()) == pytest.approx(m, abs=0.02)
    assert float(x.std()) == pytest.approx(0.2, abs=0.02)
